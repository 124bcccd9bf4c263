"""Values of Arrow columns as JSON and back, without loss: what a dead letter keeps of a message's own columns."""

from __future__ import annotations

import base64
import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa


def to_plain(value: Any) -> Any:
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
    for test, make in _MAKERS:
        if test(kind):
            return make(value)
    return value


def _nested(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {f.name: from_plain(value.get(f.name), f.type) for f in kind}
    if pa.types.is_map(kind):
        return [(from_plain(k, kind.key_type), from_plain(v, kind.item_type)) for k, v in value]
    return [from_plain(v, kind.value_type) for v in value]


_MAKERS = (
    (pa.types.is_binary, base64.b64decode),
    (pa.types.is_floating, float),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_timestamp, datetime.datetime.fromisoformat),
    (pa.types.is_date, datetime.date.fromisoformat),
)
