"""The offsets that the tables of a topic contain; the log reads them before it assigns its first offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from frazil.settings import Settings
from frazil.tables.store import LazyStore, find_table

if TYPE_CHECKING:
    from frazil.tables import TableStore

OffsetLookup = Callable[[str, str], int | None]


def committed_offsets(settings: Settings, catalog: str | None = None) -> OffsetLookup:
    """Returns a function of topic and log id that returns the end of the offsets in the topic's tables; None: no table.

    A log calls it once per topic, when it is opened: the catalog is opened for each call, and not kept open.

    Raises:
        ForeignLogError: by the function, if the table belongs to another log.
        UnavailableError: by the function, if the catalog does not answer.
    """

    def floor(topic: str, log_id: str) -> int | None:
        with LazyStore(settings, catalog) as opened:
            return _floor(opened.store(), settings, topic, log_id)

    return floor


def _floor(store: TableStore, settings: Settings, topic: str, log_id: str) -> int | None:
    from frazil.tables import find_highest_offsets
    from frazil.topics.layout import dead_letters_name
    from frazil.topics.positions import require_same_log
    from frazil.topics.sinks.registry import sink_tables

    known: list[int] = []
    for sink, name in sink_tables(settings, topic):
        if (table := find_table(store, name)) is not None:
            require_same_log(table, topic, log_id, sink)
            known += [0, *find_highest_offsets(table, topic).values()]
    if not known:
        return None
    # Dead letters are committed first: after a crash between the two they may be ahead of the table.
    letters = find_table(store, dead_letters_name(settings))
    return max(known + list(find_highest_offsets(letters, topic).values() if letters is not None else ()))
