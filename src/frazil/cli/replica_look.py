"""`frazil replica status|history|verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import Run
from frazil.cli.replica_session import SHOWN, Choice, LogLevel, ReplicaCatalog, Tables, Warehouse, load, with_log_level
from frazil.cli.session import shown_files, shown_time, stoppable

if TYPE_CHECKING:
    from frazil.replica.status import ReplicaStatus


def status(
    run: Run,
    tables: Tables = None,
    catalog: ReplicaCatalog = None,
    warehouse: Warehouse = None,
    log_level: LogLevel = None,
) -> None:
    """Show the replicas of a catalog: the version that each serves, and how far it is behind what has arrived.

    Exit code 10 where there is no such table, or it is no replica.
    """
    from frazil.replica.status import list_status

    run = with_log_level(run, log_level)
    settings, _ = load(run, Choice(catalog=catalog, warehouse=warehouse), missing="refuse")
    with stoppable(run, settings, catalog) as care:
        found = list_status(care, tables or ())
    if run.printer.json_output:
        run.printer.json([one.to_dict() for one in found])
        return
    columns = ("table", "state", "version", "witnessed", "snapshots", "lag", "committed", "synced")
    run.printer.rows(columns, [_row(one) for one in found], none="no replicas")
    for one in found:
        if one.is_written:
            run.printer.note(f"warning: others wrote to the replica {one.table}: a sync refuses it")
        if one.error is not None:
            run.printer.note(f"warning: {one.table}: {one.error.in_one_line}")
        for text in one.missing[:SHOWN]:
            run.printer.note(f"{one.table} waits for {text}")


def _row(one: ReplicaStatus) -> list[Any]:
    from frazil.upkeep.plans.format_amounts import format_age, format_count

    lag = None
    if one.waiting_since is not None:
        lag = f"{format_age(one.lag_s)}, {format_count(one.lag_snapshots, 'snapshot')}"
    witnessed = one.witnessed if one.mode == "metadata" else None
    return [
        one.table, one.state, one.version, witnessed, one.snapshots, lag, shown_time(one.served_at),
        shown_time(one.synced_at),
    ]  # fmt: skip


def history(
    run: Run,
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="only of this one")] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many, the newest")] = 20,
    catalog: ReplicaCatalog = None,
    warehouse: Warehouse = None,
    log_level: LogLevel = None,
) -> None:
    """Show the syncs that changed a replica or failed, and the failovers, newest first."""
    from frazil.catalogs import parse_name
    from frazil.replica.runs import list_runs

    run = with_log_level(run, log_level)
    settings, _ = load(run, Choice(catalog=catalog, warehouse=warehouse), missing="refuse")
    with stoppable(run, settings, catalog) as care:
        name = None if table is None else ".".join(parse_name(table, care.catalog.name))
        found = list_runs(care.store, name, limit=limit)
    if run.printer.json_output:
        run.printer.json(found)
        return
    rows = [
        [shown_time(r["started_at"]), r["table"], r["result"], r["version"], r["files_new"], f"{r['seconds']:.1f}",
         r["reason"]]
        for r in found
    ]  # fmt: skip
    run.printer.rows(("time", "table", "result", "version", "new files", "seconds", "why"), rows, none="no runs yet")


def verify(
    run: Run,
    tables: Tables = None,
    catalog: ReplicaCatalog = None,
    warehouse: Warehouse = None,
    log_level: LogLevel = None,
) -> None:
    """Check that every file of what replicas serve is there, with its size, and that all metadata can be read.

    Without names, all replicas of the catalog are checked. Exit codes: 10 where there is no such replica, 13 where
    files are missing or damaged.
    """
    from frazil.replica.status import list_replicas
    from frazil.replica.verify import verify_replica

    run = with_log_level(run, log_level)
    settings, _ = load(run, Choice(catalog=catalog, warehouse=warehouse), missing="refuse")
    with stoppable(run, settings, catalog) as care:
        reports = [verify_replica(care, name) for name in tables or list_replicas(care)]
    if run.printer.json_output:
        run.printer.json([one.to_dict() for one in reports])
    else:
        rows = [
            [one.table, one.snapshots, one.manifests, shown_files(one.files, one.bytes), one.missing_count]
            for one in reports
        ]
        run.printer.rows(("table", "snapshots", "manifests", "checked", "missing"), rows, none="no replicas")
        for one in reports:
            for text in one.missing[:SHOWN]:
                print(f"{one.table}: {text}")
    for one in reports:
        if one.error is not None:
            raise one.error
