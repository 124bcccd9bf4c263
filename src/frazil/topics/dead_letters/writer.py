"""Writes dead letters: messages that a sink could not put into its table, kept whole, with the reason.

The dead-letter table is a side table of every sink: it has a position per sink and topic. Where that is ahead of the
sink's table, a batch was cut off between the two commits, and the messages that it has written are not written again.
"""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from frazil.log.columns import MESSAGE, PARTITION
from frazil.settings import Settings
from frazil.settings.policies import snapshots_kept
from frazil.tables import Position, TableStore, find_position
from frazil.tables.writing.data_files import WriteTarget
from frazil.tables.writing.type_conversion import RejectedRow, find_out_of_range
from frazil.topics.dead_letters.json_values import python_values, to_plain
from frazil.topics.layout import DEAD_LETTER, ensure_dead_letters
from frazil.topics.side_table import append_to_side_table

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


@dataclass(frozen=True)
class Origin:
    """The sink that could not take some messages, and the log that they are from."""

    sink: str
    topic: str
    log_id: str


def dead_rows(messages: pa.Table, misfits: Sequence[RejectedRow], origin: Origin, known: frozenset[int]) -> pa.Table:
    """Makes the rows of the dead-letter table for rejected messages, without those that the table has already."""
    offsets = messages.column("offset").take(pa.array([m.row for m in misfits])).to_pylist()
    new = [m for m, offset in zip(misfits, offsets, strict=True) if offset not in known]
    rows = messages.take(pa.array([m.row for m in new], pa.int64()))
    own = {n: python_values(rows[n]) for n in rows.column_names if n not in MESSAGE.names}
    made: dict[str, Any] = {
        "sink": origin.sink,
        "topic": origin.topic,
        "status": "dead",
        "reason": pa.array([m.reason for m in new], pa.string()),
        "error": pa.array([m.error for m in new], pa.string()),
        "columns": pa.array([_as_json({n: v[row] for n, v in own.items()}) for row in range(len(new))], pa.string()),
        "log_id": origin.log_id,
        "replay": None,
        "written_at": datetime.datetime.now(datetime.UTC),
        "publish_time": _readable(rows["publish_time"]),
    }
    return letters({n: rows[n] for n in rows.column_names if n in DEAD_LETTER.names} | made, len(new))


def _readable(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replaces times that no table can hold by null; imported messages may have such, and `error` names them."""
    bad = [misfit.row for misfit in find_out_of_range(times, DEAD_LETTER.field("publish_time"))]
    is_bad = pc.is_in(pa.array(range(len(times)), pa.int64()), pa.array(bad, pa.int64()))
    return pc.if_else(is_bad, pa.scalar(None, times.type), times) if bad else times


def letters(columns: dict[str, Any], count: int) -> pa.Table:
    """Makes rows of the dead-letter table. A column is an array, or one value for all rows; the others are null."""
    made = []
    for f in DEAD_LETTER:
        value = columns.get(f.name)
        if not isinstance(value, (pa.Array, pa.ChunkedArray)):
            value = pa.repeat(pa.scalar(value, f.type), count)
        made.append(value)
    return pa.table(made, schema=DEAD_LETTER)


def _as_json(row: dict[str, object]) -> str | None:
    given = {k: to_plain(v) for k, v in row.items() if v is not None}
    return json.dumps(given, ensure_ascii=False) if given else None


class DeadLetters:
    """The dead-letter table as sinks write it. It caches the table and its positions until `forget`. Thread-safe."""

    def __init__(self, store: TableStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._known: dict[tuple[str, str], Position | None] = {}

    def target(self) -> WriteTarget:
        return WriteTarget.of(self._loaded())

    def forget(self, topic: str) -> None:
        """Drops what is cached for a topic, because another process may have written."""
        with self._lock:
            self._table = None
            for key in [k for k in self._known if k[1] == topic]:
                del self._known[key]

    def known(self, origin: Origin, expected: Position | None, end: int) -> frozenset[int]:
        """Returns the offsets from a position up to `end` that the table has already."""
        position = self._position(origin.sink, origin.topic)
        start = expected.offsets.get(PARTITION, 0) if expected else 0
        if position is None or position.offsets.get(PARTITION, 0) <= start:
            return frozenset()
        # Of this log: a topic that was deleted and made anew has other messages under the same offsets.
        wanted = (
            f"sink = '{origin.sink}' and topic = '{origin.topic}' and log_id = '{origin.log_id}' and status = 'dead'"
            f" and offset >= {start} and offset < {end}"
        )
        table = self._loaded()
        scan = table.scan(row_filter=wanted, selected_fields=("offset",))
        return frozenset(self._store.call(scan.to_arrow, "scan", "storage").column("offset").to_pylist())

    def commit(self, reached: Position, files: Sequence[DataFile]) -> None:
        """Adds the dead letters of a batch that takes its sink's table to `reached`.

        Raises:
            PositionMovedError: another pipeline has added its own; the batch must be planned again.
        """
        expected, table = self._position(reached.sink, reached.topic), self._loaded()
        keep = snapshots_kept(self._settings, table.name(), self._settings.model.topics.keep_snapshots)
        done = append_to_side_table(self._store, table, files, expected=expected, reached=reached, keep_snapshots=keep)
        with self._lock:
            self._table = done.table
            self._known[reached.sink, reached.topic] = done.position

    def _loaded(self) -> Table:
        with self._lock:
            table = self._table
        if table is None:
            table = ensure_dead_letters(self._store, self._settings)
            with self._lock:
                self._table = table
        return table

    def _position(self, sink: str, topic: str) -> Position | None:
        with self._lock:
            if (sink, topic) in self._known:
                return self._known[sink, topic]
        position = find_position(self._loaded(), sink, topic)
        with self._lock:
            self._known[sink, topic] = position
        return position
