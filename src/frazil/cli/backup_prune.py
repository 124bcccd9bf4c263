"""`frazil backup prune|delete|erase`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.backup_session import BackupName, TableOption, find_record, settings_of, shown_root
from frazil.cli.invocation import Run
from frazil.cli.session import DryRun, shown_time, stopping
from frazil.cli.topic_session import Yes, confirmed
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.backup.prune import Amount, PrunePlan
    from frazil.backup.repository import Repository


def _keep(what: str) -> Any:
    return typer.Option(min=1, metavar="N", help=f"keep the newest {what}")


def prune(
    run: Run,
    keep_last: Annotated[int | None, _keep("N backups")] = None,
    keep_daily: Annotated[int | None, _keep("of each of N days")] = None,
    keep_weekly: Annotated[int | None, _keep("of each of N weeks")] = None,
    keep_monthly: Annotated[int | None, _keep("of each of N months")] = None,
    keep_yearly: Annotated[int | None, _keep("of each of N years")] = None,
    keep_within: Annotated[
        str | None, typer.Option(metavar="TIME", help="keep all that are younger than this, such as 14d")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Drop backups by rules, and delete files that no backup needs. Without --yes, only show what would be done.

    For each table, a backup stays if any of the rules keeps it. Without rules no backup is dropped. Files that no
    backup needs are marked; a run that comes `backup.prune_wait_s` later deletes them, so that backups under way can
    use them. Exit code 13 where a record is damaged: it is not known what it needs, so nothing is deleted.
    """
    from frazil.backup.location import open_repository
    from frazil.backup.prune import plan_prune, run_prune
    from frazil.backup.retention import RetentionPolicy
    from frazil.cli.amounts import seconds

    if yes and dry_run:
        raise UsageError("--yes does it and --dry-run does not", hint="one of them")
    within = None if keep_within is None else timedelta(seconds=seconds(keep_within))
    rules = RetentionPolicy(
        keep_last or 0, keep_daily or 0, keep_weekly or 0, keep_monthly or 0, keep_yearly or 0, within
    )
    policy = None if rules.is_empty else rules
    settings = settings_of(run)
    wait = settings.model.backup.prune_wait_s
    repository = open_repository(settings)
    if not yes:
        plan = plan_prune(repository, policy, prune_wait_s=wait)
        _print_plan(run, repository, plan)
        return
    with stopping(run) as stop:
        report = run_prune(repository, policy, prune_wait_s=wait, stop=stop)
    if run.printer.json_output:
        run.printer.json({**report.to_dict(), "done": True})
        return
    for name in report.dropped:
        print(f"dropped  {name}")
    for name, until in report.locked.items():
        print(f"locked   {name}, until {shown_time(until)}")
    print(f"marked   {_amount(report.marked)}, to be deleted by a run after {_wait(wait)}")
    print(f"deleted  {_amount(report.deleted)}" + (f"; locked: {_amount(report.left)}" if report.left.blobs else ""))


def _print_plan(run: Run, repository: Repository, plan: PrunePlan) -> None:
    if run.printer.json_output:
        run.printer.json({**plan.to_dict(), "done": False})
        return
    rows: list[list[Any]] = [[name, "keep", ", ".join(reasons)] for name, reasons in plan.keep.items()]
    rows += [[name, "drop", None] for name in plan.drop]
    rows += [[name, "keep", f"locked until {shown_time(until)}"] for name, until in plan.locked.items()]
    run.printer.rows(
        ("backup", "", "because"), sorted(rows, key=lambda row: row[0]), none=f"no backups in {shown_root(repository)}"
    )
    print(f"\nto be marked:  {_amount(plan.mark)}")
    print(f"to be deleted: {_amount(plan.delete)}")
    run.printer.note("nothing was deleted: the same with --yes does it")


def _amount(amount: Amount) -> str:
    from frazil.upkeep.plans.format_amounts import format_count, format_size

    return f"{format_count(amount.blobs, 'file')}, {format_size(amount.bytes)}"


def _wait(wait_s: float) -> str:
    from frazil.upkeep.plans.format_amounts import format_age

    return format_age(wait_s)


def delete(
    run: Run,
    backups: Annotated[list[str], typer.Argument(metavar="BACKUP…", help="names of backups")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete backups by name, damaged ones too. Files that no other backup needs are deleted by `frazil backup prune`.

    Exit codes: 10 where there is no such backup, 11 where Object Lock protects one. Then none is deleted.
    """
    from frazil.backup.deletion import delete_backups, require_deletable
    from frazil.backup.location import open_repository

    repository = open_repository(settings_of(run))
    require_deletable(repository, backups)
    plan = {"repository": shown_root(repository), "backups": backups if run.printer.json_output else ", ".join(backups)}
    with confirmed(run, plan, yes=yes, dry_run=dry_run, what="deleting backups") as go:
        if go:
            delete_backups(repository, backups)
            if not run.printer.json_output:
                print("deleted; frazil backup prune --yes frees what no other backup needs")


def erase(
    run: Run,
    backup: BackupName,
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="paths as the table has them")],
    reason: Annotated[str, typer.Option(help="why, for those who find the content missing")],
    table: TableOption = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Erase the content of files from the repository: from all backups that have it. Cannot be undone.

    A note with the reason and the time takes the place of each file. Backups with erased files can be restored with
    --allow-erased, without the rows in them. Exit code 11 where Object Lock still protects a file.
    """
    from frazil.backup.deletion import find_blobs
    from frazil.backup.location import open_repository
    from frazil.backup.selection import find_tables
    from frazil.upkeep.plans.format_amounts import format_count

    repository = open_repository(settings_of(run))
    record = find_record(repository, backup)
    found = find_blobs(repository, find_tables(record, table), files)
    blobs = {blob for _, blob in found.values()}
    plan = {
        "repository": shown_root(repository),
        "reason": reason,
        "files": [{"path": path, "size": blob.size, "sha256": blob.sha256} for path, (_, blob) in found.items()],
    }
    shown = plan if run.printer.json_output else {**plan, "files": ", ".join(found)}
    with confirmed(run, shown, yes=yes, dry_run=dry_run, what="erasing content") as go:
        if go:
            # What an interrupted run has erased is no failure of the next one.
            left = [blob for blob in sorted(blobs) if repository.has_data(blob) or not repository.read_tombstone(blob)]
            for blob in left:
                repository.erase(blob, reason)
            if not run.printer.json_output:
                print(f"{format_count(len(left), 'file')} erased, from every backup in {shown_root(repository)}")
                if len(left) < len(blobs):
                    print(f"{format_count(len(blobs) - len(left), 'file')} had been erased before")
