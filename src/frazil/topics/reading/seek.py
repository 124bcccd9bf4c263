"""Resolves seek targets in a topic: an offset, a time, `start` or `end`."""

from __future__ import annotations

import datetime
from typing import Literal

from frazil.errors import UsageError
from frazil.topics.reading.reader import TopicReader

SeekTarget = int | datetime.datetime | Literal["start", "end"]


def parse_seek_target(text: str) -> SeekTarget:
    """Parses a seek target; a time without a zone is taken for UTC.

    Raises:
        UsageError: the text is not one.
    """
    if text == "start" or text == "end":
        return text  # type: ignore[return-value]
    if text.isdecimal() and len(text) <= 19 and int(text) < 2**63:  # `int` fails on thousands of digits
        return int(text)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text[:100]!r} is not a position in a topic",
            hint="an offset, a time as 2026-01-31T12:00:00Z, start or end",
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def seek(reader: TopicReader, text: str) -> int:
    """Returns the offset of a seek target given as text."""
    return resolve_seek_target(reader, parse_seek_target(text))


def resolve_seek_target(reader: TopicReader, place: SeekTarget) -> int:
    """Returns the offset of a seek target as the topic is now."""
    if isinstance(place, datetime.datetime):
        return reader.offset_at(place)
    if place == "start" or place == "end":
        bounds = reader.bounds()
        return bounds.start if place == "start" else bounds.end
    if isinstance(place, int):
        return place
    raise UsageError(f"{place!r} is not a position in a topic", hint="an offset, a datetime, 'start' or 'end'")
