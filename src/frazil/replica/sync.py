"""Brings a replica to the newest committed version whose files have all arrived.

Only what is new is read and relocated, beside the replicated folder, never in it. The served table changes by one
commit of its catalog, after all files are durable. What an interrupted run leaves are files that nothing refers to; the
next one goes on from there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from frazil.catalogs import parse_name
from frazil.errors import ConflictError, FrazilError, NotAllowedError, UnsupportedError, UsageError
from frazil.observe.cancellation import raise_if_stopped
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.observe.progress import Progress
from frazil.replica.beacon import Beacon, BeaconTable, read_beacon
from frazil.replica.candidates import MetadataCandidate, find_table_folder
from frazil.replica.choose import Choice, number_of
from frazil.replica.newest import NewestVersion, find_newest_version
from frazil.replica.relocating import (
    Files,
    ManifestTask,
    RelocationWork,
    choose_places,
    relocate_one_list,
    relocate_one_manifest,
)
from frazil.replica.runs import record_run
from frazil.replica.scan import ReplicaFiles, canonical_path, open_replica_files
from frazil.replica.state import (
    KnownLater,
    RelocatedFiles,
    ReplicaState,
    ServedTable,
    compute_fingerprint,
    read_prepared,
    read_served,
    refuse_written,
    strip_source_properties,
)
from frazil.storage import parse
from frazil.tables.create import ensure_namespace
from frazil.tables.metadata.locations import UriStorage, overlaps
from frazil.tables.publishing import PublicationPlan, plan_publication, publish, reserve_table
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.table_metadata import (
    TableMetadata,
    format_metadata,
    relocate_metadata,
    trim_metadata,
)
from frazil.tables.relocation.target_folder import TargetFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from frazil.tables.relocation.engine import Engine
    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

#: dropped: a beacon says that the primary has no such table any more.
Action = Literal["created", "updated", "unchanged", "waiting", "dropped"]

#: Seconds between two notes of how far a sync has come, so that one that is interrupted need not begin anew.
CHECKPOINT_S = 5.0
#: Seconds after which relocated files of former versions are removed: queries that began on them have ended.
RETIRE_S = 86400.0
_PROGRESS_NAME = "replica-progress.json"


@dataclass(frozen=True)
class ReplicaTable:
    """A table to replicate.

    Attributes:
        replicated_path: where the primary's storage is copied to: the table's folder, or one above it.
        identifier: of the replica's table.
        warehouse: where relocated metadata goes: `<warehouse>/<namespace>/<table>`.
        source_prefixes: source prefixes and where they landed; that of the table's own folder is found.
        witnessed_only: wait for a proof that a version was committed.
        current_only: keep the current snapshot only, for catalogs that hold no more (Nessie).
    """

    replicated_path: str
    identifier: tuple[str, ...]
    warehouse: str
    source_prefixes: tuple[tuple[str, str], ...] = ()
    witnessed_only: bool = False
    current_only: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.identifier)


@dataclass(frozen=True)
class SyncPlan:
    """What a sync will do.

    Attributes:
        table: to replicate.
        action: as the report will have it.
        served: by the replica now.
        newest: the version to serve.
        writes: the error for commits of others to the replica; None: there are none.
        files: the replicated storage.
        folder: of the table in it.
        known: files that were relocated before.
        publication: how the version will be published; None: nothing will.
        source_name: of the primary's table; empty: no beacon tells.
        rename_to: the new name of the replica, because the primary's table was renamed.
        losses: what the catalog cannot keep, a sentence each.
        warnings: what deserves attention, a sentence each.
    """

    table: ReplicaTable
    action: Action
    served: ServedTable | None
    newest: NewestVersion
    writes: ConflictError | None
    files: ReplicaFiles = field(repr=False)
    folder: str
    known: KnownLater = field(repr=False)
    publication: PublicationPlan | None = field(repr=False, default=None)
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    source_name: str = ""
    rename_to: tuple[str, ...] | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """Files of newer versions that have not arrived."""
        found = [str(file) for waiting in self.newest.waiting for file in waiting.closure.missing]
        return tuple(dict.fromkeys([*found, *(f"{one.file.path}: {one.reason}" for one in self.newest.unreadable)]))

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON."""
        served, candidate = self.served, self.newest.candidate
        return {
            "table": self.table.name,
            "action": self.action,
            "served_version": served and served.state.version,
            "served_metadata": served and served.state.source_metadata,
            "version": candidate and candidate.file.number,
            "source_metadata": candidate and _source_path(candidate),
            "newest_version": self.newest.newest_number,
            "witness": self.newest.choice.witness,
            "manifests": 0 if self.newest.closure is None else len(self.newest.closure.manifests),
            "files_new": 0 if self.newest.closure is None else self.newest.closure.files,
            "missing": list(self.missing),
            "reasons": list(self.newest.choice.reasons),
            "losses": list(self.losses),
            "warnings": list(self.warnings),
            "written": self.writes and self.writes.to_dict(),
            "rename_to": self.rename_to and ".".join(self.rename_to),
        }


