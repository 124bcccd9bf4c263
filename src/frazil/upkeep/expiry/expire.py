"""Takes old snapshots out of a table. Their files stay, on a list, until readers under way have had their time.

`choose(metadata, *, max_age_s, max_snapshots, min_snapshots, now_ms) -> list[int]` is pure, and what a plan is made of.
`plan(care, table, snapshots) -> Expiry` says which files would be left without a snapshot; it changes nothing.
`run(care, table, Step("expire", options={"snapshots": [...]}))` does it:

1. The list of the files that only these snapshots hold is written beside the table's metadata (`lists`).
2. Iceberg's own expiry commits the removal, without deleting a file. A snapshot that got a branch or tag meanwhile
   makes it fail: then nothing has changed, the list is deleted, and the next plan does without that snapshot.
3. The list is written again, as committed. From then on the grace counts; `reclaim` deletes the files after it.

S3 Tables takes no list, and needs none: it deletes what no snapshot needs by itself.

A crash between these leaves a list whose snapshots still exist, which `reclaim` drops, or one whose snapshots are gone,
which it takes for committed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frazil.errors import ConflictError, FrazilError, NotFoundError, UnavailableError, UsageError
from frazil.observe.faultpoints import reach
from frazil.tables.errors import CommitUnknownError
from frazil.tables.snapshot_retention import AGE_PROPERTY, KEEP_PROPERTY, parse_number_property
from frazil.upkeep.model import Outcome, Step

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.refs import SnapshotRef
    from pyiceberg.table.snapshots import Snapshot

    from frazil.tables.metadata.reachable import ReferencedFile
    from frazil.upkeep.context import UpkeepContext

_MAIN = "main"
#: Prefix of the tags that pin a snapshot in use (`pins`).
PIN_PREFIX = "frazil-pin-"
_FOREVER = math.inf


def choose(
    metadata: TableMetadata,
    *,
    max_age_s: float | None,
    max_snapshots: int | None,
    min_snapshots: int = 1,
    now_ms: int,
) -> list[int]:
    """The snapshots that a policy lets go, oldest first. Pure.

    What stays: the current snapshot; what a branch or tag points to while its `max-ref-age-ms` lasts; of each branch's
    history the newest `min-snapshots-to-keep` (its own, else the larger one of `min_snapshots` and the table's
    `history.expire.min-snapshots-to-keep`) and all younger than `max-snapshot-age-ms` (its own, else the larger one of
    `max_age_s` and the table's `history.expire.max-snapshot-age-ms`). `max_snapshots` counts on main alone, and where
    neither main nor the table names an age of its own. Snapshots outside every branch's history go by age.

    Of main's history the oldest go, without a gap: expiry of older Iceberg (before 1.12) deletes what a snapshot added
    that is no ancestor of the current one. So a pin also keeps what came after it; its lease is short. A tag of
    people's, which may stay for years, is stepped over, as every engine does.

    Args:
        metadata: of the table.
        max_age_s: seconds after which a snapshot goes; None: age does not count.
        max_snapshots: of main's history that stay at most; None: any number.
        min_snapshots: of each branch's history that stay, however old.
        now_ms: now, in milliseconds since 1970.
    """
    if metadata.properties.get("gc.enabled", "true").lower() == "false" or not metadata.snapshots:
        return []
    by_id = {s.snapshot_id: s for s in metadata.snapshots}
    limits = _Limits(metadata, max_age_s, max_snapshots, min_snapshots, now_ms)
    refs = {name: ref for name, ref in metadata.refs.items() if limits.living(name, ref, by_id)}
    select_kept = {ref.snapshot_id for ref in refs.values()}
    histories: set[int] = set()
    for name, ref in refs.items():
        if ref.snapshot_ref_type.value != "branch":
            continue
        history = list(_history(by_id, ref.snapshot_id))
        histories |= {s.snapshot_id for s in history}
        pinned = {r.snapshot_id for n, r in refs.items() if n.startswith(PIN_PREFIX)} if name == _MAIN else set()
        select_kept |= limits.select_kept(history, ref, pinned, main=name == _MAIN)
    if metadata.current_snapshot_id is not None:  # older writers keep no reference to it
        select_kept |= limits.select_kept(list(_history(by_id, metadata.current_snapshot_id)), None, set(), main=True)
        histories |= {s.snapshot_id for s in _history(by_id, metadata.current_snapshot_id)}
    select_kept |= {i for i, s in by_id.items() if i not in histories and limits.young(s)}
    going = [s for s in metadata.snapshots if s.snapshot_id not in select_kept]
    return [s.snapshot_id for s in sorted(going, key=lambda s: (s.sequence_number or 0, s.timestamp_ms))]


class _Limits:
    def __init__(
        self,
        metadata: TableMetadata,
        max_age_s: float | None,
        max_snapshots: int | None,
        min_snapshots: int,
        now_ms: int,
    ) -> None:
        properties = metadata.properties
        own_age = parse_number_property(properties, AGE_PROPERTY)
        age = _FOREVER if max_age_s is None else max_age_s * 1000
        self._now = now_ms
        self._age = age if own_age is None else max(age, own_age)
        self._count = max_snapshots if own_age is None else None
        self._least = max(min_snapshots, 1, int(parse_number_property(properties, KEEP_PROPERTY) or 1))
        ref_age = parse_number_property(properties, "history.expire.max-ref-age-ms")
        self._ref_age = _FOREVER if ref_age is None else ref_age

    def living(self, name: str, ref: SnapshotRef, by_id: dict[int, Snapshot]) -> bool:
        """Whether expiry leaves a branch or tag in place. Its age is that of its snapshot."""
        if name == _MAIN:
            return True
        if ref.snapshot_id not in by_id:
            return False
        allowed = self._ref_age if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        return self._now - by_id[ref.snapshot_id].timestamp_ms <= allowed

    def young(self, snapshot: Snapshot, age: float | None = None) -> bool:
        return self._now - snapshot.timestamp_ms <= (self._age if age is None else age)

    def select_kept(
        self, history: list[Snapshot], ref: SnapshotRef | None, pinned: set[int], *, main: bool
    ) -> set[int]:
        """Of a branch's history, newest first: all up to the last that must stay."""
        own_age = ref.max_snapshot_age_ms if ref else None
        least = (ref.min_snapshots_to_keep if ref else None) or self._least
        count = self._count if main and own_age is None else None
        end = 0
        for i, snapshot in enumerate(history):
            within = count is None or i < count
            if i < least or (within and self.young(snapshot, own_age) and end == i) or snapshot.snapshot_id in pinned:
                end = i + 1
        return {s.snapshot_id for s in history[:end]}


def _history(by_id: dict[int, Snapshot], snapshot_id: int | None) -> Iterator[Snapshot]:
    """A snapshot, its parent, and so on, as far as they are kept."""
    while snapshot_id is not None and (snapshot := by_id.get(snapshot_id)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


@dataclass(frozen=True)
class Expiry:
    """What an expiry would bring.

    Attributes:
        snapshots: that would go, oldest first.
        files: that would be left without a snapshot, by their `canonical_uri` URIs.
    """

    snapshots: tuple[int, ...]
    files: dict[str, ReferencedFile]

    @property
    def size(self) -> int:
        return sum(file.size or 0 for file in self.files.values())


def plan(context: UpkeepContext, table: Table, snapshots: Collection[int]) -> Expiry:
    """What would go with these snapshots. Reads metadata and changes nothing.

    Raises:
        UsageError: the current snapshot, or one that a branch or tag points to, is among them.
        NotFoundError: there is no such snapshot.
    """
    from frazil.tables.metadata.reachable import find_exclusive_files

    known = {s.snapshot_id: s for s in table.metadata.snapshots}
    name = ".".join(table.name())
    for snapshot_id in snapshots:
        if snapshot_id not in known:
            raise NotFoundError(f"{name} has no snapshot {snapshot_id}", hint=f"frazil table snapshots {name}")
        if holders := _holders(table.metadata, snapshot_id):
            pinned = any(f"tag {PIN_PREFIX}" in holder for holder in holders)
            raise UsageError(
                f"snapshot {snapshot_id} of {name} cannot be expired: {', '.join(holders)} points to it",
                hint=f"frazil table pins {name} shows until when"
                if pinned
                else f"leave it out; frazil table snapshots {name} shows what holds a snapshot",
            )
    chosen = tuple(i for i in known if i in set(snapshots))
    return Expiry(chosen, find_exclusive_files(context.store, table, chosen))


def refusal(context: UpkeepContext, table: Table) -> str | None:
    """Why nothing can be expired here, or None."""
    from frazil.catalogs import abilities_of

    abilities = abilities_of(context.catalog, dict(context.store.catalog.properties))
    if not abilities.history:
        return abilities.note
    if table.metadata.properties.get("gc.enabled", "true").lower() == "false":
        return "the table's property gc.enabled is false: its files may be others' too"
    return None


def run(context: UpkeepContext, table: Table, step: Step) -> Outcome:
    """Expires the snapshots of `step.options["snapshots"]`, as far as they exist and nothing has come to hold them.

    Raises:
        SharedLocationError: the table's files are another table's too, or another table refers to one that would go.
        NotAllowedError: the table may not be written.
        CommitUnknownError: the commit may have landed, and the catalog does not answer. `reclaim` finds out.
    """
    from frazil.tables.metadata.locations import clear_link_cache, filter_own_files
    from frazil.tables.metadata.reachable import find_exclusive_files
    from frazil.upkeep.expiry.shared_locations import require_alone, require_free

    clear_link_cache()
    table = context.load(".".join(table.name()))
    if reason := refusal(context, table):
        return Outcome("expire", "unsupported", reason=reason)
    wanted = _free(table.metadata, step.options["snapshots"])
    if not wanted:
        return Outcome("expire", "nothing", reason="the snapshots are gone already, or a branch or tag holds them")
    require_alone(context, table)
    # Nothing is deleted yet, so what was seen of others within the hour will do: `reclaim` looks again.
    files = filter_own_files(table, find_exclusive_files(context.store, table, wanted, context.stop))
    require_free(context, table, files, believed_s=math.inf, lenient=True)
    try:
        return _expire(context, table, wanted)
    except CommitUnknownError:
        raise
    except FrazilError as error:
        # Java stumbles in its own ways over snapshots that another expiry took out meanwhile.
        if not isinstance(error, ConflictError) and _left(context, table, wanted) == set(wanted):
            raise
        return Outcome("expire", "conflict", conflicts=1, reason=error.message, hint=error.hint)


def _expire(context: UpkeepContext, table: Table, wanted: list[int]) -> Outcome:
    from frazil.tables.durability import sync_metadata
    from frazil.tables.metadata.locations import filter_own_files, is_service_managed
    from frazil.tables.metadata.reachable import find_exclusive_files
    from frazil.upkeep.expiry import expired_file_lists
    from frazil.upkeep.expiry.shared_locations import require_free

    operation, going = _prepared(context, table, wanted)
    if not going <= {s.snapshot_id for s in table.metadata.snapshots}:
        table = context.load(".".join(table.name()))  # Java has seen a newer state
    places = context.storage_of(table)
    expired = None
    files = find_exclusive_files(context.store, table, going, context.stop)
    if going - set(wanted):
        require_free(context, table, filter_own_files(table, files), believed_s=math.inf, lenient=True)
    if not is_service_managed(context.store):
        expired = expired_file_lists.new_list(table, sorted(going), files.values())
        expired_file_lists.write(places, expired)
    try:
        _commit(context, table, operation, going)
    except UnavailableError:
        raise  # it may have landed, or land yet. The list stays: whoever reclaims sees which it was
    except FrazilError:
        if expired is not None:
            expired_file_lists.drop(places, expired)
        raise
    sync_metadata(context.load(".".join(table.name())))
    reach("upkeep.expire.committed.before")
    if expired is not None:
        expired_file_lists.write(places, expired_file_lists.as_committed(expired))
    reach("upkeep.expire.committed.after")
    return Outcome("expire", snapshots_removed=len(going))


def _prepared(context: UpkeepContext, table: Table, wanted: list[int]) -> tuple[Any, set[int]]:
    """Iceberg's expiry, ready to be committed, and all that it will take out.

    That may be more than what was asked for: it enforces what branches say of their own snapshots' age.
    """
    from frazil.upkeep import java

    with _referenced(table), java.translated(table):
        # Without a time of ours, it would take the table's properties for one, and expire by age too.
        operation = java.load(context, table).expireSnapshots().cleanExpiredFiles(False).expireOlderThan(0)
        for snapshot_id in wanted:
            operation.expireSnapshotId(snapshot_id)
        return operation, {int(snapshot.snapshotId()) for snapshot in java.items(operation.apply())}


def _commit(context: UpkeepContext, table: Table, operation: Any, going: set[int]) -> None:
    from frazil.upkeep import java

    reach("upkeep.expire.commit.before")
    try:
        with _referenced(table), java.translated(table):
            operation.commit()
    except FrazilError as error:
        try:
            left = _left(context, table, going)
        except FrazilError as silence:
            raise CommitUnknownError(
                f"{'.'.join(table.name())}: an expiry may or may not have landed",
                cause=f"{error.message}; {silence.message}",
                hint="the next run finds out: frazil table expire",
            ) from error
        if left:
            raise
        # It has landed and the answer was lost, or another expiry took out the very same.
    reach("upkeep.expire.commit.after")


def _left(context: UpkeepContext, table: Table, snapshots: Collection[int]) -> set[int]:
    """Those that the table has now."""
    return {s.snapshot_id for s in context.load(".".join(table.name())).metadata.snapshots} & set(snapshots)


@contextmanager
def _referenced(table: Table) -> Iterator[None]:
    """A branch or tag that somebody has just set is a conflict like any other: the next plan does without it."""
    try:
        yield
    except FrazilError as error:
        if "Still referenced by refs" not in error.message:
            raise
        raise ConflictError(
            f"{'.'.join(table.name())}: a snapshot that was to be expired has got a branch or tag",
            cause=error.message,
            hint="try again: it is left out then",
        ) from error


def _free(metadata: TableMetadata, wanted: object) -> list[int]:
    assert isinstance(wanted, Collection)
    known = {s.snapshot_id for s in metadata.snapshots}
    return [int(i) for i in wanted if int(i) in known and not _holders(metadata, int(i))]


def _holders(metadata: TableMetadata, snapshot_id: int) -> list[str]:
    refs = [(name, ref) for name, ref in metadata.refs.items() if ref.snapshot_id == snapshot_id]
    found = [f"{ref.snapshot_ref_type.value} {name}" for name, ref in refs if not _is_over(metadata, name, ref)]
    return found or (["the table"] if snapshot_id == metadata.current_snapshot_id else [])


def _is_over(metadata: TableMetadata, name: str, ref: SnapshotRef) -> bool:
    """Whether a branch or tag has outlived its time, as the pin of a process that died: an expiry takes it along."""
    snapshot = metadata.snapshot_by_id(ref.snapshot_id)
    if name == _MAIN or ref.max_ref_age_ms is None or snapshot is None:
        return False
    return time.time() * 1000 - snapshot.timestamp_ms > ref.max_ref_age_ms
