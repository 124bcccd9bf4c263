"""Metadata of other tables in a table's folder: what a lost creation left there, and what may be somebody's.

Of a table that no catalog shows, nobody knows the files, so its metadata is a reason to delete nothing. The exception
is the loser of a creation race, or a creation that was killed: it wrote its first metadata file, and no catalog ever
took it. It has no snapshot, so it has no files.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError, NotFoundError
from frazil.observe.cancellation import raise_if_stopped
from frazil.tables.metadata.locations import TableStorage, canonical_folder, canonical_folder_or_raw, canonical_uri
from frazil.upkeep.expiry.shared_locations import SharedLocationError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

_UUID = re.compile(rb'"table-uuid"\s*:\s*"([0-9a-fA-F-]{36})"')
_HEAD = 64 * 1024
_AT_ONCE = 8
#: The first metadata file of a table, as Iceberg for Java and PyIceberg name it.
_FIRST = re.compile(r"00000-[^/]+\.metadata\.json(\.gz)?")


def require_own(
    context: UpkeepContext, places: TableStorage, table: Table, uris: Collection[str], other_tables: Collection[str]
) -> set[str]:
    """Requires that metadata files in a table's folder are its own, or those of a creation that failed.

    Args:
        context: of which catalog.
        places: of the table.
        table: whose folder it is.
        uris: metadata files there that the table does not refer to.
        other_tables: UUIDs of all other tables of all catalogs.

    Returns:
        Those that cannot be read: a crash has torn them, or they are something else.

    Raises:
        SharedLocationError: one is of another table.
    """
    own = str(table.metadata.table_uuid).lower()
    unreadable = set()

    def read_uuid(uri: str) -> str | None:
        raise_if_stopped(context.stop)
        return _table_uuid(places, uri)

    with ThreadPoolExecutor(_AT_ONCE, "frazil-orphans") as pool:
        for uri, uuid in zip(uris, pool.map(read_uuid, uris), strict=True):
            if uuid is None:
                unreadable.add(uri)
            elif uuid != own and (uuid in other_tables or not _is_lost_creation(places, table, uri)):
                raise SharedLocationError(
                    f"nothing is deleted of {'.'.join(table.name())}: metadata of another table lies in its place",
                    cause=f"{uri} is of a table with {f'the uuid {uuid}' if uuid else 'no uuid'}",
                    hint="if that table was dropped, move or delete its files; otherwise give it its own location",
                )
    return unreadable


def _is_lost_creation(places: TableStorage, table: Table, uri: str) -> bool:
    """Whether this is the first metadata of a table of this place which never got any further."""
    folder, _, name = uri.rpartition("/")
    if not _FIRST.fullmatch(name) or folder != canonical_uri(table.metadata_location).rpartition("/")[0]:
        return False
    found = _read(places, uri)
    return (
        found is not None
        and bool(found.get("table-uuid"))
        and not found.get("snapshots")
        and found.get("current-snapshot-id") in (None, -1)
        and not found.get("metadata-log")
        and canonical_folder_or_raw(str(found.get("location"))) == canonical_folder(table.location())
    )


def _table_uuid(places: TableStorage, uri: str) -> str | None:
    """Of a metadata.json; None where it is none: it was torn by a crash, is something else, or is gone by now.

    Very old tables have none. Nobody can say whose these files are, so it is nobody's here: empty.
    """
    store, key = places.find(uri)
    try:
        if match := _UUID.search(store.get_range(key, 0, _HEAD)):
            return match[1].decode().lower()
    except (NotFoundError, OSError):
        return None
    found = _read(places, uri)
    return None if found is None else str(found.get("table-uuid") or "").lower()


def _read(places: TableStorage, uri: str) -> dict[str, Any] | None:
    store, key = places.find(uri)
    try:
        data = store.get(key)
        found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (NotFoundError, OSError, EOFError, ValueError):
        return None
    return found if isinstance(found, dict) and "format-version" in found else None


def is_gone(places: TableStorage, uri: str) -> bool:
    """Whether the storage says that there is no such file."""
    store, key = places.find(uri)
    try:
        store.head(key)
    except NotFoundError:
        return True
    except FrazilError as error:
        if error.retryable:
            raise
    return False
