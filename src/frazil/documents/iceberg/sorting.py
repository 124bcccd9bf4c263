"""Sorts rows of any number in bounded memory: by ranges of document ids, which are kept on disk until it is their turn.

DuckDB's sort took 400 to 600 MB beyond its memory limit for a million documents.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import ADDED, HISTORY_SCHEMA
from frazil.tables.reading.rows import RowScan

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

    from frazil.tables import TableStore

#: Rows of a range, about: so many are sorted in memory at once.
_PER_RANGE: Final = 50_000
#: Of so many ids one is looked at for the limits of ranges.
_SAMPLED: Final = 64
_KEY: Final = "document_id"
_TYPES: Final = {field.name: field.type for field in (*HISTORY_SCHEMA, ADDED)}


class RowSource(Protocol):
    """Rows that can be read more than once."""

    @property
    def columns(self) -> pa.Schema: ...

    def read(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields rows with these columns; None: all."""
        ...


@dataclass(frozen=True)
class TableSource:
    """Rows of an Iceberg table, read file by file."""

    store: TableStore
    table: Table
    where: BooleanExpression
    names: Sequence[str]

    @property
    def columns(self) -> pa.Schema:
        return RowScan(self.store, self.table, self.where, self.names).schema

    def read(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        yield from RowScan(self.store, self.table, self.where, self.names if names is None else names)


@dataclass(frozen=True)
class ArrowSource:
    """Rows in memory."""

    rows: pa.Table

    @property
    def columns(self) -> pa.Schema:
        return self.rows.schema

    def read(self, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        yield self.rows if names is None else self.rows.select(list(names))


def sort_rows(sources: Sequence[RowSource], order: Sequence[str], folder: Path) -> Iterator[pa.Table]:
    """Yields the rows of all sources in one order. Columns that a source lacks are null in its rows.

    Args:
        sources: of rows of documents or revisions.
        order: columns, the first of them `document_id`. Texts are compared by code point.
        folder: where temporary files may lie.
    """
    fields = {f.name: _TYPES.get(f.name, f.type) for source in sources for f in source.columns}
    schema = pa.schema([pa.field(name, kind) for name, kind in fields.items()])
    limits = _find_limits(sources)
    if not limits:
        rows = [_to_schema(part, schema) for source in sources for part in source.read()]
        yield from _sorted(pa.concat_tables([schema.empty_table(), *rows]), order)
        return
    with tempfile.TemporaryDirectory(prefix=".sorting-", dir=folder) as scratch:
        files = [Path(scratch) / f"{number}.arrow" for number in range(len(limits) + 1)]
        _distribute(sources, schema, limits, files)
        for file in files:
            with pa.memory_map(str(file)) as mapped:
                rows = pa.ipc.open_stream(mapped).read_all()
                yield from _sorted(rows, order)
            file.unlink()


def _sorted(rows: pa.Table, order: Sequence[str]) -> Iterator[pa.Table]:
    if rows.num_rows:
        yield rows.take(pc.sort_indices(rows, [(name, "ascending") for name in order]))


def _find_limits(sources: Sequence[RowSource]) -> list[str]:
    """The ids at which ranges of like size begin, but for the first."""
    sample: list[str] = []
    count = 0
    for source in sources:
        for rows in source.read([_KEY]):
            count += rows.num_rows
            sample += rows.column(_KEY).take(np.arange(0, rows.num_rows, _SAMPLED)).to_pylist()
    sample.sort()
    ranges = -(-count // _PER_RANGE)
    return sorted({sample[len(sample) * number // ranges] for number in range(1, ranges)})


def _distribute(sources: Sequence[RowSource], schema: pa.Schema, limits: Sequence[str], files: Sequence[Path]) -> None:
    """Writes rows into the files of their ranges."""
    with ExitStack() as stack:
        writers = [stack.enter_context(pa.ipc.new_stream(str(file), schema)) for file in files]
        for source in sources:
            for part in source.read():
                rows = _to_schema(part, schema)
                rows = rows.take(pc.sort_indices(rows, [(_KEY, "ascending")]))
                ids = rows.column(_KEY).combine_chunks()
                cuts = [_bisect(ids, limit) for limit in limits]
                for writer, start, end in zip(writers, [0, *cuts], [*cuts, len(ids)], strict=True):
                    if end > start:
                        writer.write_table(rows.slice(start, end - start))


def _bisect(ids: pa.Array, limit: str) -> int:
    """The first place in sorted ids whose id is not below a limit."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if ids[middle].as_py() < limit:
            low = middle + 1
        else:
            high = middle
    return low


def _to_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
