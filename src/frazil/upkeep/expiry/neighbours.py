"""Who else has files where a table lies. Deleting is for those who are alone there.

Every other table of the catalog is looked at, and every table of the other catalogs in the settings: its location, the
places that it writes to, its metadata, and (for a search of orphans) every file of its snapshots. Metadata of tables
that no catalog knows is seen in the listing of the folder itself (`orphans`).

Two catalogs may show one and the same table, such as a metastore and a REST server before it. That is no neighbour, as
long as both show it in the same state.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from frazil.errors import FrazilError, NotAllowedError, NotFoundError
from frazil.tables.store import back_off
from frazil.upkeep.care import StoppedError, go_on
from frazil.upkeep.expiry.elsewhere import lies_apart, names_in, opened, other_catalogs
from frazil.upkeep.expiry.places import lies_in, overlap, own_folders, spelled
from frazil.upkeep.expiry.reachable import living, manifests_in, metadata_files

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.settings import CatalogSettings
    from frazil.tables import TableStore
    from frazil.upkeep.care import Care

log = structlog.get_logger(__name__)

#: Seconds for which the place of another table is believed, where only places are looked at.
_BELIEVED_S = 3600.0
#: Looks at a table that another catalog shows too: somebody may commit between two of them.
_LOOKS = 4


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


#: When a catalog was looked at, and what was in it.
_Tables = tuple[float, tuple[Neighbour, ...]]

_known: weakref.WeakKeyDictionary[TableStore, dict[str, tuple[float, Neighbour]]] = weakref.WeakKeyDictionary()
_elsewhere: weakref.WeakKeyDictionary[TableStore, dict[str, _Tables]] = weakref.WeakKeyDictionary()
_foreign: weakref.WeakKeyDictionary[TableStore, dict[str, frozenset[str]]] = weakref.WeakKeyDictionary()
_lock = Lock()


def require_alone(care: Care, table: Table) -> None:
    """That no other name, in any catalog, stands for the same files. Names that were seen within the hour are believed.

    What cannot be read is passed over, be it a table or a catalog: nobody reads our files through it now.

    Raises:
        SharedLocationError: another table is this one, or lies in the same folder.
        StoppedError: it was told to end.
    """
    own, uuid = spelled(table.location()), str(table.metadata.table_uuid)
    for other in _within(care, table):
        if other.uuid == uuid:
            raise _shared(table, other.name, "it is the same table under another name")
        if other.location == own:
            raise _shared(table, other.name, f"it lies in {own} too")
    for chosen in other_catalogs(care):
        for other in _beyond(care, chosen):
            if other.uuid == uuid:
                _require_same(care, chosen, table, other.name)
            elif other.location == own:
                raise _shared(table, f"{chosen.name}.{other.name}", f"it lies in {own} too")


def require_unreferenced(care: Care, table: Table) -> None:
    """That nothing below the table's location is, or may come to be, another table's, as they all are now.

    Raises:
        SharedLocationError: another table lies inside, above or in the same place; or writes there, has its metadata
            there, or refers to a file there; or nobody can say, because it, or its catalog, cannot be read.
        StoppedError: it was told to end.
    """
    for name in _others(care, table):
        _require_unreferenced(care, care.store, table, name, name)
    for chosen in other_catalogs(care):
        try:
            store = opened(care, chosen)
            names = [] if store is None else names_in(store)
        except FrazilError as error:
            if not lies_apart(chosen, table.location()):
                raise _unreachable(table, chosen, error) from error
            log.info("a catalog on another storage cannot be looked at", catalog=chosen.name, error=error.message)
            continue
        for name in names:
            assert store is not None
            _require_unreferenced(care, store, table, name, f"{chosen.name}.{name}")


def _require_unreferenced(care: Care, store: TableStore, table: Table, name: str, shown: str) -> None:
    go_on(care.stop)
    own = spelled(table.location())
    other = _load(store, table, name, shown)
    if other is None:
        return
    if store is not care.store and other.metadata.table_uuid == table.metadata.table_uuid:
        _require_same(care, store.settings, table, name)
        return
    _require_apart(table, own, _remember(store, other), shown)
    try:
        found = next((folder for folder in _folders_abroad(care, store, other) if lies_in(folder, own)), None)
    except FrazilError as error:
        if error.retryable:
            raise
        raise _unknown(table, shown, error) from error
    if found is not None:
        raise _shared(table, shown, f"it refers to files in {found}")


def _others(care: Care, table: Table) -> Iterator[str]:
    own = ".".join(table.name())
    yield from (name for name in names_in(care.store) if name != own)


def _within(care: Care, table: Table) -> Iterator[Neighbour]:
    """The other tables of the same catalog."""
    for name in _others(care, table):
        go_on(care.stop)
        other = _seen(care.store, name)
        if other is None:
            try:
                loaded = _load(care.store, table, name, name)
            except SharedLocationError:  # nobody can read that one, and nobody reads our files through it
                continue
            if loaded is None:
                continue
            other = _remember(care.store, loaded)
        yield other


def _beyond(care: Care, chosen: CatalogSettings) -> tuple[Neighbour, ...]:
    """The tables of another catalog as they were within the hour; none, where it could not be reached."""
    with _lock:
        seen = _elsewhere.setdefault(care.store, {}).get(chosen.name)
    if seen is not None and time.monotonic() - seen[0] < _BELIEVED_S:
        return seen[1]
    found: list[Neighbour] = []
    try:
        store = opened(care, chosen)
        for name in [] if store is None else names_in(store):
            go_on(care.stop)
            assert store is not None
            try:
                found.append(_seen(store, name) or _remember(store, store.load(name)))
            except FrazilError as error:
                log.debug("a table cannot be read", catalog=chosen.name, table=name, error=error.message)
    except StoppedError:
        raise
    except FrazilError as error:
        log.info("a catalog cannot be looked at", catalog=chosen.name, error=error.message)
    with _lock:
        _elsewhere[care.store][chosen.name] = time.monotonic(), tuple(found)
    return tuple(found)


def _require_same(care: Care, chosen: CatalogSettings, table: Table, name: str) -> None:
    """That a table which another catalog shows too is in the same state there: one table, and two doors to it."""
    for attempt in range(1, _LOOKS + 1):
        try:
            store = opened(care, chosen)
            theirs = None if store is None else store.load(name)
        except NotFoundError:
            return
        ours = care.load(".".join(table.name()))
        if theirs is None or spelled(theirs.metadata_location) == spelled(ours.metadata_location):
            return
        back_off(attempt)
    raise _shared(table, f"{chosen.name}.{name}", "it is the same table, and the two have parted since")


def _load(store: TableStore, table: Table, name: str, shown: str) -> Table | None:
    """Another table; None where it was dropped since it was listed."""
    try:
        return store.load(name)
    except NotFoundError as error:
        if name not in names_in(store):
            return None
        raise _unknown(table, shown, error) from error
    except FrazilError as error:
        if error.retryable:
            raise
        raise _unknown(table, shown, error) from error


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


def _require_apart(table: Table, own: str, other: Neighbour, shown: str) -> None:
    if other.uuid == str(table.metadata.table_uuid):
        raise _shared(table, shown, "it is the same table under another name")
    for folder in other.folders:
        if overlap(own, folder):
            raise _shared(table, shown, f"it writes to {folder}")
    if lies_in(other.metadata_location, own):
        raise _shared(table, shown, f"its metadata is {other.metadata_location}")


def _folders_abroad(care: Care, store: TableStore, table: Table) -> Iterator[str]:
    """The folders, outside of its own places, that files of a table's snapshots lie in. Mostly there are none."""
    own = own_folders(table)
    with _lock:
        memory = _foreign.setdefault(store, {})
    for snapshot in table.metadata.snapshots:
        yield from _abroad(own, [snapshot.manifest_list])
        for manifest in manifests_in(store, table.io, snapshot.manifest_list):
            go_on(care.stop)
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


def _unreachable(table: Table, chosen: CatalogSettings, error: FrazilError) -> SharedLocationError:
    return SharedLocationError(
        f"nothing is deleted of {'.'.join(table.name())}: the catalog '{chosen.name}' cannot be read, and tables of it "
        "may have files there",
        cause=error.message,
        hint=f"frazil doctor; or take catalogs.{chosen.name} out of the settings, if no table of it lies here",
    )


def _unknown(table: Table, other: str, error: FrazilError) -> SharedLocationError:
    return SharedLocationError(
        f"nothing is deleted of {'.'.join(table.name())}: the table {other} cannot be read, and may have files there",
        cause=error.message,
        hint=f"repair {other}, or drop it",
    )
