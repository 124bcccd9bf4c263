"""Compares the messages of a topic's log with the rows of its table that have the same offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.log.columns import MESSAGE
from frazil.log.frame import unpack_trusted
from frazil.log.maintenance.walk import Run, WalkedSegment, map_file
from frazil.log.messages import decode_chunk
from frazil.log.protocol import Chunk, OffsetGoneError, TopicView
from frazil.log.reading import CHUNK_BYTES
from frazil.settings import NetworkSettings
from frazil.tables.reading.ordered_scan import scan_in_order
from frazil.topics.reading.topic_plan import plan_topic

if TYPE_CHECKING:
    from pyiceberg.table import Table

_COLUMNS = pa.schema([MESSAGE.field(name) for name in ("offset", "publish_time", "payload")])


#: Returns the frames of a log from one offset to another.
Chunks = Callable[[int, int], Iterator[Chunk]]


def find_differences(chunks: Chunks, topic: str, table: Table, start: int, end: int, network: NetworkSettings) -> Any:
    """Yields the offsets in [start, end) under which table and log have different messages, in order.

    Offsets that only one of them has do not count, nor those that the log removes in the meantime.

    Raises:
        IntegrityError: a frame of the log is damaged.
        OSError: a file of the table has gone, or storage does not answer.
    """
    rows = (
        scanned.table
        for scanned in scan_in_order(plan_topic(table, topic, network), _COLUMNS, start, end, network=network)
    )
    messages = _messages(chunks(start, end), topic, start, end)
    return np.concatenate([np.zeros(0, np.int64), *_differences(messages, rows)])


def can_compare(table: Table) -> bool:
    """Returns whether the table still has the columns that are compared."""
    return set(_COLUMNS.names) <= set(table.schema().column_names)


def read_chunks(walked: Sequence[WalkedSegment], start: int, end: int) -> Iterator[Chunk]:
    """Reads the whole frames of segment files that were walked before."""
    for segment in walked:
        runs = [run for run in segment.runs if run.first < end and run.end_offset > start]
        if not runs:
            continue
        try:
            view = map_file(segment.segment.path)
        except FileNotFoundError:  # retention of the process that has it open was faster
            continue
        for run in runs:
            for begin, limit in _cuts(view, run):
                yield Chunk(segment.id, pa.py_buffer(view[begin:limit]), {})


def _cuts(view: memoryview, run: Run) -> Iterator[tuple[int, int]]:
    begin = at = run.begin
    while at < run.end:
        at += unpack_trusted(view, at).frame_size
        if at - begin >= CHUNK_BYTES or at == run.end:
            yield begin, at
            begin = at


def _messages(chunks: Iterator[Chunk], topic: str, start: int, end: int) -> Iterator[pa.Table]:
    view = TopicView(topic, "", pa.schema([]))
    try:
        for chunk in chunks:
            yield decode_chunk(chunk, view, start, end, _COLUMNS.names).select(_COLUMNS.names)
    except OffsetGoneError:
        return


def _differences(messages: Iterator[pa.Table], rows: Iterator[pa.Table]) -> Iterator[Any]:
    """Merges both sides, which come in order: compares what both have, then reads on where less was read."""
    one, other = _COLUMNS.empty_table(), _COLUMNS.empty_table()
    while True:
        while not one.num_rows or not other.num_rows:
            more = next(messages if not one.num_rows else rows, None)
            if more is None:
                return
            one, other = (more, other) if not one.num_rows else (one, more)
        end = min(_offsets(one)[-1], _offsets(other)[-1]) + 1
        cut, other_cut = np.searchsorted(_offsets(one), end), np.searchsorted(_offsets(other), end)
        yield _unequal(one.slice(0, cut), other.slice(0, other_cut))
        one, other = one.slice(cut), other.slice(other_cut)


def _unequal(messages: pa.Table, rows: pa.Table) -> Any:
    offsets, at, other_at = np.intersect1d(_offsets(messages), _offsets(rows), assume_unique=True, return_indices=True)
    left, right = messages.take(pa.array(at)), rows.take(pa.array(other_at))
    same = pc.and_(*(pc.equal(left[name], right[name]) for name in ("publish_time", "payload")))
    return offsets[~pc.fill_null(same, False).to_numpy()]


def _offsets(table: pa.Table) -> Any:
    return table.column("offset").to_numpy()
