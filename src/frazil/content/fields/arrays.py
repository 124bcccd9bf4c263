"""Arrays of any type that a column may have. Arrow's own ways do not know extension types, such as UUID, everywhere."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Plain values, as `to_pylist` gives them, as an array."""
    if not has_uuids(kind):
        return pa.array(values, kind)
    if _is_list(kind):
        lists = [None if value is None else [_bytes(item) for item in value] for value in values]
        return pa.array(lists, pa.list_(pa.binary(16))).cast(kind)
    return pa.array([_bytes(value) for value in values], pa.binary(16)).cast(kind)


def either(condition: pa.Array | pa.ChunkedArray, yes: Any, no: Any) -> pa.ChunkedArray:
    """Of each place the value of `yes` or that of `no`, which have one type."""
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
