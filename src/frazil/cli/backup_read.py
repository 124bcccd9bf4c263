"""`frazil backup list|show|diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.backup_session import (
    BackupName,
    TableOption,
    find_record,
    find_tables_of,
    name_of,
    settings_of,
    shown_root,
    totals,
)
from frazil.cli.invocation import Run
from frazil.cli.session import shown_files, shown_time

if TYPE_CHECKING:
    from frazil.backup.contents import TableContents, TableDifference
    from frazil.backup.format import BackedUpTable, BackupRecord
    from frazil.backup.repository import Repository


def list_(
    run: Run,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="only backups of this table")] = None,
) -> None:
    """List the backups of the repository, the oldest first."""
    from frazil.backup.format import BackupRecord
    from frazil.backup.location import open_repository
    from frazil.backup.selection import has_table, offer_tables
    from frazil.errors import NotFoundError

    repository = open_repository(settings_of(run))
    found = repository.list_records()
    records = [one for one in found if isinstance(one, BackupRecord)]
    damaged = [one for one in found if not isinstance(one, BackupRecord)]
    if table is not None:
        records = [one for one in records if has_table(one, table)]
        if not records and len(damaged) < len(found):
            names = {name_of(each): each for one in found if isinstance(one, BackupRecord) for each in one.tables}
            hint = offer_tables(table, list(names))
            raise NotFoundError(f"no backup has the table '{table}'", hint=hint)
    if run.printer.json_output:
        run.printer.json(
            [record_as_json(one) for one in records]
            + [{"name": one.name, "damaged": True, "error": one.error.to_dict()} for one in damaged]
        )
    else:
        columns = ("backup", "created", "tables", "snapshots", "files", "bytes", "new bytes", "data")
        run.printer.rows(columns, [_row(one) for one in records], none=f"no backups in {shown_root(repository)}")
    for one in damaged:
        run.printer.note(f"error: backup '{one.name}' cannot be used: {one.error.in_one_line}")


def _row(record: BackupRecord) -> list[Any]:
    from frazil.upkeep.plans.format_amounts import format_size

    names = ", ".join(map(name_of, record.tables[:2])) + (f", … ({len(record.tables)})" if record.tables[2:] else "")
    sums = totals(record)
    return [
        record.name,
        shown_time(record.created_at),
        names,
        sums["snapshots"],
        sums["files"],
        format_size(sums["bytes"]),
        format_size(sums["new_bytes"]),
        record.data,
    ]


def record_as_json(record: BackupRecord) -> dict[str, Any]:
    """A backup as JSON."""
    tables = [_table_as_json(table) for table in record.tables]
    return {
        "name": record.name,
        "created_at": record.created_at.isoformat(),
        "started_at": record.started_at.isoformat(),
        "frazil_version": record.frazil_version,
        "data": record.data,
        "locked_until": record.locked_until and record.locked_until.isoformat(),
        **totals(record),
        "tables": tables,
    }


def _table_as_json(table: BackedUpTable) -> dict[str, Any]:
    return {
        "table": name_of(table),
        "catalog": table.catalog,
        "catalog_kind": table.catalog_kind,
        "uuid": table.uuid,
        "location": table.location,
        "format_version": table.format_version,
        "current_snapshot_id": table.current_snapshot_id,
        "snapshots": table.snapshots,
        "refs": list(table.refs),
        "files": table.files,
        "bytes": table.bytes,
        "new_files": table.new_files,
        "new_bytes": table.new_bytes,
        "metadata_bytes": table.metadata_bytes,
    }


def show(run: Run, backup: BackupName = "latest", table: TableOption = None) -> None:
    """Show a backup: its tables, their sizes, and what it added to the repository; of one table also its contents.

    JSON has the contents of all tables: columns, snapshots, branches, tags and properties.
    """
    from frazil.backup.contents import describe_table
    from frazil.backup.location import open_repository

    repository = open_repository(settings_of(run))
    record = find_record(repository, backup)
    tables = find_tables_of(repository, record, table)
    if run.printer.json_output:
        found = record_as_json(record)
        found["tables"] = [{**_table_as_json(t), **describe_table(repository, t).to_dict()} for t in tables]
        run.printer.json(found)
        return
    run.printer.record(_shown(repository, record))
    print()
    if len(tables) > 1:
        run.printer.rows(_TABLE_COLUMNS, [_table_row(t) for t in tables])
        print(f"\nsnapshots and columns of one: frazil backup show {record.name} --table {name_of(tables[0])}")
        return
    for each in tables:
        _print_table(run, describe_table(repository, each))


def _shown(repository: Repository, record: BackupRecord) -> dict[str, Any]:
    sums = totals(record)
    shown = {
        "backup": record.name,
        "created": shown_time(record.created_at),
        "took": f"{(record.created_at - record.started_at).total_seconds():.1f} s",
        "repository": shown_root(repository),
        "data": "copied" if record.data == "copied" else "referenced: the backup needs the original files",
        "tables": len(record.tables),
        "in it": shown_files(sums["files"], sums["bytes"]),
        "new in it": shown_files(sums["new_files"], sums["new_bytes"]),
        "by": f"Frazil {record.frazil_version}",
    }
    if record.locked_until is not None:
        shown["locked until"] = shown_time(record.locked_until)
    return shown


_TABLE_COLUMNS = ("table", "catalog", "format", "snapshots", "refs", "files", "bytes", "new files", "new bytes")


def _table_row(table: BackedUpTable) -> list[Any]:
    from frazil.upkeep.plans.format_amounts import format_size

    return [
        name_of(table),
        f"{table.catalog} ({table.catalog_kind})",
        f"v{table.format_version}",
        table.snapshots,
        ", ".join(table.refs) or None,
        table.files,
        format_size(table.bytes),
        table.new_files,
        format_size(table.new_bytes),
    ]


def _print_table(run: Run, contents: TableContents) -> None:
    table = contents.table
    run.printer.record(
        {
            "table": f"{name_of(table)} of catalog '{table.catalog}' ({table.catalog_kind})",
            "UUID": table.uuid,
            "location": table.location,
            "format": f"v{table.format_version}",
            "partitioned by": ", ".join(contents.partition_fields) or None,
            "files": shown_files(table.files, table.bytes),
            "refs": ", ".join(table.refs) or None,
        }
    )
    print()
    columns = [[column.id, column.name, column.type, column.required] for column in contents.columns]
    run.printer.rows(("id", "column", "type", "required"), columns)
    print()
    snapshots = [
        [s.id, shown_time(s.committed_at), s.operation, s.records, ", ".join(s.refs) or None]
        for s in contents.snapshots
    ]
    run.printer.rows(("snapshot", "committed", "operation", "rows", "refs"), snapshots, none="no snapshots")


def diff(
    run: Run,
    before: Annotated[str, typer.Argument(metavar="A", help="a backup")],
    after: Annotated[str, typer.Argument(metavar="B", help="another one; `latest` is the newest one")],
) -> None:
    """Show what only one of two backups has: tables, files, snapshots, branches, tags and columns."""
    from frazil.backup.contents import diff_backups
    from frazil.backup.location import open_repository

    repository = open_repository(settings_of(run))
    found = diff_backups(repository, find_record(repository, before), find_record(repository, after))
    if run.printer.json_output:
        run.printer.json([each.to_dict() for each in found])
        return
    columns = ("table", "change", "snapshots", "files", "bytes", "refs", "columns")
    run.printer.rows(columns, [_difference_row(each) for each in found], none="both backups have no tables")
    for each in found:
        if each.change == "changed" and not each.same_uuid:
            run.printer.note(f"note: {each.table} is another table in '{after}': it has another UUID")


def _difference_row(each: TableDifference) -> list[Any]:
    from frazil.upkeep.plans.format_amounts import format_size

    is_same = each.change == "same"
    is_changed = each.change == "changed"  # a table that is all new or all gone needs no list of its columns
    refs = [f"+{name}" for name in each.added_refs] + [f"-{name}" for name in each.removed_refs]
    columns = [f"+{name}" for name in each.added_columns] + [f"-{name}" for name in each.removed_columns]
    return [
        each.table,
        each.change,
        None if is_same else f"+{len(each.added_snapshots)} -{len(each.removed_snapshots)}",
        None if is_same else f"+{each.added_files:,} -{each.removed_files:,}",
        None if is_same else f"+{format_size(each.added_bytes)} -{format_size(each.removed_bytes)}",
        (is_changed and ", ".join([*refs, *(f"{name} moved" for name in each.moved_refs)])) or None,
        (is_changed and ", ".join([*columns, *(f"{name} changed" for name in each.changed_columns)])) or None,
    ]
