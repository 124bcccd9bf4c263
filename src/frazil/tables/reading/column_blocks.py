"""Columns of a table's data files, block by block: only the requested ones, and without deleted rows.

PyIceberg's own reader does not tell where in its file a row lies, and reads all columns of a row at once. Here a search
reads the columns it decides by, and then, of the few rows that it has found, those that are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from frazil.tables import TableStore
from frazil.tables.cache import ByteCache
from frazil.tables.reading.planning import plan_files
from frazil.tables.reading.rows_by_position import map_current_names

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

T = TypeVar("T")

#: Rows that are decided at once: enough that a step in Python costs nothing, few enough to fit memory with any column.
_BLOCK_ROWS = 1 << 17
#: Texts of which nearly each is another one. A dictionary of them would only cost.
_UNLIKE = frozenset({"key", "version_id", "etag", "sequencer", "sequence", "metadata", "title", "note", "content_hash"})
#: Columns that may have any size per row: read row group by row group, and not kept.
WIDE = frozenset({"metadata", "extraction", "user_metadata", "field_errors", "frazil_order", "frazil_fields"})


@dataclass(frozen=True)
class _Layout:
    """What is to be known of a file before its columns are read.

    Attributes:
        starts: the first row of each row group, and the end.
        blocks: first and last row group of each block.
        names: the table's name of a column → the file's, of those that it has.
        encoded: paths of texts in Parquet that come as codes with a dictionary.
    """

    starts: Any
    blocks: list[tuple[int, int]]
    names: dict[str, str]
    encoded: list[str]


class BlockScan:
    """The files of a table's current snapshot that may have rows of which something is true.

    Args:
        store: the catalog.
        table: the table.
        where: Iceberg's condition: files that cannot have such rows are left out. Rows are not judged by it.
        kept: what was decoded before.
    """

    def __init__(self, store: TableStore, table: Table, where: BooleanExpression, kept: ByteCache) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self.table, self._kept = table, kept
        #: The table's columns under their names, with Arrow's types.
        self.schema: pa.Schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        self._with_ids: pa.Schema = schema_to_pyarrow(table.schema(), include_field_ids=True)
        self._ids = {field.name: field.field_id for field in table.schema().fields}
        self.tasks: list[FileScanTask] = plan_files(table.scan(row_filter=where), store.network)

        self._uses = Counter(delete.file_path for task in self.tasks for delete in task.delete_files)
        self._deletes: dict[str, dict[str, pa.ChunkedArray]] = {}

    def deletes_of(self, delete: DataFile) -> dict[str, pa.ChunkedArray]:
        """Positions by data file, as a delete file has them. One that is about several data files is read once."""
        from pyiceberg.io.pyarrow import _read_deletes

        read = self._deletes.get(delete.file_path) or self._kept.get_or_compute(
            (delete.file_path, "deletes"),
            lambda: _read_deletes(self.table.io, delete),
            lambda found: sum(positions.nbytes for positions in found.values()),
        )
        if self._uses[delete.file_path] > 1:
            self._deletes[delete.file_path] = read
        return read

    def of(self, number: int) -> Iterator[Block]:
        """The blocks of a file, by its place in `tasks`, in the order of their rows."""
        with _File(self, number) as file:
            for first, last in file.layout.blocks:
                yield Block(file, first, last)

    def taken(self, places: Sequence[tuple[int, int]], names: Sequence[str]) -> pa.Table:
        """Columns of rows at some places (file, position), in this order. Only the blocks are read that have one."""
        numbers, positions = np.array(places, np.int64).reshape(-1, 2).T
        parts, order = [], []
        for number in np.unique(numbers):
            asked = np.flatnonzero(numbers == number)
            asked = asked[np.argsort(positions[asked], kind="stable")]
            inside = positions[asked]
            for block in self.of(int(number)):
                first, last = np.searchsorted(inside, [block.start, block.start + block.rows])
                if first < last:
                    parts.append(block.table(names, inside[first:last] - block.start))
                    order.append(asked[first:last])
        if not parts:
            return pa.schema([self.schema.field(name) for name in names]).empty_table()
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(order))))


class _File:
    """One data file. It is opened when a column is wanted that is not kept."""

    def __init__(self, files: BlockScan, number: int) -> None:
        self._files, self.number = files, number
        self.task = files.tasks[number]
        self.path = self.task.file.file_path
        self._open: tuple[Any, pq.ParquetFile] | None = None
        self._footer: pq.FileMetaData | None = None
        self.layout: _Layout = files._kept.get_or_compute(
            (self.path, "layout", files.table.metadata.current_schema_id), self._laid_out, lambda _: 4096
        )
        self.gone = self._deleted()

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            stream, file = self._open
            file.close()
            stream.close()
            self._open = None

    @property
    def files(self) -> BlockScan:
        return self._files

    def _parquet(self, encoded: list[str] | None = None) -> pq.ParquetFile:
        if self._open is None:
            footer = self._footer or self._files._kept.get((self.path, "footer"))
            stream = self._files.table.io.new_input(self.path).open()
            file = pq.ParquetFile(stream, metadata=footer, read_dictionary=encoded, pre_buffer=True)
            self._files._kept.put((self.path, "footer"), file.metadata, 4 * file.metadata.serialized_size)
            self._open, self._footer = (stream, file), file.metadata
        return self._open[1]

    def _laid_out(self) -> _Layout:
        with self:
            file = self._parquet()
            counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            names = map_current_names(file.schema_arrow, self._files._with_ids)
            columns = [file.schema.column(i) for i in range(len(file.schema))]
            encoded = [
                c.path
                for c in columns
                if c.physical_type == "BYTE_ARRAY"
                and str(c.logical_type).startswith("String")
                and names.get(c.path.split(".")[0]) not in _UNLIKE | WIDE | {None}
                and c.path.split(".")[1:2] != ["key_value"]
            ]
        return _Layout(np.cumsum([0, *counts]), _blocks(counts), {n: f for f, n in names.items()}, encoded)

    def _deleted(self) -> Any:
        """Positions that are deleted, in order; None: none."""
        found = []
        for delete in self.task.delete_files:
            places = self._files.deletes_of(delete)
            if self.path in places:
                found.append(np.asarray(places[self.path].to_numpy(), np.int64))
        return np.unique(np.concatenate(found)) if found else None

    def read(self, first: int, last: int, names: Sequence[str]) -> dict[str, pa.Array]:
        """Columns of some row groups, under the table's names and in its types; null where the file has none."""
        there = [name for name in names if name in self.layout.names]
        rows = int(self.layout.starts[last + 1] - self.layout.starts[first])
        found: dict[str, pa.Array] = {}
        if there:
            wanted = [self.layout.names[name] for name in there]
            read = self._parquet(self.layout.encoded).read_row_groups(list(range(first, last + 1)), columns=wanted)
            for name in there:
                column = read.column(self.layout.names[name])
                found[name] = _fitting(column, self._files.schema.field(name).type)
        for name in names:
            if name not in found:
                found[name] = pa.nulls(rows, self._files.schema.field(name).type)
        return found


