"""`frazil upkeep plan|run|status|history`."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run, command, new_app
from frazil.cli.table_care import costs, gains
from frazil.errors import FrazilError, InterruptedByUser, UsageError

if TYPE_CHECKING:
    from frazil.upkeep.context import UpkeepContext
    from frazil.upkeep.model import Kind
    from frazil.upkeep.runs.run import Report

app = new_app("Keep tables fast and small.", example="frazil upkeep run 'topics.*' --dry-run")

_SECTIONS = (*CATALOG_SECTIONS, "topics", "upkeep", "spark")
#: Seconds from the first signal to the end of the process, whatever hangs.
_BOUND_S = 60.0

Tables = Annotated[list[str], typer.Argument(metavar="TABLE...", help="namespace.table, or a pattern: 'topics.*'")]
SomeTables = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE...]", help="namespace.table, or a pattern: 'topics.*'")
]


@command(app, example="frazil upkeep plan 'topics.*'")
def plan(
    run: Run,
    tables: Tables,
    kind: Annotated[list[str] | None, typer.Option(help="only steps of this kind; may be repeated")] = None,
    catalog: CatalogOption = None,
) -> None:
    """Show the steps that the tables' policies call for, with reason, benefit and cost. Starts no JVM.

    It also reports which snapshots pins protect from expiry, and which patterns in upkeep.tables match no table.
    Orphans of tables that are not Frazil's own are searched for only if the policy or --kind names them. Exit codes: 2
    if a policy contradicts itself, 3 if only some tables could be inspected, 10 if the table does not exist.
    """
    from frazil.upkeep.plans.plan_notes import of_nobody
    from frazil.upkeep.runs.history import History
    from frazil.upkeep.runs.open_context import open_context
    from frazil.upkeep.runs.run import Limits
    from frazil.upkeep.runs.run_many import failure_of, match_tables, run_upkeep_for_all

    limits = Limits(_kinds(kind))
    with open_context(run.settings(*_SECTIONS), catalog) as care:
        history = History(care.store, care.settings.model.upkeep.history)
        reports = list(run_upkeep_for_all(care, match_tables(care, tables), limits, dry_run=True, history=history))
        idle = of_nobody(care)
    _print_notes(run, reports, idle)
    if run.printer.json_output:
        run.printer.json([_as_json(report, dry_run=True) for report in reports])
    else:
        rows = [[r.table, s.kind, "urgent" if s.urgent else "", s.why, gains(s), costs(s)]
                for r in reports for s in r.steps]  # fmt: skip
        run.printer.rows(("table", "step", "", "why", "gain", "cost"), rows, none="nothing to do")
    if (failure := failure_of(reports)) is not None:
        raise failure


@command(app, "run", example="frazil upkeep run 'topics.*' --kind compact --for 10m")
def run_(
    run: Run,
    tables: Tables,
    kind: Annotated[list[str] | None, typer.Option(help="only steps of this kind; may be repeated")] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="start no step after this time, such as 10m")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be done")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Run the steps that the tables' policies call for, now. Safe beside pipelines and other writers: one of two waits.

    Orphans of tables that are not Frazil's own are removed only if the policy or --kind names them. Ctrl-C and SIGTERM
    end it before the next step. Exit codes: 3 if some steps failed, 10 if the table does not exist, 11 if other writers
    won every retry.
    """
    from frazil.upkeep.runs.history import History
    from frazil.upkeep.runs.run import Limits
    from frazil.upkeep.runs.run_many import failure_of, match_tables, run_upkeep_for_all

    limits = Limits(_kinds(kind), _seconds(for_))
    reports: list[Report] = []
    with _stoppable(run, catalog) as care:
        names = match_tables(care, tables)
        history = History(care.store, care.settings.model.upkeep.history)
        try:
            for report in run_upkeep_for_all(care, names, limits, dry_run=dry_run, history=history):
                reports.append(report)
                run.printer.note(f"{report.table}: {_summary(report, dry_run)}")
        finally:
            history.flush(now=True)
        stopped = care.stop.is_set()
    _print_notes(run, reports)
    _print(run, reports, dry_run)
    failure = InterruptedByUser("stopped; the next run continues") if stopped else failure_of(reports)
    if failure is not None:
        raise failure


@command(app, example="frazil upkeep status --output json")
def status(run: Run, tables: SomeTables = None, catalog: CatalogOption = None) -> None:
    """Show the last and the next step of each table, and the cost of upkeep. Requires no running pipeline.

    Without an argument: the tables of topics, and all tables in the history. It also reports which patterns in
    upkeep.tables match no table.
    """
    from frazil.upkeep.plans.plan_notes import of_nobody
    from frazil.upkeep.runs.history import History
    from frazil.upkeep.runs.open_context import open_context
    from frazil.upkeep.runs.status import statuses

    with open_context(run.settings(*_SECTIONS), catalog) as care:
        found = statuses(care, History(care.store, care.settings.model.upkeep.history), tables or ())
        _print_notes(run, (), of_nobody(care))
    if run.printer.json_output:
        run.printer.json([asdict(one) for one in found])
        return
    columns = ("table", "last_run", "last", "next", "cost", "failed", "conflicts", "share", "error")
    run.printer.rows(columns, [_status_row(one) for one in found], none="there are no tables to maintain yet")


