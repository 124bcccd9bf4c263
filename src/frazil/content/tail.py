"""The table of objects together with the messages it does not have yet, decided by the functions of the sink.

Events without an order are applied as observations that are still to be verified: no bucket is asked. Definitions of
custom columns, and messages that cannot be read, are left to the sink.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from frazil.content.annotations.carry_over import Shape
from frazil.content.annotations.custom_columns import fields_of
from frazil.content.columns import OBJECTS
from frazil.content.events.parse import parse_messages
from frazil.content.names import CONTENT, objects_name
from frazil.content.sink.evidence import PACKED, of_changes, packed, packed_notes, unverified
from frazil.content.sink.merge import merge_changes
from frazil.errors import FrazilError
from frazil.log.protocol import LogAccess, OffsetGoneError
from frazil.settings import Settings
from frazil.tables import TableStore, find_position
from frazil.tables.create import to_arrow_schema
from frazil.tables.reading.key_lookup import find_keys
from frazil.tables.reading.overlay import OverlayTable, empty_table
from frazil.tables.reading.rows_by_position import fetch_rows
from frazil.tables.store import find_table
from frazil.tables.writing.data_files import WriteTarget
from frazil.topics.connection import connect_patiently, has_log, silent
from frazil.topics.reading.tail import Bound, Lag, Opener, Tail, TailReader

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: A longer tail takes more than about 0.3 s on one core.
BOUND = Bound(messages=5_000, bytes=4 << 20)
#: Stored rows whose keys are compared with those of the tail.
_COMPARED = 2_000_000
_KEY = ["bucket", "key"]


class ContentTail:
    """Applies the tail of the topic of events to the table of objects. Any number of threads may ask.

    Args:
        settings: the settings.
        open_log: opens the log for one read.
        live: whether the end of the log is looked up for each read; else once.
        bound: of longer tails nothing is applied.
    """

    def __init__(self, settings: Settings, open_log: Opener, *, live: bool, bound: Bound = BOUND) -> None:
        content = settings.model.content
        self._name, self._topic, self._skew_s = objects_name(settings), content.topic, content.skew_s
        decode = partial(_evidence, dialect=content.dialect)
        self._reader = TailReader(open_log, content.topic, CONTENT, decode, bound, live=live)
        self._lock = threading.Lock()
        self._places: _Places | None = None
        #: The last view, and what it was made of.
        self._view: tuple[tuple[str, str, int, int], Table] | None = None

    @classmethod
    def of_log(cls, settings: Settings, log: LogAccess) -> Self:
        """For a process that has the log, and answers again and again."""

        @contextmanager
        def opened() -> Iterator[LogAccess]:
            yield log

        return cls(settings, opened, live=True)

    @classmethod
    def of_command(cls, settings: Settings) -> Self:
        """For a command: the log behind its broker, or its folder, which is open only while it is read."""

        @contextmanager
        def opened() -> Iterator[LogAccess | None]:
            if not has_log(settings):
                yield None
                return
            with connect_patiently(settings, note=silent) as access:
                yield access

        return cls(settings, opened, live=False)

    def apply(self, store: TableStore, table: Table | None) -> tuple[Table | None, Lag | None]:
        """Returns the table as it will be when its sink has merged the tail; and what it lacks, if it lacks anything.

        Args:
            store: the catalog.
            table: the table as it is now; None: it does not exist yet.

        Raises:
            OSError: a file of the table cannot be read, or was removed since it was loaded.
        """
        with self._lock:
            try:
                return self._apply(store, table)
            except OffsetGoneError:
                newer = find_table(store, self._name)
            try:
                return self._apply(store, newer)
            except OffsetGoneError as error:
                return newer, Lag(None, error.in_one_line)

    def _apply(self, store: TableStore, table: Table | None) -> tuple[Table | None, Lag | None]:
        try:
            tail = self._reader.read(None if table is None else find_position(table, CONTENT, self._topic))
        except OffsetGoneError:
            raise
        except FrazilError as error:  # the table was rolled back
            return table, Lag(None, error.in_one_line)
        if isinstance(tail, Lag):
            return table, tail
        if not tail.parts:
            return table, None
        made_of = ("" if table is None else table.metadata_location, tail.log_id, tail.start, tail.end)
        if self._view is not None and self._view[0] == made_of:
            return self._view[1], None
        try:
            view = self._merged(store, table, tail)
        except FrazilError as error:
            return table, Lag(tail.end - tail.start, error.in_one_line)
        if view is None:
            return table, Lag(tail.end - tail.start, f"they are about keys among more than {_COMPARED:,} rows")
        self._view = made_of, view
        return view, None

    def _merged(self, store: TableStore, table: Table | None, tail: Tail[pa.Table]) -> Table | None:
        evidence = pa.concat_tables([part.decoded for part in tail.parts])
        if table is None:
            if not evidence.num_rows:
                return None
            table = empty_table(store, tuple(self._name.split(".")), OBJECTS)
        if self._places is None or self._places.table.metadata_location != table.metadata_location:
            self._places = _Places(store, table)
        stored = self._places.of(evidence)
        if stored is None:
            return None
        fields = fields_of(table)
        shape = Shape.of(to_arrow_schema(table.schema()), fields)
        fetch = partial(fetch_rows, WriteTarget.of(table))
        merged = merge_changes(pa.concat_tables([stored, evidence]), fetch, shape, fields, self._skew_s)
        if merged is None or not merged.rows.num_rows:
            return table
        return OverlayTable(table, merged.rows, merged.files, merged.positions)


class _Places:
    """Where the rows of keys lie in one version of the table. It keeps what it has found."""

    def __init__(self, store: TableStore, table: Table) -> None:
        self.table = table
        self._store = store
        self._known: set[tuple[str, str]] = set()
        self._found = PACKED.empty_table()
        self._left = _COMPARED

    def of(self, evidence: pa.Table) -> pa.Table | None:
        """The stored rows with the keys of some evidence, in the schema `PACKED`; None if they are too many to find."""
        asked = dict.fromkeys(zip(*(evidence.column(name).to_pylist() for name in _KEY), strict=True))
        new = [key for key in asked if key not in self._known]
        if new:
            keys = pa.table({name: pa.array(column) for name, column in zip(_KEY, zip(*new, strict=True), strict=True)})
            found = find_keys(self._store, self.table, keys, self._left)
            if found is None:
                return None
            columns = [
                found.column(f.name) if f.name in found.column_names else pa.nulls(found.num_rows, f.type)
                for f in PACKED
            ]
            self._found = pa.concat_tables([self._found, pa.table(columns, schema=PACKED)])
            self._known.update(new)
        return self._found


def _evidence(messages: pa.Table, dialect: str) -> pa.Table:
    """What messages say, in the schema `PACKED`."""
    changes, _, notes, _ = parse_messages(messages, dialect)
    open_ones = changes.filter(changes.column("needs_asking"))
    known = pa.concat_tables([of_changes(changes), unverified(open_ones)])
    return pa.concat_tables([packed(known), packed_notes(notes)])