class Block:
    """Rows of a file that follow each other. Columns are single arrays; texts that recur are codes."""

    def __init__(self, file: _File, first: int, last: int) -> None:
        self._file, self._first, self._last = file, first, last
        self.number = file.number
        self.start = int(file.layout.starts[first])
        self.rows = int(file.layout.starts[last + 1]) - self.start
        self._own: dict[str, pa.Array] = {}

    def alive(self) -> Any:
        """Which rows are not deleted: an array of truths, or None where all are there."""
        gone = self._file.gone
        if gone is None:
            return None
        here = gone[np.searchsorted(gone, self.start) : np.searchsorted(gone, self.start + self.rows)]
        if not len(here):
            return None
        alive = np.ones(self.rows, bool)
        alive[here - self.start] = False
        return alive

    def has(self, name: str) -> bool:
        """Whether the table has such a column."""
        return name in self._file.files._ids

    def columns(self, names: Sequence[str]) -> list[pa.Array]:
        """Whole columns of the block, but no wide ones; columns that the table has not are not asked for."""
        ids, kept, schema = self._file.files._ids, self._file.files._kept, self._file.files.schema
        # A column may get a wider type, and is kept in the one that it had.
        keys = {name: (self._file.path, self._first, ids[name], str(schema.field(name).type)) for name in names}
        missing = []
        for name in names:
            if name not in self._own:
                found = kept.get(keys[name])
                if found is None:
                    missing.append(name)
                else:
                    self._own[name] = found
        if missing:
            for name, column in self._file.read(self._first, self._last, missing).items():
                self._own[name] = column
                kept.put(keys[name], column, column.get_total_buffer_size())
        return [self._own[name] for name in names]

    def rows_of(self, names: Sequence[str], at: Any) -> list[pa.Array]:
        """Columns of some rows, which ascend; texts may be codes."""
        if len(at) == self.rows:
            return self.columns(names)
        return [column.take(pa.array(at)) for column in self.columns(names)]

    def wide(self, name: str, at: Any) -> Iterator[tuple[Any, pa.Array]]:
        """A wide column of some rows, row group by row group: which of the rows, by their place in `at`, and values."""
        for group, inside, local in self._groups(at):
            column = self._file.read(group, group, [name])[name]
            yield inside, column if len(local) == len(column) else column.take(pa.array(local))

    def derived(
        self, name: str, kind: Hashable, make: Callable[[pa.Array], T], size: Callable[[T], int], at: Any
    ) -> Iterator[tuple[Any, Any, T]]:
        """What is made of a wide column, row group by row group. It is made of all rows of them where it can be kept.

        Args:
            name: the column.
            kind: what tells it from other things that are made of this column.
            make: makes it of values.
            size: its bytes.
            at: the rows that it is about.

        Yields:
            Which of the rows, by their place in `at`; their places in what was made; and that.
        """
        kept = self._file.files._kept
        for group, inside, local in self._groups(at):
            key = (self._file.path, "derived", group, kind)
            made: T | None = kept.get(key)
            if made is None:
                column = self._file.read(group, group, [name])[name]
                if 2 * len(local) < len(column) and not kept.has_room:
                    yield inside, np.arange(len(local)), make(column.take(pa.array(local)))
                    continue
                made = make(column)
                kept.put(key, made, size(made))
            yield inside, local, made

    def _groups(self, at: Any) -> Iterator[tuple[int, Any, Any]]:
        """Row groups with some of these rows: which of them, by their place in `at`, and their places in the group."""
        starts = self._file.layout.starts
        for group in range(self._first, self._last + 1):
            begin, end = starts[group] - self.start, starts[group + 1] - self.start
            inside = np.arange(np.searchsorted(at, begin), np.searchsorted(at, end))
            if len(inside):
                yield group, inside, at[inside] - begin

    def tables(self, names: Sequence[str], at: Any) -> Iterator[pa.Table]:
        """Yields what `table` returns, row group by row group, for wide columns of many rows."""
        for _, inside, _ in self._groups(at):
            yield self.table(names, at[inside])

    def table(self, names: Sequence[str], at: Any) -> pa.Table:
        """Columns of some rows, which ascend, as plain values in the table's types."""
        schema = pa.schema([self._file.files.schema.field(name) for name in names])
        narrow = [name for name in names if name not in WIDE]
        taken = {n: c.take(pa.array(at)) for n, c in zip(narrow, self.columns(narrow), strict=True)}
        for name in names:
            if name in WIDE:
                taken[name] = pa.chunked_array([part for _, part in self.wide(name, at)], schema.field(name).type)
        return pa.table([_plain(taken[f.name], f.type) for f in schema], schema=schema)


def _blocks(counts: list[int]) -> list[tuple[int, int]]:
    """Row groups that follow each other, as many as make a block; a larger one is a block of its own."""
    found: list[tuple[int, int]] = []
    rows = 0
    for number, count in enumerate(counts):
        if found and rows + count <= _BLOCK_ROWS:
            found[-1] = (found[-1][0], number)
            rows += count
        else:
            found.append((number, number))
            rows = count
    return found


def _fitting(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.Array:
    """A column as one array in the type of the table; its texts may stay codes."""
    if _has_codes(column.type):
        column = column.unify_dictionaries()
    elif column.type != wanted:
        column = column.cast(wanted)
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _plain(column: Any, wanted: pa.DataType) -> Any:
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        if pa.types.is_dictionary(column.type.value_type):
            values = column.values.dictionary_decode() if isinstance(column, pa.ListArray) else column.values
            column = pa.ListArray.from_arrays(column.offsets, values, mask=column.is_null())
    elif pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == wanted else column.cast(wanted)


def _has_codes(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_list(kind) else kind
    return bool(pa.types.is_dictionary(inner))
