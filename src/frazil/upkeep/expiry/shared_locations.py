"""Other tables with files in a table's location. Files are deleted only where a table is alone.

Every other table of the catalog is checked, and every table of the other catalogs in the settings: its location, the
places that it writes to, its metadata, and every file that its snapshots refer to (`references`). Metadata of tables
that no catalog knows is found in the listing of the folder itself (`foreign_metadata`).

Two catalogs may show one and the same table, such as a metastore and a REST server in front of it. That is not a
conflict as long as both show it in the same state.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from frazil.catalogs import load_without_schema, parse_name
from frazil.errors import FrazilError, NotAllowedError, NotFoundError, UnsupportedError
from frazil.observe.cancellation import StoppedError, raise_if_stopped
from frazil.observe.logs import get_logger
from frazil.tables.metadata.locations import (
    canonical_folder,
    canonical_folder_or_raw,
    canonical_uri,
    is_inside,
    list_named_locations,
    overlaps,
)
from frazil.tables.store import back_off
from frazil.upkeep.expiry.other_catalogs import is_on_other_storage, list_names, open_other, other_catalogs
from frazil.upkeep.expiry.references import files_among, folders_of, folders_seen

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.settings import CatalogSettings
    from frazil.tables import TableStore
    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

#: Seconds for which the place of another table is believed, where only places are looked at.
_TRUST_S = 3600.0
#: Looks at a table that another catalog shows too: somebody may commit between two of them.
_LOOKS = 4


class SharedLocationError(NotAllowedError):
    """Another table has, or may have, files in the location of this one."""


class _MetadataGoneError(SharedLocationError):
    """The catalog names a metadata file for it that is not there."""


@dataclass(frozen=True)
class OtherTable:
    """Another table, as far as its places go, each as it is written: links may change while this is remembered."""

    name: str
    uuid: str
    location: str
    folders: tuple[str, ...]
    metadata_location: str

    @property
    def place(self) -> str:
        return canonical_folder_or_raw(self.location)


#: When a catalog was looked at, and what was in it.
_Tables = tuple[float, tuple[OtherTable, ...]]

_known: weakref.WeakKeyDictionary[TableStore, dict[str, tuple[float, OtherTable]]] = weakref.WeakKeyDictionary()
_cached_tables: weakref.WeakKeyDictionary[TableStore, dict[str, _Tables]] = weakref.WeakKeyDictionary()
_lock = Lock()


def require_alone(context: UpkeepContext, table: Table) -> None:
    """That no other name, in any catalog, stands for the same files. Names that were seen within the hour are believed.

    What cannot be read is passed over, be it a table or a catalog: nobody reads our files through it now.

    Raises:
        SharedLocationError: another table is this one, or lies in the same folder.
        StoppedError: it was told to end.
    """
    own, uuid = canonical_folder(table.location()), str(table.metadata.table_uuid)
    for other in _list_tables_of_same(context, table):
        if other.uuid == uuid:
            raise _shared(table, other.name, "it is the same table under another name")
        if other.place == own:
            raise _shared(table, other.name, f"it lies in {own} too")
    for chosen in other_catalogs(context):
        for other in _list_tables_of_other(context, chosen):
            if other.uuid == uuid:
                _require_same(context, chosen, table, other.name)
            elif other.place == own:
                raise _shared(table, f"{chosen.name}.{other.name}", f"it lies in {own} too")


def require_unreferenced(context: UpkeepContext, table: Table) -> set[str]:
    """Requires that no other table has, or may come to have, anything below a table's location, as all are now.

    Returns:
        The UUIDs of all other tables that any catalog shows.

    Raises:
        SharedLocationError: another table lies inside, above or in the same place; or writes there, has its metadata
            there, or refers to a file there; or nobody can say, because it, or its catalog, cannot be read.
        StoppedError: it was told to end.
    """
    own = canonical_folder(table.location())
    known: set[str] = set()
    for store, name, shown in _list_other_tables(context, table):
        other = _load(store, table, name, shown)
        if other is None:
            continue
        known.add(str(other.metadata.table_uuid).lower())
        if store is not context.store and other.metadata.table_uuid == table.metadata.table_uuid:
            _require_same(context, store.settings, table, name)
            continue
        _require_apart(table, own, _remember(store, other), shown)
        found = next((f for f in sorted(_folders_of(context, store, table, other, shown)) if is_inside(f, own)), None)
        if found is not None:
            raise _shared(table, shown, f"it refers to files in {found}")
    return known


def require_free(
    context: UpkeepContext, table: Table, files: Collection[str], *, believed_s: float = 0.0, lenient: bool = False
) -> None:
    """Requires that no other table, of any catalog, refers to one of these files.

    Args:
        context: of which catalog.
        table: whose files they are.
        files: that are to be deleted, by their canonical URIs.
        believed_s: for so long what another table refers to is taken for granted. A file that has waited for longer
            than that since its last snapshot left can have been imported in between by nobody who went by snapshots.
        lenient: pass over tables and catalogs that cannot be read. For steps that delete nothing yet.

    Raises:
        SharedLocationError: another table refers to one; or nobody can say, because it, or its catalog, cannot be read.
        StoppedError: it was told to end.
    """
    if not files:
        return
    folders = {file.rpartition("/")[0] for file in files}
    for store, name, shown in _list_other_tables(context, table, lenient=lenient):
        seen = folders_seen(store, name, min(believed_s, _TRUST_S))
        if seen is not None and not seen & folders:
            continue
        try:
            shared = _shared_files(context, store, table, name, shown, files)
        except SharedLocationError as error:
            # Nobody reads our files through a table whose metadata is gone.
            if not lenient and not isinstance(error, _MetadataGoneError):
                raise
            log.info("a table cannot be read", table=shown, error=error.cause)
            continue
        if shared:
            raise _shared(table, shown, f"it refers to {len(shared)} files that would go, such as {min(shared)}")


def require_sole_owner(context: UpkeepContext, table: Table, files: Collection[str]) -> None:
    """Requires that a table can be deleted with all these files: no other name stands for it, as all are now.

    Stricter than `require_alone`: a second catalog that shows the table in the same state would lose its files too.

    Raises:
        SharedLocationError: another table is this one, lies in the same folder or refers to one of the files; or nobody
            can say, because it, or its catalog, cannot be read.
        StoppedError: it was told to end.
    """
    own, uuid = canonical_folder(table.location()), table.metadata.table_uuid
    for store, name, shown in _list_other_tables(context, table):
        try:
            other = _load(store, table, name, shown)
        except _MetadataGoneError:  # nobody reads our files through a table whose metadata is gone
            continue
        if other is not None and other.metadata.table_uuid == uuid:
            raise _shared(table, shown, "it is the same table under another name")
        if other is not None and canonical_folder_or_raw(other.location()) == own:
            raise _shared(table, shown, f"it lies in {own} too")
    require_free(context, table, files)


def list_all_tables(context: UpkeepContext) -> Iterator[tuple[str, OtherTable]]:
    """Yields the tables of all catalogs, as they are now, each with its name in messages.

    Tables and catalogs that cannot be read are left out.

    Raises:
        StoppedError: it was told to end.
    """
    for chosen in (context.catalog, *other_catalogs(context)):
        try:
            store = context.store if chosen is context.catalog else open_other(context, chosen)
            names = [] if store is None else list_names(store)
        except FrazilError as error:
            log.info("a catalog cannot be read", catalog=chosen.name, error=error.message)
            continue
        for other in names:
            raise_if_stopped(context.stop)
            assert store is not None
            try:
                found = _remember(store, _load_without_types(store, other))
            except FrazilError as error:
                log.info("a table cannot be read", catalog=chosen.name, table=other, error=error.message)
                continue
            yield (other if store is context.store else f"{chosen.name}.{other}"), found


def _shared_files(
    context: UpkeepContext, store: TableStore, table: Table, name: str, shown: str, files: Collection[str]
) -> set[str]:
    other = _load(store, table, name, shown)
    if other is None:
        return set()
    if store is not context.store and other.metadata.table_uuid == table.metadata.table_uuid:
        _require_same(context, store.settings, table, name)
        return set()
    if not _folders_of(context, store, table, other, shown) & {file.rpartition("/")[0] for file in files}:
        return set()
    return files_among(store, other, files, context.stop)


def _list_other_tables(
    context: UpkeepContext, table: Table, *, lenient: bool = False
) -> Iterator[tuple[TableStore, str, str]]:
    """All other tables of all catalogs: where they are, their name there, and how messages name them."""
    for name in _others(context, table):
        raise_if_stopped(context.stop)
        yield context.store, name, name
    for chosen in other_catalogs(context):
        try:
            store = open_other(context, chosen)
            names = [] if store is None else list_names(store)
        except FrazilError as error:
            if not lenient and not is_on_other_storage(chosen, table.location()):
                raise _unreachable(table, chosen, error) from error
            log.info("a catalog cannot be read", catalog=chosen.name, error=error.message)
            continue
        for name in names:
            raise_if_stopped(context.stop)
            assert store is not None
            yield store, name, f"{chosen.name}.{name}"


def _folders_of(context: UpkeepContext, store: TableStore, table: Table, other: Table, shown: str) -> set[str]:
    try:
        return folders_of(store, other, context.stop)
    except FrazilError as error:
        if error.retryable:
            raise
        raise _unknown(table, shown, error) from error


def _others(context: UpkeepContext, table: Table) -> Iterator[str]:
    own = ".".join(table.name())
    yield from (name for name in list_names(context.store) if name != own)


def _list_tables_of_same(context: UpkeepContext, table: Table) -> Iterator[OtherTable]:
    """The other tables of the same catalog."""
    for name in _others(context, table):
        raise_if_stopped(context.stop)
        other = _seen(context.store, name)
        if other is None:
            try:
                loaded = _load(context.store, table, name, name)
            except SharedLocationError:  # nobody can read that one, and nobody reads our files through it
                continue
            if loaded is None:
                continue
            other = _remember(context.store, loaded)
        yield other


def _list_tables_of_other(context: UpkeepContext, chosen: CatalogSettings) -> tuple[OtherTable, ...]:
    """The tables of another catalog as they were within the hour; none, where it could not be reached."""
    with _lock:
        seen = _cached_tables.setdefault(context.store, {}).get(chosen.name)
    if seen is not None and time.monotonic() - seen[0] < _TRUST_S:
        return seen[1]
    found: list[OtherTable] = []
    try:
        store = open_other(context, chosen)
        for name in [] if store is None else list_names(store):
            raise_if_stopped(context.stop)
            assert store is not None
            try:
                found.append(_seen(store, name) or _remember(store, _load_without_types(store, name)))
            except FrazilError as error:
                log.debug("a table cannot be read", catalog=chosen.name, table=name, error=error.message)
    except StoppedError:
        raise
    except FrazilError as error:
        log.info("a catalog cannot be looked at", catalog=chosen.name, error=error.message)
    with _lock:
        _cached_tables[context.store][chosen.name] = time.monotonic(), tuple(found)
    return tuple(found)


def _require_same(context: UpkeepContext, chosen: CatalogSettings, table: Table, name: str) -> None:
    """That a table which another catalog shows too is in the same state there: one table, and two doors to it."""
    for attempt in range(1, _LOOKS + 1):
        try:
            store = open_other(context, chosen)
            theirs = None if store is None else store.load(name)
        except NotFoundError:
            return
        ours = context.load(".".join(table.name()))
        if theirs is None or canonical_uri(theirs.metadata_location) == canonical_uri(ours.metadata_location):
            return
        back_off(attempt)
    raise _shared(table, f"{chosen.name}.{name}", "it is the same table, and the two have parted since")


def _load(store: TableStore, table: Table, name: str, shown: str) -> Table | None:
    """Another table; None where it was dropped since it was listed."""
    try:
        return _load_without_types(store, name)
    except NotFoundError as error:
        if name not in list_names(store):
            return None
        raise _unknown(table, shown, error, _MetadataGoneError) from error
    except FrazilError as error:
        if error.retryable:
            raise
        raise _unknown(table, shown, error) from error


def _load_without_types(store: TableStore, name: str) -> Table:
    """Where PyIceberg does not know a table's types: without its schema, of which nothing is asked here."""
    try:
        return store.load(name)
    except UnsupportedError:
        identifier = parse_name(name, store.settings.name)
        return store.call(lambda: load_without_schema(store.catalog, store.settings, identifier), "load")


