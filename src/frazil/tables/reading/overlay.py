"""An overlay of a table: rows that are not committed yet, and the stored rows they replace, over one snapshot.

Readers see an Iceberg table. Its scans plan the files of the snapshot, with position deletes in memory on those that
lose rows, and one more data file in memory. Nothing is written.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import ALWAYS_TRUE, DataScan, FileScanTask, Table
from pyiceberg.typedef import Record

from frazil.tables.create import assign_field_ids
from frazil.tables.writing.position_deletes import delete_schema
from frazil.tables.writing.type_conversion import convert_all_rows

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from frazil.tables.store import TableStore

_SCHEME = "frazil-memory:"


class OverlayTable(Table):
    """A table whose current snapshot has other rows.

    Args:
        table: the table.
        rows: the rows that it has more, with columns of the table.
        files: data file of each stored row that is gone, spelled as in the table's metadata.
        positions: of each of these rows in its file.

    Raises:
        FrazilError: the rows do not fit the columns of the table.
    """

    def __init__(self, table: Table, rows: pa.Table, files: pa.Array, positions: pa.Array) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        fitted = convert_all_rows(rows, schema_to_pyarrow(table.schema(), include_field_ids=True))
        gone = pa.table([files, positions], schema=delete_schema())
        self._touched = frozenset(pc.unique(files).to_pylist())
        self._more = _file(fitted, DataFileContent.DATA, table)
        self._gone = _file(gone, DataFileContent.POSITION_DELETES, table)
        held = {f.file.file_path: f.data for f in (self._more, self._gone)}
        io = _OverlayFileIO(table.io, held)
        super().__init__(table.name(), table.metadata, table.metadata_location, io, table.catalog, table.config)

    def scan(
        self,
        row_filter: str | BooleanExpression = ALWAYS_TRUE,
        selected_fields: tuple[str, ...] = ("*",),
        case_sensitive: bool = True,
        snapshot_id: int | None = None,
        options: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> DataScan:
        assert snapshot_id is None, "an overlay has no history"
        return _OverlayScan(
            self.metadata, self.io, row_filter, selected_fields, case_sensitive, None, dict(options or {}), limit,
            self.catalog, self.name(),
        ).over(self)  # fmt: skip

    def planned(self, tasks: Iterable[FileScanTask]) -> list[FileScanTask]:
        """Returns the files of a scan of the snapshot, as the overlay has them."""
        deletes = {self._gone.file}
        found = [
            FileScanTask(task.file, task.delete_files | deletes, task.residual)
            if task.file.file_path in self._touched
            else task
            for task in tasks
        ]
        return [*found, FileScanTask(self._more.file)] if self._more.file.record_count else found


class _OverlayScan(DataScan):
    _table: OverlayTable

    def over(self, table: OverlayTable) -> _OverlayScan:
        self._table = table
        return self

    def plan_files(self) -> Iterable[FileScanTask]:
        return self._table.planned(super().plan_files())


def empty_table(store: TableStore, name: tuple[str, ...], schema: pa.Schema) -> Table:
    """Builds an empty table that is in no catalog, in place of one that does not exist yet."""
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    metadata = new_table_metadata(assign_field_ids(schema), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, _SCHEME)
    return Table(name, metadata, f"{_SCHEME}{uuid.uuid4()}", PyArrowFileIO(), store.catalog)


class _Held:
    """A file in memory. Its name is unique: readers keep what they have decoded under the name of the file."""

    def __init__(self, file: DataFile, data: pa.Buffer) -> None:
        self.file, self.data = file, data


def _file(rows: pa.Table, content: DataFileContent, table: Table) -> _Held:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="none", store_schema=False)
    data = sink.getvalue()
    file = DataFile.from_args(
        content=content,
        file_path=f"{_SCHEME}{uuid.uuid4()}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=data.size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = table.spec().spec_id
    return _Held(file, data)


class _OverlayFileIO(FileIO):
    """The files of a table, and those in memory."""

    def __init__(self, inner: FileIO, held: Mapping[str, pa.Buffer]) -> None:
        super().__init__(inner.properties)
        self._inner, self._held = inner, held

    def new_input(self, location: str) -> InputFile:
        data = self._held.get(location)
        return self._inner.new_input(location) if data is None else _MemoryFile(location, data)

    def new_output(self, location: str) -> OutputFile:
        return self._inner.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._inner.delete(location)


class _MemoryFile(InputFile):
    def __init__(self, location: str, data: pa.Buffer) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return int(self._data.size)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> Any:
        return pa.BufferReader(self._data)
