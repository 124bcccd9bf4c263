"""Reads rows of a table by data file and position: only the row groups that have one of them.

It runs in Spark's Python workers. Columns are found by their field ids, so that a renamed one is still the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from frazil.tables.writing.data_files import WriteTarget, load_target
from frazil.tables.writing.type_conversion import convert_all_rows

_ID = b"PARQUET:field_id"


def fetch_rows(target: WriteTarget, schema: pa.Schema, files: pa.Array, positions: pa.Array) -> pa.Table:
    """Reads rows in the requested order, with the columns of a schema; null where a file lacks one."""
    if not len(files):
        # Not empty_table(): it cannot make a list of UUIDs.
        return pa.table([pa.nulls(0, f.type) for f in schema], schema=schema)
    encoded = files.dictionary_encode()
    of_file, wanted = encoded.indices.to_numpy(), np.asarray(positions.to_numpy(), np.int64)
    parts, order = [], []
    for number, path in enumerate(encoded.dictionary.to_pylist()):
        asked = np.flatnonzero(of_file == number)
        asked = asked[np.argsort(wanted[asked], kind="stable")]
        parts.append(convert_all_rows(_of_file(target, schema, path, wanted[asked]), schema))
        order.append(asked)
    places = np.empty(len(wanted), np.int64)
    places[np.concatenate(order)] = np.arange(len(wanted))
    return pa.concat_tables(parts).combine_chunks().take(pa.array(places))


def _of_file(target: WriteTarget, schema: pa.Schema, path: str, positions: Any) -> pa.Table:
    """Rows at positions, which ascend, under the names that the table has for their columns today."""
    table = load_target(target)
    with table.io.new_input(path).open() as stream, pq.ParquetFile(stream, pre_buffer=True) as file:
        names = {
            n: today for n, today in map_current_names(file.schema_arrow, table.arrow).items() if today in schema.names
        }
        starts = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))])
        groups = np.searchsorted(starts, positions, side="right") - 1
        touched = np.unique(groups)
        if not names:  # a file of others, with none of these columns
            return pa.table([pa.nulls(len(positions), schema.field(0).type)], names=[schema.field(0).name])
        rows = file.read_row_groups(touched.tolist(), columns=list(names))
    lengths = starts[touched + 1] - starts[touched]
    inside = np.concatenate([[0], np.cumsum(lengths)])[np.searchsorted(touched, groups)] + positions - starts[groups]
    return rows.take(pa.array(inside)).rename_columns([names[name] for name in rows.column_names])


def map_current_names(file: pa.Schema, table: pa.Schema) -> dict[str, str]:
    """Columns of a file, and what the table calls them; those that the table has dropped are left out."""
    today = {(f.metadata or {}).get(_ID): f.name for f in table}
    ids = {f.name: (f.metadata or {}).get(_ID) for f in file}
    if not any(ids.values()):  # a file added by another writer, mapped by column names
        return {name: name for name in file.names if name in table.names}
    return {name: today[number] for name, number in ids.items() if number is not None and number in today}