@dataclass(frozen=True)
class SyncReport:
    """What a sync has done.

    Attributes:
        source_metadata: the primary's metadata file that is served, as the primary spells it; None: nothing yet.
        version: its number.
        witnessed: whether it is known to be committed.
        snapshots: in the replica.
        files_new: data and delete files that were not served before.
        manifests_new: that were relocated.
        bytes_new: that were written.
        missing: files of newer versions that have not arrived.
        newest_version: number of the newest metadata file that has arrived.
        reasons: why newer versions are not served, a sentence each.
        served_ms: when the primary committed what is served.
        waiting_since_ms: when it committed the oldest version that has begun to arrive and is not served; None: there
            is none.
        lag_snapshots: snapshots of such versions that the replica has not.
    """

    identifier: str
    action: Action
    source_metadata: str | None
    version: int | None
    witnessed: bool
    snapshots: int = 0
    files_new: int = 0
    manifests_new: int = 0
    bytes_new: int = 0
    missing: tuple[str, ...] = ()
    newest_version: int | None = None
    snapshot_id: int | None = None
    metadata_location: str | None = None
    reasons: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    served_ms: int | None = None
    waiting_since_ms: int | None = None
    lag_snapshots: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        found = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return {**found, "seconds": round(self.seconds, 3)}


def plan_sync(
    care: UpkeepContext,
    table: ReplicaTable,
    *,
    stop: Event | None = None,
    spark: Callable[[], SparkSession] | None = None,
) -> SyncPlan:
    """Returns what a sync would do. Changes nothing.

    Args:
        care: of the replica's catalog.
        table: to replicate.
        stop: ends it between two files.
        spark: gives a session, for HDFS.

    Raises:
        NotAllowedError: the name is that of a table which is no replica, or of one that was failed over; or the
            warehouse overlaps with the replicated path.
        NotFoundError: there is no metadata.
        UnmappedPathError: no prefix covers a path of the table.
    """
    store = care.store
    table = replace(table, identifier=parse_name(table.name, store.settings.name))
    served = read_served(store, table.identifier)
    if served is not None and served.state.role != "replica":
        raise NotAllowedError(
            f"{table.name} is no replica any more: it was made writable by a failover",
            cause=f"the last sync was at {served.state.synced_at}",
            hint="choose another name to replicate the former primary",
        )
    files = open_replica_files(table.replicated_path, s3=_s3(care), network=care.settings.model.network, spark=spark)
    folder = _find_folder(files, table, served)
    location = _choose_location(care, table, served)
    _require_apart(files, table, location)
    beacon = read_beacon(files, folder)
    if served is not None and _is_dropped(beacon, served.state.uuid, served.state.updated_ms):
        newest = NewestVersion(Choice(None), None, None, None, served.state.version, None)
        warning = f"the primary's table was dropped before {beacon.written_at.isoformat()}" if beacon else ""
        known = _load_known(care, served, location)
        return SyncPlan(table, "dropped", served, newest, None, files, folder, known, warnings=(warning,))
    is_moved = served is not None and _is_moved(table, files, served.state)
    known = KnownLater(None, "", "") if is_moved else _load_known(care, served, location)
    newest = find_newest_version(
        files,
        folder,
        served=None if served is None or is_moved else served.state.served,
        known=known.known,
        prefixes=table.source_prefixes,
        beacon=beacon,
        uuid=served.state.uuid if served is not None else None,
        witnessed_only=table.witnessed_only and not is_moved,
        stop=stop or care.stop,
    )
    if is_moved and served is not None:
        newest = _not_before(newest, served.state)
    candidate = newest.candidate
    if served is not None and candidate is None and newest.other_uuids and newest.newest_updated_ms is None:
        raise _refuse_other(table, served, ", ".join(newest.other_uuids))
    if served is None and candidate is not None:
        if _is_dropped(beacon, candidate.uuid, candidate.version.updated_ms):
            reason = "a beacon says that the primary's table was dropped"
            newest = replace(newest, choice=replace(newest.choice, name=None, reasons=(reason,)), candidate=None)
            return SyncPlan(table, "waiting", None, newest, None, files, folder, known)
        renamed = _find_renamed(care, table, files, beacon, candidate.uuid)
        if renamed is not None:
            return plan_sync(care, replace(table, identifier=renamed), stop=stop, spark=spark)
    followed = served.state.uuid if served is not None else candidate.uuid if candidate is not None else ""
    found = beacon.find(followed) if beacon is not None else None
    source_name, rename_to = _follow_name(care, table, served, found)
    writes = None
    if served is not None and served.is_written:
        writes = refuse_written(table.name, served, read_prepared(_target(care, served.metadata["location"]), served))
    if candidate is None:
        is_waiting = bool(newest.waiting or newest.unreadable) or served is None
        action: Action = "waiting" if is_waiting else "unchanged"
        warnings = _warn(table, served, newest, location)
        return SyncPlan(
            table, action, served, newest, writes, files, folder, known, warnings=warnings, source_name=source_name,
            rename_to=rename_to,
        )  # fmt: skip
    if served is not None and candidate.uuid and candidate.uuid != served.state.uuid:
        raise _refuse_other(table, served, candidate.uuid)
    metadata = _select(table, candidate)
    publication = plan_publication(
        store,
        table.identifier,
        strip_source_properties(metadata),
        replace=served is not None,
        current_only=table.current_only,
        relocated=True,
    )
    if is_moved and publication.location is not None:
        raise UnsupportedError(
            f"{table.name} cannot follow its storage to {table.replicated_path}",
            cause="in the folder that the service has assigned, relocated files would replace those that are served",
            hint="drop the replica, and sync again",
        )
    return SyncPlan(
        table, "created" if served is None else "updated", served, newest, writes, files, folder, known, publication,
        publication.losses, _warn(table, served, newest, location), source_name, rename_to,
    )  # fmt: skip


