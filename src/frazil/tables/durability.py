"""Puts a table's files on disk before anything counts on them, where they lie on this machine.

The log lets go of messages that a table has. An object store has a file when it says so; a local file is in the
system's memory until it is synced, and a power cut would take both copies. So data files and manifests are synced
before the commit, and metadata.json before the catalog points to it. Where a server writes that one, it is synced after
the commit, and before it is acknowledged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.atomic_files import sync_file, sync_folder
from frazil.catalogs import local_path
from frazil.errors import UnavailableError
from frazil.observe.faultpoints import reach

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


def sync_files(uris: Iterable[str]) -> None:
    """Returns when the local ones among these files, and their names in their folders, are on disk.

    Raises:
        UnavailableError: one could not be synced. Its bytes are lost for good perhaps, and it must be written anew:
            another sync could succeed without them.
    """
    files = [Path(path) for uri in uris if (path := local_path(uri)) is not None]
    if not files:
        return
    reach("tables.sync.before")
    try:
        for file in files:
            sync_file(file)
        for folder in _folders(files):
            _sync_folder(folder)
    except OSError as error:
        raise UnavailableError(
            f"{error.filename or files[0]} could not be synced to disk",
            cause=error.strerror,
            hint="check the disk: free space, mount and the system's log",
        ) from error
    reach("tables.sync.after")


def sync_metadata(table: Table) -> None:
    """Syncs the metadata.json of a loaded table, which a catalog server may have written on this machine."""
    path = local_path(table.metadata_location)
    if path is not None and os.access(path, os.R_OK):  # else it lies where that server runs
        sync_files([path])


def sync_before_commits(catalog: Catalog) -> None:
    """Makes a catalog that writes metadata.json itself sync it before it points to it."""
    from pyiceberg.catalog import MetastoreCatalog

    if not isinstance(catalog, MetastoreCatalog) or "_write_metadata" in vars(catalog):
        return
    write = catalog._write_metadata

    def write_and_sync(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        write(metadata, io, metadata_path)
        sync_files([metadata_path])

    catalog._write_metadata = write_and_sync  # type: ignore[method-assign]  # PyIceberg has no place for it


def _folders(files: Iterable[Path]) -> Iterator[Path]:
    """Yields the folders of files, then their parents: a new folder is an entry of its parent."""
    found = {folder for file in files for folder in file.parents if folder != Path("/")}
    yield from sorted(found, key=lambda folder: -len(folder.parts))


def _sync_folder(folder: Path) -> None:
    try:
        sync_folder(folder)
    except PermissionError:
        return  # of another user, far above the table: Frazil created nothing in it
