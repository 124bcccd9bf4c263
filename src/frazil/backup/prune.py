"""Retention of backups, and the removal of what no backup needs, in two phases beside creates that run.

Phase 1 removes the records that the policy drops, and marks every blob that no record needs and that is older than
`prune_wait_s`. Phase 2, of a later run, takes a mark that is older than `prune_wait_s`, reads all records again, and
deletes what still none of them needs. docs/backup-repository.md says why no listed backup ever lacks a blob.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from frazil.atomic_files import TEMPORARY_SUFFIX
from frazil.backup.format import BackupRecord, BlobRef, DamagedRecord
from frazil.backup.marks import Mark, advance, list_marks, read_mark, remove_mark, write_mark
from frazil.backup.references import KINDS, Kind, References, collect_references, key_of, parse_key
from frazil.backup.repository import Repository, record_key
from frazil.backup.retention import RetentionPolicy, select_backups
from frazil.errors import FrazilError, IntegrityError
from frazil.observe.cancellation import raise_if_stopped
from frazil.observe.faultpoints import reach

_MARK_SIZE = 100_000
_BATCH = 1000
_RENEW_S = 60.0


@dataclass(frozen=True)
class Amount:
    """Blobs, and their size without compression."""

    blobs: int = 0
    bytes: int = 0

    def plus(self, blob: BlobRef) -> Amount:
        return Amount(self.blobs + 1, self.bytes + blob.size)

    def to_dict(self) -> dict[str, int]:
        return {"blobs": self.blobs, "bytes": self.bytes}


@dataclass(frozen=True)
class PrunePlan:
    """What a prune would do.

    Attributes:
        keep: why each backup is kept.
        drop: backups that are removed.
        locked: backups that the policy drops, and that Object Lock keeps until then.
        mark: what is marked; it is deleted by a run that comes `prune_wait_s` later.
        delete: what earlier runs marked, and is due.
    """

    keep: dict[str, tuple[str, ...]]
    drop: tuple[str, ...]
    locked: dict[str, datetime]
    mark: Amount
    delete: Amount

    def to_dict(self) -> dict[str, Any]:
        return {
            "keep": {name: list(reasons) for name, reasons in self.keep.items()},
            "drop": list(self.drop),
            "locked": {name: until.isoformat() for name, until in self.locked.items()},
            "mark": self.mark.to_dict(),
            "delete": self.delete.to_dict(),
        }


@dataclass
class PruneReport:
    """What a prune did; `left` is what it could not delete, because it is locked."""

    dropped: list[str] = field(default_factory=list)
    locked: dict[str, datetime] = field(default_factory=dict)
    marked: Amount = Amount()
    deleted: Amount = Amount()
    left: Amount = Amount()

    def to_dict(self) -> dict[str, Any]:
        return {
            "dropped": self.dropped,
            "locked": {name: until.isoformat() for name, until in self.locked.items()},
            "marked": self.marked.to_dict(),
            "deleted": self.deleted.to_dict(),
            "left": self.left.to_dict(),
        }


def plan_prune(
    repository: Repository,
    policy: RetentionPolicy | None,
    *,
    prune_wait_s: float,
    names: Collection[str] | None = None,
    without: Collection[str] = (),
) -> PrunePlan:
    """Returns what `run_prune` would do now. Changes nothing.

    Args:
        repository: the repository.
        policy: which backups are kept; None: all of them.
        prune_wait_s: `backup.prune_wait_s`.
        names: only these backups are subject to the policy.
        without: as if these were gone already; they may be damaged.

    Raises:
        FrazilError: a record or a file list cannot be read, so that it is not known what it needs.
    """
    records = _read_records(repository, without)
    keep, drop = _select(records, policy, names)
    locked = {name: until for name in drop if (until := repository.find_lock(record_key(name))) is not None}
    drop = [name for name in drop if name not in locked]
    references = collect_references(repository, [record for record in records if record.name not in drop])
    now, wait = repository.now(), timedelta(seconds=prune_wait_s)
    delete, marked = Amount(), References()
    for mark in list_marks(repository):
        for kind, blob in _blobs_of(repository, mark):
            if not mark.is_over:
                marked.add(kind, blob)
            if _is_due(mark, now, wait) and not references.has(kind, blob):
                delete = delete.plus(blob)
    found = Amount()
    for _, blob in _find_unreferenced(repository, references, marked, now - wait):
        found = found.plus(blob)
    return PrunePlan(keep, (*without, *drop), locked, found, delete)


def run_prune(
    repository: Repository,
    policy: RetentionPolicy | None,
    *,
    prune_wait_s: float,
    names: Collection[str] | None = None,
    stop: threading.Event | None = None,
) -> PruneReport:
    """Removes backups that a policy drops, deletes what is due, and marks what no backup needs any more.

    It can be interrupted at any time; another run goes on. Several at once do no harm.

    Args:
        repository: the repository.
        policy: which backups are kept; None: all of them.
        prune_wait_s: `backup.prune_wait_s`.
        names: only these backups are subject to the policy.
        stop: ends the work between two steps.

    Raises:
        FrazilError: a record or a file list cannot be read, so that it is not known what it needs. No blob was deleted.
    """
    records = _read_records(repository)
    _, drop = _select(records, policy, names)
    report = PruneReport()
    for name in drop:
        raise_if_stopped(stop)
        reach("backup.prune.drop")
        until = repository.remove(record_key(name))
        if until is None:
            report.dropped.append(name)
        else:
            report.locked[name] = until
    reach("backup.prune.dropped")
    _Sweep(repository, timedelta(seconds=prune_wait_s), report, stop).run()
    return report


def _elapsed() -> float:
    """Seconds since this machine was started, those in which it was suspended included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass
class _Sweep:
    """Both phases of one run, without the policy."""

    repository: Repository
    wait: timedelta
    report: PruneReport
    stop: threading.Event | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    renewed: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        now = self.repository.now()
        claimed = [claim for mark in list_marks(self.repository) if (claim := self._claim(mark, now)) is not None]
        reach("backup.prune.claimed")
        try:
            # After the claims: a create that comes later finds them, and one that came earlier has written its record.
            references = collect_references(self.repository, _read_records(self.repository))
        except FrazilError:
            for mark in claimed:
                advance(self.repository, mark, "done", self.id)
            raise
        for mark in claimed:
            self._delete(mark, references)
        self._mark(references, now)
        self._clean(references, now)

    def _claim(self, mark: Mark, now: datetime) -> Mark | None:
        """Takes a mark to delete what it lists."""
        if not _is_due(mark, now, self.wait):
            return None
        if read_mark(self.repository, mark) is None:
            # Damaged: the next run makes a new one.
            advance(self.repository, mark, "cancel" if mark.is_waiting else "done", self.id)
            return None
        return self._renew(mark)

    def _renew(self, mark: Mark) -> Mark | None:
        """Says that this prune deletes what a mark lists; None: another process has taken or ended it."""
        at = _elapsed()  # before the request: the others count from a later time
        claimed = advance(self.repository, mark, "delete", self.id)
        self.renewed[mark.id] = at
        return claimed

    def _delete(self, mark: Mark | None, references: References) -> None:
        """Deletes the blobs of a mark, file lists before data, unless another process takes it over."""
        assert mark is not None
        blobs = ((k, b) for k, b in _blobs_of(self.repository, mark) if not references.has(k, b))
        while batch := list(islice(blobs, _BATCH)):
            raise_if_stopped(self.stop)
            reach("backup.prune.delete")
            # Right before each batch: a machine that slept must not delete what was stored again since.
            if _elapsed() - self.renewed[mark.id] > _RENEW_S:
                mark = self._renew(mark)
                if mark is None:
                    return
            self._remove(batch)
        reach("backup.prune.deleted")
        advance(self.repository, mark, "done", self.id)

    def _remove(self, batch: list[tuple[Kind, BlobRef]]) -> None:
        locked = self.repository.remove_many([key_of(kind, blob) for kind, blob in batch])
        for kind, blob in batch:
            if key_of(kind, blob) in locked:
                self.report.left = self.report.left.plus(blob)
            else:
                self.report.deleted = self.report.deleted.plus(blob)

    def _mark(self, references: References, now: datetime) -> None:
        marked = References()
        for mark in list_marks(self.repository):
            if not mark.is_over:
                for kind, blob in _blobs_of(self.repository, mark):
                    marked.add(kind, blob)
        found = _find_unreferenced(self.repository, references, marked, now - self.wait)
        while batch := list(islice(found, _MARK_SIZE)):
            raise_if_stopped(self.stop)
            blobs: dict[Kind, list[BlobRef]] = {kind: [b for k, b in batch if k == kind] for kind in KINDS}
            reach("backup.prune.mark")
            write_mark(self.repository, blobs)
            reach("backup.prune.marked")
            for _, blob in batch:
                self.report.marked = self.report.marked.plus(blob)

    def _clean(self, references: References, now: datetime) -> None:
        """Removes what is over: marks, notes of creates that never finished, tombstones, remains of crashes."""
        old = now - self.wait
        for mark in list_marks(self.repository):
            if mark.created_at is None or mark.is_over:
                at = mark.step.at if mark.step is not None else mark.created_at
                # Not before: a create that began before the last step must still find it.
                if at is not None and at <= old:
                    reach("backup.prune.remove_mark")
                    remove_mark(self.repository, mark)
        for info in self.repository.store.list("progress"):
            if info.last_modified <= old - self.wait:
                self.repository.discard(info.key)
        for info in self.repository.store.list("data"):
            name = info.key.rpartition("/")[2]
            if name.endswith(".erased") and info.last_modified <= old and not _is_needed(name, references):
                self.repository.discard(info.key)
        if self.repository.is_local:
            for path in self.repository.location.path.glob(f".*{TEMPORARY_SUFFIX}"):
                if path.stat().st_mtime <= old.timestamp():
                    path.unlink(missing_ok=True)