def run_sync(
    care: UpkeepContext,
    table: ReplicaTable,
    engine: Engine,
    progress: Progress | None = None,
    stop: Event | None = None,
    *,
    discard_replica_writes: bool = False,
    spark: Callable[[], SparkSession] | None = None,
) -> SyncReport:
    """Brings a replica up to date. Nothing is changed if there is nothing new.

    Args:
        care: of the replica's catalog.
        table: to replicate.
        engine: that runs the tasks.
        progress: receives counts of what is done.
        stop: ends it before the next step; by default that of `care`.
        discard_replica_writes: take back what others committed to the replica.
        spark: gives a session, for HDFS.

    Raises:
        ConflictError: others have committed to the replica, during the sync or (without `discard_replica_writes`)
            before.
        FrazilError: as `plan_sync`; the served table is as it was.
        StoppedError: `stop` was set.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    try:
        report = _run(care, table, engine, progress, stop or care.stop, discard_replica_writes, spark)
    except FrazilError as error:
        record_run(care.store, table.name, "failed", started_at, time.monotonic() - began, error=error)
        raise
    report = replace(report, seconds=time.monotonic() - began)
    if report.action in ("created", "updated", "dropped"):
        record_run(
            care.store, table.name, report.action, started_at, report.seconds, report=report.to_dict(),
            replicated_path=table.replicated_path,
        )  # fmt: skip
        log.info("a replica is up to date", table=table.name, version=report.version, files=report.files_new)
    return report


def _run(
    care: UpkeepContext,
    table: ReplicaTable,
    engine: Engine,
    progress: Progress | None,
    stop: Event,
    discard: bool,
    spark: Callable[[], SparkSession] | None,
) -> SyncReport:
    plan = plan_sync(care, table, stop=stop, spark=spark)
    if plan.action == "dropped":
        reach("replica.drop.before")
        care.store.call_once(lambda: care.store.catalog.drop_table(plan.table.identifier))
        reach("replica.drop.after")
        log.warning("a replica was dropped, as its primary was; its files stay", table=plan.table.name)
        return _describe(plan, "dropped", plan.served)
    if plan.rename_to is not None and plan.writes is None:
        report = _run(care, _rename(care, plan), engine, progress, stop, discard, spark)
        action: Action = "updated" if report.action == "unchanged" else report.action
        return replace(report, action=action, warnings=(*report.warnings, f"it was called {plan.table.name} before"))
    if plan.writes is not None:
        if not discard:
            raise plan.writes
        assert plan.served is not None
        discard_writes(care, plan.table, plan.served)
        plan = plan_sync(care, table, stop=stop, spark=spark)
        if plan.writes is not None:
            raise plan.writes
        report = _run_plan(care, plan, engine, progress, stop)
        action = "updated" if report.action in ("unchanged", "waiting") else report.action
        return replace(report, action=action, warnings=(*report.warnings, "what others wrote to it was discarded"))
    return _run_plan(care, plan, engine, progress, stop)


def _run_plan(
    care: UpkeepContext, plan: SyncPlan, engine: Engine, progress: Progress | None, stop: Event
) -> SyncReport:
    if plan.publication is None:
        return _describe(plan, plan.action, plan.served)
    sync = _Sync(care, plan, engine, progress, stop)
    try:
        sync.run()
    except ConflictError:
        # Another sync may have been faster.
        served = read_served(care.store, plan.table.identifier)
        if served is None or served.is_written or served.state.updated_ms < sync.state.updated_ms:
            raise
        return _describe(plan, "unchanged", served)
    report = _describe(plan, plan.action, None)
    metadata = sync.metadata
    return replace(
        report,
        source_metadata=sync.state.source_metadata,
        version=sync.state.version,
        witnessed=sync.state.witnessed,
        snapshot_id=sync.state.snapshot_id,
        snapshots=len(metadata.get("snapshots") or ()),
        served_ms=sync.state.updated_ms,
        manifests_new=sync.manifests,
        bytes_new=sync.bytes,
        metadata_location=sync.location,
        losses=tuple(dict.fromkeys((*plan.losses, *sync.losses))),
    )


def discard_writes(care: UpkeepContext, table: ReplicaTable, served: ServedTable) -> None:
    """Publishes what the last sync published once more: what others committed to the replica since is no longer there.

    Raises:
        ConflictError: the prepared metadata is missing, or another writer committed in between.
    """
    _republish(care, table, served, served.state)
    log.warning("writes to a replica were discarded", table=table.name, former=served.pointer)


def _republish(care: UpkeepContext, table: ReplicaTable, served: ServedTable, state: ReplicaState) -> None:
    """Publishes what the last sync published, with another state."""
    target = _target(care, str(served.metadata["location"]))
    prepared = read_prepared(_target(care, _folder_of_prepared(served)), served)
    if prepared is None:
        raise ConflictError(
            f"the writes to {table.name} cannot be taken back: {served.state.prepared} cannot be read",
            hint="drop the table from the replica's catalog without its files, and sync again",
        )
    path = f"{target.location}/metadata/{_next_name(served.pointer)}"
    state = replace(state, prepared=path)
    metadata = _with_properties(prepared, state)
    plan = plan_publication(
        care.store, table.identifier, metadata, replace=True, current_only=table.current_only, relocated=True
    )
    if plan.expected != served.pointer:
        raise ConflictError(f"another writer is committing to {table.name}", hint="stop the writers, then try again")
    target.write(path, format_metadata(metadata))
    target.flush()
    reach("replica.discard.before")
    publish(care.store, plan, path, metadata)
    reach("replica.discard.after")


def _rename(care: UpkeepContext, plan: SyncPlan) -> ReplicaTable:
    """Gives the replica the name that the primary's table has now."""
    assert plan.rename_to is not None
    store, name = care.store, plan.rename_to
    store.call(lambda: ensure_namespace(store, name[:-1]), "create_namespace")
    reach("replica.rename.before")
    store.call_once(lambda: store.catalog.rename_table(plan.table.identifier, name))
    reach("replica.rename.after")
    table = replace(plan.table, identifier=name)
    served = read_served(store, name)
    if served is not None:
        _republish(care, table, served, replace(served.state, source_name=plan.source_name))
    log.warning("a replica was renamed, as its primary was", table=plan.table.name, name=table.name)
    return table


