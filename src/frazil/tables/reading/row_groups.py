"""Pieces of a table's files that are read as one: a row group, or a whole file where rows of it were deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from frazil.tables.reading.ordered_plan import OrderedPlan, PlannedFile

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class Piece:
    """Rows that are read together. `lower` and `upper` (included) bound their offsets."""

    lower: int
    upper: int
    size: int
    read: Callable[[], pa.Table]


def split_into_pieces(plan: OrderedPlan, file: PlannedFile, wanted: pa.Schema, start: int, end: int) -> list[Piece]:
    """Returns the pieces of a file that may contain offsets of [start, end), in file order.

    A column is found by its field id, whatever it was called when the file was written; one that the file does not
    have is null. What PyArrow alone cannot do right (deletes, other formats, files without ids) PyIceberg does.
    """
    if file.source is not None:
        return [Piece(file.lower, file.upper, 4 * file.size, partial(file.source.read, file, wanted, start, end))]
    if file.task.delete_files or file.task.file.file_format.name != "PARQUET":
        return [_by_pyiceberg(plan, file, wanted, start, end)]
    with plan.io.new_input(file.path).open(seekable=True) as handle:
        footer = pq.ParquetFile(handle)
    names = _names_in_file(plan.metadata.schema(), footer.schema_arrow, wanted)
    if names is None:
        return [_by_pyiceberg(plan, file, wanted, start, end)]
    columns = [n for n in names if n is not None]
    chosen = set(columns)
    found = []
    for group in range(footer.metadata.num_row_groups):
        about = footer.metadata.row_group(group)
        lower, upper, size = _measure(about, names[wanted.get_field_index("offset")], chosen, file)
        if about.num_rows and lower < end and upper >= start:
            read = _RowGroup(plan.io, file.path, footer.metadata, group, columns, names, wanted)
            found.append(Piece(lower, upper, size, read))
    return found


def _measure(about: Any, offset: str | None, chosen: set[str], file: PlannedFile) -> tuple[int, int, int]:
    """Bounds of the offsets in a row group, as far as its statistics tell, and bytes of the chosen columns."""
    lower, upper, size = file.lower, file.upper, 0
    for at in range(about.num_columns):
        column = about.column(at)
        top = column.path_in_schema.split(".", 1)[0]
        if top in chosen:
            size += column.total_uncompressed_size
        if column.path_in_schema == offset and column.statistics is not None and column.statistics.has_min_max:
            lower, upper = int(column.statistics.min), int(column.statistics.max)
    return lower, upper, size


@dataclass(frozen=True)
class _RowGroup:
    """Reads one row group. Each opens the file for itself: readers are not for two threads, and handles are few."""

    io: FileIO
    path: str
    metadata: Any
    group: int
    columns: list[str]
    names: list[str | None]
    wanted: pa.Schema

    def __call__(self) -> pa.Table:
        with self.io.new_input(self.path).open(seekable=True) as handle:
            reader = pq.ParquetFile(handle, metadata=self.metadata, pre_buffer=True)
            table = reader.read_row_group(self.group, columns=self.columns)
        arrays = [
            pa.nulls(table.num_rows, field.type) if name is None else cast(table.column(name), field.type)
            for name, field in zip(self.names, self.wanted, strict=True)
        ]
        return pa.table(arrays, schema=self.wanted)


def _names_in_file(schema: Schema, in_file: pa.Schema, wanted: pa.Schema) -> list[str | None] | None:
    """Returns the names of the wanted columns in a file, None for absent ones; only None if PyIceberg must decide."""
    by_id = {int(f.metadata[_FIELD_ID]): f for f in in_file if f.metadata and _FIELD_ID in f.metadata}
    if len(by_id) != len(in_file) or len(set(in_file.names)) != len(in_file):
        return None
    names: list[str | None] = []
    for field in wanted:
        known = schema.find_field(field.name) if field.name in schema.column_names else None
        stored = by_id.get(known.field_id) if known is not None else None
        if stored is not None and not _same_shape(stored.type, field.type):
            return None
        # A missing column may have a default, or be required: rare, and PyIceberg knows the rules.
        if stored is None and known is not None and (known.required or known.initial_default is not None):
            return None
        names.append(stored.name if stored is not None else None)
    return names


def _same_shape(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a plain cast makes one of the other. Fields inside a struct have ids too, and may have been renamed."""
    return stored == wanted or not (pa.types.is_nested(stored) or pa.types.is_nested(wanted))


def _by_pyiceberg(plan: OrderedPlan, file: PlannedFile, wanted: pa.Schema, start: int, end: int) -> Piece:
    from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan
    from pyiceberg.io.pyarrow import ArrowScan

    schema = plan.metadata.schema()
    known = [name for name in wanted.names if name in schema.column_names]
    within = And(GreaterThanOrEqual(term="offset", value=start), LessThan(term="offset", value=end))

    def read() -> pa.Table:
        scan = ArrowScan(plan.metadata, plan.io, schema.select(*known), within)
        return conform(scan.to_table([file.task]), wanted)

    return Piece(file.lower, file.upper, 4 * file.size, read)


def conform(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Returns the table with exactly these columns; absent ones are null."""
    if table.schema == wanted:
        return table
    names = set(table.column_names)
    arrays = [
        cast(table.column(f.name), f.type) if f.name in names else pa.nulls(table.num_rows, f.type) for f in wanted
    ]
    return pa.table(arrays, schema=wanted)


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == kind else column.cast(kind)


def measure_overlap(found: Sequence[Piece]) -> int:
    """Returns the largest total size of pieces that share an offset."""
    changes = [(p.lower, p.size) for p in found] + [(p.upper + 1, -p.size) for p in found]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
