"""Replicas of a lake: tables that are served from a copy of their storage."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Literal

from frazil.catalogs import parse_name
from frazil.lake.connection import Connection
from frazil.replica.beacon import Beacon, write_beacon
from frazil.replica.config import ReplicaConfig, resolve_config
from frazil.replica.data_files import DataSyncPlan
from frazil.replica.failover import FailoverReport, FailoverTable, plan_failover, run_failover
from frazil.replica.many import ReplicaRun, plan_table, run_replicas, sync_table
from frazil.replica.runs import list_runs
from frazil.replica.status import ReplicaStatus, list_status
from frazil.replica.sync import SyncPlan, SyncReport
from frazil.replica.topics import read_old_log
from frazil.replica.verify import VerifyReport, verify_replica
from frazil.tables.relocation.engine import EngineChoice, open_engine
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.runs.open_context import open_context


class Replicas:
    """Replicas in the catalogs of the settings. Get it by `lake.replica`.

    What an argument leaves out comes from the settings `replica` and `replica.tables`.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"<frazil.Replicas {', '.join(sorted(self._connection.settings.model.replica.tables))}>"

    # -- sync ----------------------------------------------------------------------------------------------------------

    def sync(
        self,
        table: str,
        *,
        replicated_path: str | None = None,
        warehouse: str | None = None,
        catalog: str | None = None,
        source_prefixes: Mapping[str, str] | None = None,
        witnessed_only: bool = False,
        current_only: bool = False,
        mode: Literal["metadata", "data-files"] | None = None,
        prune_missing: bool = False,
        discard_replica_writes: bool = False,
        engine: EngineChoice = "auto",
    ) -> SyncReport:
        """Serves the newest committed version whose files have all arrived. Nothing changes where nothing is new.

        Args:
            table: its name in the replica's catalog.
            replicated_path: folder that its storage was copied to, or one above it.
            warehouse: where relocated metadata goes, outside the replicated path.
            catalog: name of the replica's catalog in the settings.
            source_prefixes: prefixes of paths in the source's metadata, and where they landed.
            witnessed_only: serve only versions that are proven to be committed.
            current_only: without history, branches and tags.
            mode: "data-files" makes a table of bare Parquet files.
            prune_missing: take files out of such a table that are gone.
            discard_replica_writes: take back what others committed to the replica.
            engine: what relocates metadata: "local", "spark" or "auto".

        Raises:
            NotFoundError: there is no metadata of this table.
            ConflictError: others have committed to the replica.
            NotAllowedError: the name is that of a table which is no replica; or the warehouse is in the way.
            IntegrityError: metadata is damaged, or no prefix covers a path.
        """
        config = self._config(
            table, replicated_path, warehouse, catalog, source_prefixes, mode,
            witnessed_only=witnessed_only, current_only=current_only, prune_missing=prune_missing,
        )  # fmt: skip
        settings = self._connection.settings
        limit = settings.model.replica.concurrency
        with (
            self._care(config.catalog) as care,
            open_engine(engine, settings, concurrency=limit, spark=care.spark) as opened,
        ):
            return sync_table(care, config, opened, discard_replica_writes=discard_replica_writes)

    def plan(
        self,
        table: str,
        *,
        replicated_path: str | None = None,
        warehouse: str | None = None,
        catalog: str | None = None,
        source_prefixes: Mapping[str, str] | None = None,
        witnessed_only: bool = False,
        current_only: bool = False,
        mode: Literal["metadata", "data-files"] | None = None,
        prune_missing: bool = False,
    ) -> SyncPlan | DataSyncPlan:
        """Returns what `sync` would do with the same arguments. Changes nothing."""
        config = self._config(
            table, replicated_path, warehouse, catalog, source_prefixes, mode,
            witnessed_only=witnessed_only, current_only=current_only, prune_missing=prune_missing,
        )  # fmt: skip
        with self._care(config.catalog) as care:
            return plan_table(care, config)

    def run(self, *tables: str, engine: EngineChoice = "auto") -> builtins.list[ReplicaRun]:
        """Syncs the tables of the settings, several at once, and writes the metrics. One that fails stops no other.

        Args:
            tables: only these.
            engine: what relocates metadata: "local", "spark" or "auto".
        """
        connection = self._connection
        connection.require_open()
        return run_replicas(connection.settings, tables, engine=engine, spark=lambda: connection.spark)

    # -- look ----------------------------------------------------------------------------------------------------------

    def status(self, *tables: str, catalog: str | None = None) -> builtins.list[ReplicaStatus]:
        """Returns the replicas of a catalog: what each serves, and how far it is behind what has arrived."""
        with self._care(catalog) as care:
            return list_status(care, tables)

    def history(
        self, table: str | None = None, *, limit: int = 20, catalog: str | None = None
    ) -> builtins.list[dict[str, Any]]:
        """Returns the syncs that changed a replica or failed, and the failovers, newest first."""
        with self._care(catalog) as care:
            name = None if table is None else ".".join(parse_name(table, care.catalog.name))
            return list_runs(care.store, name, limit=limit)

    def verify(self, table: str, *, catalog: str | None = None) -> VerifyReport:
        """Checks that every file of what a replica serves is there: `report.is_sound`, and `missing`."""
        with self._care(catalog) as care:
            return verify_replica(care, table)

    # -- failover ------------------------------------------------------------------------------------------------------

    def plan_failover(
        self, *tables: str, catalog: str | None = None, primary: str | None = None, primary_log: str | None = None
    ) -> builtins.list[FailoverTable]:
        """Returns what a failover would mean: lag, lost snapshots and lost messages of each table. Changes nothing."""
        with ExitStack() as opened:
            care = opened.enter_context(self._care(catalog))
            old = opened.enter_context(self._care(primary)) if primary is not None else None
            old_log = read_old_log(care.settings, primary_log) if primary_log is not None else None
            return plan_failover(care, tables, primary=old, old_log=old_log)

    def failover(
        self,
        table: str,
        *,
        catalog: str | None = None,
        primary: str | None = None,
        primary_log: str | None = None,
        allow_unfenced: bool = False,
        engine: EngineChoice = "auto",
    ) -> FailoverReport:
        """Makes a replica writable, after it serves the newest version that has arrived.

        Args:
            table: its name.
            catalog: name of the replica's catalog.
            primary: catalog of the old primary, whose table is renamed, so that its writers fail.
            primary_log: log of the lost site, a broker's address or a folder: counts the messages that only it has.
            allow_unfenced: go on if the old primary cannot be fenced.
            engine: what relocates metadata: "local", "spark" or "auto".

        Raises:
            NotAllowedError: the table is no replica.
            FrazilError: the old primary was named, and cannot be fenced. Nothing was changed at the replica.
        """
        with ExitStack() as opened:
            care = opened.enter_context(self._care(catalog))
            old = opened.enter_context(self._care(primary)) if primary is not None else None
            work = opened.enter_context(open_engine(engine, self._connection.settings, spark=care.spark))
            old_log = read_old_log(care.settings, primary_log) if primary_log is not None else None
            return run_failover(care, table, work, primary=old, allow_unfenced=allow_unfenced, old_log=old_log)

    def beacon(self, place: str, *tables: str, catalog: str | None = None) -> Beacon:
        """On the primary: writes down what its catalog names for each table, for replicas.

        Args:
            place: a folder that is replicated with the tables, such as the warehouse.
            tables: only these; by default all of the catalog.
            catalog: name of the primary's catalog.
        """
        with self._care(catalog) as care:
            return write_beacon(care, tables, place)

    def _config(
        self,
        table: str,
        replicated_path: str | None,
        warehouse: str | None,
        catalog: str | None,
        source_prefixes: Mapping[str, str] | None,
        mode: Literal["metadata", "data-files"] | None,
        **options: bool,
    ) -> ReplicaConfig:
        connection = self._connection
        connection.require_open()
        found = resolve_config(
            connection.settings, table, catalog=catalog, replicated_path=replicated_path, warehouse=warehouse
        )
        changes: dict[str, Any] = {name: True for name, value in options.items() if value}
        if mode is not None:
            changes["mode"] = mode
        if source_prefixes:
            changes["source_prefixes"] = tuple(source_prefixes.items())
        return replace(found, **changes)

    def _care(self, catalog: str | None = None) -> AbstractContextManager[UpkeepContext]:
        connection = self._connection
        connection.require_open()
        return open_context(connection.settings, catalog or connection.catalog, spark=lambda: connection.spark)
