"""The metadata file that a catalog names for a table: reads it, sets it for a new name, and exchanges it.

SQL, Hive and Glue keep a pointer to a file that a client wrote. A REST server writes the file itself and takes a list
of updates; there, only a new name can be given to a file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from frazil.errors import IntegrityError, UnsupportedError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

Identifier = tuple[str, ...]
Metadata = Mapping[str, Any]


@runtime_checkable
class PointerCatalog(Protocol):
    """A catalog that names metadata files which clients write."""

    def pointer(self, identifier: Identifier) -> str | None:
        """Returns the metadata file of a table; None if there is no table of this name."""

    def insert_pointer(self, identifier: Identifier, location: str, metadata: Metadata) -> None:
        """Gives a metadata file a new name.

        Raises:
            TableAlreadyExistsError: the name is taken.
        """

    def move_pointer(self, identifier: Identifier, expected: str, location: str, metadata: Metadata) -> None:
        """Exchanges the metadata file if the name still stands for the expected one.

        Raises:
            CommitFailedException: it does not.
        """


def read_pointer(catalog: Catalog, identifier: Identifier) -> str | None:
    """Returns the metadata file that the catalog names for a table, None if there is no such table.

    Raises:
        UnsupportedError: this kind of catalog does not name files.
    """
    from pyiceberg.catalog.rest import RestCatalog

    if isinstance(catalog, RestCatalog):
        found = read_metadata(catalog, identifier)
        return found and found[0]
    if not isinstance(catalog, PointerCatalog):
        raise UnsupportedError(f"the catalog does not provide the metadata location of {'.'.join(identifier)}")
    return catalog.pointer(identifier)


def read_metadata(catalog: Catalog, identifier: Identifier) -> tuple[str, dict[str, Any]] | None:
    """Returns where the metadata of a table lies, and the metadata as JSON; None if there is no such table.

    Raises:
        UnsupportedError: this kind of catalog does not show a table's metadata as it is.
        IntegrityError: this is no metadata.
    """
    from pyiceberg.catalog.rest import RestCatalog

    if isinstance(catalog, RestCatalog):
        from frazil.catalogs.rest import load_raw_table

        return load_raw_table(catalog, identifier)
    location = read_pointer(catalog, identifier)
    return None if location is None else (location, read_metadata_file(catalog, location))


def read_metadata_file(catalog: Catalog, location: str) -> dict[str, Any]:
    """Returns a metadata.json as it is.

    Raises:
        IntegrityError: this is no metadata.
    """
    with catalog._load_file_io({}, location).new_input(location).open() as stream:
        data = stream.read()
    try:
        found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, OSError, EOFError) as error:
        raise IntegrityError(f"{location} is not valid JSON", cause=str(error), hint="restore the table") from error
    if not isinstance(found, dict):
        raise IntegrityError(f"{location} is not table metadata", hint="restore the table")
    return found
