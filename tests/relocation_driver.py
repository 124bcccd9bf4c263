"""Relocates a local table with the kit alone, one file after the other, as a backup does with engines and stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from frazil.catalogs.locations import local_path
from frazil.tables.metadata.avro import read_avro
from frazil.tables.metadata.avro_codecs import decompress
from frazil.tables.metadata.manifest_entries import CONTENT, PATH, POSITION_DELETES, REFERENCED, read_entries
from frazil.tables.relocation.delete_files import measure_delete_file, relocate_position_deletes
from frazil.tables.relocation.manifests import (
    FileSize,
    ManifestFileEntry,
    read_manifest_files,
    read_manifest_list,
    relocate_manifest,
    relocate_manifest_list,
)
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.puffin import relocate_puffin
from frazil.tables.relocation.table_metadata import (
    format_metadata,
    list_metadata_paths,
    parse_metadata,
    relocate_metadata,
)
from tests.relocation_tables import ZooTable


def prefixes_to(table: ZooTable, target: str) -> PrefixMap:
    """Where a table's folders go: its own to the target, the others below it."""
    own, *others = table.folders
    return PrefixMap(
        [(str(own), target), *((str(other), f"{target}/relocated/{n}") for n, other in enumerate(others, 1))]
    )


def relocate_table(metadata_location: str, prefixes: PrefixMap) -> str:
    """Copies a table; returns the location of the copy's metadata."""
    data = read(metadata_location)
    metadata = parse_metadata(data, metadata_location)
    paths = list_metadata_paths(metadata)
    lists = {path: read_manifest_list(read(path), path) for path in paths.manifest_lists}
    manifests = dict.fromkeys([*(m.path for listed in lists.values() for m in listed), *paths.inline_manifests])
    sizes: dict[str, FileSize] = {}
    copied = set[str]()
    for path in manifests:
        for entry in read_manifest_files(read(path), path):
            if entry.is_live and entry.path not in copied:
                copied.add(entry.path)
                write(prefixes.map(entry.path), _copy(entry, prefixes, sizes))
    relocated = {path: relocate_manifest(read(path), prefixes, sizes, where=path) for path in manifests}
    for path, manifest in relocated.items():
        write(prefixes.map(path), manifest.data)
    for path in lists:
        write(prefixes.map(path), relocate_manifest_list(read(path), prefixes, relocated, where=path))
    for path in (*paths.statistics, *paths.partition_statistics):
        write(prefixes.map(path), read(path))
    moved = relocate_metadata(metadata, prefixes, metadata_log="drop")
    write(prefixes.map(metadata_location), format_metadata(moved, gzipped=data.startswith(b"\x1f\x8b")))
    return prefixes.map(metadata_location)


def _copy(entry: ManifestFileEntry, prefixes: PrefixMap, sizes: dict[str, FileSize]) -> bytes:
    data = read(entry.path)
    if entry.content != POSITION_DELETES:
        return data
    if entry.format.upper() == "PUFFIN":
        moved = relocate_puffin(data, prefixes)
        sizes[entry.path] = FileSize(len(moved))
    else:
        moved = relocate_position_deletes(data, entry.format, prefixes)
        sizes[entry.path] = measure_delete_file(moved, entry.format)
    return moved


#: Fields of a manifest list, and of a manifest's entries, that no relocation changes; the last are those of data files.
_OF_MANIFESTS = (502, 517, 515, 516, 503, 504, 505, 506, 512, 513, 514, 507, 520)
_OF_ENTRIES = (0, 1, 3, 4, CONTENT, 101, 102, 103, 135, 140, 142, 144, 145, 109, 110, 137)
_OF_DATA = (104, 105, 108, 125, 128, 132)


def describe_files(
    metadata_location: str, prefixes: PrefixMap | None = None, find: Callable[[str], str] = str
) -> dict[int, list[Any]]:
    """What each snapshot's list and manifests say, sorted, without what a relocation may change.

    Args:
        metadata_location: of the table.
        prefixes: applied to the paths, to compare a table with its copy.
        find: where a file lies, by its path in the metadata.
    """
    place = prefixes.map if prefixes else str
    cached: dict[str, list[Any]] = {}

    def entries(path: str) -> list[Any]:
        if path not in cached:
            data = read(find(path))
            fields = (PATH, REFERENCED, *_OF_ENTRIES, *_OF_DATA)
            found = [
                (place(file), place(referenced) if referenced else None, rest[: len(_OF_ENTRIES)] if rest[4] else rest)
                for file, referenced, *rest in read_entries(data, fields, path)
            ]
            cached[path] = sorted(found, key=repr)
        return cached[path]

    found: dict[int, list[Any]] = {}
    for snapshot in parse_metadata(read(find(metadata_location)))["snapshots"]:
        if "manifest-list" in snapshot:
            path = snapshot["manifest-list"]
            listed = list(read_entries(read(find(path)), (500, *_OF_MANIFESTS), path))
        else:
            listed = [(path,) for path in snapshot["manifests"]]
        found[snapshot["snapshot-id"]] = [(place(path), rest, entries(path)) for path, *rest in listed]
    return found


def read(path: str) -> bytes:
    return Path(local_path(path) or path).read_bytes()


def write(path: str, data: bytes) -> None:
    file = Path(local_path(path) or path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def find_mentions(folder: Path, text: str) -> list[str]:
    """The files below a folder that mention a text: Avro and gzip decompressed, Parquet and ORC in columns of text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    found = re.compile(re.escape(text.encode()))
    return [str(path.relative_to(folder)) for path in files if any(map(found.search, _contents(path)))]


def _contents(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data if not path.name.endswith(".gz.metadata.json") else format_metadata(parse_metadata(data))
    if data.startswith(b"Obj\x01"):
        file = read_avro(data)
        yield from file.meta.values()
        yield from (decompress(file.codec, block.data) for block in file.blocks)
    elif data.startswith(b"PAR1"):
        yield from _texts(pq.read_table(pa.BufferReader(data)))
    elif data.startswith(b"ORC"):
        yield from _texts(orc.read_table(pa.BufferReader(data)))


def _texts(table: pa.Table) -> Iterator[bytes]:
    for column in table.columns:
        if pa.types.is_string(column.type):
            yield from (value.encode() for value in column.unique().to_pylist() if value is not None)
