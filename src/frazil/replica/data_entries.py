"""Makes manifest entries of replicated Parquet files, all for the same columns, before anything changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from frazil.errors import FrazilError, UsageError
from frazil.replica.places import needs_jvm, open_files, s3_of
from frazil.tables.errors import SchemaMismatchError
from frazil.tables.layout import parse_partition_spec
from frazil.tables.metadata.locations import UriStorage
from frazil.tables.registration.columns import FileColumns, assign_ids, find_other_id, unite
from frazil.tables.registration.data_file_entries import (
    Entry,
    EntryTask,
    OtherColumns,
    RefusedFile,
    TableColumns,
    make_entries,
    read_entries_of,
)
from frazil.tables.registration.footers import UnusableFile
from frazil.tables.registration.partition_values import folder_spec, infer_type, parse_folders
from frazil.tables.schema_evolution import find_changes, preview_schema

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from frazil.observe.progress import Progress
    from frazil.replica.data_files import DataFileTable
    from frazil.tables.relocation.engine import Engine
    from frazil.upkeep.context import UpkeepContext

#: Files of one task.
_BATCH = 64
#: Files that a new table's columns are inferred from at first.
_SAMPLE = 16

File = tuple[str, int]


@dataclass
class GatheredFiles:
    """What became of the files.

    Attributes:
        entries: of files to register.
        unusable: files that cannot be, or not yet.
        schema: of the table that the entries are for; None if there is neither table nor file.
        spec: its partitions.
        columns_added: that the table does not have yet.
    """

    entries: list[DataFile] = field(default_factory=list)
    unusable: list[UnusableFile] = field(default_factory=list)
    schema: Schema | None = None
    spec: PartitionSpec | None = None
    columns_added: tuple[str, ...] = ()

    @property
    def empty(self) -> set[str]:
        """Paths of the files without rows."""
        return {one.path for one in self.unusable if one.kind == "empty"}

    @property
    def is_final(self) -> bool:
        """Whether no file may become usable without another size."""
        return not any(one.kind in ("waiting", "damaged") for one in self.unusable)


def gather_files(
    care: UpkeepContext,
    config: DataFileTable,
    files: list[File],
    table: Table | None,
    engine: Engine,
    progress: Progress | None,
) -> GatheredFiles:
    """Reads footers until all files are entries for the same columns.

    Args:
        care: of the replica's catalog.
        config: what to replicate.
        files: paths and sizes.
        table: as it is; None: it does not exist yet.
        engine: that reads them.
        progress: receives counts of what is done.

    Raises:
        SchemaMismatchError: columns of two files, or of a file and the table, do not fit.
        PartitionError: the partition of a file cannot be known.
    """
    reader = _Reader(care, config.replicated_path, engine, progress)
    if table is None:
        return _gather_for_new(reader, config, files)
    spec = table.spec()
    if config.partition_by:
        _require_same_spec(table, config)
    found = GatheredFiles(schema=table.schema(), spec=spec)
    properties = dict(table.metadata.properties)
    others = reader.read(files, TableColumns.of(table), found)
    if others:
        found.schema = _preview(table, others)
        found.columns_added = tuple(
            ".".join(path) for path, _, is_new in find_changes(table.schema(), found.schema, widen=True) if is_new
        )
        sizes = dict(files)
        left = [(other.path, sizes[other.path]) for other in others]
        reader.read(left, TableColumns.make(found.schema, spec, properties), found)
    return found


def _preview(table: Table, others: list[OtherColumns]) -> Schema:
    """The table's schema with all columns of these files."""
    wanted = _unite(table.schema(), others)
    schema = preview_schema(table, wanted)
    for other in _distinct(others):
        if cause := find_other_id(schema, other.columns.ids):
            raise SchemaMismatchError(
                f"{other.path} does not fit the table", cause=cause, hint="write the file without field ids"
            )
    return schema


def _gather_for_new(reader: _Reader, config: DataFileTable, files: list[File]) -> GatheredFiles:
    samples = reader.sample(files)
    if not samples:  # all of the first ones are unusable
        found = GatheredFiles()
        samples = reader.read(files, _NO_COLUMNS, found)
        if not samples:
            return found
    while True:
        schema, spec = _infer(config, samples, [path for path, _ in files])
        found = GatheredFiles(schema=schema, spec=spec)
        others = reader.read(files, TableColumns.make(schema, spec, {}), found)
        if not others:
            return found
        samples += others


