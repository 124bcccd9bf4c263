"""The tables of this room: `content.objects` and `content.journal`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from frazil.content.columns import JOURNAL, OBJECTS
from frazil.content.names import journal_name, objects_name
from frazil.errors import NotFoundError
from frazil.settings import Settings
from frazil.tables import TableStore, ensure_table, evolve_schema
from frazil.tables.reading.overlay import OverlayTable
from frazil.tables.reading.retrying import read_current
from frazil.tables.store import find_table
from frazil.topics.layout import table_properties

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.content.tail import ContentTail
    from frazil.topics.reading.tail import Lag

T = TypeVar("T")

_OF_COLUMN = "write.metadata.metrics.column."
#: Whole bounds of the columns by which rows are looked for: keys begin alike, and cut bounds would all be the same.
_BOUNDS = {f"{_OF_COLUMN}{name}": "full" for name in ("bucket", "key", "version_id")}
_MERGED = {
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
}


@dataclass
class ContentTables:
    """The catalog and the names of the two tables, for one answer.

    Attributes:
        tail: gives reads of `objects` the messages that the table does not have yet; None: they read the table alone.
        lag: the messages that a read of `objects` lacked; None: none.
    """

    store: TableStore
    objects: str
    journal: str
    tail: ContentTail | None = None
    lag: Lag | None = field(default=None, init=False)

    @classmethod
    def of(cls, store: TableStore, settings: Settings, tail: ContentTail | None = None) -> ContentTables:
        return cls(store, objects_name(settings), journal_name(settings), tail)

    def read(self, name: str, read: Callable[[Table], T]) -> T:
        """Reads the current version of a table; again on a newer one if its files were replaced during the read.

        A read of `objects` includes the messages that are durable in the log, if there is a `tail`.

        Raises:
            NotFoundError: the table does not exist yet.
            UnavailableError: the storage does not answer.
            IntegrityError: a file is missing that the table needs.
        """
        tail = self.tail if name == self.objects else None

        def missing() -> NotFoundError:
            return NotFoundError(
                f"table {name} does not exist yet: no bucket was scanned, and no event has arrived",
                cause=None if self.lag is None else str(self.lag),
                hint="frazil content scan BUCKET|FOLDER",
            )

        def applied(table: Table | None) -> Table | None:
            assert tail is not None
            found, lag = tail.apply(self.store, table)
            self.lag = lag or self.lag
            return found

        def find() -> Table | None:
            table = find_table(self.store, name)
            return applied(None) if table is None and tail is not None else table

        def read_applied(table: Table) -> T:
            # Not while the table is loaded: a file that the tail needs may be replaced during that too.
            return read(table if tail is None or isinstance(table, OverlayTable) else applied(table) or table)

        return read_current(find, read_applied, missing, name)


def ensure_objects(store: TableStore, settings: Settings) -> Table:
    """`content.objects`, made on first use: sorted by key, so that a batch of neighbours touches few files."""
    content = settings.model.content
    made = ensure_table(
        store,
        objects_name(settings),
        OBJECTS,
        partition=content.partition,
        sort=["bucket", "key"],
        properties={**_properties(settings, "metadata"), **_MERGED},
    )
    return evolve_schema(store, made, OBJECTS)


def ensure_journal(store: TableStore, settings: Settings) -> Table:
    """`content.journal`, made on first use."""
    made = ensure_table(
        store,
        journal_name(settings),
        JOURNAL,
        partition=["day(record_timestamp)"],
        properties=_properties(settings, "raw_event"),
    )
    return evolve_schema(store, made, JOURNAL)


def _properties(settings: Settings, *plain: str) -> dict[str, str]:
    none = {f"{_OF_COLUMN}{name}": "none" for name in plain}
    # Without those about columns of messages: Iceberg's Java library, and so a REST server, refuses what is not there.
    common = {name: value for name, value in table_properties(settings).items() if not name.startswith(_OF_COLUMN)}
    return {**common, **_BOUNDS, **none}
