"""Writes manifests and manifest lists: encoded in memory, then put in place with one request each."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    construct_partition_summaries,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import PrimitiveType

from frazil.errors import IntegrityError
from frazil.observe.faultpoints import reach
from frazil.tables.metadata.avro import AvroBlock, AvroFile, AvroWriter, long, read_avro, read_long, single_records

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables.store import TableStore

_VERSION: TableVersion = 2
_EXISTING = long(ManifestEntryStatus.EXISTING)
#: The second branch of a union of null and a long.
_SOME = long(1)


class ManifestWriter:
    """Makes the metadata files of one attempt to commit, and knows which it has made.

    Attributes:
        snapshot_id: of the snapshot to be.
        sequence: its sequence number.
        written: the paths of all files made so far.
    """

    def __init__(self, store: TableStore, table: Table) -> None:
        self._store = store
        self._table = table
        self._schema = table.schema()
        self._kinds: dict[tuple[int, ManifestContent], _Kind] = {}
        self._io: FileIO = table.io
        self._locations = table.location_provider()
        self._uuid = uuid.uuid4()
        self._numbers = itertools.count()
        self._codec = table.metadata.properties.get("write.avro.compression-codec", "gzip")
        self.snapshot_id = table.metadata.new_snapshot_id()
        self.sequence = table.metadata.next_sequence_number()
        self.written: list[str] = []

    def entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Reads the live entries of a manifest, with inherited values."""
        return self._store.call(
            lambda: manifest.fetch_manifest_entry(self._io, discard_deleted=True), "read_manifest", "storage"
        )

    def added(self, spec_id: int, files: Sequence[DataFile]) -> ManifestFile:
        """Writes a manifest of new files, either all data or all delete files.

        Their sequence numbers are left unset: they inherit the commit's.
        """
        status = ManifestEntryStatus.ADDED
        entries = [_entry(status, self.snapshot_id, None, None, file) for file in files]
        return self._write(spec_id, entries, get_manifest_content(files[0]))

    def rewritten(
        self, spec_id: int, existing: Iterable[ManifestEntry], deleted: Iterable[ManifestEntry]
    ) -> ManifestFile:
        """Rewrites an older manifest, with the entries that this snapshot deletes."""
        return self._write(spec_id, [*map(_existing, existing), *(self._deleted(e) for e in deleted)])

    def _deleted(self, entry: ManifestEntry) -> ManifestEntry:
        numbers = entry.sequence_number, entry.file_sequence_number
        return _entry(ManifestEntryStatus.DELETED, self.snapshot_id, *numbers, entry.data_file)

    def merged(self, spec_id: int, manifests: Sequence[ManifestFile]) -> ManifestFile:
        """Merges the live entries of several manifests of the same content type, each as it was added."""
        about = manifests[0].content
        form = self._kind(spec_id, about).format
        packed: list[AvroBlock] = []
        loose: list[bytes] = []
        for manifest in manifests:
            content = self._content(manifest)
            if not manifest.has_added_files() and not manifest.deleted_files_count and form.takes(content):
                # Every entry says all about itself, so that blocks can be taken as they are.
                packed += content.blocks
            else:
                loose += self._as_existing(form, manifest, content)
        blocks = packed + form.blocks(loose)
        rows = sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in manifests)
        return self._put_manifest(
            spec_id,
            blocks,
            content=about,
            existing=(sum(block.count for block in blocks), rows),
            least=min(m.min_sequence_number for m in manifests),
            partitions=_united(self._table.metadata.specs()[spec_id], self._schema, manifests),
        )

    def _as_existing(self, form: AvroWriter, manifest: ManifestFile, content: AvroFile) -> list[bytes]:
        encoded = None
        if not manifest.deleted_files_count and form.takes(content):
            encoded = single_records(content)
        if encoded is None:
            living = self.entries(manifest)
            if len(living) != count_entries(manifest) - (manifest.deleted_files_count or 0):
                raise _damaged(manifest)
            return [form.encode(_existing(entry)) for entry in living]
        return [convert_to_existing(data, manifest) for data in encoded]

    def manifest_list(self, manifests: Sequence[ManifestFile], parent_id: int | None) -> str:
        """Writes the list and returns its path. New manifests get their sequence numbers by it."""
        for manifest in manifests:
            if manifest.sequence_number == _OPEN:
                manifest.sequence_number = self.sequence
            if manifest.min_sequence_number == _OPEN:
                manifest.min_sequence_number = self.sequence
        form = _list_format(self._codec)
        meta = {
            "snapshot-id": str(self.snapshot_id),
            "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
            "sequence-number": str(self.sequence),
            "format-version": str(_VERSION),
        }
        path = self._locations.new_metadata_location(f"snap-{self.snapshot_id}-0-{self._uuid}.avro")
        self._put(path, form.file(meta, form.blocks([form.encode(m) for m in manifests])))
        return path

    def _write(
        self, spec_id: int, entries: Sequence[ManifestEntry], content: ManifestContent = ManifestContent.DATA
    ) -> ManifestFile:
        form = self._kind(spec_id, content).format
        spec, schema = self._table.metadata.specs()[spec_id], self._schema
        known = [e.sequence_number for e in entries if e.sequence_number is not None and e.status != _DELETED]
        return self._put_manifest(
            spec_id,
            # One entry in each block: a merge then finds their borders without decoding them.
            [form.block([form.encode(entry)]) for entry in entries],
            content=content,
            added=_count(entries, ManifestEntryStatus.ADDED),
            existing=_count(entries, ManifestEntryStatus.EXISTING),
            deleted=_count(entries, _DELETED),
            least=min(known, default=_OPEN),
            partitions=construct_partition_summaries(spec, schema, [e.data_file.partition for e in entries]),
        )

    def _put_manifest(
        self,
        spec_id: int,
        blocks: Sequence[AvroBlock],
        *,
        content: ManifestContent,
        least: int,
        partitions: list[PartitionFieldSummary],
        added: tuple[int, int] = (0, 0),
        existing: tuple[int, int] = (0, 0),
        deleted: tuple[int, int] = (0, 0),
    ) -> ManifestFile:
        kind = self._kind(spec_id, content)
        data = kind.format.file(kind.meta, blocks)
        path = self._locations.new_metadata_location(f"{self._uuid}-m{next(self._numbers)}.avro")
        self._put(path, data)
        return ManifestFile.from_args(
            manifest_path=path,
            manifest_length=len(data),
            partition_spec_id=spec_id,
            content=content,
            sequence_number=_OPEN,
            min_sequence_number=least,
            added_snapshot_id=self.snapshot_id,
            added_files_count=added[0],
            existing_files_count=existing[0],
            deleted_files_count=deleted[0],
            added_rows_count=added[1],
            existing_rows_count=existing[1],
            deleted_rows_count=deleted[1],
            partitions=partitions,
            key_metadata=None,
        )

    def _kind(self, spec_id: int, content: ManifestContent) -> _Kind:
        if (spec_id, content) not in self._kinds:
            spec = self._table.metadata.specs()[spec_id].model_dump_json()
            self._kinds[spec_id, content] = _kind(self._schema.model_dump_json(), spec, self._codec, content)
        return self._kinds[spec_id, content]

    def _content(self, manifest: ManifestFile) -> AvroFile:
        def read() -> bytes:
            with self._io.new_input(manifest.manifest_path).open() as stream:
                return stream.read()

        try:
            content = read_avro(self._store.call(read, "read_manifest", "storage"))
        except ValueError as error:
            raise _damaged(manifest) from error
        if sum(block.count for block in content.blocks) != count_entries(manifest):
            raise _damaged(manifest)
        return content

    def _put(self, path: str, data: bytes) -> None:
        def write() -> None:
            with self._io.new_output(path).create(overwrite=True) as stream:
                stream.write(data)

        self.written.append(path)
        reach("tables.commit.write.before")
        self._store.call(write, "write_manifest", "storage")
        reach("tables.commit.write.after")


