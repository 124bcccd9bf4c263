"""`frazil replica failover`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import Run
from frazil.cli.replica_session import SHOWN, Choice, LogLevel, ReplicaCatalog, Tables, Warehouse, load, with_log_level
from frazil.cli.session import DryRun, Engine, EngineChoice, shown_time, stopping
from frazil.cli.topic_session import Yes
from frazil.errors import FrazilError, PartialError, UsageError

if TYPE_CHECKING:
    from frazil.replica.failover import FailoverReport, FailoverTable
    from frazil.replica.topics import OldLog, TopicLoss
    from frazil.settings import Settings
    from frazil.upkeep.context import UpkeepContext

AllReplicas = Annotated[bool, typer.Option("--all", help="all replicas of the catalog")]


def failover(
    run: Run,
    tables: Tables = None,
    all_: AllReplicas = False,
    catalog: ReplicaCatalog = None,
    warehouse: Warehouse = None,
    primary: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="catalog of the old primary: its tables are renamed, so that writers fail"),
    ] = None,
    allow_unfenced: Annotated[
        bool, typer.Option("--allow-unfenced", help="go on if the old primary cannot be reached")
    ] = False,
    primary_log: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="log of the lost site, a broker's address or a folder: counts what is lost"),
    ] = None,
    engine: Engine = EngineChoice.auto,
    yes: Yes = False,
    dry_run: DryRun = False,
    log_level: LogLevel = None,
) -> None:
    """Make replicas the primary. Without --yes, only show the plan: how far each is behind, and what would be lost.

    Each table first serves the newest version that has arrived, and then takes writes; no sync changes it any more.
    Without --primary, make sure by other means that nothing writes to the old one. Exit codes: 2 without --yes, 3 where
    some of several tables failed, 10 where there is no such table, 12 where it is no replica.
    """
    from frazil.replica.failover import plan_failover, run_failover
    from frazil.replica.status import list_replicas
    from frazil.replica.topics import read_old_log
    from frazil.tables.relocation.engine import open_engine
    from frazil.upkeep.runs.open_context import open_context

    if yes and dry_run:
        raise UsageError("--yes does it and --dry-run does not", hint="one of them")
    if bool(tables) == all_:
        problem = "--all and tables are given" if all_ else "no table is named"
        raise UsageError(problem, hint="frazil replica failover sales.orders, or --all")
    run = with_log_level(run, log_level)
    settings, _ = load(run, Choice(catalog=catalog, warehouse=warehouse), missing="refuse")
    with (
        stopping(run) as stop,
        open_context(settings, catalog, stop) as care,
        _open(run, settings, primary, care) as old,
    ):
        names = tables or list_replicas(care)
        old_log = read_old_log(settings, primary_log) if primary_log is not None else None
        plans = plan_failover(care, names, primary=None if isinstance(old, FrazilError) else old, old_log=old_log)
        if old_log is not None:
            _warn_of_log(run, old_log, plans, all_=all_)
        if not yes:
            _print_plans(run, plans, old if isinstance(old, FrazilError) else None)
            if dry_run:
                return
            raise UsageError("nothing was done: a failover needs --yes", hint="the same with --yes")
        if isinstance(old, FrazilError):
            if not allow_unfenced:
                raise old.adding("nothing was changed")
            run.printer.note(f"warning: the old primary is not fenced: {old.in_one_line}")
            old = None
        done: list[FailoverReport] = []
        failed: dict[str, FrazilError] = {}
        with open_engine(engine.value, settings, stop=stop, spark=care.spark) as opened:
            for name in names:
                try:
                    done.append(
                        run_failover(care, name, opened, primary=old, allow_unfenced=allow_unfenced, old_log=old_log)
                    )
                except FrazilError as error:
                    failed[name] = error
    _print_reports(run, done, failed)


@contextmanager
def _open(
    run: Run, settings: Settings, primary: str | None, care: UpkeepContext
) -> Iterator[UpkeepContext | FrazilError | None]:
    """The old primary's catalog; why it cannot be opened; None where it was not named."""
    from frazil.upkeep.runs.open_context import open_context

    if primary is None:
        yield None
        return
    if settings.catalog(primary).name == care.catalog.name:
        raise UsageError(f"'{primary}' is the catalog of the replicas", hint="--primary names that of the old primary")
    with ExitStack() as opened:
        try:
            old: UpkeepContext | FrazilError = opened.enter_context(open_context(settings, primary, care.stop))
        except FrazilError as error:
            old = error
        yield old


def _print_plans(run: Run, plans: Sequence[FailoverTable], unreachable: FrazilError | None) -> None:
    if run.printer.json_output:
        run.printer.json([{**one.to_dict(), "done": one.is_done} for one in plans])
    else:
        columns = ("table", "version", "next", "lag", "snapshots lost", "rows lost", "old primary", "last sync")
        run.printer.rows(columns, [_row(one) for one in plans], none="no replicas")
        _print_topics([topic for one in plans for topic in one.topics])
        for one in plans:
            for text in one.missing[:SHOWN]:
                print(f"{one.name}: not arrived: {text}")
            for text in one.warnings:
                run.printer.note(f"warning: {one.name}: {text}")
            if one.primary == "not-given" and not one.is_done:
                run.printer.note(f"warning: {one.name}: make sure that nothing writes to the old primary; or --primary")
    if unreachable is not None:
        run.printer.note(f"warning: the old primary cannot be reached: {unreachable.in_one_line}")


def _row(one: FailoverTable) -> list[Any]:
    from frazil.upkeep.plans.format_amounts import format_age

    if one.is_done:
        return [one.name, one.version, "is the primary already", None, None, None, None, None]
    rows = [snapshot.rows for snapshot in one.lost]
    lost: Any = None if not rows else sum(row or 0 for row in rows)
    if any(row is None for row in rows):
        lost = f"{lost} or more"
    lag = None if one.lag_s is None else format_age(one.lag_s)
    return [
        one.name, one.version, one.next_version, lag, len(one.lost), lost, one.primary.replace("-", " "),
        _shown(one.synced_at),
    ]  # fmt: skip


def _shown(time: str | None) -> str | None:
    from datetime import datetime

    return None if time is None else shown_time(datetime.fromisoformat(time))


def _print_topics(topics: Sequence[TopicLoss]) -> None:
    """How far tables of topics reach, and what only the old log had."""
    for one in topics:
        lag = f", its last message of {_shown(one.last_message_at)}" if one.last_message_at is not None else ""
        if not lag and one.committed_at is not None:
            lag = f", committed {_shown(one.committed_at)}"
        print(f"topic {one.topic}: {one.table} reaches offset {one.position}{lag}")
        print(f"  {_lost_messages(one)}; it goes on at offset {one.continues_at}")
        for text in one.warnings:
            print(f"  warning: {text}")


def _lost_messages(one: TopicLoss) -> str:
    if one.lost is None:
        return "what only the old log had is lost: --primary-log counts it where that log can still be read"
    last = f", the last of {_shown(one.log_last_message_at)}" if one.log_last_message_at is not None else ""
    return f"the old log ends at {one.log_end}{last}: {one.lost:,} messages are only there"


def _print_next(topics: Sequence[TopicLoss]) -> None:
    commands = [command for one in topics for command in one.next]
    if commands:
        print("next, on the machine with the new log, before its server starts:")
        for command in dict.fromkeys(commands):
            print(f"  {command}")


def _warn_of_log(run: Run, old: OldLog, plans: Sequence[FailoverTable], *, all_: bool) -> None:
    from frazil.replica.topics import list_only_in_log

    if old.topics is None:
        run.printer.note(f"warning: the old log at {old.place} cannot be read: {old.problem}")
    if old.is_live:
        run.printer.note(f"warning: the old log at {old.place} is in use, and may take more messages: stop its broker")
    for text in list_only_in_log(old, {topic.topic for one in plans for topic in one.topics}) if all_ else ():
        run.printer.note(f"warning: {text}")


def _print_reports(run: Run, done: Sequence[FailoverReport], failed: dict[str, FrazilError]) -> None:
    if run.printer.json_output:
        found: list[dict[str, Any]] = [{**one.to_dict(), "done": True} for one in done]
        found += [{"name": name, "done": False, "error": error.to_dict()} for name, error in failed.items()]
        run.printer.json(found)
    else:
        for one in done:
            version = "" if one.version is None else f" with the primary's version {one.version}"
            print(f"{one.name} is the primary now{version}, in {one.seconds:.1f} s")
            print(f"  snapshot {one.snapshot_id}, {one.metadata_location}")
            if one.fenced_as is not None:
                print(f"  the old primary's table is now {one.fenced_as}")
            if one.lost:
                print(f"  {len(one.lost)} snapshots of the old primary are lost: --output json names them")
        _print_topics([topic for one in done for topic in one.topics])
        _print_next([topic for one in done for topic in one.topics])
    if not failed:
        return
    if not done and len(failed) == 1:
        raise next(iter(failed.values()))
    for name, error in failed.items():
        run.printer.note(f"error: {name}: {error.in_one_line}")
    raise PartialError(
        f"{len(failed)} of {len(done) + len(failed)} tables failed",
        hint="the same command again, which goes on with what failed",
    )