def _infer(config: DataFileTable, samples: list[OtherColumns], paths: list[str]) -> tuple[Schema, PartitionSpec]:
    """Columns and partitions of a new table."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    schema = _unite(Schema(), samples)
    start = len(config.replicated_path) + 1
    # Only of what is Parquet: a stray file lies in no folder that counts. Each entry is checked against it later.
    names = list(dict.fromkeys(name for sample in samples for name in parse_folders(sample.path[start:])))
    values: dict[str, set[str | None]] = {name: set() for name in names}
    for path in paths:
        for name, value in parse_folders(path[start:]).items():
            if name in values:
                values[name].add(value)
    named = {field.name for field in schema.fields}
    chosen = [name for name in names if not config.partition_by or name in config.partition_by]
    added = [NestedField(-1, name, infer_type(values[name]), required=False) for name in chosen if name not in named]
    ids: dict[str, int] = {}
    for sample in _distinct(samples):
        ids |= sample.columns.ids
    schema = assign_ids(Schema(*schema.fields, *added), ids)
    for sample in _distinct(samples):
        if cause := find_other_id(schema, sample.columns.ids):
            raise SchemaMismatchError(
                f"field ids of {sample.path} differ from those of other files",
                cause=cause,
                hint="write the files without field ids",
            )
    if config.partition_by:
        return schema, parse_partition_spec(schema, config.partition_by)
    return schema, folder_spec(schema, chosen)


def _unite(schema: Schema, others: Iterable[OtherColumns]) -> Schema:
    for other in _distinct(others):
        try:
            schema = unite(schema, other.columns.schema)
        except SchemaMismatchError as error:
            raise _refuse(other.path, error) from error
    return schema


def _distinct(others: Iterable[OtherColumns]) -> Iterator[OtherColumns]:
    """One file for each set of columns."""
    seen: list[FileColumns] = []
    for other in others:
        if other.columns not in seen:
            seen.append(other.columns)
            yield other


def _refuse(path: str, error: FrazilError) -> FrazilError:
    kind = type(error)
    cause = error.message if error.cause is None else f"{error.message}: {error.cause}"
    return kind(f"{path} does not fit the table", cause=cause, hint=error.hint)


def _require_same_spec(table: Table, config: DataFileTable) -> None:
    wanted = parse_partition_spec(table.schema(), config.partition_by)
    have = [(f.source_id, f.transform) for f in table.spec().fields]
    if have != [(f.source_id, f.transform) for f in wanted.fields]:
        raise UsageError(
            f"{config.name} is not partitioned by {', '.join(config.partition_by)}",
            cause=f"it is by {', '.join(f.name for f in table.spec().fields) or 'nothing'}",
            hint="leave the partitions of a table as they are, or make it anew",
        )


class _Reader:
    """Reads footers by the engine; on this machine alone where only Spark's JVM opens the files, as on HDFS."""

    def __init__(self, care: UpkeepContext, root: str, engine: Engine, progress: Progress | None) -> None:
        self._care, self._root, self._engine, self._progress = care, root, engine, progress
        self._is_plain = not needs_jvm(root)
        self._storage = UriStorage(s3_of(care), care.settings.model.network, (root,))

    def sample(self, files: list[File]) -> list[OtherColumns]:
        """Columns of some files."""
        if len(files) <= _SAMPLE:
            chosen = files
        else:
            chosen = [files[i * (len(files) - 1) // (_SAMPLE - 1)] for i in range(_SAMPLE)]
        return [e for e in self._read_here(chosen, _NO_COLUMNS) if isinstance(e, OtherColumns)]

    def read(self, files: list[File], columns: TableColumns, found: GatheredFiles) -> list[OtherColumns]:
        """Adds to what was found, and returns files that have further columns."""
        others: list[OtherColumns] = []
        refused: list[RefusedFile] = []
        if self._progress is not None:
            self._progress.begin("footers", files=len(files))
        for batch in self._batches(files, columns):
            for entry in batch:
                if isinstance(entry, OtherColumns):
                    others.append(entry)
                elif isinstance(entry, RefusedFile):
                    refused.append(entry)
                elif isinstance(entry, UnusableFile):
                    found.unusable.append(entry)
                else:
                    found.entries.append(entry)
            if self._progress is not None:
                self._progress.advance(len(batch))
        if self._progress is not None:
            self._progress.end()
        if refused:
            first = min(refused, key=lambda one: one.path)
            error = _refuse(first.path, first.error)
            if len(refused) > 1:
                error = error.adding(f"{len(refused) - 1} other files do not either", refused=[r.path for r in refused])
            raise error
        found.entries.sort(key=lambda entry: entry.file_path)
        return sorted(others, key=lambda other: other.path)

    def _batches(self, files: list[File], columns: TableColumns) -> Iterator[list[Entry]]:
        if not self._is_plain:
            for batch in _batched(files):
                yield self._read_here(list(batch), columns)
            return
        tasks = (EntryTask(batch, self._root, columns, self._storage) for batch in _batched(files))
        yield from self._engine.map(make_entries, tasks, kind="cpu")

    def _read_here(self, files: list[File], columns: TableColumns) -> list[Entry]:
        if self._is_plain:
            return make_entries(EntryTask(tuple(files), self._root, columns, self._storage))
        return list(read_entries_of(open_files(self._care, self._root).read_range, files, self._root, columns))


def _batched(files: list[File]) -> Iterator[tuple[File, ...]]:
    remaining = iter(files)
    while batch := tuple(itertools.islice(remaining, _BATCH)):
        yield batch


def _no_columns() -> TableColumns:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

    return TableColumns.make(Schema(), PartitionSpec(), {})


_NO_COLUMNS = _no_columns()