_OPEN = -1
_DELETED = ManifestEntryStatus.DELETED


def convert_to_existing(data: bytes, manifest: ManifestFile) -> bytes:
    """Encodes an entry with status EXISTING and with the values that it inherits from its manifest."""
    _, at = read_long(data, 0)
    inherited = manifest.added_snapshot_id, manifest.sequence_number, manifest.sequence_number
    parts = [_EXISTING]
    for value in inherited:
        is_some, at = read_long(data, at)
        found = value
        if is_some:
            found, at = read_long(data, at)
        assert found is not None
        parts += [_SOME, long(found)]
    return b"".join((*parts, data[at:]))


def get_manifest_content(file: DataFile) -> ManifestContent:
    """Returns the content type of the manifests that list a file."""
    return ManifestContent.DATA if file.content == DataFileContent.DATA else ManifestContent.DELETES


def count_entries(manifest: ManifestFile) -> int:
    counts = manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count
    return sum(count or 0 for count in counts)


def _damaged(manifest: ManifestFile) -> IntegrityError:
    return IntegrityError(
        f"the manifest {manifest.manifest_path} does not match its manifest list",
        cause=f"it should have {count_entries(manifest)} entries",
        hint="restore the table from a backup, or roll it back to a snapshot without this manifest",
    )


