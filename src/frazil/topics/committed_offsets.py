"""The offsets that the tables of a topic know: the log looks them up before it assigns its first offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from frazil.settings import Settings
from frazil.tables.store import LazyStore, find_table

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import Position, TableStore

OffsetLookup = Callable[[str, str], int | None]


def committed_offsets(settings: Settings, catalog: str | None = None) -> OffsetLookup:
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
    from frazil.tables import find_highest_offsets
    from frazil.topics.layout import dead_letters_name, sink_tables

    known: list[int] = []
    for sink, name in sink_tables(settings, topic):
        if (table := find_table(store, name)) is not None:
            require_same_log(table, topic, log_id, sink)
            known += [0, *find_highest_offsets(table, topic).values()]
    if not known:
        return None
    # Dead letters are committed first: after a crash between the two they may know more than the table.
    letters = find_table(store, dead_letters_name(settings))
    return max(known + list(find_highest_offsets(letters, topic).values() if letters is not None else ()))


def require_same_log(table: Table, topic: str, log_id: str, sink: str | None = None) -> None:
    """Raises ForeignLogError where the table's position belongs to another log."""
    from frazil.topics.layout import ARCHIVE
    from frazil.topics.positions import check_log

    check_log(topic, log_id, recorded_position(table, topic, sink), sink or ARCHIVE)


def recorded_position(table: Table, topic: str, sink: str | None = None) -> Position | None:
    """The position that a sink, by default the archive, has written, rolled back or not; None: nothing was written."""
    from frazil.tables import RolledBackError, find_position
    from frazil.topics.layout import ARCHIVE

    try:
        return find_position(table, sink or ARCHIVE, topic)
    except RolledBackError as error:
        return error.recorded or error.table_position
