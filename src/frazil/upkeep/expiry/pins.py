"""Pins: a snapshot that somebody works with right now, such as a backup, is not expired under their hands.

A pin is a tag of Iceberg's, `frazil-pin-<purpose>-<id>`, so that expiry by any engine respects it. Its
`max-ref-age-ms` is its lease: the holder renews it, and the pin of a holder that died ends by itself. Iceberg counts
that age from the snapshot's own time, and so does the number that stands there.

Where a catalog keeps no tags there are no pins. What protects a reader there is the grace: files of expired snapshots
stay for `file_grace_s`.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from frazil.catalogs import abilities_of
from frazil.catalogs.pointers import read_metadata
from frazil.errors import ConflictError, FrazilError, NotFoundError, UnsupportedError, UsageError
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.tables import CommitUnknownError
from frazil.tables.commit_retry import commit_with_retry, is_repeatable
from frazil.tables.properties import require_no_replica
from frazil.tables.publishing import append_metadata_log, new_metadata_location, plan_publication, publish
from frazil.tables.relocation.table_metadata import format_metadata
from frazil.upkeep.expiry.expire import PIN_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.refs import SnapshotRef
    from pyiceberg.table.snapshots import Snapshot

    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

_PURPOSE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TRIES = 10
#: Format versions from this one on have metadata that PyIceberg cannot write.
_RAW_VERSION = 3


class PinLostError(ConflictError):
    """The tag no longer exists: its lease has expired, or it was removed."""


@dataclass(frozen=True)
class Pin:
    """A snapshot that is held.

    Attributes:
        table: its name.
        tag: the pin's.
        purpose: of the holder.
        snapshot_id: that stays.
        until: when the lease ends.
    """

    table: str
    tag: str
    purpose: str
    snapshot_id: int
    until: datetime

    def to_dict(self) -> dict[str, object]:
        return {**vars(self), "until": self.until.isoformat()}


def pin(context: UpkeepContext, table: Table, purpose: str, lease_s: float, snapshot: int | None = None) -> Pin:
    """Holds a snapshot of a table.

    Args:
        context: of which catalog.
        table: which.
        purpose: small letters, digits and '-', such as `backup`.
        lease_s: seconds after which the pin ends, unless it is renewed.
        snapshot: by default the current one.

    Raises:
        UnsupportedError: the catalog keeps no tags.
        NotAllowedError: the table is a replica: it may not be changed here.
        NotFoundError: there is no such snapshot, or none at all.
        ConflictError: the snapshot was expired meanwhile, or other writers were faster too often.
    """
    _require_tags(context)
    if not _PURPOSE.fullmatch(purpose) or lease_s <= 0:
        raise UsageError(
            f"'{purpose}' for {lease_s:g} s is no pin", hint="small letters, digits and '-'; a time above 0"
        )
    table = context.load(".".join(table.name()))
    require_no_replica(table)
    snapshot_id = _known(table, snapshot if snapshot is not None else table.metadata.current_snapshot_id)
    tag = f"{PIN_PREFIX}{purpose}-{uuid.uuid4().hex[:12]}"
    age = _age_ms(table, snapshot_id, lease_s)

    def is_there(now: Table) -> bool:
        _known(now, snapshot_id)
        return tag in now.metadata.refs

    reach("upkeep.pin.before")
    _commit(context, table, _TagChange(tag, snapshot_id, age, is_new=True), is_there)
    reach("upkeep.pin.after")
    return Pin(".".join(table.name()), tag, purpose, snapshot_id, _until(table, snapshot_id, age))


def renew(context: UpkeepContext, held: Pin, lease_s: float) -> Pin:
    """Holds it for so long from now.

    Raises:
        PinLostError: it was not held any more.
        ConflictError: other writers were faster too often. The lease is as it was.
    """
    table = context.load(held.table)
    _ref_of(table, held)
    age = _age_ms(table, held.snapshot_id, lease_s)
    change = _TagChange(held.tag, held.snapshot_id, age)
    _commit(context, table, change, lambda now: _ref_of(now, held).max_ref_age_ms == age)
    return replace(held, until=_until(table, held.snapshot_id, age))


def release(context: UpkeepContext, held: Pin) -> None:
    """Lets go. A pin that is gone counts as released."""
    table = context.load(held.table)
    if held.tag in table.metadata.refs:
        _commit(context, table, _TagChange(held.tag, None), lambda now: held.tag not in now.metadata.refs)


def pins(table: Table) -> list[Pin]:
    """The pins on a table, those whose lease is over included: the next expiry takes them away."""
    return pins_in(table.metadata, ".".join(table.name()))


def pins_in(metadata: TableMetadata, name: str) -> list[Pin]:
    """The same by a table's metadata and name."""
    found = []
    for tag, ref in metadata.refs.items():
        snapshot = metadata.snapshot_by_id(ref.snapshot_id)
        if tag.startswith(PIN_PREFIX) and snapshot is not None and ref.max_ref_age_ms is not None:
            purpose = tag.removeprefix(PIN_PREFIX).rpartition("-")[0]
            found.append(Pin(name, tag, purpose, ref.snapshot_id, _end(snapshot, ref.max_ref_age_ms)))
    return found


