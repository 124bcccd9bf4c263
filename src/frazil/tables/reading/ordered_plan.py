"""A plan for reading rows in the order of their offsets: the files of one snapshot, with the offsets they may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from frazil.tables.metadata.bounds import decode_integer_bounds

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

#: The column by which rows are ordered, and the one with their times.
OFFSET, TIME = "offset", "publish_time"


class RowSource(Protocol):
    """Reads files of another table in the form of the planned one, such as its dead letters."""

    @property
    def snapshot_id(self) -> int | None: ...

    def read(self, file: PlannedFile, wanted: pa.Schema, start: int, end: int) -> pa.Table:
        """Returns the rows of a file with offsets in [start, end), with these columns."""
        ...


@dataclass(frozen=True)
class PlannedFile:
    """A data file with its delete files, and the offsets and times that may occur in it (both ends included)."""

    task: FileScanTask
    lower: int
    upper: int
    earliest_us: int
    latest_us: int
    source: RowSource | None = None
    """Reads the file; None: it is a file of the planned table."""

    @property
    def path(self) -> str:
        return str(self.task.file.file_path)

    @property
    def size(self) -> int:
        return int(self.task.file.file_size_in_bytes)


@dataclass(frozen=True)
class OrderedPlan:
    """The files of one snapshot. It has no open handles, and can be sent to other processes."""

    metadata: TableMetadata
    io: FileIO
    snapshot_id: int | None
    files: tuple[PlannedFile, ...]
    """By their lowest offset."""

    def between(self, start: int, end: int) -> Self:
        """Returns the plan with only the files that may hold an offset of [start, end)."""
        return self.only([f for f in self.files if f.lower < end and f.upper >= start])

    def only(self, files: Sequence[PlannedFile]) -> Self:
        return replace(self, files=tuple(files))

    def portable(self) -> Self:
        """Returns the plan without the table's history, which no reader needs."""
        return replace(self, metadata=without_history(self.metadata))

    @property
    def snapshots(self) -> tuple[int | None, ...]:
        """Returns the snapshots of the table and of the tables that are read with it."""
        return self.snapshot_id, *{f.source.snapshot_id for f in self.files if f.source is not None}

    def columns(self) -> pa.Schema:
        """Returns the table's columns in the types of the log, which has no large variants."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        whole = schema_to_pyarrow(self.metadata.schema(), include_field_ids=False)
        return pa.schema([pa.field(f.name, _without_large(f.type)) for f in whole])

    def readable(self, wanted: pa.Schema) -> pa.Schema:
        """Returns the wanted columns without those that have an incompatible type in the table."""
        stored = {f.name: f.type for f in self.columns()}
        return pa.schema([f for f in wanted if f.name not in stored or _is_compatible(stored[f.name], f.type)])


def without_history(metadata: TableMetadata) -> TableMetadata:
    """Returns metadata without snapshots, references and logs: all that a read of planned files needs."""
    without: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
    return metadata.model_copy(update={**without, "current_snapshot_id": None})


def order_files(table: Table, tasks: Sequence[FileScanTask]) -> list[PlannedFile]:
    """Returns files by their lowest offset, with the bounds of offsets and times from their statistics."""
    return by_offset(_with_bounds(table, tasks))


def by_offset(files: Iterable[PlannedFile]) -> list[PlannedFile]:
    return sorted(files, key=lambda f: (f.lower, f.upper))


def _with_bounds(table: Table, tasks: Sequence[FileScanTask]) -> Iterator[PlannedFile]:
    schema = table.schema()
    offset, time = schema.find_field(OFFSET), schema.find_field(TIME)
    for task in tasks:
        lower, upper = decode_integer_bounds(task.file, offset)
        earliest, latest = decode_integer_bounds(task.file, time)
        yield PlannedFile(task, lower, upper, earliest, latest)


def _is_compatible(one: pa.DataType, other: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating)
    return one.id == other.id or any(kind(one) and kind(other) for kind in kinds)


def _without_large(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(pa.field("element", _without_large(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_without_large(kind.key_type), _without_large(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _without_large(f.type)) for f in kind])
    return kind