class _Sync:
    """One run that publishes a version."""

    def __init__(
        self, care: UpkeepContext, plan: SyncPlan, engine: Engine, progress: Progress | None, stop: Event
    ) -> None:
        assert plan.publication is not None and plan.newest.candidate is not None and plan.newest.closure is not None
        self._care, self._plan, self._engine, self._progress, self._stop = care, plan, engine, progress, stop
        self._publication = plan.publication
        self._candidate, self._closure = plan.newest.candidate, plan.newest.closure
        self.manifests = self.bytes = 0
        self.losses: tuple[str, ...] = ()
        self.location = ""

    def run(self) -> None:
        source = strip_source_properties(_select(self._plan.table, self._candidate))
        if self._publication.method == "create+updates":
            reach("replica.reserve.before")
            self._publication = reserve_table(self._care.store, self._publication, source)
            reach("replica.reserve.after")
        self._target = self._choose_target()
        self._work = self._prepare_work()
        files = self._load_files()
        before = files.list_sources()
        self._relocate_manifests(files)
        self._relocate_lists(files)
        files.statistics.update(self._closure.statistics)
        files.forget_all_but(self._candidate.metadata)
        over = self._retire(files, before)
        self._publish(source, files)
        self._remove(over)

    def _choose_target(self) -> TargetFolder:
        assigned = self._publication.location
        return _target(self._care, assigned or _choose_location(self._care, self._plan.table, self._plan.served))

    def _prepare_work(self) -> RelocationWork:
        found = self._plan.newest.places
        assert found is not None
        is_assigned = self._publication.location is not None
        if is_assigned:
            # The table's own folder first.
            location = str(self._candidate.metadata["location"])
            ordered = sorted(found.pairs, key=lambda pair: not PrefixMap([pair]).covers(location))
            found = PrefixMap(ordered)
        places, homes = _map_places(found, self._target.location, is_assigned=is_assigned)
        return RelocationWork(self._reader(), self._target, places, homes)

    def _reader(self) -> Files:
        """Reads replicated files in any process; on HDFS in this one."""
        if self._kind == "io":
            return self._plan.files
        return UriStorage(_s3(self._care), self._care.settings.model.network, (self._plan.files.root,))

    @property
    def _kind(self) -> Literal["io", "cpu"]:
        try:
            parse(self._plan.files.root)
        except UsageError:
            return "io"
        return "cpu"

    # -- files

    @property
    def _takes_lists(self) -> bool:
        """Whether lists of files may lie in the table's folder: a service that has made it may refuse them."""
        return self._publication.location is None

    @property
    def _progress_path(self) -> str:
        return f"{self._target.location}/metadata/{_PROGRESS_NAME}"

    def _load_files(self) -> RelocatedFiles:
        """The files of the served version, and of a run that was interrupted."""
        signature = self._work.signature
        self._has_notes = False
        if not self._takes_lists:
            return RelocatedFiles(signature)
        known = self._plan.known
        files = known.files if known.signature == signature else RelocatedFiles(signature)
        begun = KnownLater(self._target, self._progress_path, signature).files
        self._has_notes = bool(begun.manifests)
        for path, found in begun.manifests.items():
            if path not in files.manifests:
                files.add_manifest(path, found[0], found[1], begun.deletes.get(path, ()))
        return files

    def _relocate_manifests(self, files: RelocatedFiles) -> None:
        wanted = [entry for entry in self._closure.manifests if not files.has_manifest(entry)]
        self._begin("manifests", len(wanted))
        tasks: Iterator[ManifestTask] = (
            # A manifest of version 1 says only inside what it holds: data.
            ManifestTask(entry.path, entry.length, entry.content != 0) for entry in wanted
        )  # fmt: skip
        noted = time.monotonic()
        try:
            for done in self._engine.map(partial(relocate_one_manifest, self._work), tasks, kind=self._kind):
                files.add_manifest(done.path, done.length, done.relocated, done.deletes)
                self.manifests, self.bytes = self.manifests + 1, self.bytes + done.bytes
                self._advance(done.bytes)
                if time.monotonic() - noted >= CHECKPOINT_S:
                    self._note(files)
                    noted = time.monotonic()
        except FrazilError:
            with suppress(FrazilError):
                self._note(files)
            raise
        self._end()

    def _note(self, files: RelocatedFiles) -> None:
        """Notes how far this run has come."""
        if self._work.is_in_place or not self._takes_lists:
            return
        self._target.flush()
        reach("replica.checkpoint.before")
        self._target.write(self._progress_path, files.encode())
        reach("replica.checkpoint.after")
        self._has_notes = True

    def _relocate_lists(self, files: RelocatedFiles) -> None:
        order = {path: number for number, path in enumerate(self._closure.manifest_lists)}
        wanted = sorted((path for path in order if path not in files.lists), key=order.__getitem__)
        lengths = files.measure()
        self._begin("manifest lists", len(wanted))
        done = {}
        for result in self._engine.map(partial(relocate_one_list, self._work, lengths), wanted, kind="io"):
            done[result.path] = result
            self.bytes += result.bytes
            self._advance(result.bytes)
        for path in wanted:
            files.add_list(path, done[path].manifests)
        self._end()

    def _retire(self, files: RelocatedFiles, before: set[str]) -> list[str]:
        """Notes what the new version does not need any more. Returns what no query reads any more."""
        now, work = time.time(), self._work
        after = files.list_sources()
        if not work.is_in_place:
            for path in before - after:
                files.retired.setdefault(work.homes.map(path), now)
            for path in after - before:
                files.retired.pop(work.homes.map(path), None)
        if self._plan.served is not None:
            state = self._plan.served.state
            files.retired |= dict.fromkeys((state.prepared, state.files), now)
        over = [path for path, since in files.retired.items() if now - since > RETIRE_S]
        for path in over:
            del files.retired[path]
        return [path for path in over if path.startswith(f"{self._target.location}/")]

    def _remove(self, paths: list[str]) -> None:
        """Removes files of former versions. What cannot be removed costs nothing but space."""
        if self._has_notes:
            paths = [*paths, self._progress_path]
        for path in paths:
            try:
                self._target.open().delete(self._target.key_of(path))
            except FrazilError as error:
                log.warning("a file of a former version stays", path=path, error=error.message)

    # -- publication

    def _publish(self, source: TableMetadata, files: RelocatedFiles) -> None:
        plan, candidate = self._plan, self._candidate
        folder = f"{self._target.location}/metadata"
        token = uuid.uuid4()
        path = f"{folder}/{_next_name(plan.served.pointer if plan.served else None, token)}"
        choice = plan.newest.choice
        current = source.get("current-snapshot-id")
        self.state = ReplicaState(
            role="replica",
            uuid=candidate.uuid or str(source.get("table-uuid") or ""),
            source_metadata=_source_path(candidate),
            updated_ms=candidate.version.updated_ms,
            witnessed=choice.witness is not None,
            parent=candidate.version.parent,
            snapshot_id=None if current in (None, -1) else int(current),
            replicated_path=plan.files.root,
            folder=plan.folder,
            prefixes=self._work.places.pairs,
            prepared=path,
            files=f"{folder}/replica-{token}.json" if self._takes_lists else "",
            content="",
            synced_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            source_gc=str((source.get("properties") or {}).get("gc.enabled") or ""),
            source_name=plan.source_name,
        )
        metadata = self._relocate_metadata(source)
        self.state = replace(self.state, content=compute_fingerprint(metadata))
        self.metadata = _with_properties(metadata, self.state)
        if self.state.files:
            reach("replica.files.before")
            self._target.write(self.state.files, files.encode())
        reach("replica.metadata.before")
        self._target.write(path, format_metadata(self.metadata))
        reach("replica.flush.before")
        self._target.flush()
        reach("replica.flush.after")
        raise_if_stopped(self._stop)
        self._begin("publish", 1)
        reach("replica.publish.before")
        published = publish(self._care.store, self._publication, path, self.metadata)
        reach("replica.publish.after")
        self.location, self.losses = published.metadata_location, published.losses
        self._end()

    def _relocate_metadata(self, source: TableMetadata) -> TableMetadata:
        """Data, equality deletes and statistics are where they landed; lists are among the relocated files."""
        work = self._work
        wanted = self._publication.uuid or source.get("table-uuid")
        table_uuid = str(wanted or uuid.uuid5(uuid.NAMESPACE_URL, str(source["location"])))
        found = relocate_metadata(source, work.homes, metadata_log="drop", table_uuid=table_uuid)
        for name in ("statistics", "partition-statistics"):
            if source.get(name):
                found[name] = [
                    {**entry, "statistics-path": work.places.map(entry["statistics-path"])} for entry in source[name]
                ]
        return {**found, "location": self._target.location}

    def _begin(self, stage: str, files: int) -> None:
        raise_if_stopped(self._stop)
        if self._progress is not None:
            self._progress.begin(stage, self._plan.table.name, files=files)

    def _advance(self, size: int) -> None:
        if self._progress is not None:
            self._progress.advance(1, size)

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.end()


