"""Finds the rows of a table that have certain keys: data file and position. Reads only row groups that may have one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.tables.reading.planning import plan_files
from frazil.tables.reading.rows_by_position import map_current_names

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

    from frazil.tables.store import TableStore

#: Values of a column up to which Iceberg compares each of them with the bounds of a file.
_IN = 200


def find_keys(store: TableStore, table: Table, keys: pa.Table, max_rows: int) -> pa.Table | None:
    """Finds the rows of the current snapshot that have one of the keys.

    Args:
        store: the catalog.
        table: the table.
        keys: the keys; its columns, all of them texts, are columns of the table.
        max_rows: rows whose keys may be compared.

    Returns:
        The columns of `keys` with `_file` and `_pos`; None if more rows would have to be compared.

    Raises:
        OSError: a file cannot be read, or was removed since the table was loaded.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    names = keys.column_names
    sought = {name: sorted(pc.unique(keys.column(name)).to_pylist()) for name in names}
    wanted = set(zip(*(keys.column(name).to_pylist() for name in names), strict=True))
    schema = schema_to_pyarrow(table.schema(), include_field_ids=True)
    deletes: dict[str, Mapping[str, pa.ChunkedArray]] = {}
    none = pa.schema([*(pa.field(name, pa.string()) for name in names), ("_file", pa.string()), ("_pos", pa.int64())])
    parts = [none.empty_table()]
    for task in plan_files(table.scan(row_filter=_condition(sought)), store.network) if wanted else ():
        with table.io.new_input(task.file.file_path).open() as stream, pq.ParquetFile(stream, pre_buffer=True) as file:
            named = {now: then for then, now in map_current_names(file.schema_arrow, schema).items() if now in names}
            groups, starts = _groups(file.metadata, named, sought)
            max_rows -= sum(file.metadata.row_group(group).num_rows for group in groups)
            if max_rows < 0:
                return None
            if groups:
                read = file.read_row_groups(groups, columns=list(named.values())).rename_columns(
                    {then: now for now, then in named.items()}
                )
                positions = np.concatenate([np.arange(starts[g], starts[g + 1]) for g in groups])
                found = _matching(read.select(names), positions, sought, wanted)
                alive = ~np.isin(found.column("_pos").to_numpy(), _deleted(table, task, deletes))
                found = found.filter(pa.array(alive))
                file_path = pa.array([task.file.file_path] * found.num_rows, pa.string())
                parts.append(found.add_column(len(names), "_file", file_path).cast(none))
    return pa.concat_tables(parts)


def _condition(sought: Mapping[str, Sequence[str]]) -> BooleanExpression:
    """Iceberg's condition: files whose bounds exclude all keys are left out."""
    from pyiceberg.expressions import And, GreaterThanOrEqual, In, LessThanOrEqual

    def of(name: str, values: Sequence[str]) -> BooleanExpression:
        if len(values) <= _IN:
            return In(term=name, literals=set(values))
        return And(GreaterThanOrEqual(term=name, value=values[0]), LessThanOrEqual(term=name, value=values[-1]))

    return reduce(And, (of(name, values) for name, values in sought.items()))


def _groups(
    footer: pq.FileMetaData, named: Mapping[str, str], sought: Mapping[str, Sequence[str]]
) -> tuple[list[int], Any]:
    """Returns the row groups that may contain a key, and the first row of each row group."""
    starts = np.cumsum([0, *(footer.row_group(i).num_rows for i in range(footer.num_row_groups))])
    if set(named) != set(sought):
        return [], starts  # rows without a key
    places = {footer.schema.column(i).path: i for i in range(len(footer.schema))}

    def may_have(group: int, name: str) -> bool:
        known = footer.row_group(group).column(places[named[name]]).statistics
        if known is None or not known.has_min_max:
            return True
        values = sought[name]
        at = bisect_left(values, known.min)
        return at < len(values) and values[at] <= known.max

    return [i for i in range(footer.num_row_groups) if all(may_have(i, name) for name in sought)], starts


def _matching(rows: pa.Table, positions: Any, sought: Mapping[str, Sequence[str]], wanted: set[Any]) -> pa.Table:
    rows = rows.append_column("_pos", pa.array(positions, pa.int64()))
    for name in reversed(list(sought)):
        rows = rows.filter(pc.is_in(rows.column(name), value_set=pa.array(sought[name], rows.column(name).type)))
    found = zip(*(rows.column(name).to_pylist() for name in sought), strict=True)
    return rows.filter(pa.array([key in wanted for key in found], pa.bool_()))


def _deleted(table: Table, task: FileScanTask, known: dict[str, Mapping[str, pa.ChunkedArray]]) -> Any:
    """Returns the deleted positions of a data file. Each delete file is read once."""
    from pyiceberg.io.pyarrow import _read_deletes

    def read(delete: DataFile) -> Mapping[str, pa.ChunkedArray]:
        if delete.file_path not in known:
            known[delete.file_path] = _read_deletes(table.io, delete)
        return known[delete.file_path]

    def positions() -> Iterator[Any]:
        for delete in task.delete_files:
            if task.file.file_path in (found := read(delete)):
                yield found[task.file.file_path].to_numpy()

    return np.concatenate([np.zeros(0, np.int64), *positions()])
