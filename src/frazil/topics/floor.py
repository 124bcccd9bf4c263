"""How far the tables of a topic are, asked by the log before it gives out its first offset."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from frazil.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import Position, TableStore

Floor = Callable[[str, str], int | None]


def table_floor(settings: Settings, catalog: str | None = None) -> Floor:
    """A function of topic and log id that says below which offset the topic's tables know messages; None: no table.

    A log asks once per topic, at its start: the catalog is opened for each question, and not held for a day.

    Raises:
        ForeignLogError: by the function, where the table knows another log.
        UnavailableError: by the function, where the catalog does not answer.
    """

    def floor(topic: str, log_id: str) -> int | None:
        with LazyStore(settings, catalog) as opened:
            return _floor(opened.store(), settings, topic, log_id)

    return floor


def _floor(store: TableStore, settings: Settings, topic: str, log_id: str) -> int | None:
    from frazil.tables import highest_offsets
    from frazil.topics.layout import dead_letters_name, sink_tables

    known: list[int] = []
    for sink, name in sink_tables(settings, topic):
        if (table := find_table(store, name)) is not None:
            require_own_log(table, topic, log_id, sink)
            known += [0, *highest_offsets(table, topic).values()]
    if not known:
        return None
    # Dead letters are committed first: after a crash between the two they may know more than the table.
    letters = find_table(store, dead_letters_name(settings))
    return max(known + list(highest_offsets(letters, topic).values() if letters is not None else ()))


def require_own_log(table: Table, topic: str, log_id: str, sink: str | None = None) -> None:
    """Raises ForeignLogError where the table's position belongs to another log."""
    from frazil.topics.layout import ARCHIVE
    from frazil.topics.positions import check_log

    check_log(topic, log_id, recorded_position(table, topic, sink), sink or ARCHIVE)


def recorded_position(table: Table, topic: str, sink: str | None = None) -> Position | None:
    """The position that a sink, by default the archive, has written, rolled back or not; None: nothing was written."""
    from frazil.tables import RolledBackError, position_of
    from frazil.topics.layout import ARCHIVE

    try:
        return position_of(table, sink or ARCHIVE, topic)
    except RolledBackError as error:
        return error.recorded or error.table_position


def find_table(store: TableStore, name: str) -> Table | None:
    """A table as it is now, or None. Unlike `TableStore.load` it does not look for names that are alike."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    from frazil.catalogs import parse_name

    identifier = parse_name(name, store.settings.name)

    def load() -> Table | None:
        try:
            return store.catalog.load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    return store.call(load, "load")


class LazyStore:
    """The catalog's tables, opened when somebody first asks. Who makes one closes it: `with LazyStore(…) as opened`."""

    def __init__(self, settings: Settings, catalog: str | None = None) -> None:
        self._settings, self._catalog = settings, catalog
        self._lock = threading.Lock()
        self._store: TableStore | None = None

    def store(self) -> TableStore:
        with self._lock:
            if self._store is None:
                from frazil.catalogs import open_catalog
                from frazil.tables import TableStore

                chosen = self._settings.catalog(self._catalog)
                network = self._settings.model.network
                self._store = TableStore(open_catalog(chosen, network), chosen, network)
            return self._store

    def close(self) -> None:
        """Lets go of the catalog's connections, where there are any."""
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
