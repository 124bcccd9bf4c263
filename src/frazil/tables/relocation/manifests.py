"""Relocates manifests and manifest lists.

Nothing is decoded and encoded again: the places of paths and sizes in each record are found by the writer's own schema,
and new bytes are put in there. Everything else is carried over byte for byte, fields that nobody knows yet included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from frazil.tables.relocation.prefixes import PrefixMap


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
    """Returns the files in a manifest, deleted ones too.

    Args:
        data: the manifest.
        where: its path, for errors.

    Raises:
        IntegrityError: it is damaged.
        UnsupportedError: its files are encrypted.
    """
    raise NotImplementedError


def relocate_manifest(
    data: bytes,
    prefixes: PrefixMap,
    sizes: Mapping[str, FileSize] | None = None,
    omit: Collection[str] = (),
    *,
    first_row_id: int | None = None,
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
        where: its path, for errors.

    Raises:
        IntegrityError: it is damaged, or a size is missing.
        UnmappedPathError: no prefix covers a path.
        UnsupportedError: its files are encrypted.
    """
    raise NotImplementedError


def read_manifest_list(data: bytes, where: str) -> list[ManifestListEntry]:
    """Returns the manifests in a list.

    Args:
        data: the list.
        where: its path, for errors.

    Raises:
        IntegrityError: it is damaged.
        UnsupportedError: a manifest is encrypted.
    """
    raise NotImplementedError


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
        UnsupportedError: a manifest is encrypted.
    """
    raise NotImplementedError