def _s3(care: UpkeepContext) -> Any:
    return care.catalog.s3 or care.settings.model.s3


def _target(care: UpkeepContext, location: str) -> TargetFolder:
    return TargetFolder(location, _s3(care), care.settings.model.network)


def _find_folder(files: ReplicaFiles, table: ReplicaTable, served: ServedTable | None) -> str:
    if served is not None and served.state.replicated_path == files.root:
        return served.state.folder
    return find_table_folder(files, table.identifier)


def _is_dropped(beacon: Beacon | None, uuid: str, updated_ms: int) -> bool:
    """Whether a beacon of a whole catalog has no table of this UUID, though it is newer than the table."""
    if beacon is None or not beacon.is_whole or not uuid:
        return False
    return beacon.find(uuid) is None and beacon.written_at.timestamp() * 1000 > updated_ms


def _follow_name(
    care: UpkeepContext, table: ReplicaTable, served: ServedTable | None, found: BeaconTable | None
) -> tuple[str, tuple[str, ...] | None]:
    """Returns the name of the primary's table, and the replica's new one, if it was called like the primary's."""
    if found is None:
        return served.state.source_name if served is not None else "", None
    name = ".".join(found.identifier)
    if served is None or served.state.source_name in ("", name) or served.state.source_name != table.name:
        return name, None
    return name, parse_name(name, care.store.settings.name)


