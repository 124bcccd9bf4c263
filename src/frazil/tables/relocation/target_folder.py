"""The folder that relocated files are written to, and delete files with their measurements. For tasks of any engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from frazil.atomic_files import TEMPORARY_SUFFIX
from frazil.errors import NotFoundError
from frazil.settings import NetworkSettings, S3Settings
from frazil.storage import ObjectStore, bulk, open_store, parse
from frazil.storage.faults import from_os
from frazil.tables.relocation.delete_files import measure_delete_file, relocate_position_deletes
from frazil.tables.relocation.manifests import FileSize
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.puffin import relocate_puffin


@dataclass(frozen=True)
class TargetFolder:
    """The folder of a table whose files are relocated, and how to reach its storage."""

    location: str
    s3: S3Settings
    network: NetworkSettings

    def open(self) -> ObjectStore:
        """Returns the store whose keys are relative to the folder; one per process, if it needs no Spark session."""
        return _open(self) if parse(self.location).needs_jvm else _open_once(self)

    def key_of(self, path: str) -> str:
        """Returns the key of a file in the folder, however its path spells the folder: `file:/x` is in `file:///x`.

        Raises:
            UnmappedPathError: the path is not in the folder.
        """
        prefix = f"{self.location}/"
        return path[len(prefix) :] if path.startswith(prefix) else _keys_in(self.location).map(path)[1:]

    def write(self, path: str, data: bytes) -> None:
        """Writes a file at once, replacing what is there. Durable after `flush`."""
        folder = parse(self.location)
        if folder.scheme == "file":
            bulk.LocalBulk(folder.path).write(self.key_of(path), data)
        else:
            self.open().put(self.key_of(path), data)

    def has(self, path: str, size: int) -> bool:
        """Returns whether a file is there with a size."""
        try:
            return self.open().head(self.key_of(path)).size == size
        except NotFoundError:
            return False

    def list_sizes(self) -> Iterator[tuple[str, int]]:
        """Yields key and size of every file, in no order: an ordered listing holds all names of a local folder.

        Files that are being written are left out, and so are files that vanish during the listing.
        """
        folder = parse(self.location)
        if folder.scheme == "file":
            yield from _list_local(folder.path, "")
        else:
            yield from ((info.key, info.size) for info in self.open().list())

    def flush(self) -> None:
        """Returns when everything in the folder survives a power cut."""
        bulk.flush(self.location)


@lru_cache(maxsize=16)
def _keys_in(location: str) -> PrefixMap:
    """Maps paths in a folder to their keys, with a '/' in front."""
    return PrefixMap(((location, "/"),))


def _open(target: TargetFolder) -> ObjectStore:
    return open_store(target.location, s3=target.s3, network=target.network)


_open_once = lru_cache(maxsize=16)(_open)


def _list_local(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _list_local(Path(entry.path), f"{prefix}{entry.name}/")
                elif entry.is_file() and not entry.name.endswith(TEMPORARY_SUFFIX):
                    with suppress(FileNotFoundError):
                        yield f"{prefix}{entry.name}", entry.stat().st_size
    except OSError as error:
        raise from_os(error, str(folder)) from error


def relocate_deletes(data: bytes, file_format: str, prefixes: PrefixMap) -> tuple[bytes, FileSize]:
    """Returns position deletes or a Puffin file of deletion vectors with relocated paths, and its measurements."""
    if file_format.upper() == "PUFFIN":
        rewritten = relocate_puffin(data, prefixes)
        return rewritten, FileSize(len(rewritten))
    rewritten = relocate_position_deletes(data, file_format, prefixes)
    return rewritten, measure_delete_file(rewritten, file_format)
