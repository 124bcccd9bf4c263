"""The replicas of a catalog: what each serves, and how far it is behind what has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from frazil.catalogs import list_tables, parse_name, read_metadata
from frazil.errors import FrazilError, NotFoundError
from frazil.observe.cancellation import StoppedError, raise_if_stopped
from frazil.replica import data_files
from frazil.replica.config import Mode
from frazil.replica.state import Role, ServedTable, parse_state
from frazil.replica.sync import ReplicaTable, plan_sync
from frazil.tables.relocation.table_metadata import TableMetadata
from frazil.upkeep.context import UpkeepContext


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica.

    Attributes:
        table: its name.
        mode: whether it follows metadata, or bare Parquet files.
        role: `primary` after a failover.
        replicated_path: what its source's storage is copied to.
        version: of the primary's metadata that is served.
        source_metadata: this, as the primary spells it.
        served_at: when the primary committed it.
        synced_at: when the replica last changed.
        witnessed: whether the version is known to be committed.
        snapshots: in the replica.
        snapshot_id: its current one.
        is_written: others have committed to it since.
        state: `current`, `behind` (the next sync serves a newer version), `waiting` (files of a newer version are
            missing), `dropped` (by the primary), `primary`, or `unknown`.
        waiting_since: when the primary committed the oldest version that is not served.
        lag_snapshots: snapshots that have begun to arrive, and are not served.
        missing: files that newer versions need.
        error: why the replicated storage could not be looked at.
    """

    table: str
    mode: Mode
    role: Role
    replicated_path: str
    version: int | None
    source_metadata: str | None
    served_at: datetime | None
    synced_at: datetime | None
    witnessed: bool
    snapshots: int
    snapshot_id: int | None
    is_written: bool
    state: str = "unknown"
    waiting_since: datetime | None = None
    lag_snapshots: int = 0
    missing: tuple[str, ...] = ()
    error: FrazilError | None = None

    @property
    def lag_s(self) -> float:
        """Seconds since the primary committed the oldest version that is not served; 0 if there is none."""
        since = self.waiting_since
        return 0.0 if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds())

    def to_dict(self) -> dict[str, Any]:
        """Returns the status as JSON."""
        times = {"served_at", "synced_at", "waiting_since"}
        found = {name: value for name, value in vars(self).items() if name not in {*times, "error", "missing"}}
        found |= {name: (time := getattr(self, name)) and time.isoformat() for name in sorted(times)}
        error = self.error and self.error.to_dict()
        return {**found, "lag_s": round(self.lag_s, 3), "missing": list(self.missing), "error": error}


def list_status(care: UpkeepContext, names: Sequence[str] = ()) -> list[ReplicaStatus]:
    """Returns the replicas of a catalog, and looks at their replicated storage. Changes nothing.

    Args:
        care: of the catalog.
        names: only these; by default all.

    Raises:
        NotFoundError: there is no such table, or it is no replica.
    """
    found = []
    for identifier, metadata, pointer in _find(care, names):
        raise_if_stopped(care.stop)
        found.append(_describe(care, identifier, metadata, pointer))
    return found


def list_replicas(care: UpkeepContext) -> list[str]:
    """Returns the names of all replicas in a catalog, also of those that were failed over."""
    return [".".join(identifier) for identifier, _, _ in _find(care, ())]


def _find(care: UpkeepContext, names: Sequence[str]) -> list[tuple[tuple[str, ...], TableMetadata, str]]:
    store = care.store
    chosen = [parse_name(name, care.catalog.name) for name in names]
    found = []
    for identifier in chosen or store.call(lambda: sorted(list_tables(store.catalog, store.settings)), "list_tables"):
        known = store.call(partial(read_metadata, store.catalog, identifier), "read_metadata")
        if known is None:
            if chosen:
                care.load(".".join(identifier))  # its error names what is near
            continue
        pointer, metadata = known
        if _is_replica(metadata, ".".join(identifier)):
            found.append((identifier, metadata, pointer))
        elif chosen:
            raise NotFoundError(f"{'.'.join(identifier)} is no replica", hint="frazil replica status")
    return found