def _find_renamed(
    care: UpkeepContext, table: ReplicaTable, files: ReplicaFiles, beacon: Beacon | None, uuid: str
) -> tuple[str, ...] | None:
    """Returns the name of the replica that an earlier sync has renamed."""
    found = beacon.find(uuid) if beacon is not None else None
    if found is None or found.identifier == table.identifier:
        return None
    try:
        served = read_served(care.store, found.identifier)
    except NotAllowedError:
        return None
    is_own = served is not None and served.state.uuid == uuid and served.state.replicated_path == files.root
    return found.identifier if is_own else None


def _refuse_other(table: ReplicaTable, served: ServedTable, found: str) -> ConflictError:
    return ConflictError(
        f"{table.name} is the replica of another table than the one in {table.replicated_path}",
        cause=f"its UUID is {served.state.uuid}, there it is {found}",
        hint="choose another name, or drop the replica",
    )


def _choose_location(care: UpkeepContext, table: ReplicaTable, served: ServedTable | None) -> str:
    """The folder of the replica's table. It stays where it is when the warehouse in the settings changes."""
    if served is not None:
        return str(served.metadata["location"]).rstrip("/")
    return "/".join([canonical_path(table.warehouse).rstrip("/"), *table.identifier])


def _require_apart(files: ReplicaFiles, table: ReplicaTable, location: str) -> None:
    own = canonical_path(location)
    for folder in (files.root, *(canonical_path(landed) for _, landed in table.source_prefixes)):
        if overlaps(own, folder):
            raise NotAllowedError(
                f"relocated metadata of {table.name} cannot lie in {location}: that is in the replicated storage",
                cause=f"{folder} is written by the replication, which may be read-only, or delete what is not its own",
                hint="choose another --warehouse",
            )


