"""What a sync will do: finds the version to serve, and checks that the replica may follow it. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import Event
from typing import TYPE_CHECKING, Any

from frazil.catalogs import parse_name
from frazil.errors import ConflictError, NotAllowedError, UnsupportedError
from frazil.replica.beacon import Beacon, read_beacon
from frazil.replica.candidates import MetadataCandidate, find_table_folder
from frazil.replica.choose import Choice
from frazil.replica.newest import NewestVersion, find_newest_version
from frazil.replica.places import (
    compute_signature,
    is_same,
    location_in,
    map_places,
    open_files,
    open_target,
    require_apart,
)
from frazil.replica.scan import ReplicaFiles
from frazil.replica.state import (
    KnownLater,
    ReplicaState,
    ServedTable,
    read_prepared,
    read_served,
    refuse_written,
    strip_source_properties,
)
from frazil.tables.publishing import PublicationPlan, plan_publication
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.table_metadata import TableMetadata, keep_current_snapshot

if TYPE_CHECKING:
    from frazil.replica.report import Action
    from frazil.upkeep.context import UpkeepContext

_NOTHING_KNOWN = KnownLater(None, "", "")


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

    def select(self, candidate: MetadataCandidate) -> TableMetadata:
        """Returns the metadata of a version, as far as it is replicated."""
        return keep_current_snapshot(candidate.metadata) if self.current_only else candidate.metadata


@dataclass(frozen=True)
class SyncPlan:
    """What a sync will do.

    Attributes:
        table: to replicate.
        action: as the report will have it.
        served: by the replica now.
        newest: the version to serve.
        files: the replicated storage.
        folder: of the table in it.
        known: files that were relocated before.
        writes: the error for commits of others to the replica; None: there are none.
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
    files: ReplicaFiles = field(repr=False)
    folder: str
    known: KnownLater = field(repr=False)
    writes: ConflictError | None = None
    publication: PublicationPlan | None = field(repr=False, default=None)
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    source_name: str = ""
    rename_to: tuple[str, ...] | None = None

    @property
    def updated_ms(self) -> int:
        """When the primary committed the version to serve; 0: there is none."""
        return self.newest.candidate.version.updated_ms if self.newest.candidate is not None else 0

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
            "source_metadata": candidate and (candidate.source_path or candidate.file.path),
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


def plan_sync(care: UpkeepContext, table: ReplicaTable, *, stop: Event | None = None) -> SyncPlan:
    """Returns what a sync would do. Changes nothing.

    Args:
        care: of the replica's catalog.
        table: to replicate.
        stop: ends it between two files; by default that of `care`.

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
    files = open_files(care, table.replicated_path)
    folder = _find_folder(files, table, served)
    location = choose_location(table, served)
    require_apart(table.name, location, (files.root, *(landed for _, landed in table.source_prefixes)))
    return _Planner(care, table, served, files, folder, location, read_beacon(files, folder), stop or care.stop).plan()


@dataclass
class _Planner:
    """One call of `plan_sync`."""

    care: UpkeepContext
    table: ReplicaTable
    served: ServedTable | None
    files: ReplicaFiles
    folder: str
    location: str
    beacon: Beacon | None
    stop: Event

    def __post_init__(self) -> None:
        served = self.served
        #: Whether the storage was copied to another place than the last sync knew.
        self.is_moved = served is not None and _is_moved(self.table, self.files, served.state)
        self.known = (
            _NOTHING_KNOWN if self.is_moved or served is None else _load_known(self.care, served, self.location)
        )

    def plan(self) -> SyncPlan:
        served, beacon = self.served, self.beacon
        if served is not None and _is_dropped(beacon, served.state.uuid, served.state.updated_ms):
            newest = NewestVersion(Choice(None), None, None, None, served.state.version, None)
            warning = f"the primary's table was dropped before {beacon.written_at.isoformat()}" if beacon else ""
            return self._plan("dropped", newest, warnings=(warning,))
        newest = self._find_newest()
        if served is None and newest.candidate is not None:
            candidate = newest.candidate
            if _is_dropped(beacon, candidate.uuid, candidate.version.updated_ms):
                reason = "a beacon says that the primary's table was dropped"
                choice = replace(newest.choice, name=None, reasons=(reason,))
                return self._plan("waiting", replace(newest, choice=choice, candidate=None))
            renamed = self._find_renamed(candidate.uuid)
            if renamed is not None:
                return plan_sync(self.care, replace(self.table, identifier=renamed), stop=self.stop)
        return self._plan_newest(newest)

    def _find_newest(self) -> NewestVersion:
        table, served = self.table, self.served
        newest = find_newest_version(
            self.files,
            self.folder,
            served=None if served is None or self.is_moved else served.state.served,
            known=self.known.known,
            prefixes=table.source_prefixes,
            beacon=self.beacon,
            uuid=served.state.uuid if served is not None else None,
            witnessed_only=table.witnessed_only and not self.is_moved,
            stop=self.stop,
        )
        if served is None:
            return newest
        if self.is_moved:
            newest = _not_before(newest, served.state)
        found = newest.candidate
        if found is None and newest.other_uuids and newest.newest_updated_ms is None:
            raise _refuse_other(table, served, ", ".join(newest.other_uuids))
        if found is not None and found.uuid and found.uuid != served.state.uuid:
            raise _refuse_other(table, served, found.uuid)
        return newest

    def _plan_newest(self, newest: NewestVersion) -> SyncPlan:
        served, candidate = self.served, newest.candidate
        followed = served.state.uuid if served is not None else candidate.uuid if candidate is not None else ""
        source_name, rename_to = self._follow_name(followed)
        plan = self._plan(
            "created" if served is None else "updated", newest, writes=self._find_writes(),
            warnings=_warn(self.table, served, newest, self.location), source_name=source_name, rename_to=rename_to,
        )  # fmt: skip
        if candidate is None:
            is_waiting = bool(newest.waiting or newest.unreadable) or served is None
            return replace(plan, action="waiting" if is_waiting else "unchanged")
        publication = plan_publication(
            self.care.store,
            self.table.identifier,
            strip_source_properties(self.table.select(candidate)),
            replace=served is not None,
            current_only=self.table.current_only,
            relocated=True,
        )
        if self.is_moved and publication.location is not None:
            raise UnsupportedError(
                f"{self.table.name} cannot follow its storage to {self.table.replicated_path}",
                cause="the service has assigned its folder, where relocated files would replace those that are served",
                hint="drop the replica, and sync again",
            )
        return replace(plan, publication=publication, losses=publication.losses)

    def _plan(self, action: Action, newest: NewestVersion, **more: Any) -> SyncPlan:
        return SyncPlan(
            self.table, action, self.served, newest, files=self.files, folder=self.folder, known=self.known, **more
        )

    def _find_writes(self) -> ConflictError | None:
        served = self.served
        if served is None or not served.is_written:
            return None
        target = open_target(self.care, served.metadata["location"])
        return refuse_written(self.table.name, served, read_prepared(target, served))

    def _follow_name(self, uuid: str) -> tuple[str, tuple[str, ...] | None]:
        """Returns the name of the primary's table, and the replica's new one, if it was called like the primary's."""
        found = self.beacon.find(uuid) if self.beacon is not None else None
        before = self.served.state.source_name if self.served is not None else ""
        if found is None:
            return before, None
        name = ".".join(found.identifier)
        if before in ("", name) or before != self.table.name:
            return name, None
        return name, parse_name(name, self.care.store.settings.name)

    def _find_renamed(self, uuid: str) -> tuple[str, ...] | None:
        """Returns the name of the replica that an earlier sync has renamed."""
        found = self.beacon.find(uuid) if self.beacon is not None else None
        if found is None or found.identifier == self.table.identifier:
            return None
        try:
            served = read_served(self.care.store, found.identifier)
        except NotAllowedError:
            return None
        is_own = served is not None and served.state.uuid == uuid and served.state.replicated_path == self.files.root
        return found.identifier if is_own else None


