"""Time ranges as people write them: a year, a month, a day, or from one to another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from frazil.errors import UsageError

_HINT = "2024, 2024-05, 2024-05-01, 2024-05-01T12:00, or two of them: 2024-05..2024-08, 2024.., ..2019"


@dataclass(frozen=True)
class TimeRange:
    """From a time on, and before another, by the clock of the camera. None: open."""

    since: datetime | None
    until: datetime | None

    @classmethod
    def parse(cls, text: str) -> TimeRange:
        """One time is all of its year, month, day, minute or second; `A..B` is from the begin of A to the end of B.

        Raises:
            UsageError: that it is not.
        """
        first, dots, last = text.partition("..")
        if not (first or last):
            raise UsageError("the time is empty", hint=_HINT)
        since = _parse_time(first)[0] if first else None
        until = _parse_time(last)[1] if last else None if dots else _parse_time(first)[1]
        if since is not None and until is not None and until <= since:
            raise UsageError(f"{text!r} ends before it begins", hint=_HINT)
        return cls(since, until)


def _parse_time(text: str) -> tuple[datetime, datetime]:
    """When it begins, and when the next one does."""
    try:
        if found := re.fullmatch(r"(\d{4})(?:-(\d{2}))?", text):
            year, month = int(found[1]), int(found[2] or 1)
            begin = datetime(year, month, 1)
            months = year * 12 + month - 1 + (1 if found[2] else 12)
            return begin, datetime(months // 12, months % 12 + 1, 1) if months < 120_000 else datetime.max
        begin = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time", hint=_HINT) from None
    if begin.tzinfo is not None:
        raise UsageError(f"{text!r} has a zone, and the clocks of cameras have none", hint=_HINT)
    if len(text) <= 10:
        length = timedelta(days=1)
    else:
        length = timedelta(minutes=1) if re.fullmatch(r".{10}.\d{2}:?\d{2}", text) else timedelta(seconds=1)
    return begin, begin + length if begin <= datetime.max - length else datetime.max
