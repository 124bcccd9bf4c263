"""When a policy is due. Pure: times in, times out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, time, timedelta

from frazil.settings.model import BackupPolicySettings

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_S = 86400.0
#: Share of `every_s` that a backup may come early, so that a timer with the same period does not skip every other run.
_EARLY = 0.05


def due_since(policy: BackupPolicySettings, last: datetime | None, now: datetime) -> datetime | None:
    """Returns since when a policy is due; None if it is not.

    Args:
        policy: its schedule.
        last: when its last successful backup began; None: there is none, so it is due.
        now: by the clock that `last` comes from.
    """
    due = next_due(policy, last, now)
    return due if due <= now else None


def next_due(policy: BackupPolicySettings, last: datetime | None, now: datetime) -> datetime:
    """Returns when the next backup is due: in the past where one is overdue."""
    if last is None:
        return now
    if not policy.at:
        every = interval_s(policy)
        due = last + timedelta(seconds=every)
        early = timedelta(seconds=every * _EARLY)
        return min(due, now) if due - early <= now else due
    return next(slot for slot in _slots(policy.at, last) if slot > last)


def interval_s(policy: BackupPolicySettings) -> float:
    """Returns the longest time between two backups, in seconds."""
    if not policy.at:
        return policy.every_s or _DAY_S
    monday = datetime(2024, 1, 1, tzinfo=UTC)
    slots = [slot for slot in _slots(policy.at, monday) if slot < monday + timedelta(days=14)]
    return max((b - a).total_seconds() for a, b in itertools.pairwise(slots))


def _slots(at: Iterable[str], begin: datetime) -> Iterator[datetime]:
    """Yields the times of a schedule in order, from the day before `begin` on to two weeks after."""
    midnight = datetime.combine(begin.astimezone(UTC).date(), time(), UTC)
    found = set()
    for text in at:
        day, _, clock = text.rpartition(" ")
        hour, minute = map(int, clock.split(":"))
        for days in range(-1, 16):
            date = midnight + timedelta(days=days)
            if not day or _DAYS[date.weekday()] == day:
                found.add(date + timedelta(hours=hour, minutes=minute))
    yield from sorted(found)


# -- names of backups --------------------------------------------------------------------------------------------------


def backup_name(policy: str, now: datetime) -> str:
    """Returns the name of a policy's backup: the policy and the time, so that names sort by time."""
    return f"{policy}-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def policy_of(name: str, policies: Iterable[str]) -> str | None:
    """Returns the policy that made the backup of this name; None if none of these did."""
    found = re.fullmatch(r"(.+)-\d{8}T\d{6}Z", name)
    return found[1] if found and found[1] in policies else None
