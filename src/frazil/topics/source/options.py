"""The options of `spark.read.format("frazil")`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from frazil.errors import UsageError

NAMES = (
    "topic", "broker", "source", "startingOffset", "endingOffset", "startingTime", "endingTime", "partitions",
    "maxBytesPerTrigger", "pushdown",
)  # fmt: skip
_UNITS = {"k": 1024, "m": 1024**2, "g": 1024**3}


@dataclass(frozen=True)
class SourceOptions:
    """What a job wants to read.

    Attributes:
        topic: the topic's name.
        broker: grpc://host:port; by default as the settings say.
        source: `union` of table and log, or the `log` alone.
        start: an offset, a time, or None for the oldest that can be read (`earliest`).
        latest: begin at the end of the topic instead (streams).
        end: an offset or a time to stop before; None: the end of the topic when the job is planned.
        partitions: how many tasks read, about.
        max_bytes: bytes that one micro-batch of a stream takes, about.
        pushdown: filters of the query narrow what is read; only for a frame that is used once.
    """

    topic: str
    broker: str | None
    source: Literal["union", "log"]
    start: int | datetime | None
    latest: bool
    end: int | datetime | None
    partitions: int | None
    max_bytes: int | None
    pushdown: bool = False


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """The options by name, whatever the case.

    Raises:
        UsageError: one is unknown, missing, or has a value that makes no sense.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in NAMES}
    if unknown := sorted(set(given) - set(known)):
        raise UsageError(f"the source 'frazil' has no option '{unknown[0]}'", hint=f"one of: {', '.join(NAMES)}")
    if not given.get("topic"):
        raise UsageError("the source 'frazil' needs a topic", hint='.option("topic", "orders")')
    source = given.get("source", "union").lower()
    if source not in ("union", "log"):
        raise UsageError(f"'{source}' is not a source", hint="union or log")
    pushdown = given.get("pushdown", "false").lower()
    if pushdown not in ("true", "false"):
        raise UsageError(f"pushdown '{pushdown}' is neither on nor off", hint="true or false")
    first, last = given.get("startingoffset"), given.get("endingoffset")
    start = _edge("startingOffset", None if _is(first, "earliest", "latest") else first, given, "startingTime")
    end = _edge("endingOffset", None if _is(last, "latest") else last, given, "endingTime")
    return SourceOptions(
        topic=given["topic"],
        broker=given.get("broker"),
        source="log" if source == "log" else "union",
        start=start,
        latest=_is(first, "latest"),
        end=end,
        partitions=_number("partitions", given.get("partitions"), least=1),
        max_bytes=_size("maxBytesPerTrigger", given.get("maxbytespertrigger")),
        pushdown=pushdown == "true",
    )


def _is(value: str | None, *words: str) -> bool:
    return value is not None and value.lower() in words


def _edge(name: str, offset: str | None, given: Mapping[str, str], time_name: str) -> int | datetime | None:
    time = given.get(time_name.lower())
    if time is None:
        return _number(name, offset, least=0)
    if given.get(name.lower()) is not None:
        raise UsageError(f"{name} and {time_name} are both given", hint="one of them")
    try:
        return datetime.fromisoformat(time)
    except ValueError as error:
        raise UsageError(f"{time_name} '{time}' is not a time", hint="2026-01-31T12:00:00Z") from error


def _number(name: str, text: str | None, *, least: int) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        more = " or earliest, latest" if name.endswith("Offset") else ""
        raise UsageError(f"{name} '{text}' is not a number of {least} or more", hint=f"a number{more}")
    return int(text)


def _size(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    unit = _UNITS.get(text[-1:].lower(), 1)
    number = _number(name, text[:-1] if unit > 1 else text, least=1)
    return None if number is None else number * unit
