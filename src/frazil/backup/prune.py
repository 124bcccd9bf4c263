"""Retention of backups, and the removal of what no backup needs, in two phases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from frazil.backup.format import BackupRecord, BlobRef
from frazil.backup.repository import Repository


@dataclass(frozen=True)
class RetentionPolicy:
    """Which backups of a table are kept: those that any rule keeps. Days, weeks, months and years are those of UTC.

    Attributes:
        keep_last: the newest n.
        daily: the newest of each of the last n days that have one; likewise weekly, monthly, yearly.
        within: all that are at most so much older than the newest.
    """

    keep_last: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within: timedelta | None = None


def select_backups(records: Sequence[BackupRecord], policy: RetentionPolicy) -> dict[str, tuple[str, ...]]:
    """Returns why each backup is kept, by name: such as `last`, `daily`. One without a reason is not kept. Pure.

    A record of several tables is kept if any of them keeps it.
    """
    raise NotImplementedError


@dataclass(frozen=True)
class PrunePlan:
    """What a prune would do."""

    keep: dict[str, tuple[str, ...]]
    drop: tuple[str, ...]
    locked: dict[str, datetime]


def check_marks(
    repository: Repository,
    blobs: Collection[BlobRef],
    started: datetime,
    *,
    prune_wait_s: float,
    stop: Callable[[], bool] | None = None,
) -> list[BlobRef]:
    """Makes sure that no prune deletes a blob of a new backup; called right before its record is written.

    Waits while a prune deletes. Extends the Object Lock retention of the blobs, if the repository locks.

    Args:
        blobs: everything that the record needs: data and metadata.
        started: `repository.now()` when the create began, before it read any record.
        prune_wait_s: `backup.prune_wait_s`.
        stop: ends the waiting.

    Returns:
        Blobs that are missing. Copy them again, and call this function again, until none is.

    Raises:
        ConflictError: the create took longer than `prune_wait_s`.
    """
    raise NotImplementedError