def _status_row(one: Any) -> list[Any]:
    from frazil.cli.amounts import shown_size

    last = f"{one.last_kind}: {one.last_result}" if one.last_kind else None
    return [
        one.table,
        one.last_run and f"{one.last_run:%Y-%m-%d %H:%M:%S}",
        last,
        ", ".join(one.steps) + (" (urgent)" if one.urgent else "") or None,
        shown_size(one.cost),
        one.failed,
        one.conflicts,
        f"{one.share:.1%}",
        one.error,
    ]


@command(app, example="frazil upkeep history topics.orders --since 7d")
def history(
    run: Run,
    tables: SomeTables = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="only steps in this time until now, such as 12h or 7d")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most this many")] = 50,
    catalog: CatalogOption = None,
) -> None:
    """Show the steps of upkeep, newest first, run by pipelines or by hand, with the results of each."""
    from frazil.upkeep.runs.history import COLUMNS, History
    from frazil.upkeep.runs.open_context import open_context

    age = _seconds(since)
    begin = None if age is None else datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
    with open_context(run.settings(*_SECTIONS), catalog) as care:
        name = care.settings.model.upkeep.history
        if not name:
            raise UsageError("the history of upkeep is disabled", hint="set upkeep.history to the name of a table")
        rows = History(care.store, name).rows(tables or (), since=begin, limit=limit)
    if run.printer.json_output:
        run.printer.json(rows)
        return
    columns = [c for c in COLUMNS if c not in ("run_id", "snapshot_id", "hint", "host", "process")]
    run.printer.rows(columns, [[row[c] for c in columns] for row in rows], none="no steps have run yet")


@contextmanager
def _stoppable(run: Run, catalog: str | None) -> Iterator[UpkeepContext]:
    """What upkeep works on, until Ctrl-C or SIGTERM: the first one sets `care.stop`, the second ends the process."""
    from frazil.cli.stopping import Stopping
    from frazil.spark.jvm import end_at_once
    from frazil.upkeep.runs.open_context import open_context

    settings = run.settings(*_SECTIONS)
    late = FrazilError(f"the command did not exit within {_BOUND_S:g} s")
    with (
        Stopping(_BOUND_S, lambda: late, kill=end_at_once, json_output=run.printer.json_output) as stopping,
        open_context(settings, catalog, stopping.asked) as care,
    ):
        stopping.be_gentle()
        yield care


def _kinds(names: list[str] | None) -> list[Kind]:
    from frazil.upkeep.model import KINDS

    for name in names or ():
        if name not in KINDS:
            raise UsageError(f"'{name}' is not a kind of upkeep", hint=", ".join(KINDS))
    return [kind for kind in KINDS if kind in (names or ())]


def _seconds(text: str | None) -> float | None:
    from frazil.cli.amounts import seconds

    return None if text is None else seconds(text)


def _summary(report: Report, dry_run: bool) -> str:
    if report.errors:
        return report.errors[0].message
    if dry_run:
        return ", ".join(step.kind for step in report.steps) or "nothing to do"
    done = [f"{o.kind} {o.result}" for o in report.outcomes if o.result != "nothing"]
    return f"{', '.join(done) or 'nothing to do'}; {report.seconds:.1f} s"


def _print_notes(run: Run, reports: Sequence[Report], idle: Sequence[str] = ()) -> None:
    """What the plans leave out, which JSON has in each report; and policies that apply to nothing."""
    for note in idle:
        run.printer.note(note)
    for report in reports:
        for note in report.notes:
            run.printer.note(f"{report.table}: {note}")


def _print(run: Run, reports: list[Report], dry_run: bool) -> None:
    if run.printer.json_output:
        run.printer.json([_as_json(report, dry_run) for report in reports])
    elif dry_run:
        plan = [[r.table, s.kind, s.urgent, s.why, dict(s.gain), s.cost] for r in reports for s in r.steps]
        run.printer.rows(("table", "kind", "urgent", "why", "gain", "cost"), plan, none="nothing to do")
    else:
        columns = [*("kind", "result", "files_before", "files_after", "bytes_rewritten", "files_removed")]
        columns += ["bytes_reclaimed", "snapshots_removed", "conflicts", "reason"]
        rows = [[r.table, *(getattr(o, c) for c in columns), round(o.seconds, 1)] for r in reports for o in r.outcomes]
        run.printer.rows(("table", *columns, "seconds"), rows, none="nothing to do")


def _as_json(report: Report, dry_run: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"table": report.table, "steps": [asdict(step) for step in report.steps]}
    if not dry_run:
        found["outcomes"] = [asdict(outcome) for outcome in report.outcomes]
        found |= {"seconds": round(report.seconds, 3), "unfinished": report.unfinished}
    return found | {"notes": report.notes, "errors": [error.to_dict() for error in report.errors]}
