"""Normalizes texts, numbers and dates of files for results: short, finite, plausible."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

#: Maximum characters of one text in a result: a title of ten megabytes is not a title.
LONGEST: Final = 4096
#: Plausible years. Dates outside come from clocks that were never set.
YEARS: Final = range(1000, 2200)

_W3C = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s*(Z|UTC|[+-]\d\d:?\d\d)?)?)?)?"
)
_PDF = re.compile(r"(?:D:)?(\d{4})(?!-\d\d)(\d\d)?(\d\d)?(\d\d)?(\d\d)?(\d\d)?\s*(Z|[+-]\d\d'?(?:\d\d)?)?")


def text(value: Any) -> str | None:
    """Strips and truncates a text; None if nothing is left."""
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    short = str(value)[: LONGEST * 2].replace("\0", " ").strip()
    return short[:LONGEST] or None


def count(value: Any) -> int | None:
    """Converts to a count; None if it is not a plausible one."""
    try:
        number = int(str(value)[:20])
    except ValueError:
        return None
    return number if 0 <= number < 2**53 else None


def drop_empty(**fields: Any) -> dict[str, Any]:
    """Returns the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def date(value: Any) -> str | None:
    """Converts a date of an XML format to ISO 8601; None if it is invalid. A year without a day stays a year."""
    found = _W3C.match(str(value or "")[:64].strip())
    if not found:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    if hour is None:
        return _partial(year, month, day)
    return _moment((year, month, day, hour, minute, second or "0"), (fraction or "")[:6].ljust(6, "0"), zone)


def pdf_date(value: Any) -> str | None:
    """Converts a PDF date to ISO 8601: D:20240501123456+02'00'."""
    found = _PDF.match(str(value or "")[:64].strip())
    if not found:
        return date(value)
    *parts, zone = found.groups()
    year, month, day, hour, minute, second = parts
    if hour is None:
        return _partial(year, month, day)
    return _moment((year, month, day, hour, minute or "0", second or "0"), "0", zone and zone.replace("'", ""))


def moment(value: datetime) -> str | None:
    """Converts a time to ISO 8601; None if the clock was not set."""
    return value.isoformat() if value.year in YEARS else None


def time_since(epoch: datetime, seconds: float) -> datetime | None:
    """Converts seconds since an epoch to a time; None before 1970, when the clock was not set."""
    try:
        told = epoch + timedelta(seconds=seconds)
    except OverflowError:
        return None
    return told if told > datetime(1970, 1, 2, tzinfo=epoch.tzinfo) and told.year in YEARS else None


def split_zone(iso: str | None) -> tuple[str | None, str | None]:
    """Splits a time into wall clock and UTC offset, if it has one."""
    if iso is None or "T" not in iso:
        return iso, None
    told = datetime.fromisoformat(iso)
    if told.tzinfo is None:
        return iso, None
    return told.replace(tzinfo=None).isoformat(), told.isoformat()[-6:]


def _partial(year: str, month: str | None, day: str | None) -> str | None:
    try:
        told = datetime(int(year), int(month or 1), int(day or 1), tzinfo=UTC)
    except ValueError:
        return None
    if told.year not in YEARS:
        return None
    return told.strftime("%Y-%m-%d"[: 2 + 3 * bool(month) + 3 * bool(month and day)]).zfill(4)


def _moment(parts: tuple[str | None, ...], fraction: str, zone: str | None) -> str | None:
    try:
        year, month, day, hour, minute, second = (int(p or 1) for p in parts)
        told = datetime(year, month, day, hour, minute, min(second, 59), int(fraction), tzinfo=_zone(zone))
    except ValueError:
        return None
    return moment(told)


def _zone(zone: str | None) -> timezone | None:
    if not zone:
        return None
    if zone in ("Z", "UTC"):
        return UTC
    digits = zone[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]))
    return timezone(-offset if zone[0] == "-" else offset)
