"""A segment: one file of frames, named by its first offset, with a sparse index that is written when it is sealed."""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path

from frazil.log.disk import Disk
from frazil.log.frame import Header

#: The index has an entry for the first frame after each step of this many bytes.
INDEX_STEP = 64 * 1024
_INDEX_HEAD = struct.Struct("<4sIqqqqqqq")
_INDEX_MAGIC = b"FRZI"
_INDEX_VERSION = 1


class Segment:
    """One segment file. `size` is the position of the next frame."""

    def __init__(self, folder: Path, segment_id: int) -> None:
        self.id = segment_id
        self.path = segment_path(folder, segment_id)
        self.size = 0
        self.end_offset = segment_id
        self.epoch = 0
        self.first_time_us: int | None = None
        self.last_time_us: int | None = None
        self.producers: set[int] = set()
        self._offsets, self._positions, self._times = array("q"), array("q"), array("q")

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".idx")

    def add_frame(self, header: Header) -> None:
        """Records a frame that was written, or found, at the end."""
        if not self._positions or self.size - self._positions[-1] >= INDEX_STEP:
            # Readers take no lock: they find an entry by its offset, which is therefore added last.
            self._times.append(header.time_us)
            self._positions.append(self.size)
            self._offsets.append(header.base_offset)
        self.size += header.frame_size
        self.epoch = header.epoch
        if header.count:
            self.end_offset = header.end_offset
            self.last_time_us = header.time_us
            if self.first_time_us is None:
                self.first_time_us = header.time_us
            if header.producer_id:
                self.producers.add(header.producer_id)

    def position_before(self, offset: int) -> int:
        """Returns the position of an indexed frame at or before an offset."""
        return self._positions[max(bisect_right(self._offsets, offset) - 1, 0)]

    def position_after(self, offset: int, limit: int) -> int:
        """Returns the position of an indexed frame at or after an offset, at most `limit`."""
        at = bisect_left(self._offsets, offset)
        return min(self._positions[at], limit) if at < len(self._offsets) else limit

    def position_before_time(self, time_us: int) -> int:
        """Returns the position of an indexed frame that was written before a time, or of the first."""
        at = bisect_left(self._times, time_us) - 1
        return self._positions[max(at, 0)]

    def find_cut(self, position: int, size: int, limit: int) -> int:
        """Returns the position of a frame about `size` bytes after a position, at most `limit`."""
        at = bisect_left(self._positions, position + size)
        return min(self._positions[at], limit) if at < len(self._positions) else limit

    def offset_at(self, position: int, limit: int, limit_offset: int) -> int:
        """Returns the first offset at or after a position returned by `find_cut`."""
        if position >= limit:
            return limit_offset
        return self._offsets[bisect_left(self._positions, position)]

    def write_index(self, disk: Disk) -> None:
        fields = (self.size, self.end_offset, self.epoch, self.first_time_us or 0, self.last_time_us or 0)
        head = _INDEX_HEAD.pack(_INDEX_MAGIC, _INDEX_VERSION, *fields, len(self._positions), len(self.producers))
        body = head + b"".join(
            a.tobytes() for a in (self._offsets, self._positions, self._times, array("q", sorted(self.producers)))
        )
        disk.replace(self.index_path, body + struct.pack("<I", zlib.crc32(body)))

    @classmethod
    def from_index(cls, folder: Path, segment_id: int) -> Segment | None:
        """Reads a sealed segment from its index; returns None if that is missing, damaged, or does not fit."""
        segment = cls(folder, segment_id)
        try:
            data = segment.index_path.read_bytes()
            size = segment.path.stat().st_size
        except FileNotFoundError:
            return None
        if len(data) < _INDEX_HEAD.size + 4 or zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
            return None
        magic, version, *fields, entries, producers = _INDEX_HEAD.unpack_from(data)
        if magic != _INDEX_MAGIC or version != _INDEX_VERSION or fields[0] != size:
            return None
        segment.size, segment.end_offset, segment.epoch, first, last = fields
        segment.first_time_us, segment.last_time_us = (first, last) if last else (None, None)
        numbers = array("q", data[_INDEX_HEAD.size : -4])
        segment._offsets = numbers[:entries]
        segment._positions = numbers[entries : 2 * entries]
        segment._times = numbers[2 * entries : 3 * entries]
        segment.producers = set(numbers[3 * entries : 3 * entries + producers])
        return segment


def segment_path(folder: Path, segment_id: int) -> Path:
    return folder / f"{segment_id:020d}.seg"


def segment_ids(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.seg") if path.stem.isdigit())
