"""Syncs of many tables: one that fails does not stop the others. What `frazil replica run` does, with metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from frazil.errors import FrazilError, NotFoundError, translate_os_error
from frazil.observe.cancellation import StoppedError, raise_if_stopped
from frazil.observe.progress import Progress
from frazil.replica.config import ReplicaConfig, list_configs
from frazil.replica.data_files import DataFileTable, DataSyncPlan, plan_data_sync, run_data_sync
from frazil.replica.metrics import ReplicaMetrics, read_metrics, write_metrics
from frazil.replica.scan import ReplicaFiles, open_replica_files
from frazil.replica.sync import ReplicaTable, SyncPlan, SyncReport, plan_sync, run_sync
from frazil.settings import Settings
from frazil.tables.relocation.engine import Engine, EngineChoice, open_engine
from frazil.upkeep.context import Sessions, UpkeepContext
from frazil.upkeep.runs.open_context import open_context


@dataclass(frozen=True)
class ReplicaRun:
    """What a run did for one table.

    Attributes:
        config: how it is replicated.
        report: of the sync; None where it failed.
        error: why it failed.
    """

    config: ReplicaConfig
    report: SyncReport | None = None
    error: FrazilError | None = None

    def to_dict(self) -> dict[str, Any]:
        report = self.report.to_dict() if self.report else {"identifier": self.config.name, "action": "failed"}
        return {"catalog": self.config.catalog, **report, "error": self.error and self.error.to_dict()}


def open_files(care: UpkeepContext, replicated_path: str) -> ReplicaFiles:
    """Opens a replicated folder with the access that a catalog has. Nothing is read yet."""
    model = care.settings.model
    return open_replica_files(replicated_path, s3=care.catalog.s3 or model.s3, network=model.network, spark=care.spark)


def plan_table(care: UpkeepContext, config: ReplicaConfig) -> SyncPlan | DataSyncPlan:
    """Returns what a sync of a table would do. Changes nothing.

    Raises:
        FrazilError: as `plan_sync` and `plan_data_sync`.
    """
    if config.mode == "data-files":
        return plan_data_sync(care, _to_data_files(care, config), spark=care.spark)
    with _explained():
        return plan_sync(care, _to_table(config), stop=care.stop, spark=care.spark)


def sync_table(
    care: UpkeepContext,
    config: ReplicaConfig,
    engine: Engine,
    progress: Progress | None = None,
    *,
    discard_replica_writes: bool = False,
) -> SyncReport:
    """Brings one replica up to date. Nothing is changed if there is nothing new.

    Raises:
        FrazilError: as `run_sync` and `run_data_sync`; the served table is as it was.
        StoppedError: the stop event of `care` was set.
    """
    if config.mode == "data-files":
        plan = plan_data_sync(care, _to_data_files(care, config), spark=care.spark)
        return run_data_sync(care, plan, engine, progress, care.stop)
    with _explained():
        return run_sync(
            care, _to_table(config), engine, progress, care.stop,
            discard_replica_writes=discard_replica_writes, spark=care.spark,
        )  # fmt: skip


def _to_table(config: ReplicaConfig) -> ReplicaTable:
    return ReplicaTable(
        config.replicated_path, config.identifier, config.warehouse, config.source_prefixes,
        config.witnessed_only, config.current_only,
    )  # fmt: skip


def _to_data_files(care: UpkeepContext, config: ReplicaConfig) -> DataFileTable:
    """The folder of the table may be named, or one above it with `<namespace>/<table>` or `<namespace>.db/<table>`."""
    *namespace, name = config.identifier
    root = config.replicated_path.rstrip("/")
    files = open_files(care, root)
    usual = ("/".join(config.identifier), f"{'.'.join(namespace)}.db/{name}")
    below = next((folder for folder in usual if next(files.list(folder), None) is not None), None)
    return DataFileTable(
        root if below is None else f"{root}/{below}", config.identifier, config.warehouse, config.partition,
        config.prune_missing,
    )  # fmt: skip


@contextmanager
def _explained() -> Iterator[None]:
    """Says what to do with a folder of bare Parquet files."""
    try:
        yield
    except NotFoundError as error:
        if error.cause is None or "*.metadata.json" not in error.cause:
            raise
        raise NotFoundError(
            error.message, cause=error.cause, hint=f"{error.hint}; bare Parquet files need --mode data-files"
        ) from error


# -- many tables -------------------------------------------------------------------------------------------------------


def sync_tables(
    settings: Settings,
    configs: Sequence[ReplicaConfig],
    *,
    engine: EngineChoice = "auto",
    discard_replica_writes: bool = False,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    spark: Sessions | None = None,
) -> list[ReplicaRun]:
    """Syncs tables, `replica.tables_at_once` at a time. One that fails does not stop the others.

    Args:
        settings: all of them.
        configs: the tables; their results have the same order.
        engine: what relocates metadata.
        discard_replica_writes: take back what others committed to the replicas.
        progress: counts, where there is one table only.
        stop: ends it soon.
        spark: gives a session that the caller closes.

    Raises:
        StoppedError: `stop` was set. Tables that were done stay.
    """
    stop = stop or threading.Event()
    with ExitStack() as opened:
        cares = {name: _open(opened, settings, name, stop, spark) for name in {c.catalog for c in configs}}
        sessions = next((care.spark for care in cares.values() if isinstance(care, UpkeepContext)), spark)
        limit = settings.model.replica.concurrency
        work = opened.enter_context(open_engine(engine, settings, concurrency=limit, stop=stop, spark=sessions))
        counting = progress if len(configs) == 1 else None

        def sync(config: ReplicaConfig) -> ReplicaRun:
            care = cares[config.catalog]
            if isinstance(care, FrazilError):
                return ReplicaRun(config, error=care)
            raise_if_stopped(stop)
            return _run(
                config,
                lambda: sync_table(care, config, work, counting, discard_replica_writes=discard_replica_writes),
            )

        if len(configs) == 1:
            return [sync(configs[0])]
        pool = opened.enter_context(ThreadPoolExecutor(settings.model.replica.tables_at_once, "frazil-replica"))
        return list(pool.map(sync, configs))


def _open(
    opened: ExitStack, settings: Settings, catalog: str, stop: threading.Event, spark: Sessions | None
) -> UpkeepContext | FrazilError:
    try:
        return opened.enter_context(open_context(settings, catalog, stop, spark=spark))
    except FrazilError as error:
        return error


def _run(config: ReplicaConfig, sync: Callable[[], SyncReport]) -> ReplicaRun:
    try:
        return ReplicaRun(config, sync())
    except StoppedError:
        raise
    except FrazilError as error:
        return ReplicaRun(config, error=error)
    except OSError as error:
        known = translate_os_error(error)
        if known is None:
            raise
        return ReplicaRun(config, error=known)


def run_replicas(
    settings: Settings,
    names: Sequence[str] = (),
    *,
    engine: EngineChoice = "auto",
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    spark: Sessions | None = None,
) -> list[ReplicaRun]:
    """Syncs the tables of the settings, and writes the metrics.

    Args:
        settings: with `replica.tables`.
        names: only these; by default all.
        engine: what relocates metadata.
        progress: counts, where there is one table only.
        stop: ends it soon.
        spark: gives a session that the caller closes.

    Raises:
        NotFoundError: the settings have no such table, or none at all.
        ConfigError: one of them is not complete.
        StoppedError: `stop` was set. Tables that were done stay.
    """
    configs = list_configs(settings, names)
    runs = sync_tables(settings, configs, engine=engine, progress=progress, stop=stop, spark=spark)
    file = settings.model.replica.metrics_file
    if file is not None:
        _report(file, settings, runs)
    return runs


def _report(file: Path, settings: Settings, runs: Sequence[ReplicaRun]) -> None:
    """Writes the metrics of all tables; of those that this run left out, as they were."""
    before, now = read_metrics(file), datetime.now(UTC)
    found = {name: before.get(name, ReplicaMetrics()) for name in settings.model.replica.tables}
    found |= {run.config.name: measure_run(run, before.get(run.config.name), now) for run in runs}
    write_metrics(file, found, now)


def measure_run(run: ReplicaRun, before: ReplicaMetrics | None, now: datetime) -> ReplicaMetrics:
    """Returns the metrics of a table. Pure.

    Args:
        run: what was done for it.
        before: what the file said before.
        now: the time.
    """
    before = replace(
        before or ReplicaMetrics(), last_attempt_timestamp_seconds=now.timestamp(), max_lag_seconds=run.config.max_lag_s
    )
    report = run.report
    if report is None:
        return replace(before, failures=before.failures + 1)
    served = report.served_ms
    return replace(
        before,
        last_success_timestamp_seconds=now.timestamp(),
        served_timestamp_seconds=0.0 if served is None else served / 1000,
        lag_seconds=0.0
        if report.waiting_since_ms is None
        else max(0.0, now.timestamp() - report.waiting_since_ms / 1000),
        lag_snapshots=float(report.lag_snapshots),
        duration_seconds=report.seconds,
        files_new=float(report.files_new),
        missing_files=float(len(report.missing)),
        failures=0.0,
    )