def _is_needed(tombstone: str, references: References) -> bool:
    try:
        return references.has("data", BlobRef.parse(tombstone.removesuffix(".erased")))
    except IntegrityError:
        return True  # not a tombstone


def _is_due(mark: Mark, now: datetime, wait: timedelta) -> bool:
    if mark.created_at is None:
        return False
    return mark.is_silent(now) or (mark.is_waiting and now - mark.created_at >= wait)


def _blobs_of(repository: Repository, mark: Mark) -> Iterator[tuple[Kind, BlobRef]]:
    """The blobs of a mark, metadata first. A damaged one has none."""
    found = None if mark.created_at is None else read_mark(repository, mark)
    for kind in KINDS if found is not None else ():
        assert found is not None
        yield from ((kind, blob) for blob in found[kind])


def _find_unreferenced(
    repository: Repository, references: References, marked: References, written_before: datetime
) -> Iterator[tuple[Kind, BlobRef]]:
    """Blobs that no record needs and no mark lists. Younger ones may belong to creates that are under way."""
    for kind in KINDS:
        for info in repository.store.list(kind):
            blob = parse_key(kind, info.key)
            if blob is None or info.last_modified > written_before:
                continue
            if not references.has(kind, blob) and not marked.has(kind, blob):
                yield kind, blob


def _read_records(repository: Repository, without: Collection[str] = ()) -> list[BackupRecord]:
    """All records. Without one of them it is not known what it needs, so that nothing may be deleted."""
    found = [one for one in repository.list_records() if one.name not in without]
    damaged = [one for one in found if isinstance(one, DamagedRecord)]
    if damaged:
        first = damaged[0].error
        raise type(first)(
            f"the backup {', '.join(repr(one.name) for one in damaged)} cannot be read, so that nothing can be pruned",
            cause=first.message,
            hint="restore the record from a copy of the repository, or drop it: frazil backup delete NAME --yes",
        )
    return [one for one in found if isinstance(one, BackupRecord)]


def _select(
    records: list[BackupRecord], policy: RetentionPolicy | None, names: Collection[str] | None
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Why backups are kept, and which are not."""
    subject = [record for record in records if names is None or record.name in names]
    reasons: dict[str, tuple[str, ...]] = {record.name: ("not subject to the policy",) for record in records}
    if policy is None:
        return reasons, []
    reasons |= select_backups(subject, policy)
    return {name: why for name, why in reasons.items() if why}, [name for name, why in reasons.items() if not why]