def _existing(entry: ManifestEntry) -> ManifestEntry:
    numbers = entry.sequence_number, entry.file_sequence_number
    return _entry(ManifestEntryStatus.EXISTING, entry.snapshot_id, *numbers, entry.data_file)


def _entry(
    status: ManifestEntryStatus,
    snapshot_id: int | None,
    sequence: int | None,
    file_sequence: int | None,
    file: DataFile,
) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=sequence,
        file_sequence_number=file_sequence,
        data_file=file,
    )


def _count(entries: Sequence[ManifestEntry], status: ManifestEntryStatus) -> tuple[int, int]:
    found = [entry.data_file.record_count for entry in entries if entry.status == status]
    return len(found), sum(found)


@dataclass(frozen=True)
class _Kind:
    """How manifests of one schema and spec are written."""

    format: AvroWriter
    meta: dict[str, str]


@lru_cache(maxsize=64)
def _kind(schema_json: str, spec_json: str, codec: str, content: ManifestContent) -> _Kind:
    # By their text: PyIceberg's schemas and specs cannot be hashed.
    schema, spec = Schema.model_validate_json(schema_json), PartitionSpec.model_validate_json(spec_json)
    partition = spec.partition_type(schema)

    def entries(version: TableVersion) -> Schema:
        return manifest_entry_schema_with_data_file(version, data_file_with_partition(partition, version))

    meta = {
        "schema": schema_json,
        "partition-spec": to_json(spec.fields).decode(),
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(_VERSION),
        "content": "data" if content == ManifestContent.DATA else "deletes",
    }
    return _Kind(AvroWriter("manifest_entry", entries(DEFAULT_READ_VERSION), entries(_VERSION), codec), meta)


@cache
def _list_format(codec: str) -> AvroWriter:
    schemas = MANIFEST_LIST_FILE_SCHEMAS
    return AvroWriter("manifest_file", schemas[DEFAULT_READ_VERSION], schemas[_VERSION], codec)


def _united(spec: PartitionSpec, schema: Schema, manifests: Sequence[ManifestFile]) -> list[PartitionFieldSummary]:
    """Merges the partition summaries of several manifests."""
    found = []
    for i, field in enumerate(spec.partition_type(schema).fields):
        kind = field.field_type
        assert isinstance(kind, PrimitiveType)
        parts = [m.partitions[i] for m in manifests if m.partitions]
        lowest = [from_bytes(kind, p.lower_bound) for p in parts if p.lower_bound is not None]
        highest = [from_bytes(kind, p.upper_bound) for p in parts if p.upper_bound is not None]
        # If one manifest has no bounds, the union has none.
        known = len(parts) == len(manifests)
        found.append(
            PartitionFieldSummary(
                not known or any(p.contains_null for p in parts),
                None if any(p.contains_nan is None for p in parts) else any(p.contains_nan for p in parts),
                _bound(kind, min, lowest) if known else None,
                _bound(kind, max, highest) if known else None,
            )
        )
    return found


def _bound(kind: PrimitiveType, pick: Any, values: list[Any]) -> bytes | None:
    return to_bytes(kind, pick(values)) if values else None
