"""The other catalogs in the settings, whose tables may have files in a location of ours."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING

from frazil.catalogs import list_tables, open_catalog
from frazil.catalogs.properties import sqlite_file
from frazil.errors import UsageError
from frazil.storage import parse
from frazil.tables import TableStore

if TYPE_CHECKING:
    from frazil.settings import CatalogSettings
    from frazil.upkeep.context import UpkeepContext

#: By the store of the maintained catalog: they are opened once, and are released with it.
_opened: weakref.WeakKeyDictionary[TableStore, dict[str, TableStore]] = weakref.WeakKeyDictionary()
_lock = Lock()


def other_catalogs(context: UpkeepContext) -> Iterator[CatalogSettings]:
    for name in context.settings.catalog_names():
        if name != context.catalog.name:
            yield context.settings.catalog(name)


def open_other(context: UpkeepContext, chosen: CatalogSettings) -> TableStore | None:
    """Opens another catalog; returns None for an embedded one that does not exist: inspection must not create it.

    Raises:
        FrazilError: it is unreachable, or rejects our credentials.
    """
    with _lock:
        stores = _opened.setdefault(context.store, {})
        found = stores.get(chosen.name)
    if found is not None:
        return found
    if chosen.resolved_kind == "sql" and not sqlite_file(chosen).exists():
        return None
    network = context.settings.model.network
    made = TableStore(open_catalog(chosen, network), chosen, network)
    with _lock:
        return stores.setdefault(chosen.name, made)


def list_names(store: TableStore) -> list[str]:
    """Lists the tables of a catalog by their names in it."""
    found = store.call(lambda: list_tables(store.catalog, store.settings), "list_tables")
    return [".".join(name) for name in found]


def is_on_other_storage(chosen: CatalogSettings, place: str) -> bool:
    """Returns whether a catalog's warehouse is known to be in another bucket than a location, or in none."""
    warehouse = chosen.warehouse or ""
    if "://" not in warehouse and not warehouse.startswith("/"):
        return False  # a server's own name for it
    try:
        one, other = parse(warehouse), parse(place)
    except UsageError:
        return False
    return (one.scheme, one.authority) != (other.scheme, other.authority)
