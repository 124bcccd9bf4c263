"""What a snapshot of a topic's table holds: its files by offset, and up to which offset it is complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil.errors import UnsupportedError
from frazil.log.columns import MESSAGE
from frazil.settings import NetworkSettings
from frazil.tables import Position, RolledBackError, position_of
from frazil.tables.reading.planning import plan_files
from frazil.topics.layout import ARCHIVE
from frazil.topics.sinks.sink import PARTITION

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

    from frazil.topics.reading.left_out import Letters

#: Stands for "no bound": a file of which nothing is known may hold any offset.
LOWEST, HIGHEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class PlannedFile:
    """A data file with its delete files, and the offsets and times that may occur in it (both ends included)."""

    task: FileScanTask
    lower: int
    upper: int
    earliest_us: int
    latest_us: int
    letters: Letters | None = None
    """Set where it is a file of dead letters."""

    @property
    def path(self) -> str:
        return str(self.task.file.file_path)

    @property
    def size(self) -> int:
        return int(self.task.file.file_size_in_bytes)


@dataclass(frozen=True)
class TablePlan:
    """One snapshot of a topic's table. It has no open handles, and can be sent to other processes."""

    metadata: TableMetadata
    io: FileIO
    snapshot_id: int | None
    files: tuple[PlannedFile, ...]
    """By their lowest offset."""
    reached: Position | None
    """As the table itself tells it."""
    floor: int
    """The lowest offset that may be in the table; its position where it holds none."""

    @property
    def position(self) -> int:
        """All messages below are in the table or dead letters of it, unless retention has removed them."""
        return self.reached.offsets.get(PARTITION, 0) if self.reached is not None else 0

    def between(self, start: int, end: int) -> TablePlan:
        """Only the files that may hold an offset of [start, end)."""
        return self.only([f for f in self.files if f.lower < end and f.upper >= start])

    def only(self, files: Sequence[PlannedFile]) -> TablePlan:
        return replace(self, files=tuple(files))

    def portable(self) -> TablePlan:
        """Without the history of the table, which no reader needs."""
        return replace(self, metadata=slim(self.metadata))

    @property
    def snapshots(self) -> tuple[int | None, ...]:
        """Of the table, and of the dead letters where it has some."""
        return self.snapshot_id, *{f.letters.snapshot_id for f in self.files if f.letters is not None}

    def extra(self) -> pa.Schema:
        """The table's columns that not every message has."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        whole = schema_to_pyarrow(self.metadata.schema(), include_field_ids=False)
        return pa.schema([pa.field(f.name, _plain(f.type)) for f in whole if f.name not in MESSAGE.names])

    def readable(self, wanted: pa.Schema) -> pa.Schema:
        """Without columns to which somebody has given another type in the table: what it has there is not the log's."""
        held = {f.name: f.type for f in self.extra()}
        return pa.schema([f for f in wanted if f.name not in held or _alike(held[f.name], f.type)])

    def following(self, offset: int) -> int:
        """The first offset from this one on that may be in the table; its position if there is none."""
        later = [max(f.lower, offset) for f in self.files if f.upper >= offset]
        return min(later, default=max(self.position, offset))


def slim(metadata: TableMetadata) -> TableMetadata:
    without: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
    return metadata.model_copy(update={**without, "current_snapshot_id": None})


def plan_table(table: Table, topic: str, network: NetworkSettings | None = None) -> TablePlan:
    """The files of the table's current snapshot.

    Args:
        table: the table.
        topic: the topic that it is of.
        network: patience with its storage.

    Raises:
        UnsupportedError: it has equality deletes, which PyIceberg cannot read.
        FileNotFoundError: the snapshot has expired since the table was loaded.
    """
    try:
        position = position_of(table, ARCHIVE, topic)
    except RolledBackError as error:
        # What the rows reach still counts; what follows may be in the log. The pipeline is the one that must ask.
        position = error.table_position
    try:
        tasks = plan_files(table.scan(), network or NetworkSettings())
    except ValueError as error:
        raise UnsupportedError(
            f"the table {'.'.join(table.name())} cannot be read",
            cause=str(error),
            hint=f"compact it with Spark: CALL system.rewrite_data_files(table => '{'.'.join(table.name())}')",
        ) from error
    files = sorted(planned(table, tasks), key=lambda f: (f.lower, f.upper))
    end = position.offsets.get(PARTITION, 0) if position is not None else 0
    floor = min([end, *(f.lower for f in files)])
    return TablePlan(table.metadata, table.io, table.metadata.current_snapshot_id, tuple(files), position, floor)


def planned(table: Table, tasks: Sequence[FileScanTask]) -> Iterator[PlannedFile]:
    """Files with what their statistics say of offsets and times of publishing."""
    schema = table.schema()
    offset, time = schema.find_field("offset"), schema.find_field("publish_time")
    for task in tasks:
        lower, upper = bounds(task, offset)
        earliest, latest = bounds(task, time)
        yield PlannedFile(task, lower, upper, earliest, latest)


def bounds(task: FileScanTask, field: Any) -> tuple[int, int]:
    """The lowest and the highest value that a file may have of a column of whole numbers or times."""
    from pyiceberg.conversions import from_bytes

    lower = (task.file.lower_bounds or {}).get(field.field_id)
    upper = (task.file.upper_bounds or {}).get(field.field_id)
    return (
        LOWEST if lower is None else int(from_bytes(field.field_type, lower)),
        HIGHEST if upper is None else int(from_bytes(field.field_type, upper)),
    )


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating)
    return one.id == other.id or any(kind(one) and kind(other) for kind in kinds)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type as the log has it: PyIceberg asks for the large variants."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _plain(f.type)) for f in kind])
    return kind
