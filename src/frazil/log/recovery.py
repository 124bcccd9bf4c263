"""Recovery after a crash. See docs/log-format.md, "Recovery".

A bad frame is *torn* if there is no evidence that it was ever synced: neither the mark nor any valid frame after it
says so. What is torn is cut off and kept in quarantine. Everything else is *damage*: the topic stops with the exact
range.
"""

from __future__ import annotations

import itertools
import mmap
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from frazil.errors import IntegrityError
from frazil.log import metrics
from frazil.log.disk import Disk
from frazil.log.frame import (
    ALIGNMENT,
    HEADER_SIZE,
    MAGIC,
    BadFrameError,
    Bytes,
    ForeignFrameError,
    Header,
    Kind,
    NewerVersionError,
    check_body,
    unpack_header,
)
from frazil.log.segment import Segment, segment_ids
from frazil.log.state import State, read_state
from frazil.log.synced_mark import SyncedMark
from frazil.observe.logs import get_logger

log = get_logger(__name__)


class DamagedError(IntegrityError):
    """Bytes that were on disk have changed."""


@dataclass
class ScannedSegment:
    """The frames of one segment file, up to the first bad one."""

    segment: Segment
    file_size: int
    problem: str | None = None
    foreign: bool = False
    """Whether the bad frame is a whole one of another log."""
    previous: int | None = None
    """End of the segment before, according to this one's head."""


@dataclass
class Recovered:
    """A topic's usable segments, oldest first. The last one is active."""

    segments: list[Segment]
    state: State
    quarantined: int = 0
    notes: list[str] = field(default_factory=list)


def recover(folder: Path, topic: str, log_id: int, mark: SyncedMark | None, disk: Disk) -> Recovered:
    """Recovers a topic's folder.

    Raises:
        DamagedError: bytes below the synced mark are damaged or missing.
        NewerVersionError: a newer version has written here.
    """
    _remove_leftovers(folder, disk)
    ids = segment_ids(folder)
    _check_completeness(folder, topic, ids, mark)
    state = State()
    found: ScannedSegment | None = None
    while ids:
        last = ids.pop()
        state = State()
        found = scan(folder, last, log_id, state, topic)
        if found.problem is not None:
            _require_torn(found, topic, log_id, mark)
        if found.segment.size:
            break
        # The crash came while this segment was created: the one before is active again.
        _quarantine(found, disk, drop=True)
        found = None
    sealed = [_open_sealed(folder, segment_id, log_id, topic, disk) for segment_id in ids]
    if found is None:
        return Recovered([], state)
    cut = _quarantine(found, disk) if found.problem is not None else 0
    _check_chain(folder, topic, log_id, sealed, found)
    found.segment.index_path.unlink(missing_ok=True)
    notes = [f"cut {cut} torn bytes off {found.segment.path.name}: {found.problem}"] if cut else []
    return Recovered([*sealed, found.segment], state, cut, notes)


def scan(folder: Path, segment_id: int, log_id: int, state: State, topic: str) -> ScannedSegment:
    """Reads a segment from its start, checks every CRC, and stops at the first bad frame."""
    found = ScannedSegment(Segment(folder, segment_id), (folder / f"{segment_id:020d}.seg").stat().st_size)
    until = 0  # an imported segment states its end: its last offsets may have no message
    with _map_file(found.segment.path) as data:
        while found.segment.size < len(data):
            header, problem = _read_frame(data, found, log_id, topic)
            if header is None:
                found.problem = problem
                break
            at = found.segment.size
            if at == 0 and header.kind == Kind.state:
                content = read_state(memoryview(data)[HEADER_SIZE : HEADER_SIZE + header.body_size])
                found.previous, until = content.get("previous"), content.get("until") or 0
            body = bytes(data[at + HEADER_SIZE : at + HEADER_SIZE + header.body_size]) if not header.count else None
            state.apply_frame(header, body)
            found.segment.add_frame(header)
    found.segment.end_offset = max(found.segment.end_offset, until)
    return found


