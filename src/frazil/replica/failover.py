"""Makes replicas the primary: shows what would be lost, keeps the old primary's writers out, and removes the guard.

Each table changes by one commit of the replica's catalog. A second call goes on where the first one was interrupted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from pyiceberg.table.metadata import TableMetadataUtil

from frazil.catalogs import flavor_of, parse_name
from frazil.catalogs.pointers import read_metadata
from frazil.errors import ConflictError, FrazilError, NotAllowedError, NotFoundError, UnsupportedError
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.replica import data_files
from frazil.replica.choose import number_of
from frazil.replica.runs import record_run
from frazil.replica.state import ReplicaState, parse_state, with_role
from frazil.replica.sync import ReplicaTable, SyncPlan, plan_sync, run_sync
from frazil.replica.topics import OldLog, TopicLoss, find_losses
from frazil.tables.publishing import plan_publication, publish
from frazil.tables.relocation.table_metadata import TableMetadata, format_metadata
from frazil.tables.relocation.target_folder import TargetFolder

if TYPE_CHECKING:
    from frazil.tables.relocation.engine import Engine
    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

#: not-given: no way to reach it was given. gone: its catalog has no such table, or not any more.
Reached = Literal["not-given", "unreachable", "gone", "reached"]
FAILED_OVER_AT = "frazil.replica.failed-over-at"
_GC = "gc.enabled"


@dataclass(frozen=True)
class LostSnapshot:
    """A snapshot of the primary that the replica does not have.

    Attributes:
        rows: that it added, if it says so.
    """

    snapshot_id: int
    timestamp_ms: int
    operation: str | None
    rows: int | None


@dataclass(frozen=True)
class FailoverTable:
    """What a failover means for a table.

    Attributes:
        name: of the replica.
        is_done: it was made writable before.
        version: of the primary's metadata that is served; None in data-file mode.
        snapshot_id: the last one that primary and replica have in common.
        synced_at: time of the last sync; None in data-file mode.
        lag_s: seconds between the served version and the newest one that is known.
        next_version: that has arrived completely, and will be served first.
        missing: files of newer versions that have not arrived.
        primary: whether the old primary was reached.
        lost: snapshots that the replica will not have.
        warnings: what deserves attention, a sentence each.
        topics: whose position the table carries: how far it reaches, and what only the old log had.
    """

    name: str
    is_done: bool
    version: int | None
    snapshot_id: int | None
    synced_at: str | None
    lag_s: float | None
    next_version: int | None
    missing: tuple[str, ...]
    primary: Reached
    lost: tuple[LostSnapshot, ...]
    warnings: tuple[str, ...] = ()
    topics: tuple[TopicLoss, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON."""
        values = {**vars(self), "missing": list(self.missing), "warnings": list(self.warnings)}
        values["topics"] = [topic.to_dict() for topic in self.topics]
        return values | {"lost": [vars(snapshot) for snapshot in self.lost]}


