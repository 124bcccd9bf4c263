"""Where the stored rows of changed keys lie, as bounds of columns: for Spark's planner, and for PyIceberg's."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table
    from pyspark.sql import Column

    from frazil.tables.writing.position_deletes import FilePartition

Box = Mapping[str, tuple[Any, Any]]
"""The lowest and highest value of some columns."""
Bounds = Mapping[Any, Box]
"""Boxes that contain the stored rows of all changes, by a value that keeps them apart, such as the bucket."""

#: Boxes that are given to a planner one by one.
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


def file_partitions(table: Table, bounds: Bounds | None = None) -> dict[str, FilePartition] | None:
    """Returns spec and partition of data files; None where the table neither has nor had partitions.

    Args:
        table: the table.
        bounds: only files that may have rows within.
    """
    if not any(spec.fields for spec in table.metadata.specs().values()):
        return None
    tasks = table.scan(row_filter=_iceberg_filter(bounds or {})).plan_files()
    return {task.file.file_path: (task.file.spec_id, task.file.partition) for task in tasks}


def _iceberg_filter(bounds: Bounds) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual, Or

    wanted: BooleanExpression = AlwaysFalse() if bounds else AlwaysTrue()
    for box in _few(bounds):
        inside: BooleanExpression = AlwaysTrue()
        for name, (low, high) in box.items():
            within = And(
                GreaterThanOrEqual(term=name, value=_plain(low)), LessThanOrEqual(term=name, value=_plain(high))
            )
            inside = And(inside, within)
        wanted = Or(wanted, inside)
    return wanted


def _few(bounds: Bounds) -> list[Box]:
    """Boxes that contain all of them, not too many: neighbours share one."""
    groups = sorted(bounds)
    size = -(-len(groups) // _MAX_BOXES) or 1
    made = []
    for start in range(0, len(groups), size):
        box: dict[Any, Box] = {}
        for group in groups[start : start + size]:
            widen(box, {None: bounds[group]})
        made.append(box[None])
    return made


def spark_filter(bounds: Bounds) -> Column:
    """Returns the condition for Spark: files of a sorted table that have none of the keys are not opened."""
    from pyspark.sql.functions import col, lit

    wanted = lit(False)
    for box in _few(bounds):
        inside = lit(True)
        for name, (low, high) in box.items():
            inside = inside & col(name).between(_literal(low), _literal(high))
        wanted = wanted | inside
    return wanted


def _literal(value: Any) -> Column:
    from pyspark.sql.functions import lit, timestamp_micros

    plain = lit(_plain(value))
    return timestamp_micros(plain) if isinstance(value, datetime.datetime) else plain


def _plain(value: Any) -> Any:
    """A value as engines take it; a time as microseconds: as a time, Java would take old ones by another calendar."""
    is_time = isinstance(value, datetime.datetime)
    return (value - _EPOCH) // datetime.timedelta(microseconds=1) if is_time else value