def _read_frame(data: Bytes, found: ScannedSegment, log_id: int, topic: str) -> tuple[Header | None, str]:
    segment = found.segment
    try:
        header = unpack_header(data, segment.size, log_id)
        check_body(data, segment.size, header)
    except NewerVersionError as error:
        raise error.adding(f"topic '{topic}', {segment.path.name}, byte {segment.size:,}") from None
    except BadFrameError as error:
        found.foreign = isinstance(error, ForeignFrameError)
        return None, str(error)
    skips = header.epoch > segment.epoch and header.base_offset > segment.end_offset
    if header.base_offset != segment.end_offset and not skips:
        return None, f"the frame has offset {header.base_offset} where {segment.end_offset} is next"
    return header, ""


def _require_torn(found: ScannedSegment, topic: str, log_id: int, mark: SyncedMark | None) -> None:
    """Raises if the bad frame was synced once; returns if it is torn."""
    segment, at = found.segment, found.segment.size
    if found.foreign and at == 0:
        _raise_damaged(
            topic, segment, 0, found.file_size, f"{found.problem}: topic.json and this file do not fit together"
        )
    if mark is not None and (mark.segment_id > segment.id or (mark.segment_id == segment.id and at < mark.position)):
        below = mark.position if mark.segment_id == segment.id else found.file_size
        _raise_damaged(
            topic, segment, at, below, f"{found.problem}; it was on disk: the synced mark is at byte {below:,}"
        )
    with _map_file(segment.path) as data:
        for position, header in valid_frames_after(data, at + 1, log_id):
            if header.synced > segment.end_offset:
                _raise_damaged(
                    topic, segment, at, position, f"{found.problem}; a valid frame after it says it was on disk"
                )


def _raise_damaged(topic: str, segment: Segment, start: int, end: int, cause: str) -> None:
    raise DamagedError(
        f"topic '{topic}' is damaged: {segment.path.name}, bytes {start:,} to {end:,},"
        f" offsets from {segment.end_offset} on",
        cause=cause,
        hint=f"frazil topic verify {topic}, then restore the folder, or go on without these with --repair",
    )


def valid_frames_after(data: bytes | mmap.mmap, start: int, log_id: int) -> Iterator[tuple[int, Header]]:
    """Yields every whole frame of this log from a position on; frames begin at multiples of 8.

    Raises:
        NewerVersionError: a later version of Frazil has written one.
    """
    at = start + -start % ALIGNMENT
    with memoryview(data) as view:  # always released: a mapped file with a view cannot be closed
        while (at := _find_magic(data, at)) >= 0:
            try:
                header = unpack_header(view, at, log_id)
                check_body(view, at, header)
            except BadFrameError:
                at += ALIGNMENT
                continue
            yield at, header
            at += header.frame_size


def _find_magic(data: bytes | mmap.mmap, start: int) -> int:
    at = data.find(MAGIC, start)
    while at >= 0 and at % ALIGNMENT:
        at = data.find(MAGIC, at + 1)
    return at


def _quarantine(found: ScannedSegment, disk: Disk, *, drop: bool = False) -> int:
    """Moves torn bytes into the topic's quarantine folder and returns their count; zeros are just cut off."""
    segment = found.segment
    at = 0 if drop else segment.size
    with segment.path.open("rb") as file:
        file.seek(at)
        torn = file.read()
    if not torn.strip(b"\0"):
        torn = b""
    else:
        keep = segment.path.parent / "quarantine"
        keep.mkdir(mode=0o700, exist_ok=True)
        disk.replace(keep / f"{segment.path.stem}-{at}-{time.time_ns()}.torn", torn)
        disk.sync_folder(segment.path.parent)
        metrics.QUARANTINED.inc(len(torn))
        log.warning("torn bytes kept in quarantine", segment=segment.path.name, position=at, bytes=len(torn))
    if drop:
        disk.remove(segment.path)
        disk.sync_folder(segment.path.parent)
        return len(torn)
    fd = disk.open(segment.path)
    try:
        disk.truncate(fd, at)
        disk.sync(fd)
    finally:
        disk.close(fd)
    return len(torn)


