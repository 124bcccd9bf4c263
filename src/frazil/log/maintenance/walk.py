"""Walks through a segment file to its end, past any damage. Changes nothing."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frazil.errors import FrazilError
from frazil.log.batch import Batch
from frazil.log.frame import (
    HEADER_SIZE,
    BadFrameError,
    Bytes,
    Header,
    Kind,
    NewerVersionError,
    check_body,
    unpack_header,
)
from frazil.log.recovery import valid_frames_after
from frazil.log.segment import Segment
from frazil.log.state import State, read_state

_ANY_SIZE = 2**31


@dataclass
class Run:
    """Frames that follow each other without a break: bytes [begin, end) of the file."""

    begin: int
    end: int
    first: int
    """The offset at which the run begins."""
    end_offset: int
    epoch: int


@dataclass(frozen=True)
class Break:
    """Bytes [start, end) that are not frames of this log; empty if offsets are missing between two frames."""

    start: int
    end: int
    after: int
    """All offsets below are in the frames before."""
    until: int | None
    """The first offset of the frames behind; None where nothing follows."""
    problem: str


@dataclass
class WalkedSegment:
    """The contents of a segment file."""

    segment: Segment
    size: int
    runs: list[Run] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """Where messages are, in order and without gaps."""
    frames: int = 0
    head: dict[str, Any] | None = None
    """The state at the head, as far as that is whole."""
    synced: int = 0
    """The highest offset of which a frame says that all below was on disk."""
    ends: dict[int, int] = field(default_factory=dict)
    """Position → offset behind the frame that ends there, for the positions asked for."""

    @property
    def id(self) -> int:
        return self.segment.id

    @property
    def name(self) -> str:
        return self.segment.path.name

    @property
    def previous(self) -> int | None:
        """Where the segment before ended, according to the head of this one."""
        found = (self.head or {}).get("previous")
        return None if found is None else int(found)

    @property
    def end_offset(self) -> int:
        last = self.runs[-1].end_offset if self.runs else self.id
        return max(last, int((self.head or {}).get("until") or 0))


def walk_segment(
    folder: Path, segment_id: int, log_id: int, *, limit: int | None = None, at: tuple[int, ...] = ()
) -> WalkedSegment:
    """Reads every frame of a segment file.

    Args:
        folder: of the topic.
        segment_id: its id.
        log_id: frames of other logs do not count.
        limit: bytes to read; what follows may be being written.
        at: positions to report in `ends`.

    Raises:
        NewerVersionError: a later version of Frazil has written there, so that the result would be meaningless.
    """
    segment = Segment(folder, segment_id)
    found = WalkedSegment(segment, segment.path.stat().st_size)
    view = map_file(segment.path)[: found.size if limit is None else limit]
    try:
        _walk(view, found, log_id, frozenset(at))
    except NewerVersionError as error:
        raise error.adding(str(segment.path)) from None
    return found


def map_file(path: Path) -> memoryview:
    """Maps a file's bytes without reading them all into memory; unmapped with the last view."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def _walk(view: memoryview, found: WalkedSegment, log_id: int, wanted: frozenset[int]) -> None:
    at, end = 0, found.id
    run: Run | None = None
    while at < len(view):
        header, problem = read_frame(view, at, log_id)
        if header is not None and (problem := _find_order_problem(header, run, end)) is None:
            run = run or _begin_run(found, at, header)
            _add_frame(view, found, run, at, header)
            at, end = run.end, run.end_offset
            if at in wanted:
                found.ends[at] = end
            continue
        if header is None and not bytes(view[at:]).strip(b"\0"):
            return  # zeros that were written ahead
        behind, offset = at, None
        if header is None or header.base_offset < end:
            behind, offset = _next(view, at, log_id, end)
        else:  # a good frame, but offsets are missing before it
            offset = header.base_offset
        found.breaks.append(Break(at, behind, end, offset, problem or ""))
        run, at, end = None, behind, end if offset is None else offset


def _begin_run(found: WalkedSegment, at: int, header: Header) -> Run:
    run = Run(at, at, header.base_offset, header.base_offset, header.epoch)
    found.runs.append(run)
    return run


def _add_frame(view: memoryview, found: WalkedSegment, run: Run, at: int, header: Header) -> None:
    if at == 0 and header.kind == Kind.state:
        found.head = read_state(view[HEADER_SIZE : HEADER_SIZE + header.body_size])
    found.segment.add_frame(header)
    found.frames += 1
    if header.count:
        add_range(found.ranges, header.base_offset, header.end_offset)
    found.synced = max(found.synced, header.synced)
    run.end, run.end_offset, run.epoch = at + header.frame_size, header.end_offset, header.epoch


def add_range(ranges: list[tuple[int, int]], first: int, end: int) -> None:
    """Adds a range behind others, or extends the last one if it is adjacent."""
    if ranges and ranges[-1][1] == first:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((first, end))


def read_frame(view: memoryview, at: int, log_id: int) -> tuple[Header | None, str | None]:
    """Returns the frame at a position, or what is wrong with it."""
    try:
        header = unpack_header(view, at, log_id)
        check_body(view, at, header)
    except BadFrameError as error:
        return None, str(error)
    body = view[at + HEADER_SIZE : at + HEADER_SIZE + header.body_size]
    return (header, None) if (problem := _content_problem(header, body)) is None else (None, problem)


def _content_problem(header: Header, body: Bytes) -> str | None:
    """Returns what is wrong with a frame whose CRC matches, which must have been written so."""
    try:
        if header.kind == Kind.state:
            read_state(body)
        else:
            Batch(Kind(header.kind), header.count, body, header.body_crc, header.flags).check(_ANY_SIZE, stored=True)
    except FrazilError as error:
        return error.message
    except ValueError as error:
        return f"the content is not what its kind says: {error}"
    return None


def _find_order_problem(header: Header, run: Run | None, end: int) -> str | None:
    """Returns why a frame cannot follow offset `end`; a new epoch may skip offsets."""
    skips = header.base_offset > end and header.epoch > (run.epoch if run else 0)
    if header.base_offset == end or skips:
        return None
    return f"the frame has offset {header.base_offset} where {end} is next"


def _next(view: memoryview, at: int, log_id: int, end: int) -> tuple[int, int | None]:
    """Returns position and offset of the next frame that can follow, or the end of the file."""
    for position, header in _frames_after(view, at + 1, log_id):
        if header.base_offset >= end:
            return position, header.base_offset
    return len(view), None


def _frames_after(view: memoryview, start: int, log_id: int) -> Iterator[tuple[int, Header]]:
    for position, header in valid_frames_after(view.obj, start, log_id):  # type: ignore[arg-type]  # the mapped file
        if position + header.frame_size > len(view):
            return
        if read_frame(view, position, log_id)[0] is not None:
            yield position, header


def apply_frames(view: memoryview, runs: list[Run], state: State) -> None:
    """Applies what the frames of some runs say about producers, columns and subscriptions."""
    for run in runs:
        at = run.begin
        while at < run.end:
            header = unpack_header(view, at)
            body = view[at + HEADER_SIZE : at + HEADER_SIZE + header.body_size]
            state.apply_frame(header, bytes(body) if header.kind == Kind.state else None)
            at += header.frame_size
