"""Converts any value to one that JSON, Iceberg and every reader can hold. Never raises."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any, Final

#: Maximum nesting; deeper values become text.
DEPTH: Final = 32
_WHOLE: Final = range(-(2**63), 2**63)
#: Bytes up to this size are tried as text.
_TEXT: Final = 64 * 1024
#: Maximum number of items, against endless iterators.
_MANY: Final = 1_000_000

Json = Any


def sanitize(value: Any) -> Json:
    """Converts a value to JSON-compatible types.

    Numbers that are not finite become null and those beyond 64 bits text; bytes become text where they are UTF-8, else
    base64; times become ISO 8601; texts lose invalid Unicode and NUL; keys become text. Values of unknown types become
    text.
    """
    return _clean(value, DEPTH)


def sanitize_text(text: str) -> str:
    """Returns valid Unicode without NUL."""
    if text.isascii():
        return text.replace("\0", "") if "\0" in text else text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")


def _clean(value: Any, depth: int) -> Json:
    kind = type(value)
    if kind is str:
        return sanitize_text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if value in _WHOLE else _digits(value)
    if kind is float:
        return value if math.isfinite(value) else None
    try:
        return _odd(value, depth)
    except Exception:  # noqa: BLE001 - a stranger's object may fail in any of its methods
        return _as_text(value)


def _odd(value: Any, depth: int) -> Json:
    if isinstance(value, Enum):
        return _clean(value.value, depth - 1) if depth else _as_text(value)
    if isinstance(value, (str, int, float)):  # what is derived from these
        return _clean(_plain(value), depth - 1) if depth else _as_text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(value))
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return _as_text(value) if not depth else {_key(k): _clean(v, depth - 1) for k, v in list(value.items())[:_MANY]}
    as_list = getattr(value, "tolist", None)  # numpy's scalars and arrays
    if callable(as_list):
        return _clean(as_list(), depth - 1) if depth else _as_text(value)
    if isinstance(value, Iterable):
        return _as_text(value) if not depth else [_clean(item, depth - 1) for item, _ in zip(value, range(_MANY))]  # noqa: B905 - cut
    if hasattr(value, "__float__"):  # fractions, decimals
        number = float(value)
        return number if math.isfinite(number) else None
    return _as_text(value)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def _key(key: Any) -> str:
    if type(key) is str:
        return sanitize_text(key)
    plain = _clean(key, 0)
    return plain if isinstance(plain, str) else _as_text(plain)


def _of_bytes(data: bytes) -> str:
    if len(data) <= _TEXT:
        try:
            text = data.rstrip(b"\0").decode()
            if "\0" not in text:
                return text
        except UnicodeDecodeError:
            pass
    return base64.b64encode(data).decode()


def _digits(number: int) -> str:
    """Formats a whole number; Python refuses to write out very long ones."""
    return str(number) if number.bit_length() < 4096 else hex(number)


def _as_text(value: Any) -> str:
    try:
        return sanitize_text(str(value))[:1000]
    except Exception:  # noqa: BLE001 - it cannot even say what it is
        return f"({type(value).__name__})"
