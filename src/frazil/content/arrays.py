"""NumPy views of Arrow columns, with a number that stands for null."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.columns import TIME

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

#: Stands for a time or rank that is not known.
NEVER: Final = int(np.iinfo(np.int64).min)


def rank_of(column: Any) -> Ints:
    """Numbers that compare as the texts do; `NEVER` for null."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = array.dictionary_encode()
    if not len(encoded.dictionary):
        return np.full(len(array), NEVER)
    places = np.empty(len(encoded.dictionary), np.int64)
    places[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(encoded.dictionary))
    codes = encoded.indices.fill_null(-1).to_numpy()
    return np.where(codes < 0, NEVER, places[codes])


def times_of(column: Any) -> Ints:
    """Microseconds since 1970; `NEVER` for null."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), NEVER).to_numpy(), np.int64)


def as_times(values: Ints) -> pa.Array:
    return pa.array(values, mask=values == NEVER).cast(pa.int64()).cast(TIME)


def flags_of(column: Any) -> Bools:
    filled = pc.fill_null(column, False)
    return np.asarray(
        filled.to_numpy(zero_copy_only=False) if isinstance(filled, pa.Array) else filled.to_numpy(), bool
    )


def value_at(values: Any, index: Ints, *, default: Any = NEVER) -> Any:
    """Values at places, and the default where there is no place."""
    return np.where(index >= 0, values[index], default)


def taken(column: Any, index: Ints) -> Any:
    """An array of the values at places; null where there is no place."""
    taken = column.take(pa.array(index, mask=index < 0))
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken
