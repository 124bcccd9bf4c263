"""Which code reads and writes the files of PyIceberg's tables, by scheme. Imports PyIceberg late."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

OpenFileSystem: TypeAlias = "Callable[[], FileSystem]"

#: File systems of rooms above, by scheme. Their paths are whole URIs.
FILE_SYSTEMS: dict[str, OpenFileSystem] = {}

_OURS = "frazil.catalogs.file_io.TableFileIO"


def register_file_system(scheme: str, open_file_system: OpenFileSystem) -> None:
    """Makes PyIceberg read and write a scheme through a file system, from the next table on that is loaded."""
    FILE_SYSTEMS[scheme] = open_file_system
    register_file_io()


def register_file_io() -> None:
    """Makes PyIceberg use `TableFileIO`, except for catalogs whose properties have `py-io-impl`."""
    from pyiceberg.io import ARROW_FILE_IO, SCHEMA_TO_FILE_IO

    for scheme in {*FILE_SYSTEMS, *(name for name, known in SCHEMA_TO_FILE_IO.items() if ARROW_FILE_IO in known)}:
        SCHEMA_TO_FILE_IO[scheme] = [_OURS]
