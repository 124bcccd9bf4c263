"""Writes position deletes: which rows of which data files are no longer there.

One file per partition and task. Its bounds name the first and the last data file whole: readers of other data files
then do not open it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.tables.durability import sync_files
from frazil.tables.writing.data_files import WriteTarget, discard_files, load_target

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

_PATH, _POS = 2147483546, 2147483545
#: Spec id and partition of a data file.
FilePartition = tuple[int, Any]


@cache
def delete_schema() -> pa.Schema:
    """Returns the columns of a position-delete file."""
    return pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(_PATH)}),
            pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(_POS)}),
        ]
    )


def write_position_deletes(
    target: WriteTarget,
    name: str,
    files: pa.Array,
    positions: pa.Array,
    places: Mapping[str, FilePartition] | None = None,
) -> list[DataFile]:
    """Writes position delete files for rows; all of them are durable afterwards.

    Args:
        target: the table.
        name: begins the files' names.
        files: data file of each row, spelled as in the table's metadata.
        positions: of each row in its file.
        places: spec and partition of each data file; None: the table has neither, and never had.
    """
    rows = pa.table([files, positions], schema=delete_schema())
    made: list[DataFile] = []
    try:
        for place, part in _by_place(rows, places):
            made.append(_write(target, name, place, part))
        sync_files(file.file_path for file in made)
    except BaseException:
        discard_files(load_target(target).io, [file.file_path for file in made])
        raise
    return made


def _by_place(
    rows: pa.Table, places: Mapping[str, FilePartition] | None
) -> list[tuple[FilePartition | None, pa.Table]]:
    if not rows.num_rows:
        return []
    if places is None:
        return [(None, rows)]
    paths = rows.column("file_path").combine_chunks().dictionary_encode()
    known = [places[path] for path in paths.dictionary.to_pylist()]
    distinct = list(dict.fromkeys(known))
    code = np.asarray([distinct.index(place) for place in known])[paths.indices.to_numpy()]
    return [(place, rows.take(pa.array(np.flatnonzero(code == i)))) for i, place in enumerate(distinct)]


def _write(target: WriteTarget, name: str, place: FilePartition | None, rows: pa.Table) -> DataFile:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    table = load_target(target)
    rows = rows.sort_by([("file_path", "ascending"), ("pos", "ascending")])
    path = table.locations.new_data_location(f"{name}-{uuid.uuid4()}-deletes.parquet", None)
    with table.io.new_output(path).create(overwrite=True) as stream:
        with pq.ParquetWriter(stream, delete_schema(), compression="zstd", store_schema=False) as writer:
            writer.write_table(rows)
        size = stream.tell()
    bounds = [pc.min_max(rows.column(column)) for column in ("file_path", "pos")]
    lower, upper = ({_PATH: b[0].as_py().encode(), _POS: _long(b[1].as_py())} for b in _turned(bounds))
    spec_id, partition = place if place is not None else (table.spec.spec_id, Record())
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows.num_rows,
        file_size_in_bytes=size,
        column_sizes={},
        value_counts={_PATH: rows.num_rows, _POS: rows.num_rows},
        null_value_counts={_PATH: 0, _POS: 0},
        nan_value_counts={},
        lower_bounds=lower,
        upper_bounds=upper,
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=spec_id,
    )


def _turned(bounds: list[Any]) -> list[tuple[Any, Any]]:
    return [(bounds[0][side], bounds[1][side]) for side in ("min", "max")]


def _long(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)
