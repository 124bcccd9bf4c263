"""Writes rows as a table's data files: Parquet with field ids, one file per partition, in bounded memory.

It runs in Spark's Python workers. Nothing here touches the catalog: a file counts when the driver commits it.
"""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.errors import UnavailableError, first_line
from frazil.tables.durability import sync_files
from frazil.tables.reading.retrying import is_access_denied

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.table import Table

_MIB = 1024 * 1024
#: Bytes of Arrow data that become one row group.
ROW_GROUP_BYTES = 32 * _MIB
#: Bytes of Arrow data after which a file is closed and another begun; what is sorted is held up to here.
FILE_BYTES = 256 * _MIB
#: Files that a task has open at once.
MAX_OPEN = 64
_SORTED_BYTES = 128 * _MIB
#: Unique in each row: a dictionary of them would be tried and thrown away.
_NO_DICTIONARY = frozenset({"payload", "offset", "segment_offset", "request_id"})


@dataclass(frozen=True)
class WriteTarget:
    """What a task must know of a table to write its files. Small, and the same text while the table stays the same."""

    location: str
    schema: str
    spec: str
    order: str
    properties: str
    io: str = field(repr=False)
    """How its files are reached; may hold keys."""

    @classmethod
    def of(cls, table: Table) -> WriteTarget:
        metadata = table.metadata
        own = {k: v for k, v in metadata.properties.items() if k.startswith("write.")}
        return cls(
            metadata.location,
            table.schema().model_dump_json(),
            table.spec().model_dump_json(),
            table.sort_order().model_dump_json(),
            json.dumps(own, sort_keys=True),
            # A REST catalog's own client is among them, and is of no use to a task.
            json.dumps(
                {k: v for k, v in table.io.properties.items() if isinstance(v, (str, int, float))}, sort_keys=True
            ),
        )


class _LoadedTarget:
    """A target, read once per worker and not once per batch."""

    def __init__(self, target: WriteTarget) -> None:
        from pyiceberg.io import load_file_io
        from pyiceberg.io.pyarrow import compute_statistics_plan, parquet_path_to_id_mapping, schema_to_pyarrow
        from pyiceberg.partitioning import PartitionSpec
        from pyiceberg.schema import Schema
        from pyiceberg.table.locations import load_location_provider
        from pyiceberg.table.sorting import SortOrder

        from frazil.tables.file_io import register_file_io

        register_file_io()  # a worker opens no `TableStore`, which does this elsewhere
        properties = json.loads(target.properties)
        self.schema = Schema.model_validate_json(target.schema)
        self.spec = PartitionSpec.model_validate_json(target.spec)
        self.order = SortOrder.model_validate_json(target.order)
        self.arrow = schema_to_pyarrow(self.schema, include_field_ids=True)
        self.io: FileIO = load_file_io(json.loads(target.io), target.location)
        self.locations = load_location_provider(target.location, properties)
        self.statistics = compute_statistics_plan(self.schema, properties)
        self.ids_by_path = parquet_path_to_id_mapping(self.schema)
        self.options = _parquet_options(properties, self.arrow) | {"write_statistics": self._with_statistics()}
        self.sort = _sort_fields(self)

    def _with_statistics(self) -> list[str]:
        """Returns the Parquet columns that need statistics."""
        from pyiceberg.io.pyarrow import MetricModeTypes

        unwanted = {i for i, plan in self.statistics.items() if plan.mode.type == MetricModeTypes.NONE}
        return [path for path, i in self.ids_by_path.items() if i not in unwanted]


@lru_cache(maxsize=64)
def load_target(target: WriteTarget) -> _LoadedTarget:
    return _LoadedTarget(target)


def _parquet_options(properties: dict[str, str], schema: pa.Schema) -> dict[str, Any]:
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    level = properties.get("write.parquet.compression-level")
    return {
        "compression": {"uncompressed": "none", "lz4_raw": "lz4"}.get(codec, codec),
        "compression_level": int(level) if level and codec in ("zstd", "gzip") else None,
        "use_dictionary": [f.name for f in schema if f.name not in _NO_DICTIONARY and not pa.types.is_nested(f.type)],
        "store_schema": False,
        "data_page_size": int(properties.get("write.parquet.page-size-bytes", _MIB)),
    }


