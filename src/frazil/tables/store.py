"""A catalog's tables, asked with patience: every call is translated, counted by a breaker and tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from frazil.catalogs import load_table, open_catalog, parse_name, translated
from frazil.observe.backoff import Backoff
from frazil.observe.resilience import CircuitBreaker, breaker_for, retry
from frazil.settings import CatalogSettings, NetworkSettings, Settings
from frazil.tables.cache import LruCache
from frazil.tables.discard_queue import DiscardQueue
from frazil.tables.durability import sync_before_commits

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

T = TypeVar("T")
Server = Literal["catalog", "storage"]

#: Manifest lists remembered: those of a table's window, for a handful of tables.
_LISTS = 512
_BACKOFF = Backoff(first=0.01, longest=1.0, jitter=0.7)


def back_off(attempt: int) -> None:
    """Waits after a lost commit, longer with each attempt."""
    time.sleep(_BACKOFF.pause(attempt))


class TableStore:
    """What all functions of this room work on. The engine keeps one per catalog and closes it.

    Args:
        catalog: as `open_catalog` gives it.
        settings: of that catalog.
        network: patience with its servers.
        delete_delay_s: how long metadata files stay after nothing refers to them, for readers that planned on them.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: CatalogSettings,
        network: NetworkSettings | None = None,
        *,
        delete_delay_s: float = 600.0,
    ) -> None:
        sync_before_commits(catalog)
        self.catalog = catalog
        self.settings = settings
        self.network = network or NetworkSettings()
        self.discards = DiscardQueue(delete_delay_s)
        #: Metadata of tables that this store made itself.
        self.created: set[str] = set()
        self._lists: LruCache[str, tuple[ManifestFile, ...]] = LruCache(_LISTS)

    def load(self, name: str | tuple[str, ...]) -> Table:
        """Loads a table by name, in its present state.

        Raises:
            NotFoundError: there is none.
        """
        text = name if isinstance(name, str) else ".".join(name)
        return self.call(lambda: load_table(self.catalog, self.settings, text), "load")

    def call(self, fn: Callable[[], T], operation: str, server: Server = "catalog") -> T:
        """Calls what may safely be called twice."""
        return retry(lambda: self.call_once(fn, server), self.network, operation=f"tables.{operation}")

    def call_once(self, fn: Callable[[], T], server: Server = "catalog") -> T:
        """Calls what may not: errors are translated and the breaker learns of them, but nothing is repeated."""

        def guarded() -> T:
            with translated(self.settings):
                return fn()

        return self.breaker(server).call(guarded)

    def breaker(self, server: Server) -> CircuitBreaker:
        return breaker_for(f"the {server} of '{self.settings.name}'", self.network)

    def read_manifests(self, io: FileIO, manifest_list: str) -> tuple[ManifestFile, ...]:
        """Reads the manifests of a manifest list. Lists are immutable, so each is cached once read or written."""
        from pyiceberg.manifest import read_manifest_list

        def read() -> tuple[ManifestFile, ...]:
            return tuple(read_manifest_list(io.new_input(manifest_list)))

        return self._lists.get_or_compute(manifest_list, lambda: self.call(read, "read_manifest_list", "storage"))

    def cache_manifests(self, manifest_list: str, manifests: tuple[ManifestFile, ...]) -> None:
        self._lists.put(manifest_list, manifests)

    def close(self) -> None:
        self.discards.close()

    def __enter__(self) -> TableStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def find_table(store: TableStore, name: str) -> Table | None:
    """Loads a table as it is now; None if it does not exist. Unlike `TableStore.load` it suggests no similar names."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    identifier = parse_name(name, store.settings.name)

    def load() -> Table | None:
        try:
            return store.catalog.load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    return store.call(load, "load")


class LazyStore:
    """A `TableStore` that opens its catalog on first use, for any number of threads; `with LazyStore(…)` closes it."""

    def __init__(self, settings: Settings, catalog: str | None = None) -> None:
        self._settings, self._catalog = settings, catalog
        self._lock = Lock()
        self._store: TableStore | None = None

    def store(self) -> TableStore:
        with self._lock:
            if self._store is None:
                chosen = self._settings.catalog(self._catalog)
                network = self._settings.model.network
                self._store = TableStore(open_catalog(chosen, network), chosen, network)
            return self._store

    def close(self) -> None:
        """Closes the catalog and its connections, if it was opened. The next use opens it again."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()
            store.catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
