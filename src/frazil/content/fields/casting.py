"""Casts JSON values to column values.

`lenient` takes what plainly means the same ("12" for 12, an EXIF date for a date); `strict` only what JSON itself calls
so. What does not fit raises `Misfit`, whose text is for people. Nothing else is raised.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, Literal

import orjson
import pyarrow as pa

from frazil.content.fields.types import FieldType

Cast = Literal["lenient", "strict"]
CASTS: Final[tuple[Cast, ...]] = ("lenient", "strict")
Caster = Callable[[Any], Any]

#: Maximum characters of a value in an error.
_SHOWN: Final = 40
_NUMBER: Final = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_EXIF: Final = re.compile(r"(\d{4}):(\d\d):(\d\d)(?:[ T](\d\d:\d\d(?::\d\d.*)?))?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1)
#: Numbers below are seconds since 1970, then milliseconds, then microseconds.
_UNITS: Final = ((10**11, 1), (10**14, 1000), (10**17, 1_000_000))
_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
#: Precision for every digit of a value before it is rounded to the column's scale.
_WIDE: Final = Context(prec=1000)
_DOUBLE_EXACT: Final = 2**53


class Misfit(ValueError):  # noqa: N818 - it says what became of a value, and ends nothing
    """Raised for a value that the column cannot hold."""


def caster(kind: FieldType, cast: Cast) -> Caster:
    """Returns a function that casts a JSON value, other than null, to a type that is not an array."""
    return _CASTERS[kind.name.partition("(")[0]](kind, cast == "lenient")


def format_value(value: Any) -> str:
    """Formats a value for an error: short, on one line, and valid Unicode."""
    try:
        text = value if isinstance(value, str) else as_json(value)
    except Misfit:
        text = str(value) if type(value) is float else type(value).__name__
    short = text[:_SHOWN].encode("utf-8", "replace").decode()
    short = "".join(c if c.isprintable() else " " for c in short)
    quoted = f'"{short}"' if isinstance(value, str) else short
    return f"{quoted}…" if len(text) > _SHOWN else quoted


def as_json(value: Any) -> str:
    if type(value) is float and not math.isfinite(value):
        raise Misfit("NaN and infinity are not valid JSON")
    try:
        return orjson.dumps(value).decode()
    except (TypeError, ValueError, RecursionError):  # lone surrogates, or deeper than it goes
        return _by_the_slow_way(value)


def _by_the_slow_way(value: Any) -> str:
    import json

    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise Misfit("the value is too deep for a text") from None


def _misfit(value: Any, kind: FieldType, why: str = "") -> Misfit:
    return Misfit(f"{format_value(value)} is not a valid {kind.name}" + (f": {why}" if why else ""))


# -- numbers -----------------------------------------------------------------------------------------------------------


def _boolean(kind: FieldType, lenient: bool) -> Caster:
    def to(value: Any) -> bool:
        if type(value) is bool:
            return value
        if lenient and type(value) is str and (found := _TRUTH.get(value.strip().lower())) is not None:
            return found
        if lenient and type(value) in (int, float) and value in (0, 1):
            return bool(value)
        raise _misfit(value, kind)

    return to


def _integer(kind: FieldType, lenient: bool) -> Caster:
    bits = kind.arrow.bit_width
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def to(value: Any) -> int:
        found = value if type(value) is int else _whole(value) if lenient else None
        if found is None:
            raise _misfit(value, kind)
        if not low <= found <= high:
            raise _misfit(value, kind, "out of range")
        return int(found)

    return to


def _whole(value: Any) -> int | None:
    """Returns the integer that a number with a zero fraction, or a string, denotes."""
    if type(value) is float:
        return int(value) if math.isfinite(value) and value.is_integer() else None
    if type(value) is not str or not _NUMBER.fullmatch(text := value.strip()):
        return None
    exact = Decimal(text)
    # Not int() before its size is known: 1e9999 has ten thousand digits.
    if exact.adjusted() > 20:
        return 1 << 70
    return int(exact) if exact == exact.to_integral_value() else None


def _floating(kind: FieldType, lenient: bool) -> Caster:
    single = kind.name == "FLOAT"

    def to(value: Any) -> float:
        if type(value) is float or type(value) is int:
            number = value
        elif lenient and type(value) is str and _NUMBER.fullmatch(value.strip()):
            number = float(value)
        else:
            raise _misfit(value, kind)
        try:
            found = struct.unpack("f", struct.pack("f", number))[0] if single else float(number)
        except OverflowError:
            raise _misfit(value, kind, "out of range") from None
        if not math.isfinite(found):
            raise _misfit(value, kind, "out of range" if number == number else "")
        return float(found)

    return to


def _decimal(kind: FieldType, lenient: bool) -> Caster:
    assert isinstance(kind.arrow, pa.Decimal128Type)
    precision, scale = kind.arrow.precision, kind.arrow.scale
    step = Decimal(1).scaleb(-scale)
    room = precision - scale

    def to(value: Any) -> Decimal:
        number = _exact(value, lenient)
        if number is None:
            raise _misfit(value, kind)
        if number and number.adjusted() >= room:
            raise _misfit(value, kind, "too many digits")
        try:
            with_scale = number.quantize(step, context=_WIDE)
        except InvalidOperation:
            raise _misfit(value, kind, "too many digits") from None
        if with_scale and with_scale.adjusted() >= room:
            raise _misfit(value, kind, "too many digits")
        if with_scale != number and not lenient:
            raise _misfit(value, kind, f"more than {scale} digits after the point")
        return with_scale

    return to


def _exact(value: Any, lenient: bool) -> Decimal | None:
    if type(value) is int:
        return Decimal(value) if abs(value) < 10**60 else Decimal(10) ** 60
    if type(value) is float:
        # Larger numbers lost digits when the JSON was parsed.
        return Decimal(repr(value)) if math.isfinite(value) and abs(value) <= _DOUBLE_EXACT else None
    if lenient and type(value) is str and _NUMBER.fullmatch(text := value.strip()):
        return Decimal(text)
    return None


# -- texts and bytes ---------------------------------------------------------------------------------------------------


def _string(kind: FieldType, lenient: bool) -> Caster:
    def to(value: Any) -> str:
        if type(value) is not str:
            if not lenient:
                raise _misfit(value, kind)
            value = as_json(value)
        # A lone surrogate is invalid, and Arrow would fail for the whole batch.
        return str(value) if value.isascii() else value.encode("utf-8", "replace").decode()

    return to


def _uuid(kind: FieldType, lenient: bool) -> Caster:
    def to(value: Any) -> bytes:
        if type(value) is str:
            try:
                found = uuid.UUID(value.strip() if lenient else value)
            except ValueError:
                raise _misfit(value, kind) from None
            if lenient or str(found) == value.lower():
                return found.bytes
        raise _misfit(value, kind)

    return to


def _binary(kind: FieldType, lenient: bool) -> Caster:
    def to(value: Any) -> bytes:
        found = _base64(value, lenient)
        if found is None:
            raise _misfit(value, kind, "base64 is expected")
        return found

    return to


def _fixed(kind: FieldType, lenient: bool) -> Caster:
    length = kind.arrow.byte_width

    def to(value: Any) -> bytes:
        if type(value) is str and len(value) == 2 * length:
            try:
                return binascii.unhexlify(value)
            except ValueError:  # then it may be base64
                pass
        found = _base64(value, lenient)
        if found is None:
            raise _misfit(value, kind, "hexadecimal digits or base64 are expected")
        if len(found) != length:
            raise _misfit(value, kind, f"{len(found)} bytes")
        return found

    return to


def _base64(value: Any, lenient: bool) -> bytes | None:
    if type(value) is not str:
        return None
    text = value
    if lenient:
        text = value.strip().replace("-", "+").replace("_", "/").rstrip("=")
        text += "=" * (-len(text) % 4)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


# -- times -------------------------------------------------------------------------------------------------------------


def _date(kind: FieldType, lenient: bool) -> Caster:
    def to(value: Any) -> date:
        if not lenient:
            try:
                return date.fromisoformat(value)
            except (TypeError, ValueError):
                raise _misfit(value, kind) from None
        return _parse_time(value, kind).date()

    return to


def _timestamp(kind: FieldType, lenient: bool) -> Caster:
    """Casts to wall clock time. A time zone in the value is dropped."""

    def to(value: Any) -> datetime:
        found = _parse_time(value, kind) if lenient else _strict_parse_time(value, kind)
        if not lenient and found.tzinfo is not None:
            raise _misfit(value, kind, "it has a zone")
        return found.replace(tzinfo=None)

    return to


def _timestamptz(kind: FieldType, lenient: bool) -> Caster:
    """Casts to a point in time. A value without a time zone is taken for UTC."""

    def to(value: Any) -> datetime:
        found = _parse_time(value, kind) if lenient else _strict_parse_time(value, kind)
        if found.tzinfo is None:
            if not lenient:
                raise _misfit(value, kind, "it has no zone")
            return found.replace(tzinfo=UTC)
        try:
            return found.astimezone(UTC)
        except OverflowError:
            raise _misfit(value, kind, "out of range") from None

    return to


def _strict_parse_time(value: Any, kind: FieldType) -> datetime:
    if type(value) is not str or len(value) < len("2024-05-01T12:34"):
        raise _misfit(value, kind)
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise _misfit(value, kind) from None


def _parse_time(value: Any, kind: FieldType) -> datetime:
    """Parses ISO 8601, a date of EXIF (2024:05:01 12:34:56), or a number since 1970."""
    try:
        if type(value) is str:
            return _moment_of_text(value.strip())
        if type(value) in (int, float):
            return _since_1970(value)
    except (ValueError, OverflowError):
        pass
    raise _misfit(value, kind)


def _moment_of_text(text: str) -> datetime:
    if match := _EXIF.fullmatch(text):
        year, month, day, clock = match.groups()
        return datetime.fromisoformat(f"{year}-{month}-{day}" + (f"T{clock.strip()}" if clock else ""))
    if len(text) > 8 and _NUMBER.fullmatch(text):
        return _since_1970(float(text))
    if len(text) < 8:
        raise ValueError(text)  # 2024 is no day, nor is it a number of seconds
    return datetime.fromisoformat(text)


def _since_1970(number: float) -> datetime:
    for below, unit in _UNITS:
        if abs(number) < below:
            whole = number * (1_000_000 // unit)
            return _EPOCH + timedelta(microseconds=round(whole))
    raise ValueError(number)


_CASTERS: Final[dict[str, Callable[[FieldType, bool], Caster]]] = {
    "BOOLEAN": _boolean,
    "INTEGER": _integer,
    "LONG": _integer,
    "FLOAT": _floating,
    "DOUBLE": _floating,
    "DECIMAL": _decimal,
    "STRING": _string,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "TIMESTAMPTZ": _timestamptz,
    "UUID": _uuid,
    "FIXED": _fixed,
    "BINARY": _binary,
}
