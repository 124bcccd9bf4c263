"""Values of Arrow columns as Python's own and as JSON, and back, without loss. No value makes this fail.

A date or time outside of the years 1 to 9999, which Python does not have, is text as in ISO 8601's expanded form:
`+50000-01-01T00:00:00+00:00`. A struct with two fields of one name is a list of pairs.
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

_EXPANDED = re.compile(
    r"(?P<year>[+-]\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(T(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)\.(?P<us>\d{6})(\+00:00)?)?"
)
_DAY_US = 86_400_000_000


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as `to_pylist` gives them; those that Python does not have as text or pairs."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]  # PyArrow comes untyped
    except (ValueError, OverflowError):  # in one value of perhaps many
        return [_python_value(scalar) for scalar in column]


def _python_value(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        pairs = [(field.name, _python_value(scalar[number])) for number, field in enumerate(kind)]
        names = {name for name, _ in pairs}
        return dict(pairs) if len(names) == len(pairs) else pairs
    if pa.types.is_map(kind):
        return [(_python_value(entry[0]), _python_value(entry[1])) for entry in scalar.values]
    if pa.types.is_nested(kind):
        return [_python_value(value) for value in scalar.values]
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return _expanded(scalar) if pa.types.is_temporal(kind) else str(scalar)


def _expanded(scalar: pa.Scalar) -> str:
    is_time = pa.types.is_timestamp(scalar.type)
    value = scalar.cast(scalar.type if not is_time else pa.timestamp("us", tz=scalar.type.tz)).value
    days, us = divmod(value, _DAY_US) if is_time else (value, 0)
    day = np.datetime64(days, "D")
    months = int(day.astype("M8[M]").astype(np.int64))
    first_of_month = int(np.datetime64(months, "M").astype("M8[D]").astype(np.int64))
    text = f"{1970 + months // 12:+05d}-{months % 12 + 1:02d}-{days - first_of_month + 1:02d}"
    if not is_time:
        return text
    seconds, us = divmod(us, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{us:06d}"
    return f"{text}T{clock}{'+00:00' if scalar.type.tz else ''}"


def _number_of(match: Mapping[str, str | None], kind: pa.DataType) -> int:
    """Days or microseconds since 1970 of an expanded date or time."""
    year, month, day, *clock = (int(match[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second"))
    first = np.datetime64((year - 1970) * 12 + month - 1, "M").astype("M8[D]")
    days = int(first.astype(np.int64)) + day - 1
    if pa.types.is_date(kind):
        return days
    hour, minute, second = clock
    return days * _DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + int(match["us"] or 0)


def to_plain(value: Any) -> Any:
    """A value of `python_values` in what JSON has."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)  # JSON has no NaN and no infinity
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else str(value)


def from_plain(value: Any, kind: pa.DataType) -> Any:
    """The value of that type which `to_plain` has made plain."""
    if value is None:
        return None
    if pa.types.is_nested(kind):
        return _nested(value, kind)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if match := _EXPANDED.fullmatch(value):
            return _number_of(match.groupdict(), kind)
        return (datetime.date if pa.types.is_date(kind) else datetime.datetime).fromisoformat(value)
    for test, make in _MAKERS:
        if test(kind):
            return make(value)
    return value


def _nested(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind) and isinstance(value, list):
        return [(f.name, from_plain(v, f.type)) for f, (_, v) in zip(kind, value, strict=True)]
    if pa.types.is_struct(kind):
        return {f.name: from_plain(value.get(f.name), f.type) for f in kind}
    if pa.types.is_map(kind):
        return [(from_plain(k, kind.key_type), from_plain(v, kind.item_type)) for k, v in value]
    return [from_plain(v, kind.value_type) for v in value]


_MAKERS = (
    (pa.types.is_binary, base64.b64decode),
    (pa.types.is_floating, float),
    (pa.types.is_decimal, Decimal),
)
