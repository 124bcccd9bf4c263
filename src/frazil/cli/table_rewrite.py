"""`frazil table compact|manifests|stats` and `frazil table partition plan|apply`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run, TableName, command, new_app

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext
    from frazil.upkeep.model import Kind
    from frazil.upkeep.runs.rewrite_table import RewriteReport

_SECTIONS = (*CATALOG_SECTIONS, "topics", "upkeep", "spark")
_BUDGET = "1GiB"

DryRun = Annotated[bool, typer.Option("--dry-run", help="only show what would be done and what it would gain")]
Budget = Annotated[
    str, typer.Option(metavar="SIZE", help="bytes to rewrite per commit; a run may make several commits")
]
TargetSize = Annotated[
    str | None, typer.Option(metavar="SIZE", help="size of a new file, such as 256MiB [default: the policy's]")
]

partition_app = new_app(
    "Propose and change the partitioning of a table.", example="frazil table partition plan demo.photos"
)


class Strategy(StrEnum):
    auto = "auto"
    binpack = "binpack"
    sort = "sort"
    zorder = "zorder"


def compact(
    run: Run,
    table: TableName,
    target: TargetSize = None,
    min_files: Annotated[
        int | None,
        typer.Option(min=1, help="small files in a partition that trigger a rewrite [default: the policy's]"),
    ] = None,
    strategy: Annotated[
        Strategy | None, typer.Option(help="auto: by the table's sort order [default: the policy's]")
    ] = None,
    sort_by: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="for sort and zorder; may be repeated: 'name desc'")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="only partitions that match this SQL condition")
    ] = None,
    budget: Budget = _BUDGET,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Merge small files, and rewrite files with many deleted rows, until none are left.

    Each commit is final; Ctrl-C stops between two commits. Rows that other writers delete during a rewrite stay
    deleted. Exit codes: 2 if a column or option does not fit, 10 if the table does not exist, 11 if other writers won
    every retry, 12 if writing to the table is not allowed.
    """
    from frazil.cli.amounts import size
    from frazil.upkeep.runs.rewrite_table import compaction_options, rewrite_table

    target_bytes, bytes_each = None if target is None else size(target), size(budget)
    with _open(run, catalog) as care:
        found = care.load(table)
        options = compaction_options(
            care,
            found,
            target=target_bytes,
            min_files=min_files,
            strategy=strategy and strategy.value,
            sort_by=sort_by,
            where=where,
            budget=bytes_each,
        )
        if dry_run:
            _preview(run, care, found, "compact", options)
            return
        report = rewrite_table(care, found, "compact", options)
    _print(run, report)


