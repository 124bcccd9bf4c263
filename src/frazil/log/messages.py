"""Decodes frames to Arrow columns of messages. Vectorised: nothing here runs once per message."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pyarrow as pa

from frazil.errors import IntegrityError
from frazil.log.batch import IMPORTED, NO_REQUEST_ID, read_arrow, unpack
from frazil.log.columns import MESSAGE, TIME
from frazil.log.frame import HEADER_SIZE, BadFrameError, Header, Kind, check_body, unpack_header
from frazil.log.protocol import Chunk, TopicView

#: Size from which a packed frame becomes an array of its own.
_LARGE_BODY = 32 * 1024


def message_schema(view: TopicView, columns: Collection[str] | None = None) -> pa.Schema:
    """Returns the columns of a topic's messages: the common ones, then those of producers."""
    fields = [*MESSAGE, *view.extra]
    return pa.schema(fields if columns is None else [f for f in fields if f.name in columns])


def decode_chunk(
    chunk: Chunk, view: TopicView, start: int = 0, end: int | None = None, columns: Collection[str] | None = None
) -> pa.Table:
    """Returns the messages of a chunk with offsets in [start, end), as a table with `message_schema`.

    Raises:
        IntegrityError: a frame is damaged; the message names its offsets and position.
    """
    frames = [
        (at, header)
        for at, header in walk(chunk)
        if header.count and header.end_offset > start and (end is None or header.base_offset < end)
    ]
    schema = message_schema(view, columns)
    if not frames:
        return schema.empty_table()
    runs = [_Run(chunk, group) for group in _runs(frames)]
    counts = np.array([h.count for _, h in frames], np.int64)
    offsets = _offsets(frames, counts)
    first, last = np.searchsorted(offsets, [start, offsets[-1] + 1 if end is None else end])
    made = _Columns(chunk, view, frames, counts, offsets, runs)
    table = pa.table([made.column(f) for f in schema], schema=schema)
    return table if first == 0 and last == len(offsets) else table.slice(first, last - first)


def walk(chunk: Chunk) -> list[tuple[int, Header]]:
    """Yields position and header of each frame of a chunk; every CRC is checked."""
    data = memoryview(chunk.data)
    found: list[tuple[int, Header]] = []
    at = 0
    while at < len(data):
        header = None
        try:
            header = unpack_header(data, at)
            check_body(data, at, header)
        except BadFrameError as error:
            raise IntegrityError(
                f"segment {chunk.segment_id:020d} is damaged: {_range_of(header, found)}",
                cause=str(error),
                hint="frazil topic verify shows the exact range",
            ) from error
        found.append((at, header))
        at += header.frame_size
    return found


def _range_of(bad: Header | None, before: list[tuple[int, Header]]) -> str:
    if bad is not None:
        return f"offsets {bad.base_offset} to {bad.end_offset}"
    return f"from offset {before[-1][1].end_offset} on" if before else "from the chunk's first offset on"


def _runs(frames: list[tuple[int, Header]]) -> list[list[tuple[int, Header]]]:
    """Groups adjacent small packed frames; the others stay alone, because they need not be copied."""
    runs: list[list[tuple[int, Header]]] = []
    for at, header in frames:
        if runs and _is_small(header) and _is_small(runs[-1][0][1]):
            runs[-1].append((at, header))
        else:
            runs.append([(at, header)])
    return runs


def _is_small(header: Header) -> bool:
    return header.kind == Kind.packed and header.body_size < _LARGE_BODY


def _offsets(frames: list[tuple[int, Header]], counts: Any) -> Any:
    bases = np.array([h.base_offset for _, h in frames], np.int64)
    before = np.cumsum(counts) - counts
    return np.repeat(bases - before, counts) + np.arange(counts.sum(), dtype=np.int64)


