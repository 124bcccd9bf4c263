"""Which backups a policy keeps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from frazil.backup.format import BackupRecord
from frazil.errors import UsageError


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

    def __post_init__(self) -> None:
        numbers = (self.keep_last, self.daily, self.weekly, self.monthly, self.yearly)
        if any(number < 0 for number in numbers) or (self.within is not None and self.within < timedelta(0)):
            raise UsageError("a retention rule is negative", hint="0 or more")

    @property
    def is_empty(self) -> bool:
        """Whether no rule would keep anything."""
        return self == RetentionPolicy()


def select_backups(records: Sequence[BackupRecord], policy: RetentionPolicy) -> dict[str, tuple[str, ...]]:
    """Returns why each backup is kept, by name: such as `last`, `daily`. One without a reason is not kept.

    Each table is looked at on its own. A record of several tables is kept if any of them keeps it; one without tables
    counts as one of a table without a name.

    Raises:
        UsageError: the policy has no rule, so that it would keep nothing.
    """
    if policy.is_empty:
        raise UsageError(
            "no retention rule is given, so that no backup would be kept",
            hint="--keep-last N, --keep-daily N, --keep-weekly N, --keep-monthly N, --keep-yearly N or --keep-within",
        )
    by_table: dict[str, list[BackupRecord]] = {}
    for record in records:
        for uuid in {table.uuid for table in record.tables} or {""}:
            by_table.setdefault(uuid, []).append(record)
    reasons: dict[str, list[str]] = {record.name: [] for record in records}
    for group in by_table.values():
        for name, reason in _keep(group, policy):
            if reason not in reasons[name]:
                reasons[name].append(reason)
    return {name: tuple(found) for name, found in reasons.items()}


_PERIODS: tuple[tuple[str, Callable[[datetime], object]], ...] = (
    ("daily", lambda at: at.date()),
    ("weekly", lambda at: at.isocalendar()[:2]),
    ("monthly", lambda at: (at.year, at.month)),
    ("yearly", lambda at: at.year),
)


def _keep(records: Sequence[BackupRecord], policy: RetentionPolicy) -> Iterable[tuple[str, str]]:
    """The names of backups of one table that are kept, each with a reason."""
    newest_first = sorted(records, key=lambda r: (r.created_at, r.name), reverse=True)
    yield from ((record.name, "last") for record in newest_first[: policy.keep_last])
    for reason, period_of in _PERIODS:
        newest_of: dict[object, BackupRecord] = {}
        for record in newest_first:
            newest_of.setdefault(period_of(record.created_at.astimezone(UTC)), record)
        yield from ((record.name, reason) for record in list(newest_of.values())[: getattr(policy, reason)])
    if policy.within is not None:
        oldest = newest_first[0].created_at - policy.within
        yield from ((record.name, "within") for record in newest_first if record.created_at >= oldest)
