"""`frazil topic migrate|retain|adopt|verify`."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.topic_session import DryRun, TopicName, Yes, confirmed, session, settings_of
from frazil.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from frazil.log.protocol import LogAccess
    from frazil.settings import Settings
    from frazil.topics.admin.verify import TopicReport
    from frazil.topics.sinks.retention import Removed
    from frazil.topics.storage import LogStorage


class Target(StrEnum):
    iceberg = "iceberg"
    log = "log"


def migrate(
    run: Run,
    topic: TopicName,
    to: Annotated[Target, typer.Option(help="iceberg: log, then table; log: only the log")],
    from_start_of_log: Annotated[
        bool, typer.Option("--from-start-of-log", help="skip messages that the log no longer has")
    ] = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Move a topic to the other storage, while producers write and readers read. Resumes an interrupted migration."""
    from frazil.topics.admin.migrate import Migrating

    with session(run, catalog) as at:
        moving = Migrating(at.access, at.settings, topic, at.store, note=run.printer.note)
        if dry_run:
            plan = (
                moving.plan_to_log()
                if to is Target.log
                else moving.plan_to_iceberg(from_start_of_log=from_start_of_log)
            )
        elif to is Target.log:
            plan = moving.to_log()
        else:
            plan = moving.to_iceberg(from_start_of_log=from_start_of_log)
    if run.printer.json_output:
        run.printer.json({**plan.to_dict(), "done": not dry_run})
        return
    copies = f"offsets {plan.start} to {plan.end}" if plan.end > plan.start else "nothing"
    if not plan.changes:
        print(f"topic '{topic}' already has storage {plan.storage}; to copy: {copies}")
    else:
        print(
            f"topic '{topic}' {'would be migrated' if dry_run else 'was migrated'} to storage {plan.storage}; "
            f"copied: {copies}"
        )