def _seen(store: TableStore, name: str) -> OtherTable | None:
    with _lock:
        at, found = _known.setdefault(store, {}).get(name, (0.0, None))
    return found if found is not None and time.monotonic() - at < _TRUST_S else None


def _remember(store: TableStore, table: Table) -> OtherTable:
    name = ".".join(table.name())
    found = OtherTable(
        name=name,
        uuid=str(table.metadata.table_uuid),
        location=table.location(),
        folders=tuple(list_named_locations(table)),
        metadata_location=table.metadata_location,
    )
    with _lock:
        _known.setdefault(store, {})[name] = (time.monotonic(), found)
    return found


def _require_apart(table: Table, own: str, other: OtherTable, shown: str) -> None:
    if other.uuid == str(table.metadata.table_uuid):
        raise _shared(table, shown, "it is the same table under another name")
    for folder in map(canonical_folder_or_raw, other.folders):
        if overlaps(own, folder):
            raise _shared(table, shown, f"it writes to {folder}")
    if is_inside(canonical_folder_or_raw(other.metadata_location.rpartition("/")[0]), own):
        raise _shared(table, shown, f"its metadata is {other.metadata_location}")


def _shared(table: Table, other: str, why: str) -> SharedLocationError:
    return SharedLocationError(
        f"nothing is deleted of {'.'.join(table.name())}: the table {other} has files in its place",
        cause=why,
        hint=f"give each table its own location: copy one of them (CREATE TABLE … AS SELECT), or drop "
        f"{other} without purging it",
    )


def _unreachable(table: Table, chosen: CatalogSettings, error: FrazilError) -> SharedLocationError:
    return SharedLocationError(
        f"nothing is deleted of {'.'.join(table.name())}: the catalog '{chosen.name}' cannot be read, and tables of it "
        "may have files there",
        cause=error.message,
        hint=f"frazil doctor; or take catalogs.{chosen.name} out of the settings, if no table of it lies here",
    )


def _unknown(
    table: Table, other: str, error: FrazilError, kind: type[SharedLocationError] = SharedLocationError
) -> SharedLocationError:
    return kind(
        f"nothing is deleted of {'.'.join(table.name())}: the table {other} cannot be read, and may have files there",
        cause=error.message,
        hint=f"repair {other}, or drop it",
    )
