"""Makes the manifest entry of a data file from its footer: partition, counts and bounds, so that scans can skip it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    StatisticsCollector,
    StatsAggregator,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, NestedField, PrimitiveType
from pyiceberg.utils.decimal import unscaled_to_decimal

from frazil.errors import FrazilError, NotFoundError
from frazil.tables.errors import SchemaMismatchError
from frazil.tables.metadata.locations import UriStorage
from frazil.tables.registration.columns import FileColumns, find_other_id, read_columns
from frazil.tables.registration.footers import ReadRange, UnusableFile, read_footer
from frazil.tables.registration.partition_values import ColumnRange, find_partition, parse_folders
from frazil.tables.schema_evolution import find_changes

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyiceberg.table import Table

#: Footers of one task that are read at a time.
_READS = 8
#: What PyArrow and PyIceberg raise where a footer's statistics cannot be bounds.
_NO_BOUND = (ValueError, TypeError, OverflowError, NotImplementedError, AttributeError)


@dataclass(frozen=True)
class TableColumns:
    """What must be known of a table to make entries for it. Small, and can be sent to other processes."""

    schema: str
    spec: str
    properties: str

    @classmethod
    def of(cls, table: Table) -> TableColumns:
        return cls.make(table.schema(), table.spec(), dict(table.metadata.properties))

    @classmethod
    def make(cls, schema: Schema, spec: PartitionSpec, properties: dict[str, str]) -> TableColumns:
        metrics = {k: v for k, v in properties.items() if k.startswith("write.metadata.metrics.")}
        return cls(schema.model_dump_json(), spec.model_dump_json(), json.dumps(metrics, sort_keys=True))


@dataclass(frozen=True)
class OtherColumns:
    """A file whose columns the table does not have yet, or not in that type."""

    path: str
    columns: FileColumns


@dataclass(frozen=True)
class RefusedFile:
    """A file that cannot be part of the table as it is."""

    path: str
    error: FrazilError


Entry = DataFile | OtherColumns | RefusedFile | UnusableFile


@dataclass(frozen=True)
class EntryTask:
    """Files to make entries for.

    Attributes:
        files: paths and sizes.
        root: the folder that holds them; names of folders below it are partition values.
        columns: of the table.
        storage: opens the files.
    """

    files: tuple[tuple[str, int], ...]
    root: str
    columns: TableColumns
    storage: UriStorage


def make_entries(task: EntryTask) -> list[Entry]:
    """Reads footers and returns what becomes of each file: its entry, or why it has none."""
    return list(read_entries_of(range_reader(task.storage), task.files, task.root, task.columns))


def range_reader(storage: UriStorage) -> ReadRange:
    """Returns a function that reads parts of files in a storage."""

    def read(path: str, start: int, length: int) -> bytes:
        store, key = storage.find(path)
        return store.get_range(key, start, length)

    return read


def read_entries_of(
    read: ReadRange, files: Iterable[tuple[str, int]], root: str, columns: TableColumns
) -> Iterator[Entry]:
    """Yields the entry of each file, with footers read a few at a time."""
    loaded = _load(columns)

    def footer(file: tuple[str, int]) -> pq.FileMetaData | UnusableFile:
        try:
            return read_footer(read, *file)
        except NotFoundError:
            return UnusableFile(file[0], "waiting", "it was removed since it was listed")

    with ThreadPoolExecutor(_READS, "frazil-footers") as pool:
        for (path, size), found in zip(files, pool.map(footer, files), strict=True):
            yield found if isinstance(found, UnusableFile) else _entry(loaded, path, size, root, found)


class _LoadedColumns:
    def __init__(self, columns: TableColumns) -> None:
        self.schema = Schema.model_validate_json(columns.schema)
        self.spec = PartitionSpec.model_validate_json(columns.spec)
        self.plan = compute_statistics_plan(self.schema, json.loads(columns.properties))
        self.ids_by_path = parquet_path_to_id_mapping(self.schema)
        self.sources = {field.source_id for field in self.spec.fields}
        self.required = [field for field in self.schema.fields if field.required]
        self._fits: dict[int, tuple[FileColumns, FrazilError | bool]] = {}

    def compare(self, columns: FileColumns) -> FrazilError | bool:
        """Whether a file has no more columns than the table; or why it cannot be part of it."""
        # Columns are cached by their text, so that files with the same ones have the same object.
        known = self._fits.get(id(columns))
        if known is None or known[0] is not columns:
            known = self._fits[id(columns)] = columns, self._compare(columns)
        return known[1]

    def _compare(self, columns: FileColumns) -> FrazilError | bool:
        try:
            has_new = bool(find_changes(self.schema, columns.schema, widen=True))
        except SchemaMismatchError as error:
            return error
        if other := find_other_id(self.schema, columns.ids):
            return SchemaMismatchError(other, hint="write the file without field ids")
        names = {field.name for field in columns.schema.fields}
        for field in self.required:
            if field.name not in names:
                return SchemaMismatchError(
                    f"it lacks the column '{field.name}', which the table requires", hint="make the column optional"
                )
        return not has_new


@lru_cache(maxsize=16)
def _load(columns: TableColumns) -> _LoadedColumns:
    return _LoadedColumns(columns)


def _entry(loaded: _LoadedColumns, path: str, size: int, root: str, metadata: pq.FileMetaData) -> Entry:
    try:
        columns = read_columns(metadata)
        fits = loaded.compare(columns)
        if isinstance(fits, FrazilError):
            return RefusedFile(path, fits)
        if not fits:
            return OtherColumns(path, columns)
        found = _collect(loaded, metadata)
        _require_values(loaded.required, found.ranges)
        relative = path.removeprefix(f"{root}/")
        partition = find_partition(loaded.spec, loaded.schema, parse_folders(relative), found.ranges)
    except FrazilError as error:
        return RefusedFile(path, error)
    entry = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=metadata.num_rows,
        file_size_in_bytes=size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **found.fields,
    )
    entry.spec_id = loaded.spec.spec_id
    return entry


def _require_values(required: Iterable[NestedField], ranges: dict[int, ColumnRange]) -> None:
    for field in required:
        found = ranges.get(field.field_id)
        if found is not None and found.nulls != 0:
            raise SchemaMismatchError(
                f"the column '{field.name}' may have nulls, and the table requires a value",
                hint="make the column optional",
            )


@dataclass(frozen=True)
class _Statistics:
    fields: dict[str, Any]
    ranges: dict[int, ColumnRange]


def _collect(loaded: _LoadedColumns, metadata: pq.FileMetaData) -> _Statistics:
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    ranges: dict[int, ColumnRange] = {}
    offsets = []
    for position in range(metadata.num_columns):
        chunks = [group.column(position) for group in groups]
        if position == 0:
            offsets = sorted(_first_page(chunk) for chunk in chunks)
        number = loaded.ids_by_path.get(chunks[0].path_in_schema)
        if number is None:  # an element of a list as old writers name it
            continue
        plan = loaded.plan[number]
        sizes[number] = sum(chunk.total_compressed_size for chunk in chunks)
        mode = plan.mode.type
        if mode != MetricModeTypes.NONE:
            values[number] = sum(chunk.num_values for chunk in chunks)
        statistics = [chunk.statistics if chunk.is_stats_set else None for chunk in chunks]
        missing = _count_nulls(statistics)
        if mode != MetricModeTypes.NONE and missing is not None:
            nulls[number] = missing
        is_source = number in loaded.sources
        bounds = None
        if is_source or mode not in (MetricModeTypes.NONE, MetricModeTypes.COUNTS):
            bounds = _find_bounds(plan.iceberg_type, statistics)
        low, high = bounds or (None, None)
        ranges[number] = ColumnRange(low, high, missing, metadata.num_rows)
        if bounds is not None and mode not in (MetricModeTypes.NONE, MetricModeTypes.COUNTS):
            _encode(plan, chunks[0].physical_type, bounds, lower, upper)
    return _Statistics(
        {
            "column_sizes": sizes,
            "value_counts": values,
            "null_value_counts": nulls,
            "nan_value_counts": {},
            "lower_bounds": lower,
            "upper_bounds": upper,
            "split_offsets": offsets,
        },
        ranges,
    )


def _first_page(chunk: pq.ColumnChunkMetaData) -> int:
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    return int(min(dictionary, chunk.data_page_offset) if dictionary else chunk.data_page_offset)


def _count_nulls(statistics: list[pq.Statistics | None]) -> int | None:
    total = 0
    for found in statistics:
        if found is None or not found.has_null_count:
            return None
        total += found.null_count
    return total


def _find_bounds(kind: PrimitiveType, statistics: list[pq.Statistics | None]) -> tuple[Any, Any] | None:
    """Returns the lowest and highest value; None if a row group with values has no usable bounds."""
    lowest = highest = None
    for found in statistics:
        if found is None:
            return None
        if not found.has_min_max:
            if found.has_null_count and found.num_values == 0:
                continue  # all null
            return None
        try:
            low, high = _read_bounds(kind, found)
        except _NO_BOUND:
            return None
        if low is None or high is None:
            return None
        lowest = low if lowest is None else min(low, lowest)
        highest = high if highest is None else max(high, highest)
    if lowest is None or highest is None:
        return None
    if isinstance(kind, (FloatType, DoubleType)):
        # Old writers count NaN, and no writer need tell -0.0 from 0.0.
        if math.isnan(lowest) or math.isnan(highest):
            return None
        return (-0.0 if lowest == 0 else lowest), (0.0 if highest == 0 else highest)
    return lowest, highest


def _read_bounds(kind: PrimitiveType, found: pq.Statistics) -> tuple[Any, Any]:
    if isinstance(kind, DecimalType) and found.physical_type != "FIXED_LEN_BYTE_ARRAY":
        if found.physical_type not in ("INT32", "INT64"):
            return None, None
        return unscaled_to_decimal(found.min_raw, kind.scale), unscaled_to_decimal(found.max_raw, kind.scale)
    return found.min, found.max


def _encode(
    plan: StatisticsCollector,
    physical: str,
    bounds: tuple[Any, Any],
    lower: dict[int, bytes],
    upper: dict[int, bytes],
) -> None:
    """Sets both bounds as the table wants them: long ones are cut. One that cannot be expressed is left out."""
    if plan.mode.length is None:
        kind = plan.iceberg_type
        try:
            StatsAggregator(kind, physical)
            pair = to_bytes(kind, bounds[0]), to_bytes(kind, bounds[1])
        except _NO_BOUND:
            return
        lower[plan.field_id], upper[plan.field_id] = pair
        return
    try:
        aggregate = StatsAggregator(plan.iceberg_type, physical, plan.mode.length)
    except ValueError:
        return
    aggregate.update_min(bounds[0])
    aggregate.update_max(bounds[1])
    for target, encode in ((lower, aggregate.min_as_bytes), (upper, aggregate.max_as_bytes)):
        try:
            encoded = encode()
        except _NO_BOUND:  # text whose next higher one is no character
            continue
        if encoded is not None:
            target[plan.field_id] = encoded