def _sort_fields(load_target: _LoadedTarget) -> list[tuple[str, Any, bool, bool]]:
    """Returns (column, transform, descending, nulls first) per sort field; empty if rows arrive in order."""
    from pyiceberg.table.sorting import NullOrder, SortDirection
    from pyiceberg.transforms import IdentityTransform

    found = []
    for f in load_target.order.fields:
        column = load_target.schema.find_field(f.source_id)
        name = load_target.schema.find_column_name(f.source_id) or column.name
        descending = f.direction == SortDirection.DESC
        if name == "offset" and isinstance(f.transform, IdentityTransform) and not descending:
            break  # rows arrive by offset, and sorting is stable: nothing after it can matter
        transform = f.transform.pyarrow_transform(column.field_type)
        found.append((name, transform, descending, f.null_order == NullOrder.NULLS_FIRST))
    return found


class TableWriter:
    """Takes rows in the table's schema, and gives the data files that hold them.

    File names are unique, so that a task that runs twice cannot overwrite its own files.

    Args:
        target: the table.
        name: begins the names of the files.
        in_memory: write to memory and not to storage: shows whether rows can be written at all.
    """

    def __init__(self, target: WriteTarget, name: str, *, in_memory: bool = False) -> None:
        self._parsed = load_target(target)
        self._in_memory = in_memory
        self._name = name
        self._open: dict[tuple[Any, ...], _OpenFile] = {}
        self._done: list[DataFile] = []

    @property
    def schema(self) -> pa.Schema:
        return self._parsed.arrow

    def add(self, rows: pa.Table) -> None:
        for key, part in self._split(rows):
            file = self._open.get(key)
            if file is None:
                if len(self._open) >= MAX_OPEN:
                    self._close_all()
                file = self._open[key] = _OpenFile(self._parsed, key, self._name, in_memory=self._in_memory)
            file.add(part)
            if file.size >= (_SORTED_BYTES if self._parsed.sort else FILE_BYTES):
                self._done.append(self._open.pop(key).close())
        self._bound_memory()

    def finish(self) -> list[DataFile]:
        """Completes the files; all of them are durable afterwards."""
        self._close_all()
        if self._in_memory:
            return self._done
        sync_files(file.file_path for file in self._done)
        return self._done

    def abandon(self) -> None:
        """Removes what was written, as far as that is possible: the task has failed."""
        for file in self._open.values():
            file.abandon()
        discard_files(self._parsed.io, [f.file_path for f in self._done])

    def _close_all(self) -> None:
        while self._open:
            self._done.append(self._open[next(iter(self._open))].close())
            del self._open[next(iter(self._open))]

    def _bound_memory(self) -> None:
        held = sum(f.held for f in self._open.values())
        for file in sorted(self._open.values(), key=lambda f: -f.held):
            if held <= 2 * ROW_GROUP_BYTES or self._parsed.sort:
                break
            held -= file.held
            file.flush()
        if self._parsed.sort and held > 2 * _SORTED_BYTES:
            self._close_all()

    def _split(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        """Splits rows by partition; each part keeps their order."""
        load_target = self._parsed
        if not load_target.spec.fields or not rows.num_rows:
            if rows.num_rows:
                yield (), rows
            return
        values, codes = [], np.zeros(rows.num_rows, np.int64)
        for f in load_target.spec.fields:
            source = load_target.schema.find_field(f.source_id)
            column = _column(rows, load_target.schema.find_column_name(f.source_id) or source.name)
            value = f.transform.pyarrow_transform(source.field_type)(column)
            value = value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value
            encoded = value.dictionary_encode(null_encoding="encode")
            values.append(encoded.dictionary)
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        if all(len(v) == 1 for v in values):
            yield tuple(v[0].as_py() for v in values), rows
            return
        for code in np.unique(codes):
            rest, key = int(code), []
            for v in reversed(values):
                rest, at = divmod(rest, len(v))
                key.append(v[at].as_py())
            yield tuple(reversed(key)), rows.take(pa.array(np.flatnonzero(codes == code)))


def _column(rows: pa.Table, path: str) -> pa.ChunkedArray:
    first, *rest = path.split(".")
    column = rows.column(first)
    return pc.struct_field(column, rest) if rest else column


class _OpenFile:
    """One data file while it grows. Rows are held until they make a row group, or until the end to be sorted."""

    def __init__(self, load_target: _LoadedTarget, key: tuple[Any, ...], name: str, *, in_memory: bool) -> None:
        self._parsed = load_target
        self._in_memory = in_memory
        self._partition = _partition_key(load_target, key) if key else None
        file_name = f"{name}-{uuid.uuid4()}.parquet"
        self.path = load_target.locations.new_data_location(file_name, self._partition)
        self.size = 0
        self.held = 0
        self._rows: list[pa.Table] = []
        self._stream: Any = None
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        size = rows.nbytes
        self.size += size
        self.held += size
        if self.held >= ROW_GROUP_BYTES and not self._parsed.sort:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        rows = pa.concat_tables(self._rows)
        self._rows, held, self.held = [], self.held, 0
        if self._parsed.sort:
            rows = _sorted(rows, self._parsed.sort)
        groups = max(1, round(held / ROW_GROUP_BYTES))
        with _translate_write_errors(self.path):
            if self._writer is None:
                self._stream = self._create()
                self._writer = pq.ParquetWriter(self._stream, self._parsed.arrow, **self._parsed.options)
            self._writer.write_table(rows, row_group_size=max(1, -(-rows.num_rows // groups)))

    def _create(self) -> Any:
        if self._in_memory:
            return pa.BufferOutputStream()
        return self._parsed.io.new_output(self.path).create(overwrite=True)

    def close(self) -> DataFile:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        self.flush()
        assert self._writer is not None
        with _translate_write_errors(self.path):
            self._writer.close()
            size = self._stream.tell()
            self._stream.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=self._partition.partition if self._partition else Record(),
            file_size_in_bytes=size,
            sort_order_id=self._parsed.order.order_id,
            spec_id=self._parsed.spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **_statistics(self._parsed, self._writer.writer.metadata),
        )

    def abandon(self) -> None:
        """Does not fail: the error that led here counts, and other files are to be abandoned too."""
        if self._writer is not None:
            self._writer.is_open = False  # else it writes a footer when it is collected, into a stream that is closed
        if self._stream is not None:
            with suppress(Exception):
                self._stream.close()
            discard_files(self._parsed.io, [self.path])


def _statistics(load_target: _LoadedTarget, metadata: pq.FileMetaData) -> dict[str, Any]:
    """Statistics of a data file. A column whose bounds PyIceberg cannot compute has only counts.

    It fails on text whose sixteenth character is U+D7FF, because the next higher one is no character.
    """
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        StatisticsCollector,
        data_file_statistics_from_parquet_metadata,
    )

    def collect(plans: dict[int, StatisticsCollector]) -> dict[str, Any]:
        found = data_file_statistics_from_parquet_metadata(metadata, plans, load_target.ids_by_path)
        return found.to_serialized_dict()

    try:
        return collect(load_target.statistics)
    except (ValueError, OverflowError):
        counts = MetricsMode(MetricModeTypes.COUNTS)
        plans = {number: replace(plan, mode=counts) for number, plan in load_target.statistics.items()}
        found = collect(plans)
        for number, plan in load_target.statistics.items():
            with suppress(ValueError, OverflowError):
                found = collect(plans | {number: plan})
                plans[number] = plan
        return found


class NotWrittenError(UnavailableError):
    """The storage did not accept a file. The pipeline counts this as a failure of that server."""


@contextmanager
def _translate_write_errors(path: str) -> Iterator[None]:
    """Says which file could not be written, and why, in words that reach the status of the topic."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = UnavailableError if is_access_denied(error) else NotWrittenError
        raise kind(
            f"no space left for {path}" if is_full else f"{path} could not be written",
            cause=first_line(error),
            hint="free some space; the batch is begun again" if is_full else "the batch is begun again; frazil doctor",
        ) from error


def _partition_key(load_target: _LoadedTarget, key: tuple[Any, ...]) -> PartitionKey:
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

    values = [PartitionFieldValue(f, value) for f, value in zip(load_target.spec.fields, key, strict=True)]
    return PartitionKey(field_values=values, partition_spec=load_target.spec, schema=load_target.schema)


def _sorted(rows: pa.Table, fields: list[tuple[str, Any, bool, bool]]) -> pa.Table:
    keys: dict[str, Any] = {}
    order: list[tuple[str, str]] = []
    for i, (name, transform, descending, nulls_first) in enumerate(fields):
        value = transform(_column(rows, name))
        keys |= {f"null{i}": pc.is_null(value), f"value{i}": value}
        order.append((f"null{i}", "descending" if nulls_first else "ascending"))
        order.append((f"value{i}", "descending" if descending else "ascending"))
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=order))


def discard_files(io: FileIO, paths: list[str]) -> None:
    """Deletes files that no commit refers to. What cannot be deleted costs room, not rows: upkeep finds it."""
    for path in paths:
        try:
            io.delete(path)
        except Exception:  # noqa: BLE001, S112 - each file system fails in its own way, and the error that led here counts
            continue
