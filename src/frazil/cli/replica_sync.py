"""`frazil replica sync|plan|run|beacon`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.progress import shown_progress
from frazil.cli.replica_session import (
    SHOWN,
    All,
    Choice,
    CurrentOnly,
    LogLevel,
    ModeOption,
    Namespace,
    PartitionBy,
    PruneMissing,
    ReplicaCatalog,
    ReplicatedPath,
    SourcePrefix,
    TableInNamespace,
    Tables,
    Warehouse,
    WitnessedOnly,
    find_configs,
    load,
    with_log_level,
)
from frazil.cli.session import Engine, EngineChoice, stoppable, stopping
from frazil.errors import PartialError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.replica.data_files import DataSyncPlan
    from frazil.replica.many import ReplicaRun
    from frazil.replica.sync import SyncPlan, SyncReport


def sync(
    run: Run,
    tables: Tables = None,
    replicated_path: ReplicatedPath = None,
    catalog: ReplicaCatalog = None,
    namespace: Namespace = None,
    table: TableInNamespace = None,
    warehouse: Warehouse = None,
    all_: All = False,
    source_prefix: SourcePrefix = None,
    witnessed_only: WitnessedOnly = False,
    current_only: CurrentOnly = False,
    mode: ModeOption = None,
    partition_by: PartitionBy = None,
    prune_missing: PruneMissing = False,
    discard_replica_writes: Annotated[
        bool, typer.Option("--discard-replica-writes", help="take back what others committed to the replica")
    ] = False,
    engine: Engine = EngineChoice.auto,
    log_level: LogLevel = None,
) -> None:
    """Serve the newest committed version of a table whose files have all arrived in the replicated path.

    Only what is new is read. Nothing is written to the replicated path, and nothing changes where nothing is new. Where
    files of a newer version are missing, they are named, and the served version stays. Exit codes: 3 where some of
    several tables failed, 10 where there is no table or metadata, 11 where others wrote to the replica, 12 where a
    place or table is not allowed, 13 where metadata is damaged.
    """
    from frazil.replica.many import sync_tables

    run = with_log_level(run, log_level)
    settings, choice = load(
        run,
        Choice(
            tables, namespace, table, catalog, replicated_path, warehouse, source_prefix, mode, partition_by, all_,
            witnessed_only, current_only, prune_missing,
        ),
        missing="create",
    )  # fmt: skip
    if choice.is_all and choice.replicated_path is not None:
        with stoppable(run, settings, catalog) as care:
            configs = find_configs(settings, choice, care)
    else:
        configs = find_configs(settings, choice)
    with stopping(run) as stop, shown_progress(run) as progress:
        runs = sync_tables(
            settings, configs, engine=engine.value, discard_replica_writes=discard_replica_writes, progress=progress,
            stop=stop,
        )  # fmt: skip
    print_runs(run, runs, as_list=all_ or len(runs) > 1)


def plan(
    run: Run,
    tables: Tables = None,
    replicated_path: ReplicatedPath = None,
    catalog: ReplicaCatalog = None,
    namespace: Namespace = None,
    table: TableInNamespace = None,
    warehouse: Warehouse = None,
    all_: All = False,
    source_prefix: SourcePrefix = None,
    witnessed_only: WitnessedOnly = False,
    current_only: CurrentOnly = False,
    mode: ModeOption = None,
    partition_by: PartitionBy = None,
    prune_missing: PruneMissing = False,
    log_level: LogLevel = None,
) -> None:
    """Show what a sync would do: which version it would serve, why, and what is missing for newer ones.

    Exit codes as those of `frazil replica sync`; a replica that others wrote to is shown.
    """
    from frazil.replica.many import plan_table

    run = with_log_level(run, log_level)
    settings, choice = load(
        run,
        Choice(
            tables, namespace, table, catalog, replicated_path, warehouse, source_prefix, mode, partition_by, all_,
            witnessed_only, current_only, prune_missing,
        ),
        missing="imagine",
    )  # fmt: skip
    plans: list[SyncPlan | DataSyncPlan] = []
    if choice.is_all and choice.replicated_path is not None:
        with stoppable(run, settings, catalog) as care:
            configs = find_configs(settings, choice, care)
    else:
        configs = find_configs(settings, choice)
    for config in configs:
        with stoppable(run, settings, config.catalog) as care:
            plans.append(plan_table(care, config))
    _print_plans(run, plans, as_list=all_ or len(plans) > 1)


def run_(
    run: Run,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE…", help="only these [default: all of the settings]")
    ] = None,
    engine: Engine = EngineChoice.auto,
    log_level: LogLevel = None,
) -> None:
    """Sync the tables of the settings, several at once, and write the metrics. For cron and systemd.

    A table that fails does not stop the others. Exit codes: 3 where some tables failed; where a single one was tried,
    that of its error.
    """
    from frazil.cli.replica_session import SECTIONS
    from frazil.replica.many import run_replicas

    settings = with_log_level(run, log_level).settings(*SECTIONS)
    with stopping(run) as stop, shown_progress(run) as progress:
        runs = run_replicas(settings, tables or (), engine=engine.value, progress=progress, stop=stop)
    print_runs(run, runs, as_list=True)


def beacon(
    run: Run,
    place: Annotated[
        str, typer.Argument(metavar="URI", help="folder that is replicated with the tables, such as the warehouse")
    ],
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE…", help="only these [default: all of the catalog]")
    ] = None,
    catalog: CatalogOption = None,
    log_level: LogLevel = None,
) -> None:
    """On the primary: write down what its catalog names for each table, in a file that is replicated with the tables.

    With a beacon, replicas know which version was committed. Exit code 10 where there is no such table.
    """
    from frazil.cli.replica_session import SECTIONS
    from frazil.replica.beacon import BEACON_NAME, write_beacon

    settings = with_log_level(run, log_level).settings(*SECTIONS)
    with stoppable(run, settings, catalog) as care:
        written = write_beacon(care, tables or (), place)
    if run.printer.json_output:
        run.printer.json(
            {
                "path": f"{place.rstrip('/')}/{BEACON_NAME}",
                "catalog": written.catalog,
                "written_at": written.written_at,
                "tables": [
                    {"table": ".".join(t.identifier), "uuid": t.uuid, "metadata_location": t.metadata_location}
                    for t in written.tables
                ],
            }
        )
        return
    rows = [[".".join(one.identifier), one.version_name] for one in written.tables]
    run.printer.rows(("table", "version"), rows, none="no tables")
    print(f"\nwritten to {place.rstrip('/')}/{BEACON_NAME}")


# -- output ------------------------------------------------------------------------------------------------------------


def print_runs(run: Run, runs: Sequence[ReplicaRun], *, as_list: bool) -> None:
    """What syncs have done.

    Raises:
        PartialError: some of several failed.
        FrazilError: the only one failed.
    """
    failed = [one for one in runs if one.error is not None]
    if len(runs) == 1 and failed and failed[0].error is not None:
        if as_list and run.printer.json_output:
            run.printer.json([one.to_dict() for one in runs])
        raise failed[0].error
    if run.printer.json_output:
        run.printer.json([one.to_dict() for one in runs] if as_list else runs[0].to_dict())
    elif len(runs) == 1 and runs[0].report is not None:
        _print_report(run, runs[0].report, runs[0].config.catalog)
    else:
        columns = ("table", "result", "version", "snapshots", "new files", "missing", "seconds")
        run.printer.rows(columns, [_row(one) for one in runs])
        for one in runs:
            for text in one.report.warnings if one.report else ():
                run.printer.note(f"note: {one.config.name}: {text}")
    if failed:
        for one in failed:
            assert one.error is not None
            run.printer.note(f"error: {one.config.name}: {one.error.in_one_line}")
        raise PartialError(
            f"{len(failed)} of {len(runs)} tables failed", hint="the same command again, which tries again what failed"
        )


def _row(one: ReplicaRun) -> list[Any]:
    report = one.report
    if report is None:
        return [one.config.name, "failed", None, None, None, None, None]
    return [
        one.config.name, report.action, report.version, report.snapshots, report.files_new, len(report.missing),
        f"{report.seconds:.1f}",
    ]  # fmt: skip


def _print_report(run: Run, report: SyncReport, catalog: str) -> None:
    from frazil.replica.data_files import DataSyncReport
    from frazil.upkeep.plans.format_amounts import format_count

    version = "" if report.version is None else f"version {report.version}, "
    served = f"{version}{format_count(report.snapshots, 'snapshot')}"
    name = f"{report.identifier} in catalog '{catalog}'"
    if report.action in ("created", "updated"):
        new = format_count(report.files_new, "new file")
        print(f"{name} is {report.action}: {served}, {new}, in {report.seconds:.1f} s")
    elif report.action == "dropped":
        print(f"{name} is dropped, as the primary's table was; its files stay")
    elif report.metadata_location is None:
        print(f"{name} is not served yet: no version has arrived completely")
    else:
        print(f"{name} is unchanged: {served}")
    if report.source_metadata is not None:
        print(f"  the primary's {report.source_metadata}")
        if not report.witnessed:
            print("  unwitnessed: nothing proves yet that this version was committed")
    if isinstance(report, DataSyncReport):
        _print_files(report)
    _print_missing(report.missing, "newer versions wait for")
    for text in report.reasons:
        print(f"  {text}")
    for text in (*report.losses, *report.warnings):
        run.printer.note(f"note: {text}")


def _print_files(report: Any) -> None:
    if report.columns_added:
        print(f"  new columns: {', '.join(report.columns_added)}")
    for name in ("removed", "waiting", "rejected"):
        _print_missing(getattr(report, name), name)


def _print_missing(files: Sequence[str], what: str) -> None:
    from frazil.upkeep.plans.format_amounts import format_count

    if not files:
        return
    print(f"  {what} {format_count(len(files), 'file')}:")
    for text in files[:SHOWN]:
        print(f"    {text}")
    if len(files) > SHOWN:
        print(f"    … and {len(files) - SHOWN:,} more; --output json has them")


def _print_plans(run: Run, plans: Sequence[SyncPlan | DataSyncPlan], *, as_list: bool) -> None:
    if run.printer.json_output:
        found = [{**one.to_dict(), "done": False} for one in plans]
        run.printer.json(found if as_list else found[0])
        return
    for number, one in enumerate(plans):
        if number:
            print()
        shown = one.to_dict()
        texts = {name: shown.pop(name, None) or () for name in ("missing", "reasons", "losses", "warnings")}
        written = shown.pop("written", None)
        for name in ("replaced", "gone"):
            if name in shown:
                shown[name] = len(shown[name])
        run.printer.record(shown)
        _print_missing(texts["missing"], "newer versions wait for")
        for text in (*texts["reasons"], *texts["losses"], *texts["warnings"]):
            print(f"  {text}")
        if written:
            print(f"  refused: {written['message']} ({written['cause']})")
    run.printer.note("nothing was changed")