def _load_known(care: UpkeepContext, served: ServedTable | None, location: str) -> KnownLater:
    if served is None or not served.state.files:
        return KnownLater(None, "", "")
    places = PrefixMap(served.state.prefixes)
    # The prefixes of the state are those of the relocation: the same give the same signature.
    _, homes = _map_places(places, location)
    target = _target(care, location)
    signature = RelocationWork(UriStorage(target.s3, target.network), target, places, homes).signature
    return KnownLater(target, served.state.files, signature)


def _map_places(found: PrefixMap, location: str, *, is_assigned: bool = False) -> tuple[PrefixMap, PrefixMap]:
    same = tuple(source == landed or _is_same(source, landed) for source, landed in found.pairs)
    return choose_places(found.pairs, same, location, is_assigned=is_assigned)


def _is_same(source: str, landed: str) -> bool:
    try:
        return canonical_path(source) == canonical_path(landed)
    except UsageError:
        return False


def _is_moved(table: ReplicaTable, files: ReplicaFiles, state: ReplicaState) -> bool:
    """Whether the storage was copied to another place than the last sync knew."""
    given = {(source, source if _is_same(source, landed) else landed) for source, landed in table.source_prefixes}
    others = set(state.prefixes) - given
    return state.replicated_path != files.root or not given <= set(state.prefixes) or len(others) > 1


