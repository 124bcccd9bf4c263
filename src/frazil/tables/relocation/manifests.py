"""Relocates manifests and manifest lists.

Entries are not decoded and encoded again: the places of paths and sizes are found by the writer's own schema, and new
bytes are put in there. Everything else is carried over byte for byte, fields that are not known here included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from frazil.errors import IntegrityError, UnsupportedError
from frazil.tables.metadata.avro import AvroFile, long, read_avro
from frazil.tables.metadata.avro_codecs import decompress
from frazil.tables.metadata.avro_records import NotNullError, RecordLayout, layout_of
from frazil.tables.metadata.manifest_entries import (
    CONTENT,
    CONTENT_OFFSET,
    CONTENT_SIZE,
    DATA,
    DELETED,
    FORMAT,
    LOWER,
    PATH,
    POSITION_DELETES,
    REFERENCED,
    ROWS,
    SIZE,
    STATUS,
    UPPER,
)  # fmt: skip
from frazil.tables.relocation.avro_splicing import (
    encode_list,
    encode_optional,
    encode_text,
    read_values,
    readers_of,
    rewrite_records,
)
from frazil.tables.relocation.prefixes import PrefixMap, UnmappedPathError

#: Further field ids of a manifest's entry.
_FILE, _COLUMN_SIZES, _SPLIT_OFFSETS, _KEY_METADATA, _FIRST_ROW_ID = 2, 108, 132, 131, 142
#: The column of a delete file that holds paths.
PATH_COLUMN: Final = 2147483546
#: Under which DuckDB 1.5 records the bounds of that column: it is the id of the metadata column `_file`.
_DUCKDB_PATH_COLUMN: Final = 2147483646
#: Field ids of a manifest list.
_MANIFEST, _LENGTH, _SPEC, _LIST_CONTENT, _SEQUENCE, _SNAPSHOT, _LIST_KEY, _LIST_ROW_ID = (
    500, 501, 502, 517, 515, 503, 519, 520,
)  # fmt: skip
_COUNTS = {
    504: "added_files", 505: "existing_files", 506: "deleted_files",
    512: "added_rows", 513: "existing_rows", 514: "deleted_rows",
}  # fmt: skip
_BY_STATUS = ("existing", "added", "deleted")

#: The newest version of Iceberg's format whose paths are known.
NEWEST_FORMAT: Final = 3

_DAMAGE = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, OverflowError, MemoryError, RecursionError,
)  # fmt: skip


@dataclass(frozen=True)
class FileSize:
    """Measurements of a rewritten delete file.

    Attributes:
        size: in bytes.
        split_offsets: of its row groups; None clears what the manifest says.
        column_sizes: bytes by field id; None clears what the manifest says.
        path_bounds: the lowest and the highest path that it deletes from. None: the bounds in the manifest are mapped,
            or dropped where the map may have changed their order.
    """

    size: int
    split_offsets: tuple[int, ...] | None = None
    column_sizes: Mapping[int, int] | None = None
    path_bounds: tuple[str, str] | None = None


@dataclass(frozen=True)
class ManifestFileEntry:
    """A file in a manifest.

    Attributes:
        path: as it is written there.
        size: in bytes.
        status: 0 existing, 1 added, 2 deleted.
        content: 0 data, 1 position deletes (deletion vectors too), 2 equality deletes.
        format: `PARQUET`, `AVRO`, `ORC` or `PUFFIN`.
        rows: records in it.
        referenced: the data file that a delete file belongs to, if it belongs to one.
        content_offset: of a deletion vector in its Puffin file.
        content_size: of a deletion vector.
    """

    path: str
    size: int
    status: int
    content: int
    format: str
    rows: int
    referenced: str | None = None
    content_offset: int | None = None
    content_size: int | None = None

    @property
    def is_live(self) -> bool:
        return self.status != 2


@dataclass(frozen=True)
class OmittedCounts:
    """Entries that were left out, and their rows, by status."""

    added_files: int = 0
    existing_files: int = 0
    deleted_files: int = 0
    added_rows: int = 0
    existing_rows: int = 0
    deleted_rows: int = 0


@dataclass(frozen=True)
class RelocatedManifest:
    data: bytes
    omitted: OmittedCounts = OmittedCounts()


@dataclass(frozen=True)
class ManifestListEntry:
    """A manifest in a list.

    Attributes:
        path: as it is written there.
        length: in bytes.
        spec_id: of its partition spec.
        content: 0 data, 1 deletes.
        sequence_number: 0 in format version 1.
        added_snapshot_id: the snapshot that added it.
        files: entries in it, deleted ones too; None where an old writer did not count them.
        first_row_id: of its files, in format version 3; pass it to `relocate_manifest` where files are omitted.
    """

    path: str
    length: int
    spec_id: int
    content: int = 0
    sequence_number: int = 0
    added_snapshot_id: int | None = None
    files: int | None = None
    first_row_id: int | None = None


def read_manifest_files(data: bytes, where: str) -> Iterator[ManifestFileEntry]:
    """Yields the files in a manifest, deleted ones too.

    Args:
        data: the manifest.
        where: its path, for errors.

    Raises:
        IntegrityError: it is damaged.
        UnsupportedError: its files are encrypted, or it is of a newer format version.
    """
    fields = (STATUS, CONTENT, PATH, FORMAT, ROWS, SIZE, REFERENCED, CONTENT_OFFSET, CONTENT_SIZE)
    with _naming(where):
        for values in _read_fields(_open(data, where), fields, _KEY_METADATA, PATH):
            status, content, path, kind, rows, size, *rest = values
            yield ManifestFileEntry(path, size, status, content or 0, kind.upper(), rows, *rest)


def relocate_manifest(
    data: bytes,
    prefixes: PrefixMap,
    sizes: Mapping[str, FileSize] | None = None,
    omit: Collection[str] = (),
    *,
    first_row_id: int | None = None,
    position_deletes: PrefixMap | None = None,
    where: str = "a manifest",
) -> RelocatedManifest:
    """Returns a manifest whose files are elsewhere.

    Args:
        data: the manifest.
        prefixes: where its files go.
        sizes: of rewritten delete files, by their source path. If given, each live file of position deletes or deletion
            vectors that moves must be in it.
        omit: source paths of files whose entries are left out.
        first_row_id: of the manifest, as its list says. Needed with `omit` in format version 3, so that the row ids of
            the other files stay.
        position_deletes: where files of position deletes and deletion vectors go, if not with the data.
        where: its path, for errors.

    Raises:
        IntegrityError: it is damaged, or a size is missing.
        UnmappedPathError: no prefix covers a path.
        UnsupportedError: its files are encrypted, it is of a newer format version, or row ids would change.
    """
    with _naming(where):
        file = _open(data, where)
        fields = [PATH, REFERENCED]
        if file.meta.get("content", b"data" if _version(file) == 1 else b"deletes") != b"data":
            fields += [STATUS, CONTENT, SIZE, _COLUMN_SIZES, LOWER, UPPER, _SPLIT_OFFSETS]
        if omit:
            fields += [STATUS, CONTENT, ROWS, _FIRST_ROW_ID]
        layout = _layout(file, tuple(fields), _KEY_METADATA, PATH)
        entries = _Entries(layout, prefixes, position_deletes or prefixes, sizes, omit, first_row_id, where)
        return RelocatedManifest(rewrite_records(file, layout, entries.change), OmittedCounts(**entries.omitted))


def read_manifest_list(data: bytes, where: str) -> list[ManifestListEntry]:
    """Returns the manifests in a list.

    Args:
        data: the list.
        where: its path, for errors.

    Raises:
        IntegrityError: it is damaged.
        UnsupportedError: a manifest is encrypted, or the list is of a newer format version.
    """
    fields = (_MANIFEST, _LENGTH, _SPEC, _LIST_CONTENT, _SEQUENCE, _SNAPSHOT, _LIST_ROW_ID, 504, 505, 506)
    found = []
    with _naming(where):
        for values in _read_fields(_open(data, where), fields, _LIST_KEY, _MANIFEST):
            path, length, spec, content, sequence, snapshot, first_row, *counts = values
            files = None if None in counts else sum(counts)
            found.append(
                ManifestListEntry(path, length, spec or 0, content or 0, sequence or 0, snapshot, files, first_row)
            )
    return found


def relocate_manifest_list(
    data: bytes,
    prefixes: PrefixMap,
    manifests: Mapping[str, RelocatedManifest | int],
    *,
    where: str = "a manifest list",
) -> bytes:
    """Returns a manifest list whose manifests are elsewhere.

    Args:
        data: the list.
        prefixes: where they go.
        manifests: each relocated manifest, or its length if no entry was omitted, by its source path.
        where: its path, for errors.

    Raises:
        IntegrityError: it is damaged, or names a manifest that is not in `manifests`.
        UnmappedPathError: no prefix covers a path.
        UnsupportedError: a manifest is encrypted, or the list is of a newer format version.
    """
    with _naming(where):
        file = _open(data, where)
        layout = _layout(file, (_MANIFEST, _LENGTH, *_COUNTS), _LIST_KEY, _MANIFEST)
        readers = readers_of(layout)

        def change(raw: bytes, places: list[int]) -> dict[int, bytes]:
            values = read_values(layout, readers, raw, places)
            path = values[_MANIFEST]
            if path not in manifests:
                raise IntegrityError(f"the manifest {path} of {where} was not relocated")
            manifest = manifests[path]
            length = manifest if isinstance(manifest, int) else len(manifest.data)
            new = {_MANIFEST: encode_optional(layout.kinds[_MANIFEST], encode_text(prefixes.map(path)))}
            new[_LENGTH] = encode_optional(layout.kinds[_LENGTH], long(length))
            omitted = OmittedCounts() if isinstance(manifest, int) else manifest.omitted
            for number, name in _COUNTS.items():
                if (count := getattr(omitted, name)) and values.get(number) is not None:
                    new[number] = encode_optional(layout.kinds[number], long(values[number] - count))
            return new

        return rewrite_records(file, layout, change)


@dataclass
class _Entries:
    """The changes of one manifest's entries."""

    layout: RecordLayout
    prefixes: PrefixMap
    position_deletes: PrefixMap
    sizes: Mapping[str, FileSize] | None
    omit: Collection[str]
    next_row_id: int | None
    where: str
    omitted: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._readers = readers_of(self.layout)
        self._is_plain = set(self.layout.ids) <= {PATH, REFERENCED}

    def change(self, raw: bytes, places: list[int]) -> dict[int, bytes] | None:
        """Returns the new bytes of an entry's fields; None leaves it out."""
        values = read_values(self.layout, self._readers, raw, places)
        path = values[PATH]
        prefixes = self.position_deletes if values.get(CONTENT) == POSITION_DELETES else self.prefixes
        new = {PATH: encode_text(prefixes.map(path))}
        if referenced := values.get(REFERENCED):  # DuckDB writes an empty one for data files
            new[REFERENCED] = self._encode(REFERENCED, encode_text(self.prefixes.map(referenced)))
        if self._is_plain:
            return new
        if (values.get(CONTENT) or DATA) != DATA:
            self._change_deletes(values, new)
        if self.omit:
            row_id = self._next_row_id(values)
            if path in self.omit:
                self._count(values)
                return None
            if row_id is not None and self.omitted:
                new[_FIRST_ROW_ID] = self._encode(_FIRST_ROW_ID, long(row_id))
        return new

    def _change_deletes(self, values: dict[int, Any], new: dict[int, bytes]) -> None:
        path = values[PATH]
        size = (self.sizes or {}).get(path)
        is_by_position = values[CONTENT] == POSITION_DELETES
        if size is not None:
            new[SIZE] = self._encode(SIZE, long(size.size))
            sizes = size.column_sizes
            self._set(_COLUMN_SIZES, new, None if sizes is None else [(k, long(v)) for k, v in sizes.items()])
            offsets = size.split_offsets
            if _SPLIT_OFFSETS in self.layout.kinds:
                packed = None if offsets is None else encode_list([long(offset) for offset in offsets])
                new[_SPLIT_OFFSETS] = self._encode(_SPLIT_OFFSETS, packed)
        elif self.sizes is not None and is_by_position and values[STATUS] != DELETED and encode_text(path) != new[PATH]:
            raise IntegrityError(
                f"the size of {path} was not measured after relocation", cause=f"{self.where} lists it"
            )
        if is_by_position:
            self._change_bounds(values, new, size)

    def _change_bounds(self, values: dict[int, Any], new: dict[int, bytes], size: FileSize | None) -> None:
        """Maps the lowest and highest path of a delete file."""
        pairs = [values.get(LOWER) or [], values.get(UPPER) or []]
        bounds: dict[int, tuple[bytes | None, bytes | None]] = {}
        for column in (PATH_COLUMN, _DUCKDB_PATH_COLUMN):
            low, high = (next((value for key, value in some if key == column), None) for some in pairs)
            if low is None and high is None:
                continue
            if size is not None and size.path_bounds is not None:
                bounds[column] = size.path_bounds[0].encode(), size.path_bounds[1].encode()
            else:
                bounds[column] = _map_bounds(low, high, self.prefixes)
        for side, number in enumerate((LOWER, UPPER)):
            some = pairs[side]
            mapped = [(key, bounds[key][side] if key in bounds else value) for key, value in some]
            if mapped != some:
                self._set(number, new, [(key, long(len(text)) + text) for key, text in mapped if text is not None])

    def _next_row_id(self, values: dict[int, Any]) -> int | None:
        """Returns the first row id that a file inherits by its place among the others; None if it inherits none."""
        own = values.get(_FIRST_ROW_ID)
        is_data = (values.get(CONTENT) or DATA) == DATA
        if self.next_row_id is None or own is not None or values[STATUS] == DELETED or not is_data:
            return None
        found = self.next_row_id
        self.next_row_id += values[ROWS]
        if self.omitted and values[PATH] not in self.omit and _FIRST_ROW_ID not in self.layout.kinds:
            raise UnsupportedError(
                f"files cannot be left out of {self.where}",
                cause="the row ids of other files depend on them, and it is of format version 2",
                hint="rewrite the table's manifests",
            )
        return found

    def _count(self, values: dict[int, Any]) -> None:
        status = _BY_STATUS[values[STATUS]]
        for name, count in ((f"{status}_files", 1), (f"{status}_rows", values[ROWS])):
            self.omitted[name] = self.omitted.get(name, 0) + count

    def _set(self, number: int, new: dict[int, bytes], pairs: list[tuple[int, bytes]] | None) -> None:
        if number in self.layout.kinds:
            packed = None if pairs is None else encode_list([long(key) + value for key, value in pairs])
            new[number] = self._encode(number, packed)

    def _encode(self, number: int, value: bytes | None) -> bytes:
        return encode_optional(self.layout.kinds[number], value)


