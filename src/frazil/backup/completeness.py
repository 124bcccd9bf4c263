"""Makes sure that a new backup is complete, right before its record is written.

What earlier records list is not copied again: it may have been lost since, by a fault of the storage or by hand, or be
deleted by a prune at this moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from frazil.backup.format import BackedUpTable, BlobRef
from frazil.backup.marks import Mark, advance, list_marks, read_mark
from frazil.backup.references import (
    KINDS,
    Kind,
    References,
    find_absent,
    find_protected,
    has_blob,
    iterate_references,
    key_of,
)
from frazil.backup.repository import Repository, too_long
from frazil.errors import FrazilError, NotFoundError
from frazil.observe.cancellation import raise_if_stopped
from frazil.observe.faultpoints import reach

_POLL_S = 2.0


def find_lost(repository: Repository, tables: Sequence[BackedUpTable]) -> list[BlobRef]:
    """Returns what tables of a new record share with earlier ones, and the repository does not have any more."""
    shared = [table for table in tables if table.new_files < table.files]

    def needed() -> Iterator[tuple[Kind, BlobRef]]:
        return iterate_references(repository, shared, None, _require_missing)

    absent = find_absent(repository, needed())
    return [blob for kind, blob in needed() if absent.has(kind, blob)] if len(absent) else []


def _require_missing(key: str, error: FrazilError) -> None:
    """A list that is missing is found by its own name; one that is damaged is an error."""
    del key
    if not isinstance(error, NotFoundError):
        raise error


# -- beside prunes


def check_marks(
    repository: Repository,
    tables: Sequence[BackedUpTable],
    started: datetime,
    *,
    prune_wait_s: float,
    stop: threading.Event | None = None,
) -> list[BlobRef]:
    """Makes sure that no prune deletes a blob of a new backup; called right before its record is written.

    Cancels marks that list one, and waits while a prune deletes what such a mark lists. Prolongs the Object Lock
    retention of all blobs, if the repository locks. Reads nothing of the backup where there is neither.

    Args:
        repository: the repository.
        tables: of the record that is about to be written.
        started: `repository.now()` from before the create read any other record.
        prune_wait_s: `backup.prune_wait_s`.
        stop: ends the waiting.

    Returns:
        Blobs that are missing. Store them again, and call this function again, until none is.

    Raises:
        ConflictError: the create took longer than `prune_wait_s`.
        StoppedError: `stop` was set.
    """
    wait = timedelta(seconds=prune_wait_s)
    needed: References | None = None
    while True:
        if repository.now() - started >= wait:
            raise too_long(prune_wait_s)
        reach("backup.check_marks")
        marks = [mark for mark in list_marks(repository) if not _is_cancelled(mark)]
        if marks and needed is None:
            needed = References()
            for kind, blob in iterate_references(repository, tables, needed, lambda *_: None):
                needed.add(kind, blob)
        suspects, is_settled = _settle(repository, marks, needed or References(), tables)
        if is_settled:
            break
        raise_if_stopped(stop)
        _pause(stop)
    missing = [blob for kind, blob in suspects if not has_blob(repository, kind, blob)]
    return missing or _protect(repository, tables)


def _is_cancelled(mark: Mark) -> bool:
    return mark.step is not None and mark.step.action == "cancel"


def _settle(
    repository: Repository, marks: Iterable[Mark], needed: References, tables: Sequence[BackedUpTable]
) -> tuple[list[tuple[Kind, BlobRef]], bool]:
    """Blobs of this backup that may have been deleted; and whether no mark can delete one any more."""
    now = repository.now()
    suspects: list[tuple[Kind, BlobRef]] = []
    is_settled = True
    for mark in marks:
        hits = _hits(repository, mark, needed, tables)
        if not hits:
            continue
        suspects += hits
        if mark.is_waiting:
            is_settled &= advance(repository, mark, "cancel", "create") is not None
            reach("backup.check_marks.cancelled")
        elif not mark.is_over:
            if mark.is_silent(now):
                advance(repository, mark, "done", "create")
            is_settled = False
    return suspects, is_settled


def _hits(
    repository: Repository, mark: Mark, needed: References, tables: Sequence[BackedUpTable]
) -> list[tuple[Kind, BlobRef]]:
    """What a mark lists of this backup."""
    if mark.created_at is None:
        # Only steps are left: the mark is over since `prune_wait_s`, which is longer than this create has run.
        return []
    found = read_mark(repository, mark)
    if found is None:  # damaged: it may list anything
        return list(iterate_references(repository, tables, None, lambda *_: None))
    return [(kind, blob) for kind in KINDS for blob in found[kind] if needed.has(kind, blob)]


def _protect(repository: Repository, tables: Sequence[BackedUpTable]) -> list[BlobRef]:
    """Prolongs the retention of what a backup shares with others; returns what is missing."""
    if repository.lock_until is None:
        return []
    known = find_protected(repository, tables, repository.lock_until)
    blobs = {key_of(kind, blob): blob for kind, blob in iterate_references(repository, tables, known)}
    return [blobs[key] for key in repository.protect(list(blobs))]


def _pause(stop: threading.Event | None) -> None:
    """Waits before the marks are read again."""
    if stop is None:
        time.sleep(_POLL_S)
    else:
        stop.wait(_POLL_S)
