"""Relocates and trims metadata.json as the dictionary that it is: what is not named here stays, in its order."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from frazil.errors import IntegrityError, NotFoundError, UnsupportedError, first_line
from frazil.tables.relocation.manifests import NEWEST_FORMAT
from frazil.tables.relocation.prefixes import PrefixMap

TableMetadata = dict[str, Any]

MAIN = "main"

#: Properties that hold a folder.
_FOLDERS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
#: Lists whose entries hold a path, and its key.
_PATH_KEYS = (
    ("snapshots", "manifest-list"), ("statistics", "statistics-path"), ("partition-statistics", "statistics-path"),
    ("metadata-log", "metadata-file"),
)  # fmt: skip
_GZIP = b"\x1f\x8b"
_KEY_PROPERTY = "encryption.key-id"


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
    try:
        metadata, version = _decode(data)
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, zlib.error, RecursionError) as error:
        raise IntegrityError(
            f"{where} cannot be read", cause=f"it is not table metadata: {first_line(error)}", hint="restore it"
        ) from error
    if version > NEWEST_FORMAT:
        raise UnsupportedError(
            f"{where} is of format version {version}",
            cause=f"this version of Frazil knows 1 to {NEWEST_FORMAT}",
            hint="install a newer version of Frazil",
        )
    _refuse_encryption(metadata, where)
    return metadata


def _decode(data: bytes) -> tuple[TableMetadata, int]:
    metadata: TableMetadata = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
    version = metadata["format-version"]
    if type(version) is not int or version < 1:
        raise ValueError(f"format version {version!r}")
    paths = list_metadata_paths(metadata) if version <= NEWEST_FORMAT else None
    if paths and not all(isinstance(path, str) for some in vars(paths).values() for path in some):
        raise ValueError("a path is no text")
    return metadata, version


def _refuse_encryption(metadata: TableMetadata, where: str) -> None:
    snapshots = _entries(metadata, "snapshots")
    statistics = [*_entries(metadata, "statistics"), *_entries(metadata, "partition-statistics")]
    signs = {
        "encryption-keys": bool(metadata.get("encryption-keys")),
        f"the property {_KEY_PROPERTY}": bool((metadata.get("properties") or {}).get(_KEY_PROPERTY)),
        "a snapshot with a key-id": any(snapshot.get("key-id") is not None for snapshot in snapshots),
        "statistics with key-metadata": any(entry.get("key-metadata") is not None for entry in statistics),
    }
    found = [sign for sign, is_there in signs.items() if is_there]
    if found:
        raise UnsupportedError(
            f"{where} is of an encrypted table",
            cause=f"it has {found[0]}",
            hint="copy the rows into a table that is not encrypted",
        )


def format_metadata(metadata: TableMetadata, *, gzipped: bool = False) -> bytes:
    """Returns the file of a dictionary. The same dictionary gives the same bytes."""
    data = json.dumps(metadata, separators=(",", ":")).encode()
    return gzip.compress(data, mtime=0) if gzipped else data


def list_metadata_paths(metadata: TableMetadata) -> MetadataPaths:
    """Returns the paths in a metadata.json, each once, in their order."""
    snapshots = _entries(metadata, "snapshots")
    properties = metadata.get("properties") or {}
    return MetadataPaths(
        manifest_lists=_unique(s["manifest-list"] for s in snapshots if s.get("manifest-list")),
        inline_manifests=_unique(path for s in snapshots for path in s.get("manifests") or []),
        statistics=_unique(s["statistics-path"] for s in _entries(metadata, "statistics")),
        partition_statistics=_unique(s["statistics-path"] for s in _entries(metadata, "partition-statistics")),
        metadata_log=_unique(entry["metadata-file"] for entry in _entries(metadata, "metadata-log")),
        locations=_unique([metadata["location"], *(properties[name] for name in _FOLDERS if properties.get(name))]),
    )


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
    found = {**metadata, "location": prefixes.map(metadata["location"])}
    if table_uuid is not None:
        found["table-uuid"] = table_uuid
    if metadata_log == "drop" and "metadata-log" in found:
        found["metadata-log"] = []
    for name, key in _PATH_KEYS:
        if found.get(name):
            found[name] = [
                {**entry, key: prefixes.map(entry[key])} if entry.get(key) else entry for entry in found[name]
            ]
    if found.get("snapshots"):
        found["snapshots"] = [
            {**s, "manifests": [prefixes.map(path) for path in s["manifests"]]} if s.get("manifests") else s
            for s in found["snapshots"]
        ]
    values = metadata.get("properties") or {}
    changed = {**values, **{name: prefixes.map(values[name]) for name in _FOLDERS if values.get(name)}, **properties}
    if changed != values:
        found["properties"] = {name: value for name, value in changed.items() if value is not None}
    return found


def trim_metadata(
    metadata: TableMetadata,
    *,
    keep: Collection[int] | None = None,
    refs: Collection[str] | None = None,
    main: int | None = None,
) -> TableMetadata:
    """Returns metadata with fewer snapshots, branches and tags.

    Snapshots that are dropped take their branches and tags, their statistics and the history up to them along. Schemas,
    specs, sort orders and all numbers that only grow stay as they are.

    Args:
        metadata: stays as it is.
        keep: ids of snapshots that stay. None: all, or if `refs` or `main` is given, those that the branches and tags
            that stay can reach.
        refs: branches and tags that stay; None: all.
        main: the snapshot that `main` will point to.

    Raises:
        NotFoundError: there is no such snapshot, branch or tag; or `keep` lacks the snapshot of `main`.
    """
    snapshots = {s["snapshot-id"]: s for s in _entries(metadata, "snapshots")}
    every = _refs_of(metadata)
    if main is not None:
        every = {**every, MAIN: {**every.get(MAIN, {"type": "branch"}), "snapshot-id": main}}
    names = set(every if refs is None else refs) | ({MAIN} if main is not None else set())
    if missing := sorted(names - every.keys()):
        raise NotFoundError(f"the table has no branch or tag '{missing[0]}'", hint=f"one of {', '.join(every)}")
    kept_refs = {name: ref for name, ref in every.items() if name in names}
    if keep is not None:
        kept = set(keep) & snapshots.keys()
    elif refs is None and main is None:
        kept = set(snapshots)
    else:
        kept = _reach(snapshots, (ref["snapshot-id"] for ref in kept_refs.values()))
    current = kept_refs[MAIN]["snapshot-id"] if MAIN in kept_refs else None
    if current is not None and (current not in kept or current not in snapshots):
        raise NotFoundError(f"the table has no snapshot {current} to be its current one", hint="frazil table history")
    kept_refs = {name: ref for name, ref in kept_refs.items() if ref["snapshot-id"] in kept}
    if main is None and kept == snapshots.keys() and kept_refs == every:
        return metadata
    found = dict(metadata)
    _set_refs(found, kept_refs)
    if kept != snapshots.keys() or _refs_of(metadata).get(MAIN) != kept_refs.get(MAIN):
        for name in ("snapshots", "statistics", "partition-statistics"):
            if found.get(name):
                found[name] = [entry for entry in found[name] if entry["snapshot-id"] in kept]
        found["snapshot-log"] = _trim_log(found, kept, current)
    return found


def drop_refs(metadata: TableMetadata, names: Collection[str]) -> TableMetadata:
    """Returns metadata without some branches and tags; their snapshots stay. The same object if it has none of them."""
    refs = _refs_of(metadata)
    if not set(names) & refs.keys():
        return metadata
    every = [s["snapshot-id"] for s in _entries(metadata, "snapshots")]
    return trim_metadata(metadata, keep=every, refs=[name for name in refs if name not in names])


def _entries(metadata: TableMetadata, name: str) -> list[dict[str, Any]]:
    """Returns the entries of a list that may be absent or null."""
    return metadata.get(name) or []


def _unique(paths: Collection[str] | Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))


def _refs_of(metadata: TableMetadata) -> dict[str, dict[str, Any]]:
    """Branches and tags; format version 1 may name the current snapshot only."""
    refs: dict[str, dict[str, Any]] = dict(metadata.get("refs") or {})
    current = metadata.get("current-snapshot-id")
    if current not in (None, -1):
        refs.setdefault(MAIN, {"snapshot-id": current, "type": "branch"})
    return refs


def _set_refs(metadata: TableMetadata, refs: dict[str, dict[str, Any]]) -> None:
    if "refs" in metadata or refs.keys() - {MAIN}:
        metadata["refs"] = refs
    if MAIN in refs:
        metadata["current-snapshot-id"] = refs[MAIN]["snapshot-id"]
    elif "current-snapshot-id" in metadata:
        metadata["current-snapshot-id"] = -1 if metadata["format-version"] < 3 else None


def _reach(snapshots: Mapping[int, Mapping[str, Any]], heads: Iterator[int]) -> set[int]:
    """Returns these snapshots and their ancestors."""
    found: set[int] = set()
    for head in heads:
        at: int | None = head
        while at is not None and at in snapshots and at not in found:
            found.add(at)
            at = snapshots[at].get("parent-snapshot-id")
    return found


def _trim_log(metadata: TableMetadata, kept: set[int], current: int | None) -> list[dict[str, Any]]:
    """Trims the history of `main`: entries before a gap would make a snapshot current for longer than it was."""
    log = _entries(metadata, "snapshot-log")
    last = max((place for place, entry in enumerate(log) if entry["snapshot-id"] == current), default=-1)
    if current is None:
        return []
    found: list[dict[str, Any]] = []
    for entry in log[: last + 1]:
        found = [*found, entry] if entry["snapshot-id"] in kept else []
    if not found:
        head = next(s for s in metadata["snapshots"] if s["snapshot-id"] == current)
        found = [{"timestamp-ms": head["timestamp-ms"], "snapshot-id": current}]
    return found
