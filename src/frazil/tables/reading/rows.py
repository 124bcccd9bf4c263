"""Rows of a table that match a condition, without a JVM and in bounded memory: file by file, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from frazil.tables import TableStore
from frazil.tables.reading.planning import plan_files

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table

T = TypeVar("T")


class RowScan:
    """Rows of a table's current snapshot for which something is true.

    Args:
        store: the catalog.
        table: the table.
        where: Iceberg's condition: files that cannot have such rows are not read.
        columns: those to read.
    """

    def __init__(self, store: TableStore, table: Table, where: BooleanExpression, columns: Sequence[str]) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self._table, self._where = table, where
        self._schema = table.schema().select(*columns)
        self.files = plan_files(table.scan(row_filter=where), store.network)
        self._uses = Counter(delete.file_path for file in self.files for delete in file.delete_files)
        self._kept: dict[str, dict[str, pa.ChunkedArray]] = {}
        #: Of all tables that come: a file may have the same types in other widths.
        self.schema: pa.Schema = schema_to_pyarrow(self._schema, include_field_ids=False)

    def __iter__(self) -> Iterator[pa.Table]:
        for file in self.files:
            yield from self.of(file)

    def of(self, file: FileScanTask) -> Iterator[pa.Table]:
        """Yields the rows of one file as they are read; PyIceberg's own loop would read all files ahead, whole."""
        from pyiceberg.io.pyarrow import ArrowScan

        scan = ArrowScan(self._table.metadata, self._table.io, self._schema, self._where)
        deletes = {file.file.file_path: self._deletes(file)} if file.delete_files else {}
        for batch in scan._record_batches_from_scan_tasks_and_deletes([file], deletes):
            yield pa.Table.from_batches([batch]).cast(self.schema)

    def _deletes(self, file: FileScanTask) -> list[pa.ChunkedArray]:
        """Returns the deleted positions of a file. A delete file of several data files is read once."""
        from pyiceberg.io.pyarrow import _read_deletes

        found = []
        for delete in file.delete_files:
            places = self._kept.get(delete.file_path) or _read_deletes(self._table.io, delete)
            if self._uses[delete.file_path] > 1:
                self._kept[delete.file_path] = places
            found += [places[file.file.file_path]] if file.file.file_path in places else []
        return found