@dataclass(frozen=True)
class FailoverReport:
    """What a failover has done to a table.

    Attributes:
        fenced_as: the name that the old primary's table has now, so that its writers fail; None: it was not reached.
        metadata_location: of the table that is the primary now.
        lost: snapshots that it does not have.
        topics: whose position it carries: how far it reaches, what only the old log had, and how the topic goes on.
    """

    name: str
    fenced_as: str | None
    version: int | None
    snapshot_id: int | None
    metadata_location: str
    lost: tuple[LostSnapshot, ...]
    seconds: float = 0.0
    topics: tuple[TopicLoss, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        values = {**vars(self), "seconds": round(self.seconds, 3), "lost": [vars(snapshot) for snapshot in self.lost]}
        return values | {"topics": [topic.to_dict() for topic in self.topics]}


def plan_failover(
    care: UpkeepContext,
    names: Sequence[str],
    *,
    primary: UpkeepContext | None = None,
    primary_names: Mapping[str, str] | None = None,
    old_log: OldLog | None = None,
) -> list[FailoverTable]:
    """Returns what a failover would mean. Changes nothing.

    Args:
        care: of the replica's catalog.
        names: of its tables.
        primary: the old primary's catalog, if it can be opened.
        primary_names: names of tables there, where they differ.
        old_log: the log of the lost site, for tables of topics.

    Raises:
        NotFoundError: there is no such table.
        NotAllowedError: it is no replica.
    """
    return [_plan(care, name, primary, (primary_names or {}).get(name, name), old_log) for name in names]


def run_failover(
    care: UpkeepContext,
    name: str,
    engine: Engine,
    *,
    primary: UpkeepContext | None = None,
    primary_name: str | None = None,
    allow_unfenced: bool = False,
    old_log: OldLog | None = None,
) -> FailoverReport:
    """Makes one replica writable: fences the old primary, serves what has arrived by then, and removes the guard.

    Args:
        care: of the replica's catalog.
        name: of the table.
        engine: that runs the last sync.
        primary: the old primary's catalog; None: it is gone, or its writers were stopped by other means.
        primary_name: of the table there, if it differs.
        allow_unfenced: go on if the primary cannot be fenced. Both sides may then be written to.
        old_log: the log of the lost site, for tables of topics.

    Raises:
        FrazilError: the primary was given and cannot be fenced.
        ConflictError: another writer is committing to the replica.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    identifier = parse_name(name, care.store.settings.name)
    _, metadata, state = _read(care, identifier)
    fenced_as = None
    there: TableMetadata | None = None
    if primary is not None and state is not None:
        try:
            fenced_as, there = _fence(primary, primary_name or name, state)
        except FrazilError as error:
            if not allow_unfenced:
                raise error.adding("nothing was changed at the replica; its writers could go on") from None
            log.warning("the old primary is not fenced", table=name, error=error.message)
    if state is not None and state.role == "replica":
        _sync_last(care, identifier, state, engine)
    location, metadata = _make_writable(care, identifier)
    state = parse_state(metadata.get("properties") or {}, name)
    report = FailoverReport(
        name,
        fenced_as,
        None if state is None else state.version,
        _current(metadata),
        location,
        _list_lost(metadata, there or {}),
        time.monotonic() - began,
        find_losses(care.store, care.settings, name, old_log),
    )
    record_run(care.store, name, "failover", started_at, report.seconds, report=report.to_dict())
    log.warning("a replica is the primary now", table=name, fenced_as=fenced_as, lost=len(report.lost))
    return report


def _plan(
    care: UpkeepContext, name: str, primary: UpkeepContext | None, primary_name: str, old_log: OldLog | None = None
) -> FailoverTable:
    identifier = parse_name(name, care.store.settings.name)
    _, metadata, state = _read(care, identifier)
    if state is None:
        is_done = metadata["properties"][data_files.ROLE] == "primary"
        return FailoverTable(name, is_done, None, _current(metadata), None, None, None, (), "not-given", ())
    reached, there = _look_at(primary, primary_name, state)
    warnings = []
    plan: SyncPlan | None = None
    if state.role == "replica":
        try:
            plan = plan_sync(care, _order_of(care, identifier, state, metadata))
        except FrazilError as error:
            warnings.append(f"the replicated storage cannot be looked at: {error.in_one_line}")
    if plan is not None and plan.writes is not None:
        warnings.append("another writer committed to the replica: its commits stay, and nothing newer is served first")
        plan = replace(plan, newest=replace(plan.newest, candidate=None))
    if reached == "unreachable":
        warnings.append("the old primary cannot be reached: make sure by other means that it is not written")
    waiting = [one.candidate for one in plan.newest.waiting] if plan is not None else []
    candidate = plan.newest.candidate if plan is not None else None
    kept = candidate.metadata if candidate is not None else metadata
    served_next = TableMetadataUtil.parse_obj(candidate.metadata) if candidate is not None else None
    known = [one.metadata for one in waiting] + ([there] if there is not None else [])
    lost = {snapshot.snapshot_id: snapshot for other in known for snapshot in _list_lost(kept, other)}
    newest_ms = max([state.updated_ms, *(int(other["last-updated-ms"]) for other in (*known, kept))])
    served_ms = candidate.version.updated_ms if candidate is not None else state.updated_ms
    is_known = there is not None or plan is not None
    return FailoverTable(
        name,
        state.role == "primary",
        state.version,
        state.snapshot_id,
        state.synced_at,
        max(0.0, (newest_ms - served_ms) / 1000) if is_known and state.role == "replica" else None,
        candidate.file.number if candidate is not None else None,
        plan.missing if plan is not None else (),
        reached,
        tuple(sorted(lost.values(), key=lambda snapshot: snapshot.timestamp_ms)),
        tuple(warnings),
        find_losses(care.store, care.settings, name, old_log, served_next=served_next),
    )


def _read(care: UpkeepContext, identifier: tuple[str, ...]) -> tuple[str, TableMetadata, ReplicaState | None]:
    """The table, with its state; None in data-file mode."""
    name = ".".join(identifier)
    found = care.store.call(lambda: read_metadata(care.store.catalog, identifier), "read_metadata")
    if found is None:
        raise NotFoundError(
            f"the table {name} does not exist in the catalog '{care.catalog.name}'", hint="frazil table list"
        )
    properties = found[1].get("properties") or {}
    state = parse_state(properties, name)
    if state is None and not data_files.is_data_file_replica(properties):
        raise NotAllowedError(f"the table {name} is no replica", hint="frazil replica status")
    return found[0], found[1], state


def _look_at(primary: UpkeepContext | None, name: str, state: ReplicaState) -> tuple[Reached, TableMetadata | None]:
    if primary is None:
        return "not-given", None
    store = primary.store
    identifier = parse_name(name, store.settings.name)
    try:
        found = store.call(lambda: read_metadata(store.catalog, identifier), "read_metadata")
    except FrazilError as error:
        log.info("the old primary cannot be reached", table=name, error=error.message)
        return "unreachable", None
    if found is None or (state.uuid and found[1].get("table-uuid") != state.uuid):
        return "gone", None
    return "reached", found[1]


def _fence(primary: UpkeepContext, name: str, state: ReplicaState) -> tuple[str | None, TableMetadata | None]:
    """Renames the old primary's table, so that every commit of its writers fails. Its files and history stay.

    Returns its new name, and its metadata, which is final.
    """
    store = primary.store
    identifier = parse_name(name, store.settings.name)
    found = store.call(lambda: read_metadata(store.catalog, identifier), "read_metadata")
    if found is None:
        return None, None  # dropped, or fenced by a run that was interrupted
    if state.uuid and found[1].get("table-uuid") != state.uuid:
        raise ConflictError(
            f"the table {name} in the catalog '{primary.catalog.name}' is not the primary of this replica",
            cause=f"its UUID is {found[1].get('table-uuid')}, and not {state.uuid}",
            hint="name the primary's table, or leave the primary out",
        )
    other = (*identifier[:-1], f"{identifier[-1]}_fenced_{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    reach("replica.fence.before")
    try:
        store.call_once(lambda: store.catalog.rename_table(identifier, other))
    except NotImplementedError as error:
        raise UnsupportedError(
            f"the catalog '{primary.catalog.name}' cannot rename {name}, which would keep its writers out",
            hint="stop the writers, or take their permissions away",
        ) from error
    reach("replica.fence.after")
    last = store.call(lambda: read_metadata(store.catalog, other), "read_metadata")
    return ".".join(other), last[1] if last is not None else found[1]


def _sync_last(care: UpkeepContext, identifier: tuple[str, ...], state: ReplicaState, engine: Engine) -> None:
    """Serves the newest version that has arrived. Where that fails, the served one will do."""
    _, metadata, _ = _read(care, identifier)
    try:
        run_sync(care, _order_of(care, identifier, state, metadata), engine)
    except FrazilError as error:
        log.warning("the last sync before a failover failed", table=".".join(identifier), error=error.in_one_line)


def _order_of(
    care: UpkeepContext, identifier: tuple[str, ...], state: ReplicaState, metadata: TableMetadata
) -> ReplicaTable:
    """The sync of a replica, as its last one was."""
    location = str(metadata["location"]).rstrip("/")
    tail = "/" + "/".join(identifier)
    warehouse, is_single = location.removesuffix(tail), _holds_one_snapshot(care)
    return ReplicaTable(state.replicated_path, identifier, warehouse, state.prefixes, current_only=is_single)


def _make_writable(care: UpkeepContext, identifier: tuple[str, ...]) -> tuple[str, TableMetadata]:
    """Removes the guard by one commit. Returns the metadata file, and its content."""
    pointer, metadata, state = _read(care, identifier)
    properties = dict(metadata.get("properties") or {})
    if FAILED_OVER_AT in properties:
        return pointer, metadata
    changes: dict[str, str | None] = {FAILED_OVER_AT: datetime.now(UTC).isoformat(timespec="milliseconds")}
    if state is not None:
        changes |= with_role(state, "primary").to_properties()
    else:
        changes |= {data_files.ROLE: "primary", _GC: None}
    kept = {name: value for name, value in {**properties, **changes}.items() if value is not None}
    changed = {**metadata, "properties": kept}
    plan = plan_publication(
        care.store, identifier, changed, replace=True, relocated=True, current_only=_holds_one_snapshot(care)
    )
    if plan.expected != pointer:
        raise ConflictError(
            f"another writer is committing to {'.'.join(identifier)}", hint="stop the writers, then try again"
        )
    location = str(metadata["location"]).rstrip("/")
    target = TargetFolder(location, care.catalog.s3 or care.settings.model.s3, care.settings.model.network)
    number = number_of(pointer.rpartition("/")[2]) + 1
    path = f"{location}/metadata/{number:05}-{uuid.uuid4()}.metadata.json"
    target.write(path, format_metadata(changed))
    target.flush()
    reach("replica.failover.before")
    published = publish(care.store, plan, path, changed)
    reach("replica.failover.after")
    return published.metadata_location, changed


def _holds_one_snapshot(care: UpkeepContext) -> bool:
    """Whether the catalog keeps the current snapshot only."""
    return flavor_of(care.store.settings, dict(care.store.catalog.properties)) == "nessie"


def _list_lost(kept: TableMetadata, other: TableMetadata) -> tuple[LostSnapshot, ...]:
    """The snapshots of a version that another one lacks, but for those before its oldest."""
    ids = {snapshot["snapshot-id"] for snapshot in kept.get("snapshots") or ()}
    found = []
    for snapshot in other.get("snapshots") or ():
        if snapshot["snapshot-id"] not in ids:
            summary = snapshot.get("summary") or {}
            rows = str(summary.get("added-records", ""))
            found.append(
                LostSnapshot(
                    int(snapshot["snapshot-id"]),
                    int(snapshot["timestamp-ms"]),
                    summary.get("operation"),
                    int(rows) if rows.isdigit() else None,
                )
            )
    return tuple(found)


def _current(metadata: TableMetadata) -> int | None:
    found = metadata.get("current-snapshot-id")
    return None if found in (None, -1) else int(found)