class _Run:
    """The columns that producers sent in a run of frames."""

    def __init__(self, chunk: Chunk, frames: list[tuple[int, Header]]) -> None:
        self.count = sum(h.count for _, h in frames)
        self.imported = bool(frames[0][1].flags & IMPORTED)
        self._sent: pa.RecordBatch | None = None
        self._data = chunk.data
        at, header = frames[0]
        if header.kind == Kind.arrow:
            self._sent = read_arrow(chunk.data.slice(at + HEADER_SIZE, header.body_size))
        else:
            self._bodies = [unpack(chunk.data, a + HEADER_SIZE, h.count, h.flags) for a, h in frames]

    def sent(self, field: pa.Field) -> pa.Array | None:
        """Returns a column that the producers sent, or None."""
        if self._sent is not None:
            at = self._sent.schema.get_field_index(field.name)
            if at < 0:
                return None
            column = self._sent.column(at)
            return column if column.type == field.type else column.cast(field.type)
        if field.name == "payload":
            return self._packed_payloads()
        return self._packed_request_ids() if field.name == "request_id" else None

    def _packed_payloads(self) -> pa.Array:
        lengths = [lengths for lengths, _, _ in self._bodies]
        if len(self._bodies) == 1:
            at = self._bodies[0][2]
            offsets = np.zeros(self.count + 1, np.int32)
            np.cumsum(lengths[0], out=offsets[1:])
            return pa.Array.from_buffers(
                pa.binary(), self.count, [None, pa.py_buffer(offsets), self._data.slice(at, int(offsets[-1]))]
            )
        # Payloads are not contiguous: take every second piece of payload, gap, payload, gap, …
        counts = np.array([len(part) for part in lengths])
        sizes = np.concatenate(lengths).astype(np.int64)
        ends = np.cumsum(sizes)
        before = np.repeat(np.concatenate(([0], ends[np.cumsum(counts)[:-1] - 1])), counts)
        starts = np.repeat(np.array([at for _, _, at in self._bodies], np.int64), counts) + ends - sizes - before
        pieces = np.empty(2 * self.count + 1, np.int64)
        pieces[0:-1:2] = starts
        pieces[1::2] = starts + sizes
        pieces[-1] = pieces[-2]
        spread = pa.Array.from_buffers(pa.large_binary(), 2 * self.count, [None, pa.py_buffer(pieces), self._data])
        return spread.take(pa.array(np.arange(0, 2 * self.count, 2))).cast(pa.binary())

    def _packed_request_ids(self) -> pa.Array | None:
        if all(ids is None for _, ids, _ in self._bodies):
            return None
        parts = [
            np.full(len(lengths), NO_REQUEST_ID, np.int64) if ids is None else ids for lengths, ids, _ in self._bodies
        ]
        values = np.concatenate(parts)
        return pa.array(values, mask=values == NO_REQUEST_ID)


class _Columns:
    """The columns of a chunk's messages, sent or derived from the frames."""

    def __init__(
        self, chunk: Chunk, view: TopicView, frames: list[tuple[int, Header]], counts: Any, offsets: Any,
        runs: list[_Run],
    ) -> None:  # fmt: skip
        self._chunk, self._frames = chunk, [h for _, h in frames]
        self._counts, self._runs = counts, runs
        self._total = len(offsets)
        self._derived: dict[str, Callable[[], pa.Array]] = {
            "producer_id": self._producer_id,
            "topic_name": lambda: self._repeat(view.topic, pa.string()),
            "broker_addr": lambda: self._repeat(view.broker_addr, pa.string()),
            "segment_id": lambda: self._repeat(chunk.segment_id, pa.int64()),
            "segment_offset": lambda: pa.array(offsets - chunk.segment_id),
            "publish_time": lambda: pa.array(self._per_message([h.time_us for h in self._frames])).cast(TIME),
            "producer_name": self._producer_name,
            "subscription_name": lambda: pa.nulls(self._total, pa.string()),
            "partition": lambda: self._repeat(0, pa.int32()),
            "offset": lambda: pa.array(offsets),
        }

    def column(self, field: pa.Field) -> pa.ChunkedArray:
        derived = self._derived.get(field.name)
        if derived is None:
            parts = [r.sent(field) for r in self._runs]
            filled = [_nulls(r, field) if p is None else p for r, p in zip(self._runs, parts, strict=True)]
            return pa.chunked_array(filled, field.type)
        made = derived()
        if any(r.imported for r in self._runs):
            return self._with_imported(field, made)
        return pa.chunked_array([made], field.type)

    def _with_imported(self, field: pa.Field, made: pa.Array) -> pa.ChunkedArray:
        """Returns a derived column with the values of runs that carry the column themselves."""
        parts, at = [], 0
        for run in self._runs:
            sent = run.sent(field) if run.imported else None
            parts.append(made.slice(at, run.count) if sent is None else sent)
            at += run.count
        return pa.chunked_array(parts, field.type)

    def _repeat(self, value: Any, kind: pa.DataType) -> pa.Array:
        return pa.nulls(self._total, kind) if value is None else pa.repeat(pa.scalar(value, kind), self._total)

    def _per_message(self, values: list[int]) -> Any:
        return np.repeat(np.array(values, np.int64), self._counts)

    def _producer_id(self) -> pa.Array:
        ids = self._per_message([h.producer_id for h in self._frames])
        return pa.array(ids, mask=ids == 0)

    def _producer_name(self) -> pa.Array:
        names = [self._chunk.producers.get(h.producer_id) for h in self._frames]
        if len(set(names)) == 1:
            return self._repeat(names[0], pa.string())
        return pa.array(names, pa.string()).take(pa.array(np.repeat(np.arange(len(names)), self._counts)))


def _nulls(run: _Run, field: pa.Field) -> pa.Array:
    return pa.nulls(run.count, field.type)
