"""Reads the visible part of a topic's log: chunks of whole frames, ranges to take next, offsets by time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import IntegrityError, NotFoundError
from frazil.log.batch import IMPORTED
from frazil.log.columns import TIME
from frazil.log.frame import HEADER_SIZE, BadFrameError, Header, unpack_header
from frazil.log.local_reader import FrameRange
from frazil.log.messages import decode_chunk
from frazil.log.protocol import Chunk, OffsetGoneError, Span, TopicView
from frazil.log.segment import INDEX_STEP, Segment
from frazil.log.synced_mark import SyncedMark
from frazil.log.topic import TopicLog

CHUNK_BYTES = 4 * 1024 * 1024
#: Smallest piece of a range: reading less costs less than the task that reads it.
MIN_PIECE = 4 * 1024 * 1024


@dataclass(frozen=True)
class _Part:
    """A part of a segment file that begins and ends between frames."""

    segment: Segment
    begin: int
    limit: int
    end_offset: int


def _parts(topic: TopicLog, start: int, end: int | None = None) -> Iterator[_Part]:
    """Yields the parts of segments that hold a range."""
    segments, synced = topic.visible()
    _check_start(topic, segments, start)
    for segment in segments:
        active = segment.id == synced.segment_id
        if segment.id > synced.segment_id or (end is not None and segment.id >= end):
            break
        limit, end_offset = (synced.position, synced.offset) if active else (segment.size, segment.end_offset)
        if end_offset <= start:
            continue
        begin = segment.position_before(start)
        if end is not None and end < end_offset:
            limit = segment.position_after(end, limit)
            end_offset = min(end_offset, end)
        yield _Part(segment, begin, limit, end_offset)


def _check_start(topic: TopicLog, segments: list[Segment], start: int) -> None:
    first = segments[0].id if segments else topic.start
    if start < first:
        raise OffsetGoneError(
            f"offset {start} of topic '{topic.name}' is no longer in the log: it begins at {first}",
            start=first,
            cause="retention has removed it",
            hint=f"read from {first} on, or from the topic's table: frazil topic replay {topic.name} --from {start}",
        )


def chunks(topic: TopicLog, start: int, end: int | None = None) -> Iterator[Chunk]:
    """Yields the visible frames of a range in order; the first and the last chunk may reach beyond it."""
    for part in _parts(topic, start, end):
        names = _names(topic, part)
        with _OpenSegment(topic, part.segment) as fd:
            for at, until in _split_part(part):
                yield Chunk(part.segment.id, pa.py_buffer(os.pread(fd, until - at, at)), names)


def places(topic: TopicLog, start: int, end: int) -> tuple[list[FrameRange], dict[int, str]]:
    """Returns where those frames lie, without reading them, and the names of producers that may occur in them."""
    found: list[FrameRange] = []
    names: dict[int, str] = {}
    for part in _parts(topic, start, end):
        names |= _names(topic, part)
        for at, until in _split_part(part):
            following = part.segment.offset_at(until, part.limit, part.end_offset)
            found.append(FrameRange(part.segment.id, at, until, following))
    return found, names


def _split_part(part: _Part) -> Iterator[tuple[int, int]]:
    at = part.begin
    while at < part.limit:
        until = part.segment.find_cut(at, CHUNK_BYTES, part.limit)
        yield at, until
        at = until


def _names(topic: TopicLog, part: _Part) -> dict[int, str]:
    return {i: topic.state.names[i] for i in list(part.segment.producers) if i in topic.state.names}


class _OpenSegment:
    """Opens the file of a segment; reports one that retention has just removed as a missing range."""

    def __init__(self, topic: TopicLog, segment: Segment) -> None:
        self._topic, self._segment = topic, segment

    def __enter__(self) -> int:
        try:
            self._fd = os.open(self._segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            segments, _ = self._topic.visible()
            _check_start(self._topic, segments, self._segment.id)
            raise NotFoundError(f"{self._segment.path} of topic '{self._topic.name}' is gone") from None
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def spans(topic: TopicLog, start: int, max_bytes: int, pieces: int) -> list[Span]:
    """Returns what to read next: about `max_bytes` from an offset on, in up to `pieces` spans of similar size."""
    parts = list(_parts(topic, start))
    total = min(max_bytes, sum(p.limit - p.begin for p in parts))
    piece = max(MIN_PIECE, -(-total // max(pieces, 1)))
    found: list[Span] = []
    first, size = start, 0
    for part in parts:
        at = part.begin
        while at < part.limit and total > 0:
            until = part.segment.find_cut(at, min(piece - size, total), part.limit)
            size, total, at = size + until - at, total - (until - at), until
            if size >= piece or total <= 0:
                first = _append_span(found, first, part.segment.offset_at(at, part.limit, part.end_offset), size)
                size = 0
    if size and parts:
        _append_span(found, first, parts[-1].end_offset, size)
    if found:
        found[0] = Span(found[0].start, found[0].end, found[0].size, _time_of(topic, found[0].start))
    return found


def _append_span(found: list[Span], first: int, end: int, size: int) -> int:
    if end > first:
        found.append(Span(first, end, size))
    return max(first, end)


def offset_at(topic: TopicLog, time_us: int) -> int:
    """Returns the first visible offset published at or after a time, or the visible end if there is none."""
    segments, synced = topic.visible()
    for segment in segments:
        if segment.last_time_us is None or segment.last_time_us < time_us:
            continue
        for header in _headers(topic, segment, segment.position_before_time(time_us), synced):
            if header.count and header.time_us >= time_us:
                return _find_imported_offset(topic, header, time_us) if header.flags & IMPORTED else header.base_offset
    return topic.end


def epoch_below(topic: TopicLog, offset: int) -> int:
    """Returns the epoch of the last visible message below an offset; 0 if the log has none."""
    segments, synced = topic.visible()
    for segment in reversed(segments):
        if segment.id < offset:
            # Behind an indexed frame there may be only state, or skipped offsets.
            for begin in (segment.position_before(offset - 1), 0):
                headers = _headers(topic, segment, begin, synced)
                below = [h.epoch for h in takewhile(lambda h: h.base_offset < offset, headers) if h.count]
                if below:
                    return below[-1]
    return 0


def _find_imported_offset(topic: TopicLog, header: Header, time_us: int) -> int:
    """Finds the offset inside a frame made by a migration, whose messages have times of their own."""
    view = TopicView(topic.name, "", pa.schema([]))
    for chunk in chunks(topic, header.base_offset, header.end_offset):
        rows = decode_chunk(chunk, view, header.base_offset, header.end_offset, ("offset", "publish_time"))
        found = rows.filter(pc.field("publish_time") >= pa.scalar(time_us, TIME))
        if found.num_rows:
            return int(found.column("offset")[0].as_py())
    return header.base_offset


def _time_of(topic: TopicLog, offset: int) -> int:
    segments, synced = topic.visible()
    for segment in reversed(segments):
        if segment.id <= offset:
            for header in _headers(topic, segment, segment.position_before(offset), synced):
                if header.count and header.end_offset > offset:
                    return header.time_us
    return 0


def _headers(topic: TopicLog, segment: Segment, begin: int, synced: SyncedMark) -> Iterator[Header]:
    limit = synced.position if segment.id == synced.segment_id else segment.size
    at = begin
    window, window_at = b"", begin
    with _OpenSegment(topic, segment) as fd:
        while at < limit:
            if at + HEADER_SIZE > window_at + len(window):
                window, window_at = os.pread(fd, INDEX_STEP, at), at
            try:
                header = unpack_header(window, at - window_at)
            except BadFrameError as error:
                raise IntegrityError(
                    f"topic '{topic.name}' is damaged: {segment.path.name}, byte {at:,}",
                    cause=str(error),
                    hint=f"frazil topic verify {topic.name} shows the exact range",
                ) from error
            yield header
            at += header.frame_size
