"""Filters that Spark hands to the source, as ranges of offset, time and partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from frazil.log.columns import PARTITION
from frazil.tables.metadata.bounds import HIGHEST, LOWEST
from frazil.topics.reading.reader import microseconds


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: int = LOWEST
    high: int = HIGHEST

    def within(self, other: Range) -> Range:
        return Range(max(self.low, other.low), min(self.high, other.high))

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Window:
    """What can pass the filters. More may be read: Spark applies each filter once more, row by row."""

    offset: Range = Range()
    time_us: Range = Range()
    partition: Range = Range()

    @property
    def is_empty(self) -> bool:
        ranges = (self.offset, self.time_us, self.partition)
        return any(r.low > r.high for r in ranges) or PARTITION not in self.partition


_COLUMNS = {"offset": "offset", "publish_time": "time_us", "partition": "partition"}


def window_of(filters: Iterable[Any]) -> Window:
    window = Window()
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        name = _COLUMNS.get(".".join(path))
        if name is not None and (allowed := _allowed(one)) is not None:
            window = replace(window, **{name: getattr(window, name).within(allowed)})
    return window


def _allowed(one: Any) -> Range | None:
    """The values that a comparison lets pass, or None where that is no range."""
    values = one.value if isinstance(getattr(one, "value", None), (tuple, list)) else [getattr(one, "value", None)]
    numbers = [_number(v) for v in values]
    known = [n for n in numbers if n is not None]
    if not known or len(known) < len(numbers):
        return None
    match type(one).__name__:
        case "EqualTo" | "EqualNullSafe" | "In":
            return Range(min(known), max(known))
        case "GreaterThan":
            return Range(low=known[0] + 1)
        case "GreaterThanOrEqual":
            return Range(low=known[0])
        case "LessThan":
            return Range(high=known[0] - 1)
        case "LessThanOrEqual":
            return Range(high=known[0])
    return None


def _number(value: Any) -> int | None:
    if isinstance(value, datetime):
        return microseconds(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
