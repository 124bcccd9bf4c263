"""Relocates and trims metadata.json, as the dictionary that it is: what is not named here stays, in its order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from frazil.tables.relocation.prefixes import PrefixMap

TableMetadata = dict[str, Any]


@dataclass(frozen=True)
class MetadataPaths:
    """Every path in a metadata.json.

    Attributes:
        manifest_lists: of its snapshots.
        inline_manifests: of snapshots without a list (format version 1).
        statistics: statistics files.
        partition_statistics: partition statistics files.
        metadata_log: former metadata files.
        locations: the table's folder, and those for data and metadata in its properties.
    """

    manifest_lists: tuple[str, ...]
    inline_manifests: tuple[str, ...]
    statistics: tuple[str, ...]
    partition_statistics: tuple[str, ...]
    metadata_log: tuple[str, ...]
    locations: tuple[str, ...]


def parse_metadata(data: bytes, where: str = "the metadata") -> TableMetadata:
    """Returns a metadata.json, plain or gzipped, as a dictionary.

    Raises:
        IntegrityError: it is damaged.
        UnsupportedError: it is of a newer format version, or the table is encrypted.
    """
    raise NotImplementedError


def format_metadata(metadata: TableMetadata, *, gzipped: bool = False) -> bytes:
    """Returns the file of a dictionary."""
    raise NotImplementedError


def list_metadata_paths(metadata: TableMetadata) -> MetadataPaths:
    """Returns the paths in a metadata.json, each once, in their order."""
    raise NotImplementedError


def relocate_metadata(
    metadata: TableMetadata,
    prefixes: PrefixMap,
    *,
    metadata_log: Literal["relocate", "drop"],
    table_uuid: str | None = None,
    properties: Mapping[str, str | None] = {},
) -> TableMetadata:
    """Returns metadata whose files are elsewhere.

    Args:
        metadata: stays as it is.
        prefixes: where the files go.
        metadata_log: whether former metadata files are relocated too, or not listed any more.
        table_uuid: of the new table; None keeps it.
        properties: to set; None removes one.

    Raises:
        UnmappedPathError: no prefix covers a path.
    """
    raise NotImplementedError


def trim_metadata(
    metadata: TableMetadata,
    *,
    keep: Collection[int] | None = None,
    refs: Collection[str] | None = None,
    main: int | None = None,
) -> TableMetadata:
    """Returns metadata with fewer snapshots, branches and tags.

    Snapshots that are dropped take their branches and tags, their statistics and the history before them along.

    Args:
        metadata: stays as it is.
        keep: ids of snapshots that stay. None: all, or if `refs` or `main` is given, those that the branches and tags
            that stay can reach.
        refs: branches and tags that stay; None: all.
        main: the snapshot that `main` will point to.

    Raises:
        NotFoundError: there is no such snapshot, branch or tag.
    """
    raise NotImplementedError


def drop_refs(metadata: TableMetadata, names: Collection[str]) -> TableMetadata:
    """Returns metadata without some branches and tags; their snapshots stay. The same object if it has none of them."""
    raise NotImplementedError