class Held:
    """A pin that a thread renews.

    Attributes:
        pin: as it was last renewed.
    """

    def __init__(self, context: UpkeepContext, held: Pin) -> None:
        self.pin = held
        self._context = context
        self._lost: PinLostError | None = None

    def lose(self, error: PinLostError) -> None:
        self._lost = error

    def require(self) -> None:
        """To be called when the work is done, and before anybody counts on it. It looks at the table.

        Raises:
            PinLostError: the snapshot was not held all the time.
        """
        if self._lost is not None:
            raise self._lost
        table, held = self._context.load(self.pin.table), self.pin
        age = _ref_of(table, held).max_ref_age_ms
        if age is not None and _until(table, held.snapshot_id, age) < datetime.now(UTC):
            raise _lost(held, f"the lease of the tag {held.tag} is over: it was not renewed in time")


@contextmanager
def pinned(
    context: UpkeepContext, table: Table, purpose: str, lease_s: float, snapshot: int | None = None
) -> Iterator[Held]:
    """A pin for the time of a block, renewed three times per lease, and released at its end."""
    held = Held(context, pin(context, table, purpose, lease_s, snapshot))
    over = threading.Event()

    def keep() -> None:
        while not over.wait(lease_s / 3):
            try:
                held.pin = renew(context, held.pin, lease_s)
            except PinLostError as error:
                held.lose(error)
                return
            except FrazilError as error:  # there is time for another try
                log.warning("a pin could not be renewed", pin=held.pin.tag, error=error.message)

    thread = threading.Thread(target=keep, name="frazil-pin", daemon=True)
    thread.start()
    try:
        yield held
    finally:
        over.set()
        thread.join()
        with suppress(FrazilError):  # then its lease ends it
            release(context, held.pin)


@dataclass(frozen=True)
class _TagChange:
    """A tag that is set, or removed where `snapshot_id` is None."""

    tag: str
    snapshot_id: int | None
    max_age_ms: int | None = None
    is_new: bool = False

    def commit(self, context: UpkeepContext, table: Table) -> None:
        if table.metadata.format_version >= _RAW_VERSION and context.store.settings.resolved_kind != "rest":
            self._publish(context, table)
        else:
            self._commit_light(context, table)

    def _publish(self, context: UpkeepContext, table: Table) -> None:
        """Exchanges the metadata file for one with the change: PyIceberg writes none of format version 3."""
        store, identifier = context.store, table.name()
        found = store.call(lambda: read_metadata(store.catalog, identifier), "read_metadata")
        if found is None or found[0] != table.metadata_location:
            raise ConflictError(f"{'.'.join(identifier)} was changed by another writer")
        pointer, metadata = found
        refs = {name: ref for name, ref in (metadata.get("refs") or {}).items() if name != self.tag}
        if self.snapshot_id is not None:
            refs[self.tag] = {"snapshot-id": self.snapshot_id, "type": "tag", "max-ref-age-ms": self.max_age_ms}
        changed = append_metadata_log({**metadata, "refs": refs}, pointer)
        plan = plan_publication(store, identifier, changed, replace=True, relocated=True)
        if plan.expected != pointer:
            raise ConflictError(f"{'.'.join(identifier)} was changed by another writer")
        path = new_metadata_location(table)
        files, key = context.storage_of(table).find(path)
        files.put(key, format_metadata(changed))  # its name has a UUID
        try:
            publish(store, plan, path, changed)
        except ConflictError:  # nothing names the file; after any other error the catalog may do so yet
            with suppress(FrazilError):
                files.delete(key)
            raise

    def _commit_light(self, context: UpkeepContext, table: Table) -> None:
        from pyiceberg.table.update import (
            AssertRefSnapshotId,
            AssertTableUUID,
            RemoveSnapshotRefUpdate,
            SetSnapshotRefUpdate,
            TableRequirement,
            TableUpdate,
        )

        ref = table.metadata.refs.get(self.tag)
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId(ref=self.tag, snapshot_id=None if ref is None else ref.snapshot_id),
        )
        update: TableUpdate
        if self.snapshot_id is None:
            update = RemoveSnapshotRefUpdate(ref_name=self.tag)
        else:
            update = SetSnapshotRefUpdate(
                ref_name=self.tag, type="tag", snapshot_id=self.snapshot_id, max_ref_age_ms=self.max_age_ms,
                max_snapshot_age_ms=None, min_snapshots_to_keep=None,
            )  # fmt: skip
        context.store.call_once(lambda: context.store.catalog.commit_table(table, requirements, (update,)))


