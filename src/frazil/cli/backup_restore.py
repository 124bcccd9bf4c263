"""`frazil backup restore|rollback`."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.backup_session import TableOption, find_record, find_tables_of, name_of, settings_of
from frazil.cli.invocation import CatalogOption, Run, TableName
from frazil.cli.progress import shown_progress
from frazil.cli.session import DryRun, Engine, EngineChoice, one_of, shown_files, stoppable
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.backup.restore import RestoreReport
    from frazil.backup.restore_plan import RestorePlan

_SHOWN = 10


class CatalogKind(StrEnum):
    sql = "sql"
    rest = "rest"
    glue = "glue"
    hive = "hive"


def restore(
    run: Run,
    backup: Annotated[
        str | None, typer.Argument(metavar="BACKUP", help="the backup's name; `latest` is the newest one")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TABLE", help="name of the restored table [default: the original's]")
    ] = None,
    table: TableOption = None,
    target_location: Annotated[
        str | None, typer.Option(metavar="URI", help="folder of the restored table [default: as the catalog says]")
    ] = None,
    target_catalog: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="catalog of the restored table [default: the one of the settings]"),
    ] = None,
    catalog_type: Annotated[
        CatalogKind | None, typer.Option(help="the same by its kind, where one catalog has this kind")
    ] = None,
    target_database: Annotated[
        str | None,
        typer.Option("--target-database", "--target-namespace", metavar="NAME", help="namespace of what is restored"),
    ] = None,
    target_table: Annotated[
        str | None, typer.Option(metavar="NAME", help="name of the restored table in --target-database")
    ] = None,
    snapshot: Annotated[
        int | None, typer.Option(metavar="ID", help="with this snapshot as the current one, and none after it")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="the same by time: 2026-01-31T12:00:00Z, or 7d ago as 7d")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="leave a table that exists alone, and succeed")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="replace a table that exists, in one step; `rollback` undoes it")
    ] = False,
    current_only: Annotated[
        bool, typer.Option("--current-only", help="without history, branches and tags: what Nessie can hold")
    ] = False,
    allow_erased: Annotated[
        bool, typer.Option("--allow-erased", help="restore without files whose content was erased")
    ] = False,
    engine: Engine = EngineChoice.auto,
    dry_run: DryRun = False,
    backup_name: Annotated[str | None, typer.Option(metavar="BACKUP", help="the same as the argument BACKUP")] = None,
) -> None:
    """Bring tables of a backup back, under any name, in any place and any kind of catalog, with their history.

    The table appears in one step when everything is there, or not at all. What was interrupted continues when it is
    repeated. Without --table, all tables of the backup are restored, one after the other. Exit codes: 10 where backup,
    table or snapshot does not exist, 11 where the target does, 12 where the location is not allowed, 13 where the
    backup is damaged.
    """
    from frazil.backup.location import open_repository
    from frazil.backup.selection import choose_target_name, find_catalog
    from frazil.cli.docs_session import moment

    name = one_of(backup, backup_name, "the backup")
    if name is None:
        raise UsageError("no backup is named", hint="frazil backup list, then frazil backup restore BACKUP")
    if snapshot is not None and as_of is not None:
        raise UsageError("--snapshot and --as-of are both given", hint="one of the two")
    wanted = one_of(to, target_table, "the restored table")
    settings = settings_of(run)
    chosen = find_catalog(settings, target_catalog, catalog_type and catalog_type.value)
    repository = open_repository(settings)
    record = find_record(repository, name)
    tables = find_tables_of(repository, record, table)
    if len(tables) > 1 and (wanted or target_location or snapshot is not None):
        raise UsageError(
            f"backup '{record.name}' has {len(tables)} tables, and --to, --target-location and --snapshot are for one",
            hint=f"--table {name_of(tables[0])}",
        )
    time = moment(as_of, "--as-of")
    with stoppable(run, settings, chosen.name) as care:
        from frazil.backup.restore import run_restore
        from frazil.backup.restore_plan import RestoreTarget, plan_restore
        from frazil.tables.relocation.engine import open_engine

        targets = [
            RestoreTarget(
                choose_target_name(one, wanted, target_database),
                target_location,
                snapshot,
                time,
                if_not_exists=if_not_exists,
                replace=replace,
                current_only=current_only,
                allow_erased=allow_erased,
            )
            for one in tables
        ]
        names = Counter(each.name for each in targets)
        if twice := sorted(name for name, count in names.items() if count > 1):
            raise UsageError(
                f"several tables would be restored as {', '.join(twice)}",
                hint="restore them one by one, with --table and --to",
            )
        # All are planned before the first one is restored, so that what is refused has changed nothing.
        plans = [
            plan_restore(care, repository, record, one, target) for one, target in zip(tables, targets, strict=True)
        ]
        if dry_run:
            _print_plans(run, plans)
            return
        size, limit = sum(plan.bytes for plan in plans), settings.model.backup.concurrency
        with (
            open_engine(
                engine.value, settings, size_hint=size, concurrency=limit, stop=care.stop, spark=care.spark
            ) as opened,
            shown_progress(run) as progress,
        ):
            reports = [run_restore(care, repository, plan, opened, progress, care.stop) for plan in plans]
    _print_reports(run, plans, reports)


def _print_plans(run: Run, plans: list[RestorePlan]) -> None:
    if run.printer.json_output:
        run.printer.json([{**plan.to_dict(), "done": False} for plan in plans])
        return
    for number, plan in enumerate(plans):
        if number:
            print()
        run.printer.record(_shown(plan))
    run.printer.note("nothing was changed: --dry-run")


def _shown(plan: RestorePlan) -> dict[str, Any]:
    """The plan for people."""
    what = {"create": "a new table", "replace": "replaces the table of this name", "keep": "exists, and is left alone"}
    shown: dict[str, Any] = {
        "backup": plan.backup,
        "table": f"{name_of(plan.table)} of catalog '{plan.table.catalog}' ({plan.table.catalog_kind})",
        "restored as": f"{plan.name} in catalog '{plan.catalog}' ({plan.catalog_kind}): {what[plan.action]}",
    }
    if plan.action == "keep":
        return shown
    shown |= {
        "location": plan.location or "as the service assigns it",
        "UUID": "the same as that of the table it replaces" if plan.uuid == "same" else "new",
        "snapshots": f"{plan.snapshots}; current is {plan.snapshot_id}" if plan.snapshot_id else plan.snapshots,
        "refs": ", ".join(plan.refs) or None,
        "to copy": shown_files(plan.files, plan.bytes),
        "published by": plan.publication.method if plan.publication else None,
    }
    for number, (source, target) in enumerate(plan.prefixes):
        shown["folders" if not number else " " * number] = f"{source} → {target}"
    for name, texts in (("lost", plan.losses), ("note", plan.warnings)):
        for number, text in enumerate(texts):
            shown[name if not number else f"{name} {number + 1}"] = text
    return shown


def _print_reports(run: Run, plans: list[RestorePlan], reports: list[RestoreReport]) -> None:
    from frazil.upkeep.plans.format_amounts import format_count, format_size

    if run.printer.json_output:
        run.printer.json(
            [{**plan.to_dict(), **report.to_dict(), "done": True} for plan, report in zip(plans, reports, strict=True)]
        )
        return
    for plan, report in zip(plans, reports, strict=True):
        if report.action == "keep":
            print(f"{report.name} exists in catalog '{report.catalog}', and was left alone")
            continue
        size = format_size(report.bytes)
        print(
            f"{report.name} is restored in catalog '{report.catalog}' from backup {plan.backup}: "
            f"{format_count(report.snapshots, 'snapshot')}, {format_count(report.files, 'file')}, {size} "
            f"in {report.seconds:.1f} s"
        )
        if report.skipped_files:
            print(f"  an earlier run had copied {shown_files(report.skipped_files, report.skipped_bytes)}")
        uuid = "the UUID of the table that it replaced" if plan.uuid == "same" else "a new UUID"
        print(f"  in {report.location}, with {uuid}")
        if report.action == "replace":
            print(f"  undo: frazil backup rollback {report.name}")
        for text in (*report.losses, *report.warnings):
            run.printer.note(f"note: {text}")


def rollback(
    run: Run,
    table: TableName,
    discard_newer: Annotated[
        bool, typer.Option("--discard-newer", help="also where there were commits since the restore, which are lost")
    ] = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Undo a restore with --replace: the table is what it was before, in one step. The restored files stay.

    Exit codes: 10 where the table was not restored with --replace, 11 where there were commits since.
    """
    from frazil.backup.rollback import rollback_restore

    settings = settings_of(run)
    with stoppable(run, settings, catalog) as care:
        report = rollback_restore(care, table, discard_newer=discard_newer, dry_run=dry_run)
    if run.printer.json_output:
        run.printer.json({**report.to_dict(), "done": not dry_run})
        return
    verb = "would be" if dry_run else "is"
    print(
        f"{report.name} {verb} again what it was before the restore: snapshot {report.snapshot_id} in {report.location}"
    )
    print(f"  the restored table: {report.restored}")
    for text in report.losses:
        run.printer.note(f"note: {text}")
