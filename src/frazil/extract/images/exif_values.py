"""Values of EXIF tags as JSON, and GPS coordinates."""

from __future__ import annotations

import math
from typing import Any

from frazil.extract.images.tiff import Ifd, Tiff

_LATITUDE, _LONGITUDE, _ALTITUDE = 2, 4, 6
_BOUNDS = {_LATITUDE: 90.0, _LONGITUDE: 180.0, 20: 90.0, 22: 180.0}


def degrees(tiff: Tiff, tag: int) -> float | None:
    """Reads latitude or longitude in degrees, negative in the south and west; None if missing or out of range."""
    parts = rationals(tiff, tiff.gps, tag)
    if not parts or len(parts) > 3 or parts[0] is None:
        return None
    whole, minutes, seconds = (part or 0 for part in (*parts, 0, 0)[:3])
    found = whole + minutes / 60 + seconds / 3600
    reference = tiff.value(tiff.gps, tag - 1)
    if isinstance(reference, bytes) and reference[:1].upper() in (b"S", b"W"):
        found = -found
    return round(found, 7) if abs(found) <= _BOUNDS[tag] else None


def altitude(tiff: Tiff) -> float | int | None:
    """Reads the altitude in metres; None if missing or implausible."""
    parts = rationals(tiff, tiff.gps, _ALTITUDE)
    if not parts or parts[0] is None or abs(parts[0]) > 1_000_000:
        return None
    below = tiff.value(tiff.gps, 5)
    first = below[0] if isinstance(below, (tuple, bytes)) and below else below
    height = round(parts[0], 3)
    return -height if first in (1, 3, 0x31) else height


def coordinates(tiff: Tiff) -> tuple[float | None, float | None]:
    """Reads latitude and longitude, both or none; cameras without a position write 0, 0."""
    latitude, longitude = degrees(tiff, _LATITUDE), degrees(tiff, _LONGITUDE)
    if latitude is None or longitude is None or (latitude == 0 and longitude == 0):
        return None, None
    return latitude, longitude


MAKER_NOTE, USER_COMMENT = 0x927C, 0x9286
_CHARSETS = {b"ASCII\0\0\0": "ascii", b"UNICODE\0": "utf-16", b"JIS\0\0\0\0\0": "iso2022_jp"}
#: Windows writes these in UTF-16: title, comment, author, keywords, subject.
_WINDOWS = range(0x9C9B, 0x9CA0)
#: Maximum numbers of one value; more are binary data.
_MANY = 64
_RATIONALS = (5, 10)


def text(data: bytes) -> str:
    """Decodes a NUL-terminated text: UTF-8, or else Latin-1."""
    data = data.partition(b"\0")[0]
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError:
        return data.decode("latin-1").strip()


def ratio(above: int, below: int) -> float | int | None:
    """Converts a rational; None if the denominator is zero."""
    if not below:
        return None
    number = above / below
    return int(number) if number.is_integer() else number


def rationals(tiff: Tiff, ifd: Ifd, tag: int) -> list[float | int | None]:
    """Reads rationals as numbers, and plain numbers, which some software writes; empty if there are none."""
    raw = tiff.value(ifd, tag)
    if raw is None or isinstance(raw, bytes):
        return []
    if ifd[tag][0] in _RATIONALS:
        return [ratio(raw[i], raw[i + 1]) for i in range(0, len(raw) - 1, 2)]
    numbers = raw if isinstance(raw, tuple) else (raw,)
    return [number if math.isfinite(number) else None for number in numbers]


def value(tiff: Tiff, ifd: Ifd, tag: int) -> Any:
    """Reads the value of a tag: text, a number, a list of numbers; None if empty or too long."""
    kind, count, _ = ifd[tag]
    if kind == 2:
        raw = tiff.value(ifd, tag)
        return text(raw) if isinstance(raw, bytes) else None
    if tag == USER_COMMENT:
        return comment(tiff.value(ifd, tag), tiff.order)
    if tag in _WINDOWS:
        return windows(tiff, ifd, tag)
    if count > _MANY:
        return None
    if kind == 7:
        return _undefined(tiff.value(ifd, tag))
    numbers = rationals(tiff, ifd, tag)
    return numbers[0] if len(numbers) == 1 else numbers or None


def windows(tiff: Tiff, ifd: Ifd, tag: int) -> str | None:
    """Reads a text written by Windows."""
    if ifd.get(tag, (0,))[0] not in (1, 7):
        return None
    raw = tiff.value(ifd, tag)
    data = bytes(raw) if isinstance(raw, tuple) else raw if isinstance(raw, bytes) else b""
    return data.decode("utf-16-le", "replace").partition("\0")[0].strip() or None


def comment(raw: Any, order: str) -> str | None:
    """Decodes the user's comment in the encoding that its first 8 bytes name."""
    if not isinstance(raw, bytes):
        return None
    charset, body = _CHARSETS.get(raw[:8]), raw[8:]
    if charset == "utf-16" and body[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        charset = "utf-16-le" if order == "<" else "utf-16-be"
    if charset in (None, "ascii"):
        return text(body if charset or raw[:8] == b"\0" * 8 else raw) or None
    assert charset is not None
    return body.decode(charset, "replace").partition("\0")[0].strip() or None


def _undefined(raw: Any) -> str | list[int] | int | None:
    """Converts bytes of undefined type: letters, such as versions, or small numbers."""
    if not isinstance(raw, bytes) or not raw:
        return None
    letters = raw.rstrip(b"\0")
    if len(letters) > 1 and letters.isascii() and letters.decode().isprintable():
        return letters.decode().strip()
    return raw[0] if len(raw) == 1 else list(raw)
