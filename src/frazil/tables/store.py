"""A catalog's tables, asked with patience: every call is translated, counted by a breaker and tried again."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar

from frazil.catalogs import load_table, translated
from frazil.observe.resilience import CircuitBreaker, breaker_for, retry
from frazil.settings import CatalogSettings, NetworkSettings
from frazil.tables.discards import Discards
from frazil.tables.durable import sync_before_commits

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

T = TypeVar("T")
Server = Literal["catalog", "storage"]

#: Manifest lists remembered: those of a table's window, for a handful of tables.
_LISTS = 512


def back_off(attempt: int) -> None:
    """Waits a little longer after each conflict, and not all alike."""
    time.sleep(min(1.0, 0.005 * 2.0**attempt) * random.uniform(0.3, 1.0))  # noqa: S311 - spreads load


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
        self.discards = Discards(delete_delay_s)
        #: Metadata of tables that this store made itself.
        self.made: set[str] = set()
        self._lists: OrderedDict[str, tuple[ManifestFile, ...]] = OrderedDict()
        self._lock = Lock()

    def load(self, name: str | tuple[str, ...]) -> Table:
        """A table by name, as it is now.

        Raises:
            NotFoundError: there is none.
        """
        text = name if isinstance(name, str) else ".".join(name)
        return self.call(lambda: load_table(self.catalog, self.settings, text), "load")

    def call(self, fn: Callable[[], T], operation: str, server: Server = "catalog") -> T:
        """Calls what may safely be called twice."""
        return retry(lambda: self.once(fn, server), self.network, operation=f"tables.{operation}")

    def once(self, fn: Callable[[], T], server: Server = "catalog") -> T:
        """Calls what may not: errors are translated and the breaker learns of them, but nothing is repeated."""

        def guarded() -> T:
            with translated(self.settings):
                return fn()

        return self.breaker(server).call(guarded)

    def breaker(self, server: Server) -> CircuitBreaker:
        return breaker_for(f"the {server} of '{self.settings.name}'", self.network)

    def manifests(self, io: FileIO, manifest_list: str) -> tuple[ManifestFile, ...]:
        """The manifests in a list. Lists never change, so that one which was read or written here is not read again."""
        with self._lock:
            if manifest_list in self._lists:
                self._lists.move_to_end(manifest_list)
                return self._lists[manifest_list]
        from pyiceberg.manifest import read_manifest_list

        found = self.call(
            lambda: tuple(read_manifest_list(io.new_input(manifest_list))), "read_manifest_list", "storage"
        )
        self.remember(manifest_list, found)
        return found

    def remember(self, manifest_list: str, manifests: tuple[ManifestFile, ...]) -> None:
        with self._lock:
            self._lists[manifest_list] = manifests
            if len(self._lists) > _LISTS:
                self._lists.popitem(last=False)

    def close(self) -> None:
        self.discards.close()

    def __enter__(self) -> TableStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
