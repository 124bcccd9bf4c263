"""`frazil content fields` and `backfill`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.content_edit import Wait
from frazil.cli.content_look import SECTIONS, opened
from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.topic_session import DryRun, Yes, confirmed
from frazil.errors import ConfigError, ConflictError, NotFoundError, UsageError

if TYPE_CHECKING:
    from frazil.content.fields import Fields
    from frazil.content.fields.overview import Overview
    from frazil.content.scan.session import ScanSession
    from frazil.settings import Settings


def fields(
    run: Run,
    apply: Annotated[bool, typer.Option("--apply", help="add the columns in the settings to the table now")] = False,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="NAME", help="drop this column; may be repeated")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    wait: Wait = True,
    catalog: CatalogOption = None,
) -> None:
    """Show the custom columns of the table and of the settings, and how many rows have no value for each.

    A pipeline adds the columns in its settings to the table when it starts; --apply adds them while one runs. A column
    that the settings no longer name is kept until you drop it with --drop.
    """
    if not apply and not drop:
        if yes or dry_run:
            raise UsageError("--yes and --dry-run require --apply or --drop", hint="frazil content fields --apply")
        _print(run, _looked_at(run, catalog)[1])
        return
    settings, found = _looked_at(run, catalog, count=False)
    gone = _droppable(found, drop or ())
    if apply:
        _refuse(found, [name for name, _ in found.plan.refused])
    made = found.wanted if apply else found.have.only(())
    changes = found.plan.changes if apply else ()
    keeps = made.include_raw_metadata if made.include_raw_metadata != found.have.include_raw_metadata else None
    plan = {
        "add": [spec.name for spec in found.plan.add if spec in changes],
        "widen": [spec.name for spec in found.plan.widen if spec in changes],
        "redefine": [spec.name for spec in found.plan.redefine if spec in changes],
        "drop": gone,
        "include_raw_metadata": keeps,
    }
    if not changes and not gone and keeps is None:
        dry_run, yes = True, False
        run.printer.note("nothing to do: the table already has the columns in the settings")
    # What is added can be dropped again; what is dropped is gone.
    sure = yes or not (gone or dry_run)
    with confirmed(run, plan, yes=sure, dry_run=dry_run, what="dropping columns") as go:
        if go:
            with opened(run, settings, catalog) as session:
                _publish(session, made, drop=gone, wait=wait)
    if go and changes:
        run.printer.note(f"for existing rows: frazil content backfill --field {changes[0].name}")


def backfill(
    run: Run,
    field: Annotated[
        list[str] | None, typer.Option("--field", metavar="NAME", help="compute this custom column; may be repeated")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="compute every custom column in the settings")] = False,
    wait: Wait = True,
    catalog: CatalogOption = None,
) -> None:
    """Compute custom columns for existing rows from the JSON in `metadata`. No object is read again.

    First, missing columns in the settings are added to the table. The pipeline computes the values between batches; if
    none runs, this command does so itself, on Spark.
    """
    if bool(field) == all_:
        raise UsageError("no columns to compute were given", hint="--field NAME, or --all")
    began = time.monotonic()
    settings, found = _looked_at(run, catalog, count=False)
    names = list(dict.fromkeys(field or found.wanted.names or found.have.names))
    _require_known(found, names)
    _refuse(found, names)
    made = _told(found)
    if not made.include_raw_metadata:
        raise ConfigError(
            "the columns cannot be computed: metadata was not kept",
            cause=f"{settings.origin(_RAW)}: {'.'.join(_RAW)} is false",
            hint=f"{'.'.join(_RAW)}: true, and frazil content extract",
        )
    with opened(run, settings, catalog) as session:
        end = _publish(session, made, backfill=names, wait=wait)
        summary: dict[str, Any] = {"fields": names, "offset": end - 1, "done": wait}
        if wait:
            from frazil.content.fields.wait_filled import wait_until_filled

            with session.waiting_for(end):
                wait_until_filled(settings, session.access, session.engine, names, catalog=catalog)
            lacking = _filled(run, made, names, catalog)
            summary |= {"lacking": lacking, "seconds": round(time.monotonic() - began, 3)}
    run.printer.record(summary)
    if not wait:
        run.printer.note(
            "the request is in the log and runs when a pipeline runs; frazil content fields shows the progress"
        )


# -- what they share ---------------------------------------------------------------------------------------------------

_RAW = ("content", "schema", "include_raw_metadata")


def _looked_at(run: Run, catalog: str | None, *, count: bool = True) -> tuple[Settings, Overview]:
    """The settings, and how it stands. Nothing is started for it."""
    from frazil.content.fields.configured import load_configured
    from frazil.content.fields.overview import overview
    from frazil.content.tables import ContentTables
    from frazil.tables.store import LazyStore
    from frazil.topics.sinks.jobs import for_pipeline

    settings = for_pipeline(run.settings(*SECTIONS))
    wanted = load_configured(settings)
    with LazyStore(settings, catalog) as store:
        return settings, overview(ContentTables.of(store.store(), settings), wanted, count=count)


def _told(found: Overview) -> Fields:
    """What a message says of fields: all of the settings that can be. Without any, how the table computes stays."""
    if not found.wanted.fields:
        return found.have.only(())
    refused = dict(found.plan.refused)
    return found.wanted.only([name for name in found.wanted.names if name not in refused])


def _require_known(found: Overview, names: Sequence[str]) -> None:
    known = [*found.wanted.names, *found.plan.drop]
    if not names or (unknown := next((name for name in names if name not in known), None)) is not None:
        raise NotFoundError(
            f"unknown custom column '{unknown}'" if names else "no custom columns are configured",
            cause=f"configured: {', '.join(known)}" if known else None,
            hint=f"content.schema.custom_metadata_fields: {unknown if names else 'NAME, …'}",
        )


def _refuse(found: Overview, names: Sequence[str]) -> None:
    refused = dict(found.plan.refused)
    for name in names:
        if name in refused:
            raise ConfigError(
                f"the custom column '{name}' cannot be changed to match the settings; nothing was changed",
                cause=refused[name],
                hint="frazil content fields",
            )


def _droppable(found: Overview, names: Sequence[str]) -> list[str]:
    from frazil.content.fields.spec import STANDARD

    for name in names:
        if name in STANDARD and found.have.get(name) is None:
            raise UsageError(
                f"'{name}' is a built-in column and cannot be dropped", hint="change its jpath in the settings"
            )
        if found.have.get(name) is None:
            known = ", ".join(found.have.names) or "none"
            raise NotFoundError(
                f"the table has no custom column '{name}'", cause=f"it has: {known}", hint="frazil content fields"
            )
        if found.wanted.get(name) is not None:
            raise UsageError(
                f"the settings still name '{name}': the next pipeline would add it again",
                hint=f"remove {name} from content.schema.custom_metadata_fields first",
            )
    return list(dict.fromkeys(names))


def _publish(
    session: ScanSession, made: Fields, *, drop: Sequence[str] = (), backfill: Sequence[str] = (), wait: bool
) -> int:
    """Tells the log, and where that is wanted waits until the table is so. The offset after the message."""
    from frazil.content.annotations import messages
    from frazil.content.intake.messages import headers_of, store
    from frazil.content.topic import ensure_events_topic

    message = messages.fields(
        [spec.to_json() for spec in made],
        cast=made.cast,
        include_raw_metadata=made.include_raw_metadata,
        drop=drop,
        backfill=backfill,
    )
    if wait:
        session.require_writable()
    topic = ensure_events_topic(session.access, session.settings).name
    end = store(session.access, topic, [message], headers_of("fields"), internal=True).offset + 1
    if wait:
        session.wait_until_visible(end)
    return end


def _filled(run: Run, made: Fields, names: Sequence[str], catalog: str | None) -> dict[str, int]:
    """How many rows still lack each.

    Raises:
        ConflictError: the table has not taken the definition: another message came first.
    """
    found = _looked_at(run, catalog)[1]
    for name in names:
        wanted, have = made.get(name), found.have.get(name)
        if have is None or (wanted is not None and (have.type, have.jpath) != (wanted.type, wanted.jpath)):
            raise ConflictError(
                f"the table did not accept the change of the custom column '{name}'",
                cause="a concurrent change conflicts with it; see the log of the pipeline",
                hint="frazil content fields",
            )
    return {name: found.lacking.get(name, 0) for name in names}


def _print(run: Run, found: Overview) -> None:
    rows = found.rows()
    if run.printer.json_output:
        run.printer.json(
            {"cast": found.wanted.cast, "include_raw_metadata": found.wanted.include_raw_metadata, "fields": rows}
        )
        return
    columns = ("name", "type", "jpath", "state", "lacking", "filling")
    run.printer.rows(columns, [[row[c] for c in columns] for row in rows], none="no custom columns")
    for row in rows:
        if row["why"]:
            run.printer.note(f"{row['name']}: {row['why']}")
    if found.plan.changes:
        run.printer.note("to add them to the table: frazil content fields --apply, or start a pipeline")
    if found.plan.drop:
        run.printer.note(
            f"no longer in the settings: {', '.join(found.plan.drop)}: frazil content fields --drop NAME --yes"
        )
    behind = [name for name, count in found.lacking.items() if count and name not in found.filling]
    if behind:
        run.printer.note(
            f"some rows have no value for {', '.join(behind)}: frazil content backfill --field {behind[0]}"
        )
