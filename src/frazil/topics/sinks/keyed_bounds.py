"""Where the stored rows of changed keys lie, as bounds of columns, for Spark's planner."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column

Box = Mapping[str, tuple[Any, Any]]
"""The lowest and highest value of some columns."""
Bounds = Mapping[Any, Box]
"""Boxes that contain the stored rows of all changes, by a value that keeps them apart, such as the bucket."""

#: Boxes that are given to the planner one by one.
_MAX_BOXES = 20
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def measure_bounds(rows: pa.Table, columns: Sequence[str], group: pa.ChunkedArray | pa.Array | None = None) -> Bounds:
    """Returns the lowest and highest values of some columns, none of them null; by group, if there is one."""
    if not rows.num_rows:
        return {}
    by_bytes = {name for name in columns if pa.types.is_string(rows.schema.field(name).type)}
    # Texts in the order of their bytes, as the table's files are sorted.
    made = {n: rows.column(n).cast(pa.binary()) if n in by_bytes else rows.column(n) for n in columns}
    grouped = pa.table({**made, "": pa.repeat(0, rows.num_rows) if group is None else group}).group_by("")
    found = grouped.aggregate([(name, kind) for name in columns for kind in ("min", "max")]).to_pylist()
    return {
        row[""]: {
            name: tuple(v.decode() if name in by_bytes else v for v in (row[f"{name}_min"], row[f"{name}_max"]))
            for name in columns
        }
        for row in found
    }


def widen(bounds: dict[Any, Box], more: Bounds) -> None:
    """Makes boxes contain those of the same groups in `more`."""
    for group, box in more.items():
        before = bounds.get(group, box)
        bounds[group] = {
            name: (min(before[name][0], low), max(before[name][1], high)) for name, (low, high) in box.items()
        }


def union(parts: Iterable[Bounds]) -> dict[Any, Box]:
    """Returns boxes that contain those of the same groups in all parts."""
    found: dict[Any, Box] = {}
    for bounds in parts:
        widen(found, bounds)
    return found


def _few(bounds: Bounds) -> list[Box]:
    """The boxes, or one around all of them where they are many: each row is compared with every box."""
    if len(bounds) <= _MAX_BOXES:
        return [bounds[group] for group in sorted(bounds)]
    return list(union({None: box} for box in bounds.values()).values())


def spark_filter(bounds: Bounds) -> Column:
    """Returns the condition for Spark: files of a sorted table that have none of the keys are not opened."""
    from pyspark.sql.functions import col, lit

    wanted = lit(False)
    for box in _few(bounds):
        inside = lit(True)
        for name, (low, high) in box.items():
            # As equality where it is one: only by that does Iceberg skip partitions by a hash of the column.
            is_one = low == high
            inside = inside & (
                col(name) == _literal(low) if is_one else col(name).between(_literal(low), _literal(high))
            )
        wanted = wanted | inside
    return wanted


def _literal(value: Any) -> Column:
    from pyspark.sql.functions import lit, timestamp_micros

    if isinstance(value, datetime.datetime):  # as a time, Java would take an old one by another calendar
        return timestamp_micros(lit((value - _EPOCH) // datetime.timedelta(microseconds=1)))
    return lit(value)