def retain(
    run: Run,
    topic: TopicName,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="remove messages older than this, such as 7d")
    ] = None,
    larger_than: Annotated[
        str | None, typer.Option(metavar="SIZE", help="remove the oldest messages beyond this size, such as 10GB")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="only from the log")] = False,
    table: Annotated[bool, typer.Option("--table", help="only from the table")] = False,
    save: Annotated[bool, typer.Option("--save", help="also save this as the retention of the topic's log")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Remove old messages, by default as the settings say. The log keeps messages that its sinks have not committed."""
    from frazil.cli.amounts import seconds, shown_size, size
    from frazil.topics.storage import open_storage

    if log and table:
        raise UsageError("by default, both --log and --table apply; give at most one", hint="neither")
    age = None if older_than is None else seconds(older_than)
    limit = None if larger_than is None else size(larger_than)
    rule = {k: v for k, v in (("retention_age_s", age), ("retention_bytes", limit)) if v is not None}
    if save and (table or not rule):
        raise UsageError("--save requires a retention for the log", hint="--older-than or --larger-than")
    with session(run, catalog) as at:
        storage = open_storage(at.access, at.settings, topic, at.store)
        planned = _retain(storage, age, limit, log=log, table=table, dry_run=True)
        if run.printer.json_output:
            plan: dict[str, Any] = {"topic": topic, "removed": [r.to_dict() for r in planned]}
        else:
            plan = {"topic": topic} | {
                r.where: f"{r.files} files, {shown_size(r.size)}; then from offset {r.start} on" for r in planned
            }
        with confirmed(run, plan, yes=yes, dry_run=dry_run, what="removing messages") as go:
            if go:
                _retain(storage, age, limit, log=log, table=table, dry_run=False)
            if go and save:
                at.access.configure(topic, rule)


def _retain(
    storage: LogStorage, age_s: float | None, size: int | None, *, log: bool, table: bool, dry_run: bool
) -> list[Removed]:
    from frazil.topics.storage import IcebergStorage

    if table and not isinstance(storage, IcebergStorage):
        raise UsageError(f"topic '{storage.topic}' has no table", hint="--log, or neither")
    if isinstance(storage, IcebergStorage) and table:
        found = storage.retain_table(age_s=age_s, size=size, dry_run=dry_run)
        return [found] if found is not None else []
    if isinstance(storage, IcebergStorage) and log:
        return [storage.retain_log(age_s=age_s, size=size, dry_run=dry_run)]
    return storage.retain(age_s=age_s, size=size, dry_run=dry_run)


def adopt(
    run: Run,
    topic: TopicName,
    rewind: Annotated[bool, typer.Option("--rewind", help="after a rollback: write the removed rows again")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="skip what a rollback removed, or messages in the log that were too late")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Reconnect a table and its log: after a new log, a rollback of the table, or a permanent gap.

    Also use it if an older copy of the log was restored while a pipeline was running, so that the table has other
    messages.
    """
    from frazil.topics.admin.adopt import Adopting, Choice

    if rewind and keep:
        raise UsageError("--rewind and --keep are opposites", hint="give one of them")
    choice: Choice | None = "rewind" if rewind else "keep" if keep else None
    with session(run, catalog) as at:
        adopting = Adopting(at.access, at.settings, topic, at.store, choice)
        plan = adopting.plan()
        fine = plan.problem == "none"
        with confirmed(run, plan.to_dict(), yes=yes and not fine, dry_run=dry_run or fine, what="adopting") as go:
            if go:
                adopting.do(plan)
                run.printer.note(f"the table of topic '{topic}' continues at offset {plan.after}")


def verify(
    run: Run,
    topic: TopicName,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="remove damaged data from the log and continue without it; no process may have the log open",
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Check every frame of a topic's log, and its table against the log, and report each fault. Changes nothing.

    With --repair, intact frames are kept, damaged bytes are moved to quarantine, and lost offsets are listed.
    """
    from frazil.tables.store import LazyStore
    from frazil.topics.admin.verify import verify_topic

    if (yes or dry_run) and not repair:
        raise UsageError("--yes and --dry-run require --repair", hint=f"frazil topic verify {topic} --repair --dry-run")
    settings = settings_of(run)
    if repair:
        _repair(run, settings, topic, yes=yes, dry_run=dry_run)
        return
    with ExitStack() as stack:
        access = _running_broker(settings, stack)
        report = verify_topic(access, settings, topic, stack.enter_context(LazyStore(settings, catalog)))
    _print_report(run, report)
    if not report.sound:
        raise _faults(report)


def _running_broker(settings: Settings, stack: ExitStack) -> LogAccess | None:
    """Only a broker that runs: to open the log here would bring it in order, and so hide what is wrong."""
    from frazil.log.owner import read_owner
    from frazil.log.remote.client import Client
    from frazil.topics.connection import log_folder

    owner = read_owner(log_folder(settings))
    address = settings.model.log.broker or (owner.addresses.get("flight") if owner is not None else None)
    return stack.enter_context(Client(address)) if address else None


def _print_report(run: Run, report: TopicReport) -> None:
    if run.printer.json_output:
        run.printer.json(report.to_dict())
        return
    if report.log is not None:
        log = report.log
        print(
            f"log:    {log.segments} segments, {log.frames} frames, {log.messages} messages, {log.start} to {log.end}"
        )
    if report.table is not None:
        table = report.table
        print(f"table:  {table['name']}, {table['rows']} rows, position {table['position']}")
    for found in report.findings:
        place = f", bytes {found.bytes[0]:,} to {found.bytes[1]:,}" if found.bytes else ""
        print(f"{found.severity}: {found.where}{place}: {found.message}")
    if report.sound:
        print("sound")


def _faults(report: TopicReport) -> IntegrityError:
    count = sum(f.severity == "error" for f in report.findings)
    in_log = report.log is not None and not report.log.sound
    words = "1 fault" if count == 1 else f"{count} faults"
    return IntegrityError(
        f"topic '{report.topic}' has {words}",
        hint=f"restore the folder from a backup, or frazil topic verify {report.topic} --repair --dry-run"
        if in_log
        else f"frazil topic show {report.topic}; frazil topic adopt {report.topic} --dry-run",
    )


def _repair(run: Run, settings: Settings, topic: str, *, yes: bool, dry_run: bool) -> None:
    from frazil.log.maintenance.repair import repair_log
    from frazil.topics.connection import log_folder

    folder = log_folder(settings)
    planned = repair_log(folder, topic, dry_run=True)
    plan = planned.to_dict()
    if not run.printer.json_output:
        lost = ", ".join(f"{a} to {b}" for a, b in planned.lost)
        plan |= {"lost": f"offsets {lost}" if lost else "nothing", "files": ", ".join(planned.files) or "none"}
        plan["quarantined"] = f"{planned.quarantined:,} bytes"
    sound = not planned.files
    if sound:
        run.printer.note("nothing to repair")
    with confirmed(run, plan, yes=yes and not sound, dry_run=dry_run or sound, what="repairing") as go:
        if go:
            repair_log(folder, topic, dry_run=False)
            run.printer.note(f"the log of topic '{topic}' was repaired; to check it again: frazil topic verify {topic}")
