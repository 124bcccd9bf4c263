"""Who else has files where a table lies. Deleting is for those who are alone there.

Every other table of the catalog is looked at: its location, the places that it writes to, its metadata, and (for a
search of orphans) every file of its snapshots. Metadata of tables that this catalog does not know is seen in the
listing of the folder itself (`orphans`).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from frazil.catalogs import list_tables
from frazil.errors import FrazilError, NotAllowedError, NotFoundError
from frazil.upkeep.expiry.places import lies_in, overlap, own_folders, spelled
from frazil.upkeep.expiry.reachable import living, manifests_in, metadata_files

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import TableStore
    from frazil.upkeep.care import Care

#: Seconds for which the place of another table is believed, where only places are looked at.
_BELIEVED_S = 3600.0


class SharedLocationError(NotAllowedError):
    """Another table has, or may have, files where this one lies."""


@dataclass(frozen=True)
class Neighbour:
    """Another table, as far as its places go."""

    name: str
    uuid: str
    location: str
    folders: tuple[str, ...]
    metadata_location: str


_known: weakref.WeakKeyDictionary[TableStore, dict[str, tuple[float, Neighbour]]] = weakref.WeakKeyDictionary()
_foreign: weakref.WeakKeyDictionary[TableStore, dict[str, frozenset[str]]] = weakref.WeakKeyDictionary()
_lock = Lock()


def require_alone(care: Care, table: Table) -> None:
    """That no other name in the catalog stands for the same files. Names that were seen within the hour are believed.

    Raises:
        SharedLocationError: another table is this one, or lies in the same folder.
    """
    own = spelled(table.location())
    for name in _others(care, table):
        other = _seen(care.store, name)
        if other is None:
            try:
                loaded = _load(care, table, name)
            except SharedLocationError:  # nobody can read that one, and nobody reads our files through it
                continue
            if loaded is None:
                continue
            other = _remember(care.store, loaded)
        if other.uuid == str(table.metadata.table_uuid):
            raise _shared(table, name, "it is the same table under another name")
        if other.location == own:
            raise _shared(table, name, f"it lies in {own} too")


def require_unreferenced(care: Care, table: Table) -> None:
    """That nothing below the table's location is, or may come to be, another table's, as they all are now.

    Raises:
        SharedLocationError: another table lies inside, above or in the same place; or writes there, has its metadata
            there, or refers to a file there; or nobody can say, because it cannot be read.
    """
    own = spelled(table.location())
    for name in _others(care, table):
        other = _load(care, table, name)
        if other is None:
            continue
        _require_apart(table, own, _remember(care.store, other))
        try:
            found = next((folder for folder in _folders_abroad(care.store, other) if lies_in(folder, own)), None)
        except FrazilError as error:
            if error.retryable:
                raise
            raise _unknown(table, name, error) from error
        if found is not None:
            raise _shared(table, name, f"it refers to files in {found}")


def _others(care: Care, table: Table) -> Iterator[str]:
    own = tuple(table.name())
    found = care.store.call(lambda: list_tables(care.store.catalog, care.catalog), "list_tables")
    yield from (".".join(name) for name in found if tuple(name) != own)


def _load(care: Care, table: Table, name: str) -> Table | None:
    """Another table; None where it was dropped since it was listed."""
    try:
        return care.store.load(name)
    except NotFoundError as error:
        if tuple(name.split(".")) not in set(list_tables(care.store.catalog, care.catalog)):
            return None
        raise _unknown(table, name, error) from error
    except FrazilError as error:
        if error.retryable:
            raise
        raise _unknown(table, name, error) from error


def _seen(store: TableStore, name: str) -> Neighbour | None:
    with _lock:
        at, found = _known.setdefault(store, {}).get(name, (0.0, None))
    return found if found is not None and time.monotonic() - at < _BELIEVED_S else None


def _remember(store: TableStore, table: Table) -> Neighbour:
    name = ".".join(table.name())
    found = Neighbour(
        name=name,
        uuid=str(table.metadata.table_uuid),
        location=spelled(table.location()),
        folders=tuple(own_folders(table)),
        metadata_location=spelled(table.metadata_location),
    )
    with _lock:
        _known.setdefault(store, {})[name] = (time.monotonic(), found)
    return found


def _require_apart(table: Table, own: str, other: Neighbour) -> None:
    if other.uuid == str(table.metadata.table_uuid):
        raise _shared(table, other.name, "it is the same table under another name")
    for folder in other.folders:
        if overlap(own, folder):
            raise _shared(table, other.name, f"it writes to {folder}")
    if lies_in(other.metadata_location, own):
        raise _shared(table, other.name, f"its metadata is {other.metadata_location}")


def _folders_abroad(store: TableStore, table: Table) -> Iterator[str]:
    """The folders, outside of its own places, that files of a table's snapshots lie in. Mostly there are none."""
    own = own_folders(table)
    with _lock:
        memory = _foreign.setdefault(store, {})
    for snapshot in table.metadata.snapshots:
        yield from _abroad(own, [snapshot.manifest_list])
        for manifest in manifests_in(store, table.io, snapshot.manifest_list):
            path = manifest.manifest_path
            if path not in memory:
                files = (file.uri for file in living(store, table.io, manifest))
                memory[path] = frozenset(_abroad(own, [path, *files]))
            yield from memory[path]
    yield from _abroad(own, [file.uri for file in metadata_files(table).values()])


def _abroad(own: list[str], uris: list[str]) -> Iterator[str]:
    for uri in uris:
        place = spelled(uri)
        if not any(lies_in(place, folder) for folder in own):
            yield place.rpartition("/")[0]


def _shared(table: Table, other: str, why: str) -> SharedLocationError:
    return SharedLocationError(
        f"nothing is deleted of {'.'.join(table.name())}: the table {other} has files in its place",
        cause=why,
        hint=f"give each table a place of its own: copy one of them elsewhere (CREATE TABLE … AS SELECT), or drop "
        f"{other} without purging it",
    )


def _unknown(table: Table, other: str, error: FrazilError) -> SharedLocationError:
    return SharedLocationError(
        f"nothing is deleted of {'.'.join(table.name())}: the table {other} cannot be read, and may have files there",
        cause=error.message,
        hint=f"repair {other}, or drop it",
    )
