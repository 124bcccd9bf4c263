"""`frazil backup create|run`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.backup_read import record_as_json
from frazil.cli.backup_session import name_of, settings_of, shown_root, totals
from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.progress import shown_progress
from frazil.cli.session import DryRun, Engine, EngineChoice, shown_time, stoppable, stopping
from frazil.errors import PartialError, UsageError

if TYPE_CHECKING:
    from frazil.backup.format import BackupRecord
    from frazil.backup.policies import PolicyRun
    from frazil.upkeep.context import UpkeepContext


class Data(StrEnum):
    copy = "copy"
    reference = "reference"


def create(
    run: Run,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE…", help="namespace.table, one or several")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "--database", metavar="NAME", help="all tables of this namespace")
    ] = None,
    catalog: CatalogOption = None,
    name: Annotated[
        str | None, typer.Option("--name", "--backup-name", help="of the backup [default: the time]")
    ] = None,
    ref: Annotated[
        str | None, typer.Option(metavar="NAME", help="only this branch or tag, with its history [default: all]")
    ] = None,
    data: Annotated[
        Data, typer.Option(help="reference: data files are not copied, and the backup needs them where they are")
    ] = Data.copy,
    engine: Engine = EngineChoice.auto,
    dry_run: DryRun = False,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="the table in --database")] = None,
) -> None:
    """Back up tables: named ones, all of a namespace, or with --catalog alone all of a catalog.

    Files that the repository has are not copied again. A backup is complete, or it does not exist; what was interrupted
    continues when it is repeated. Exit codes: 10 where a table or one of its files does not exist, 11 where a backup of
    this name does.
    """
    from frazil.backup.create import create_backup
    from frazil.backup.location import open_repository, repository_uri

    settings = settings_of(run)
    with stoppable(run, settings, catalog) as care:
        chosen = _choose(care, tables or [], namespace, table, whole_catalog=catalog is not None)
        if dry_run:
            shown = chosen if run.printer.json_output else ", ".join(chosen)
            run.printer.record({"tables": shown, "repository": repository_uri(settings), "done": False})
            return
        repository = open_repository(settings, create=True)
        with shown_progress(run) as progress:
            record = create_backup(
                care,
                repository,
                chosen,
                name=name,
                ref=ref,
                data=data.value,
                engine=engine.value,
                progress=progress,
                stop=care.stop,
            )
    if run.printer.json_output:
        run.printer.json(record_as_json(record))
        return
    print_record(run, record, shown_root(repository))


def _choose(
    care: UpkeepContext, tables: list[str], namespace: str | None, table: str | None, *, whole_catalog: bool
) -> list[str]:
    """The tables to back up.

    Raises:
        UsageError: none is named, or they are named in two ways.
        NotFoundError: there is no such table or namespace.
    """
    from frazil.backup.selection import list_tables_of
    from frazil.backup.source import load_source

    if table is not None and namespace is None and "." not in table:
        raise UsageError(f"--table {table} needs --database", hint=f"--database NAME --table {table}")
    if table is not None:
        tables = [*tables, f"{namespace}.{table}" if namespace else table]
    elif tables and namespace is not None:
        raise UsageError("tables and a namespace are named", hint="frazil backup create --namespace NAME, or TABLE…")
    elif not tables:
        if namespace is None and not whole_catalog:
            hint = f"frazil backup create demo.photos; or --namespace NAME; or --catalog {care.catalog.name} for all"
            raise UsageError("no tables are named", hint=hint)
        return list_tables_of(care.store, namespace)
    # Before a repository is made: where a name is wrong, nothing changes.
    return list(dict.fromkeys(load_source(care, name).name for name in tables))


def print_record(run: Run, record: BackupRecord, root: str) -> None:
    """What was backed up, table by table."""
    from frazil.upkeep.plans.format_amounts import format_count, format_size

    rows = [
        [name_of(t), t.snapshots, t.files, format_size(t.bytes), t.new_files, format_size(t.new_bytes)]
        for t in record.tables
    ]
    run.printer.rows(("table", "snapshots", "files", "bytes", "new files", "new bytes"), rows)
    sums, took = totals(record), (record.created_at - record.started_at).total_seconds()
    print(
        f"\nbackup {record.name}: {format_count(len(record.tables), 'table')}, "
        f"{format_size(sums['new_bytes'])} {record.data} in {took:.1f} s, in {root}"
    )
    if record.data == "referenced":
        run.printer.note(
            "warning: data files were not copied. This backup needs the original files where they are, and protects "
            "from nothing that deletes them"
        )


def run_(
    run: Run,
    policies: Annotated[
        list[str] | None, typer.Argument(metavar="POLICY…", help="only these [default: all of the settings]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="due or not")] = False,
    dry_run: DryRun = False,
) -> None:
    """Make the backups that the policies of the settings say are due, and prune what these drop. For cron and systemd.

    Exit codes: 3 where some policies failed; where a single one was due and failed, that of its error.
    """
    from frazil.backup.policies import run_policies

    settings = settings_of(run)
    with stopping(run) as stop, shown_progress(run) as progress:
        runs = run_policies(settings, policies or (), force=force, dry_run=dry_run, progress=progress, stop=stop)
    if run.printer.json_output:
        run.printer.json([one.to_dict() for one in runs])
    else:
        columns = ("policy", "last", "result", "tables", "new bytes", "dropped", "next")
        run.printer.rows(columns, [_policy_row(one, dry_run) for one in runs])
    _raise_failures(run, runs)


def _policy_row(one: PolicyRun, dry_run: bool) -> list[Any]:
    from frazil.upkeep.plans.format_amounts import format_size

    if one.backup is not None:
        result = f"backup {one.backup.name}" + (f", without {', '.join(one.missing)}" if one.missing else "")
    elif one.error is not None:
        result = f"failed: {one.error.message}"
    else:
        result = "due" if one.due else "not due"
    new = format_size(totals(one.backup)["new_bytes"]) if one.backup else None
    following = shown_time(one.next_due) or ("now" if one.due and dry_run else None)
    return [
        one.policy, shown_time(one.last) or "never", result, len(one.backup.tables) if one.backup else None, new,
        len(one.dropped) if one.backup else None, following,
    ]  # fmt: skip


def _raise_failures(run: Run, runs: list[PolicyRun]) -> None:
    failed = [one for one in runs if one.failed]
    if not failed:
        return
    tried = [one for one in runs if one.due]
    if len(tried) == 1 and failed[0].error is not None:
        raise failed[0].error
    for one in failed:
        if one.error is not None:
            run.printer.note(f"error: policy '{one.policy}': {one.error.in_one_line}")
        for name in one.missing:
            run.printer.note(f"error: policy '{one.policy}' names '{name}', and there is no such table")
    if any(one.error for one in failed):
        hint = "frazil backup run, which tries again what failed"
    else:
        hint = "correct the tables of the policy; the others are backed up"
    raise PartialError(f"{len(failed)} of {len(tried)} policies failed", hint=hint)