def _is_replica(metadata: TableMetadata, name: str) -> bool:
    properties = metadata.get("properties") or {}
    return data_files.is_data_file_replica(properties) or parse_state(properties, name) is not None


def _describe(care: UpkeepContext, identifier: tuple[str, ...], metadata: TableMetadata, pointer: str) -> ReplicaStatus:
    name = ".".join(identifier)
    properties = metadata.get("properties") or {}
    state = parse_state(properties, name)
    current = metadata.get("current-snapshot-id")
    shared: dict[str, Any] = {
        "table": name,
        "snapshots": len(metadata.get("snapshots") or ()),
        "snapshot_id": None if current in (None, -1) else current,
    }
    if state is None:
        return ReplicaStatus(
            mode="data-files",
            role="primary" if properties[data_files.ROLE] == "primary" else "replica",
            replicated_path=properties.get(data_files.PATH, ""),
            version=None,
            source_metadata=None,
            served_at=None,
            synced_at=_moment(int(metadata["last-updated-ms"])),
            witnessed=False,
            is_written=False,
            **shared,
            **_look_at_files(care, name, metadata),
        )
    served = ServedTable(pointer, metadata, state)
    return ReplicaStatus(
        mode="metadata",
        role=state.role,
        replicated_path=state.replicated_path,
        version=state.version,
        source_metadata=state.source_metadata,
        served_at=_moment(state.updated_ms),
        synced_at=datetime.fromisoformat(state.synced_at),
        witnessed=state.witnessed,
        is_written=state.role == "replica" and served.is_written,
        **shared,
        **_look_at_metadata(care, identifier, served),
    )


def _look_at_metadata(care: UpkeepContext, identifier: tuple[str, ...], served: ServedTable) -> dict[str, Any]:
    state = served.state
    if state.role == "primary":
        return {"state": "primary"}
    warehouse = str(served.metadata["location"]).rstrip("/").removesuffix("/" + "/".join(identifier))
    table = ReplicaTable(state.replicated_path, identifier, warehouse, state.prefixes)
    try:
        plan = plan_sync(care, table, stop=care.stop, spark=care.spark)
    except StoppedError:
        raise
    except FrazilError as error:
        return {"error": error}
    newest = plan.newest
    behind = [waiting.candidate for waiting in newest.waiting]
    if newest.candidate is not None:
        behind.append(newest.candidate)
    shown = {one["snapshot-id"] for one in served.metadata.get("snapshots") or ()}
    lacking = {one["snapshot-id"] for each in behind for one in each.metadata.get("snapshots") or ()} - shown
    since = min((one.version.updated_ms for one in behind), default=None)
    states = {"updated": "behind", "waiting": "waiting", "unchanged": "current", "dropped": "dropped"}
    return {
        "state": states.get(plan.action, "unknown"),
        "waiting_since": None if since is None else _moment(since),
        "lag_snapshots": len(lacking),
        "missing": plan.missing,
    }


def _look_at_files(care: UpkeepContext, name: str, metadata: TableMetadata) -> dict[str, Any]:
    properties = metadata.get("properties") or {}
    if properties[data_files.ROLE] == "primary":
        return {"state": "primary"}
    warehouse = str(metadata["location"]).rstrip("/").removesuffix("/" + name.replace(".", "/"))
    identifier = tuple(name.split("."))
    config = data_files.DataFileTable(properties.get(data_files.PATH, ""), identifier, warehouse)
    try:
        plan = data_files.plan_data_sync(care, config, spark=care.spark)
    except StoppedError:
        raise
    except FrazilError as error:
        return {"error": error}
    return {"state": "behind" if plan.has_work else "current"}


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