def _map_bounds(low: bytes | None, high: bytes | None, prefixes: PrefixMap) -> tuple[bytes | None, bytes | None]:
    """Returns the bounds of mapped paths; None for those that are not known. A bound may be cut: then it is no path."""
    if prefixes.is_identity:
        return low, high
    if low is None or high is None:
        return None, None
    try:
        first, last = low.decode(), high.decode()
        if low == high:  # the file deletes from one data file, and readers take its path from here
            return (mapped := prefixes.map(first).encode()), mapped
        if prefixes.keeps_order(first, last):
            return prefixes.map(first).encode(), prefixes.map(last).encode()
    except (UnicodeDecodeError, UnmappedPathError):
        pass
    return None, None


def _open(data: bytes, where: str) -> AvroFile:
    file = read_avro(data)
    version = _version(file)
    if version > NEWEST_FORMAT:
        raise UnsupportedError(
            f"{where} is of format version {version}",
            cause=f"this version of Frazil knows 1 to {NEWEST_FORMAT}",
            hint="install a newer version of Frazil",
        )
    return file


def _version(file: AvroFile) -> int:
    return int(file.meta.get("format-version", b"1"))


def _layout(file: AvroFile, fields: tuple[int, ...], key_metadata: int, path: int) -> RecordLayout:
    layout = layout_of(file.meta["avro.schema"], fields, (key_metadata,), _FILE if path == PATH else -1)
    if path not in layout.kinds:
        raise ValueError("its records have no field for a path")
    return layout


def _read_fields(file: AvroFile, fields: tuple[int, ...], key_metadata: int, path: int) -> Iterator[list[Any]]:
    """Yields these fields of each record; None for one that the file lacks."""
    layout = _layout(file, fields, key_metadata, path)
    readers = readers_of(layout)
    for block in file.blocks:
        raw = decompress(file.codec, block.data)
        for places in layout.find_records(raw, block.count):
            found = read_values(layout, readers, raw, places)
            yield [found.get(number) for number in fields]


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Names the file in errors."""
    try:
        yield
    except UnmappedPathError as error:
        raise error.adding(f"{where} has it") from None
    except NotNullError as error:
        raise UnsupportedError(
            f"{where} names encrypted files",
            cause="an entry has key metadata",
            hint="copy the rows into a table that is not encrypted",
        ) from error
    except _DAMAGE as error:
        raise IntegrityError(f"{where} cannot be read", hint="frazil table verify, or restore it") from error