def _not_before(newest: NewestVersion, state: ReplicaState) -> NewestVersion:
    """At another place, an older version than the served one is no choice."""
    found = newest.candidate
    if found is None or found.version.name == state.name or found.version.updated_ms > state.updated_ms:
        return newest
    reason = f"version {state.version}, which is served, has not arrived completely at the new place"
    choice = replace(newest.choice, name=None, reasons=(*newest.choice.reasons, reason))
    return replace(newest, choice=choice, candidate=None, closure=None)


def _select(table: ReplicaTable, candidate: MetadataCandidate) -> TableMetadata:
    metadata = candidate.metadata
    if not table.current_only:
        return metadata
    current = metadata.get("current-snapshot-id")
    keep = set() if current in (None, -1) else {current}
    return trim_metadata(metadata, keep=keep, refs={"main"} if keep else set())


def _source_path(candidate: MetadataCandidate) -> str:
    return candidate.source_path or candidate.file.path


def _with_properties(metadata: TableMetadata, state: ReplicaState) -> TableMetadata:
    changed = {**(metadata.get("properties") or {}), **state.to_properties()}
    return {**metadata, "properties": {name: value for name, value in changed.items() if value is not None}}


def _next_name(pointer: str | None, token: uuid.UUID | None = None) -> str:
    number = max(number_of((pointer or "").rpartition("/")[2]), -1) + 1
    return f"{number:05}-{token or uuid.uuid4()}.metadata.json"


def _folder_of_prepared(served: ServedTable) -> str:
    return served.state.prepared.rpartition("/metadata/")[0]


def _warn(table: ReplicaTable, served: ServedTable | None, newest: NewestVersion, location: str) -> tuple[str, ...]:
    found = []
    if newest.choice.served_lost:
        found.append("the served version was never committed: it lost a commit race on the primary")
    if newest.choice.is_contested:
        found.append("several versions claim to be the newest, and nothing proves yet which one was committed")
    if newest.other_uuids:
        found.append(f"metadata of other tables lies in the same folder: {', '.join(newest.other_uuids)}")
    if served is not None and location != "/".join([canonical_path(table.warehouse).rstrip("/"), *table.identifier]):
        found.append(f"relocated metadata stays in {location}, whatever the warehouse is now")
    return tuple(found)


def _describe(plan: SyncPlan, action: Action, served: ServedTable | None) -> SyncReport:
    newest = plan.newest
    report = SyncReport(
        plan.table.name,
        action,
        source_metadata=None,
        version=None,
        witnessed=newest.choice.witness is not None,
        files_new=newest.closure.files if newest.closure is not None and action != "unchanged" else 0,
        missing=plan.missing,
        newest_version=newest.newest_number,
        reasons=newest.choice.reasons,
        losses=plan.losses,
        warnings=plan.warnings,
        waiting_since_ms=min((waiting.candidate.version.updated_ms for waiting in newest.waiting), default=None),
        lag_snapshots=_count_waiting_snapshots(newest, served),
    )
    if served is None:
        return report
    state = served.state
    return replace(
        report,
        source_metadata=state.source_metadata,
        version=state.version,
        witnessed=state.witnessed or report.witnessed,
        snapshots=len(served.metadata.get("snapshots") or ()),
        snapshot_id=state.snapshot_id,
        metadata_location=served.pointer,
        served_ms=state.updated_ms,
    )


def _count_waiting_snapshots(newest: NewestVersion, served: ServedTable | None) -> int:
    """Counts the snapshots of versions that have not arrived completely, and that are in no version that is served."""
    shown: TableMetadata = {}
    if newest.candidate is not None:
        shown = newest.candidate.metadata
    elif served is not None:
        shown = served.metadata
    found = {one["snapshot-id"] for w in newest.waiting for one in w.candidate.metadata.get("snapshots") or ()}
    return len(found - {one["snapshot-id"] for one in shown.get("snapshots") or ()})
