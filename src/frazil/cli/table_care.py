"""`frazil table health`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run, TableName

if TYPE_CHECKING:
    from frazil.upkeep.model import Step
    from frazil.upkeep.plans.health import Health

_SECTIONS = (*CATALOG_SECTIONS, "topics", "upkeep")
_BAR = 24


def health(
    run: Run,
    table: TableName,
    policy: Annotated[bool, typer.Option("--policy", help="also show the policy and the source of each value")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Show the state of a table and the next steps of its policy. Reads only metadata and changes nothing.

    JSON output always includes the policy. Exit codes: 2 if the policy contradicts itself, 10 if the table does not
    exist.
    """
    from frazil.upkeep.plans.health import examine
    from frazil.upkeep.runs.history import History
    from frazil.upkeep.runs.open_context import open_context

    with open_context(run.settings(*_SECTIONS), catalog) as care:
        history = History(care.store, care.settings.model.upkeep.history)
        found = examine(care, table, last=history.last(table))
    if run.printer.json_output:
        run.printer.json(found.to_dict())
        return
    for line in _lines(found):
        print(line)
    print_steps(run, found.steps)
    for note in found.notes:
        print(f"\nnote: {note}")
    if policy:
        print("\npolicy")
        rows = [[name, _value(name, told["value"]), told["source"]] for name, told in found.policy.items()]
        run.printer.rows(("setting", "value", "source"), rows)


def print_steps(run: Run, steps: Sequence[Step]) -> None:
    """What is next, as people read it."""
    if not steps:
        print("\nnext: nothing to do, the table complies with its policy")
        return
    print("\nnext")
    rows = [[n, s.kind, "urgent" if s.urgent else "", s.why, gains(s), costs(s)] for n, s in enumerate(steps, 1)]
    run.printer.rows(("", "step", "", "why", "gain", "cost"), rows)


def gains(step: Step) -> str:
    from frazil.upkeep.plans.format_amounts import format_size

    said = [
        format_size(number) if name == "bytes" else f"{number:,} {name.replace('_', ' ')}"
        for name, number in step.gain.items()
        if number
    ]
    return ", ".join(said)


def costs(step: Step) -> str:
    from frazil.upkeep.plans.format_amounts import format_size

    return f"about {format_size(step.cost)}" if step.cost else ""


def _value(name: str, value: Any) -> Any:
    from frazil.upkeep.plans.format_amounts import format_age, format_size

    if isinstance(value, list):
        return ", ".join(value) or None
    if value is None or isinstance(value, (bool, str)):
        return value
    if name.endswith("_s"):
        return format_age(value)
    return format_size(value) if name.endswith("_size") else value


def _lines(found: Health) -> Iterator[str]:
    from frazil.upkeep.plans.format_amounts import format_age, format_count, format_size

    yield f"{found.table}, format version {found.format_version}, at {found.taken_at}"
    if found.snapshot_id is None:
        yield "nothing has been written yet"
        return
    files, manifests, snapshots, metadata = found.files, found.manifests, found.snapshots, found.metadata
    yield ""
    yield f"rows        {found.rows:,}{_deleted(found)}"
    yield f"files       {files['count']:,} with {format_size(files['bytes'])}; small: {files['small']:,}"
    yield (
        f"            smallest {format_size(files['least'])}, median {format_size(files['median'])}, "
        f"largest {format_size(files['most'])}, target {format_size(files['target'])}"
    )
    yield from _histogram(found)
    yield f"deletes     {_deletes(found.deletes)}"
    specs = f", of {len(found.specs)} specs" if len(found.specs) > 1 else ""
    yield f"partitions  {found.partitions:,}{specs}"
    if found.partitions > 1:
        yield from _largest(found)
    yield f"manifests   {manifests['count']:,} with {format_size(manifests['bytes'])}; small: {manifests['small']:,}"
    yield f"snapshots   {snapshots['count']:,}, the oldest {format_age(snapshots['oldest_age_s'])} old"
    yield from _refs(found)
    yield f"metadata    {format_size(metadata['bytes'])}; metadata.json {_json(metadata)}"
    if found.expired["count"]:
        yield f"expired     files on {format_count(found.expired['count'], 'list')} wait for their grace period"
    yield f"growth      {_growth(found.growth)}"
    last = found.last_upkeep
    yield "last upkeep " + ("none in the history" if last is None else f"{last['kind']}, {last['at']}")


def _deleted(found: Health) -> str:
    return f", {found.deleted_rows:,} of them deleted ({found.delete_ratio:.1%})" if found.deleted_rows else ""


def _histogram(found: Health) -> Iterator[str]:
    from frazil.upkeep.plans.format_amounts import format_size

    most = max((tier.files for tier in found.tiers), default=0)
    for tier in found.tiers:
        if tier.files:
            edge = f"below {format_size(tier.below)}" if tier.below is not None else "large enough"
            bar = "█" * max(1, round(_BAR * tier.files / most))
            yield f"            {edge:<16} {tier.files:>8,}  {bar:<{_BAR}}  {format_size(tier.bytes)}"


def _deletes(deletes: Mapping[str, int]) -> str:
    from frazil.upkeep.plans.format_amounts import format_count

    said = []
    if deletes["position_files"]:
        said.append(f"{format_count(deletes['position_files'], 'position-delete file')}")
    if deletes["vectors"]:
        said.append(f"{format_count(deletes['vectors'], 'deletion vector')}")
    if deletes["equality_files"]:
        said.append(f"{format_count(deletes['equality_files'], 'equality-delete file')}, which every reader must apply")
    if deletes["dangling"]:
        said.append(f"{deletes['dangling']:,} of these refer to removed data files")
    return "; ".join(said) or "none"


def _largest(found: Health) -> Iterator[str]:
    from frazil.upkeep.plans.format_amounts import format_count, format_size

    names = [", ".join(f"{k}={v}" for k, v in part.partition.items()) or "(none)" for part in found.largest]
    width = max(map(len, names))
    for name, part in zip(names, found.largest, strict=True):
        small = f", {part.small_files:,} small" if part.small_files else ""
        size = format_size(part.bytes)
        yield f"            {name:<{width}}  {size:>9}  {format_count(part.files, 'file')}{small}"


def _refs(found: Health) -> Iterator[str]:
    said = [f"{'pin' if ref.pin else ref.kind} {ref.name}" for ref in found.refs]
    if said != ["branch main"] and said:
        yield f"refs        {', '.join(said)}"


def _json(metadata: Mapping[str, Any]) -> str:
    from frazil.upkeep.plans.format_amounts import format_count, format_size

    size = "of unknown size" if metadata["json_bytes"] is None else format_size(metadata["json_bytes"])
    return f"{size}, {format_count(metadata['versions'], 'version')} kept"


def _growth(growth: Mapping[str, float] | None) -> str:
    from frazil.upkeep.plans.format_amounts import format_age, format_size

    if growth is None:
        return "unknown: the history is too short"
    parts = [f"{growth[name]:+,.0f} {name}" for name in ("rows", "files", "commits")]
    size = ("+" if growth["bytes"] >= 0 else "") + format_size(growth["bytes"])
    return f"a day {size}, {', '.join(parts)} (over {format_age(growth['over_s'])})"