def _open_sealed(folder: Path, segment_id: int, log_id: int, topic: str, disk: Disk) -> Segment:
    """Opens a sealed segment by its index, or by a scan if that is missing."""
    segment = Segment.from_index(folder, segment_id)
    if segment is not None:
        return segment
    found = scan(folder, segment_id, log_id, State(), topic)
    if found.problem is not None:
        if not _ends_in_zeros(found):
            cause = f"{found.problem}; the segment is sealed"
            _raise_damaged(topic, found.segment, found.segment.size, found.file_size, cause)
        _quarantine(found, disk)  # the next segment states where this one ends; so nothing can hide in the zeros
    return found.segment


def _ends_in_zeros(found: ScannedSegment) -> bool:
    with found.segment.path.open("rb") as file:
        file.seek(found.segment.size)
        return not file.read().strip(b"\0")


def _check_completeness(folder: Path, topic: str, ids: list[int], mark: SyncedMark | None) -> None:
    if mark is not None and mark.segment_id not in ids:
        raise DamagedError(
            f"topic '{topic}' has lost its segment {mark.segment_id:020d}.seg",
            cause=f"the synced mark says that it was on disk up to offset {mark.offset}",
            hint=f"restore the file, or go on without it: frazil topic verify {topic} --repair",
        )
    if mark is not None and (folder / f"{mark.segment_id:020d}.seg").stat().st_size < mark.position:
        size = (folder / f"{mark.segment_id:020d}.seg").stat().st_size
        raise DamagedError(
            f"topic '{topic}' is damaged: {mark.segment_id:020d}.seg has {size:,} bytes,"
            f" and {mark.position:,} were on disk",
            cause=f"what is missing reaches up to offset {mark.offset}",
            hint=f"restore the file, or go on without it: frazil topic verify {topic} --repair",
        )


def _check_chain(folder: Path, topic: str, log_id: int, sealed: list[Segment], last: ScannedSegment) -> None:
    """Checks that each segment ends where the next one says, so that a lost file in the middle is detected."""
    segments = [*sealed, last.segment]
    for before, after in itertools.pairwise(segments):
        previous = last.previous if after is last.segment else read_previous_end(folder, after.id, log_id)
        if previous is not None and previous != before.end_offset:
            raise DamagedError(
                f"topic '{topic}' has lost offsets {before.end_offset} to {previous}: what stood before"
                f" {after.path.name} is missing",
                hint=f"restore the file, or go on without it: frazil topic verify {topic} --repair",
            )


def read_previous_end(folder: Path, segment_id: int, log_id: int) -> int | None:
    """Returns where the segment before ended, according to this one's head; None if that does not say."""
    with (folder / f"{segment_id:020d}.seg").open("rb") as file:
        first = file.read(HEADER_SIZE)
        try:
            header = unpack_header(first, 0, log_id)
        except BadFrameError:
            return None
        except NewerVersionError as error:
            raise error.adding(file.name) from None
        if header.kind != Kind.state:
            return None
        body = file.read(header.body_size)
        if zlib.crc32(body) != header.body_crc:
            return None
        previous = read_state(body).get("previous")
        return int(previous) if previous is not None else None


def _remove_leftovers(folder: Path, disk: Disk) -> None:
    """Removes half-written small files, and indexes without a segment."""
    for path in folder.glob(".*.part"):
        disk.remove(path)
    kept = {f"{segment_id:020d}" for segment_id in segment_ids(folder)}
    for path in folder.glob("*.idx"):
        if path.stem not in kept:
            disk.remove(path)


@contextmanager
def _map_file(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Maps a file's bytes without reading them all into memory."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            yield data