def _commit(context: UpkeepContext, table: Table, change: _TagChange, is_so: Callable[[Table], bool]) -> None:
    """Commits a change of a tag until it is so.

    What a commit says is not enough: its answer may be lost, and a server may lose a tag to an expiry at the same time.
    """
    began = False

    def prepare(now: Table) -> bool | None:
        return None if began and is_so(now) else True

    def commit(now: Table, _: bool) -> None:
        nonlocal began
        began = True
        change.commit(context, now)

    commit_with_retry(context.store, table, prepare, commit, tries=_TRIES, may_repeat=_is_lost)


def _is_lost(error: FrazilError, failures: int) -> bool:
    return isinstance(error, CommitUnknownError) or is_repeatable(error, failures)


def _require_tags(context: UpkeepContext) -> None:
    abilities = abilities_of(context.catalog, dict(context.store.catalog.properties))
    if not abilities.refs:
        raise UnsupportedError(
            f"the catalog '{context.catalog.name}' keeps no tags, and so no pins",
            cause=abilities.note,
            hint="files of expired snapshots stay for upkeep.policy.file_grace_s: let it be longer than the work takes",
        )


def _ref_of(table: Table, held: Pin) -> SnapshotRef:
    """The tag of a pin.

    Raises:
        PinLostError: it is gone, or another's.
    """
    ref = table.metadata.refs.get(held.tag)
    if ref is None or ref.snapshot_id != held.snapshot_id:
        raise _lost(held, f"the tag {held.tag} is gone: its lease ended, or it was removed")
    return ref


def _lost(held: Pin, cause: str) -> PinLostError:
    return PinLostError(
        f"snapshot {held.snapshot_id} of {held.table} is not held any more",
        cause=cause,
        hint="do the work again; a longer lease survives a longer pause",
    )


def _known(table: Table, snapshot_id: int | None) -> int:
    if snapshot_id is None or table.metadata.snapshot_by_id(snapshot_id) is None:
        name = ".".join(table.name())
        what = "no snapshot" if snapshot_id is None else f"no snapshot {snapshot_id}"
        raise NotFoundError(f"{name} has {what}", hint=f"frazil table snapshots {name}")
    return snapshot_id


def _age_ms(table: Table, snapshot_id: int, lease_s: float) -> int:
    """The age of the snapshot when a lease that begins now is over."""
    age = round(time.time() * 1000) - _snapshot(table, snapshot_id).timestamp_ms
    return max(0, age) + max(1, round(lease_s * 1000))


def _until(table: Table, snapshot_id: int, age_ms: int) -> datetime:
    return _end(_snapshot(table, snapshot_id), age_ms)


def _end(snapshot: Snapshot, age_ms: int) -> datetime:
    return datetime.fromtimestamp((snapshot.timestamp_ms + age_ms) / 1000, UTC)


def _snapshot(table: Table, snapshot_id: int) -> Snapshot:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return snapshot