def manifests(
    run: Run,
    table: TableName,
    min_files: Annotated[int, typer.Option(min=2, help="small manifests that trigger a rewrite")] = 2,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Merge small manifests into fewer ones, sorted by partition, so that queries are planned faster.

    Exit codes: 10 if the table does not exist, 11 if other writers won every retry, 12 if writing to the table is not
    allowed.
    """
    from frazil.upkeep.runs.rewrite_table import rewrite_table

    options = {"small": min_files}
    with _open(run, catalog) as care:
        found = care.load(table)
        if dry_run:
            _preview(run, care, found, "manifests", options)
            return
        report = rewrite_table(care, found, "manifests", options)
    _print(run, report)


def stats(
    run: Run,
    table: TableName,
    column: Annotated[list[str] | None, typer.Option(help="only this column; may be repeated")] = None,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Count the distinct values of each column, for query planners. Reads all rows of the current snapshot.

    Exit codes: 1 if the catalog cannot store statistics, 2 if a column is unknown, 10 if the table does not exist, 11
    if other writers won every retry, 12 if writing to the table is not allowed.
    """
    from frazil.upkeep.runs.rewrite_table import rewrite_table

    options = {"columns": column or []}
    with _open(run, catalog) as care:
        found = care.load(table)
        if dry_run:
            _preview(run, care, found, "stats", options)
            return
        report = rewrite_table(care, found, "stats", options)
    _print(run, report)


@command(partition_app, "plan", example="frazil table partition plan demo.photos")
def partition_plan(run: Run, table: TableName, catalog: CatalogOption = None) -> None:
    """Propose a partitioning for a table, with reasons. Reads only metadata and changes nothing."""
    from frazil.upkeep.rewrite.partition_plan import plan

    with _open(run, catalog) as care:
        proposal = plan(care, care.load(table))
    told = asdict(proposal)
    if run.printer.json_output:
        run.printer.json({"table": table, **told})
        return
    for reason in proposal.reasons:
        print(reason)
    text = ", ".join(proposal.proposed) or "none"
    if proposal.change:
        print(f"proposed: {text}\n  Try: frazil table partition apply {table} '{text}'")
    else:
        print(f"stays: {text}")


@command(partition_app, "apply", example="frazil table partition apply demo.photos 'day(taken_at), bucket(16, id)'")
def partition_apply(
    run: Run,
    table: TableName,
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="such as 'day(time), bucket(16, id)', or none")],
    rewrite: Annotated[bool, typer.Option("--rewrite", help="also rewrite existing files, commit by commit")] = False,
    target: TargetSize = None,
    budget: Budget = _BUDGET,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Change the partitioning of a table. Existing files stay as they are unless --rewrite is given.

    If you run it again with --rewrite, it continues where it was interrupted. Exit codes: 1 if the catalog does not
    support such partitions, 2 if the spec does not fit the table, 10 if the table does not exist, 11 if other writers
    won every retry, 12 if writing to the table is not allowed.
    """
    from frazil.cli.amounts import shown_size, size
    from frazil.upkeep.rewrite import partition
    from frazil.upkeep.runs.rewrite_table import raise_failures

    bytes_each, wanted_size = size(budget), None if target is None else size(target)
    with _open(run, catalog) as care:
        found = care.load(table)
        wanted = partition.parse(found, spec)
        partition.require_possible(care, wanted)
        if dry_run:
            before, after = partition.text_of(found.schema(), found.spec()), partition.text_of(found.schema(), wanted)
            run.printer.record({"table": table, "before": before, "after": after, "changed": before != after})
            return
        applied = partition.apply(care, found, spec, rewrite=rewrite, budget=bytes_each, target=wanted_size)
    if run.printer.json_output:
        run.printer.json({"table": table, **asdict(applied)})
    else:
        print(f"{table} is partitioned by {applied.after}" + ("" if applied.changed else ", as before"))
        if rewrite:
            done = sum(o.files_before for o in applied.outcomes)
            print(f"{done} files ({shown_size(sum(o.bytes_rewritten for o in applied.outcomes))}) were rewritten")
        if applied.left:
            print(f"{applied.left} files still have their previous partitioning; they are read as before")
    raise_failures(applied.outcomes)


def _open(run: Run, catalog: str | None) -> Any:
    from frazil.upkeep.runs.open_context import open_context

    return open_context(run.settings(*_SECTIONS), catalog)


def _preview(run: Run, care: UpkeepContext, table: Table, kind: Kind, options: Mapping[str, Any]) -> None:
    """What would be done, by metadata alone."""
    from frazil.upkeep.rewrite.preview import preview

    told = preview(care, table, kind, options)
    if run.printer.json_output:
        run.printer.json({"table": ".".join(table.name()), "dry_run": True, **asdict(told)})
    else:
        print(told.why)


def _print(run: Run, report: RewriteReport) -> None:
    from frazil.cli.amounts import shown_size

    if run.printer.json_output:
        run.printer.json(report.to_dict())
    elif report.commits:
        print(
            f"{report.files_before} files became {report.files_after} ({shown_size(report.bytes_rewritten)}) "
            f"in {report.commits} commits, {report.seconds:.1f} s"
        )
    elif report.result == "nothing":
        print(f"nothing to do: {report.reason}")
    report.raise_failures()
