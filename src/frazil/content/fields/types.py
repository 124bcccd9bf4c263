"""Types of custom columns: their names, and their types in Arrow and Iceberg."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Converts plain values, as from `to_pylist`, to an array."""
    if not has_uuids(kind):
        return pa.array(values, kind)
    if _is_list(kind):
        lists = [None if value is None else [_bytes(item) for item in value] for value in values]
        return pa.array(lists, pa.list_(pa.binary(16))).cast(kind)
    return pa.array([_bytes(value) for value in values], pa.binary(16)).cast(kind)


def select_values(condition: pa.Array | pa.ChunkedArray, yes: Any, no: Any) -> pa.ChunkedArray:
    """Selects each value from `yes` or `no`, which have the same type."""
    first, second = _chunked(yes), _chunked(no).cast(yes.type)
    places = np.arange(len(first))
    index = np.where(np.asarray(condition.to_numpy(zero_copy_only=False), bool), places, places + len(first))
    return pa.chunked_array([*first.chunks, *second.chunks], yes.type).take(pa.array(index))


def has_uuids(kind: pa.DataType) -> bool:
    return bool((kind.value_type if _is_list(kind) else kind) == pa.uuid())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _bytes(value: Any) -> bytes | None:
    return value.bytes if isinstance(value, uuid.UUID) else value


def _chunked(column: Any) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


#: Types without parameters, by all their names.
_PLAIN: Final[dict[str, tuple[str, pa.DataType]]] = {
    "BOOLEAN": ("BOOLEAN", pa.bool_()),
    "BOOL": ("BOOLEAN", pa.bool_()),
    "INTEGER": ("INTEGER", pa.int32()),
    "INT": ("INTEGER", pa.int32()),
    "LONG": ("LONG", pa.int64()),
    "BIGINT": ("LONG", pa.int64()),
    "FLOAT": ("FLOAT", pa.float32()),
    "DOUBLE": ("DOUBLE", pa.float64()),
    "STRING": ("STRING", pa.string()),
    "DATE": ("DATE", pa.date32()),
    "TIMESTAMP": ("TIMESTAMP", pa.timestamp("us")),
    "TIMESTAMP_NTZ": ("TIMESTAMP", pa.timestamp("us")),
    "TIMESTAMPTZ": ("TIMESTAMPTZ", pa.timestamp("us", tz="UTC")),
    "TIMESTAMP_LTZ": ("TIMESTAMPTZ", pa.timestamp("us", tz="UTC")),
    "UUID": ("UUID", pa.uuid()),
    "BINARY": ("BINARY", pa.binary()),
}
#: Their names in the docs, in order.
NAMES: Final = (
    "BOOLEAN", "INTEGER", "LONG", "FLOAT", "DOUBLE", "DECIMAL(p,s)", "STRING", "DATE", "TIMESTAMP", "TIMESTAMPTZ",
    "UUID", "FIXED(n)", "BINARY", "ARRAY<type>",
)  # fmt: skip
_NO_TIME = "Spark cannot open a table that has a column of type TIME, and so nothing could write it any more"
_ARRAY = re.compile(r"ARRAY\s*<(.*)>", re.DOTALL)
_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d{1,3})\s*(?:,\s*(\d{1,3})\s*)?\)")
_FIXED = re.compile(r"FIXED\s*[(\[]\s*(\d{1,10})\s*[)\]]")
_MAX_DIGITS = 38
_MAX_FIXED = 1 << 20


@dataclass(frozen=True)
class FieldType:
    """A column type.

    Attributes:
        name: its name, always written the same way.
        arrow: the type in Arrow; PyIceberg has the one of Iceberg for it.
        element: of an array, the type of its elements.
    """

    name: str
    arrow: pa.DataType
    element: FieldType | None = None


@lru_cache(maxsize=256)
def parse_type(text: str) -> FieldType:
    """Parses the name of a type; case and blanks do not matter.

    Raises:
        ValueError: there is no such type, or no table of ours can have it; the text says why.
    """
    written = text.strip().upper()
    if written == "TIME":
        raise ValueError(f"{_NO_TIME}; STRING can hold it")
    if found := _PLAIN.get(written):
        return FieldType(*found)
    if match := _DECIMAL.fullmatch(written):
        return _decimal(int(match[1]), int(match[2] or 0))
    if match := _FIXED.fullmatch(written):
        return _fixed(int(match[1]))
    if match := _ARRAY.fullmatch(written):
        if _ARRAY.fullmatch(match[1].strip()):
            raise ValueError("arrays of arrays are not supported; STRING holds them as JSON")
        element = parse_type(match[1])
        return FieldType(f"ARRAY<{element.name}>", pa.list_(element.arrow), element)
    raise ValueError(f"unknown type {_cut(text)}; types are {', '.join(NAMES)}")


def _decimal(precision: int, scale: int) -> FieldType:
    if not 1 <= precision <= _MAX_DIGITS:
        raise ValueError(f"a DECIMAL has 1 to {_MAX_DIGITS} digits, not {precision}")
    if scale > precision:
        raise ValueError(f"a DECIMAL with {precision} digits cannot have {scale} of them after the point")
    return FieldType(f"DECIMAL({precision},{scale})", pa.decimal128(precision, scale))


def _fixed(length: int) -> FieldType:
    if not 1 <= length <= _MAX_FIXED:
        raise ValueError(f"a FIXED has 1 to {_MAX_FIXED:,} bytes, not {length}")
    return FieldType(f"FIXED({length})", pa.binary(length))


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