def choose_location(table: ReplicaTable, served: ServedTable | None) -> str:
    """Returns the folder of the replica's table. It stays where it is when the warehouse in the settings changes."""
    if served is not None:
        return str(served.metadata["location"]).rstrip("/")
    return location_in(table.warehouse, table.identifier)


def _find_folder(files: ReplicaFiles, table: ReplicaTable, served: ServedTable | None) -> str:
    if served is not None and served.state.replicated_path == files.root:
        return served.state.folder
    return find_table_folder(files, table.identifier)


def _is_dropped(beacon: Beacon | None, uuid: str, updated_ms: int) -> bool:
    """Whether a beacon of a whole catalog has no table of this UUID, though it is newer than the table."""
    if beacon is None or not beacon.is_whole or not uuid:
        return False
    return beacon.find(uuid) is None and beacon.written_at.timestamp() * 1000 > updated_ms


def _refuse_other(table: ReplicaTable, served: ServedTable, found: str) -> ConflictError:
    return ConflictError(
        f"{table.name} is the replica of another table than the one in {table.replicated_path}",
        cause=f"its UUID is {served.state.uuid}, there it is {found}",
        hint="choose another name, or drop the replica",
    )


def _load_known(care: UpkeepContext, served: ServedTable, location: str) -> KnownLater:
    if not served.state.files:
        return _NOTHING_KNOWN
    # The prefixes of the state are those of the relocation: the same give the same signature.
    signature = compute_signature(*map_places(PrefixMap(served.state.prefixes), location))
    return KnownLater(open_target(care, location), served.state.files, signature)


def _is_moved(table: ReplicaTable, files: ReplicaFiles, state: ReplicaState) -> bool:
    """Whether the storage was copied to another place than the last sync knew."""
    given = {(source, source if is_same(source, landed) else landed) for source, landed in table.source_prefixes}
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


def _warn(table: ReplicaTable, served: ServedTable | None, newest: NewestVersion, location: str) -> tuple[str, ...]:
    found = []
    if newest.choice.served_lost:
        found.append("the served version was never committed: it lost a commit race on the primary")
    if newest.choice.is_contested:
        found.append("several versions claim to be the newest, and nothing proves yet which one was committed")
    if newest.other_uuids:
        found.append(f"metadata of other tables lies in the same folder: {', '.join(newest.other_uuids)}")
    if served is not None and location != location_in(table.warehouse, table.identifier):
        found.append(f"relocated metadata stays in {location}, whatever the warehouse is now")
    return tuple(found)
