"""The synced mark: the position up to which a topic's log is known to be on disk.

It is written after each fdatasync and itself synced only occasionally. After a crash of the process it is exact; after
a power cut it may be old, but never too new. Each frame contains the mark of its time, too.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from frazil.log.disk import Disk

_SLOT = struct.Struct("<QQqqqI4x")
#: Far enough apart that a torn write never hits both.
_SLOT_DISTANCE = 4096


@dataclass(frozen=True)
class SyncedMark:
    """A position: all bytes of the segment below it, and so all offsets below `offset`, are on disk."""

    segment_id: int
    position: int
    offset: int


class SyncedMarkFile:
    """Stores the mark in two slots that are written alternately."""

    def __init__(self, path: Path, log_id: int, disk: Disk) -> None:
        self._disk, self._log_id = disk, log_id
        created = not path.exists()
        self._fd = disk.open(path, create=created)
        if created:
            disk.sync_folder(path.parent)
        self._turn, self.mark = _read(path.read_bytes(), log_id)
        self._dirty = False

    def write(self, mark: SyncedMark) -> None:
        turn = self._turn + 1
        body = _SLOT.pack(turn, self._log_id, mark.segment_id, mark.position, mark.offset, 0)[:-8]
        slot = body + struct.pack("<I4x", zlib.crc32(body))
        # A failed write is retried in the same slot: the other one holds the last good mark.
        self._disk.write(self._fd, slot, _SLOT_DISTANCE * (turn % 2))
        self._turn, self.mark = turn, mark
        self._dirty = True

    def sync(self) -> None:
        if self._dirty:
            self._dirty = False
            try:
                self._disk.sync(self._fd)
            except OSError:
                self._dirty = True
                raise

    def close(self) -> None:
        self._disk.close(self._fd)


def read_synced_mark(path: Path, log_id: int) -> SyncedMark | None:
    """Returns the mark in a file that another process may be writing; None if there is none."""
    return _read(path.read_bytes(), log_id)[1] if path.exists() else None


def _read(data: bytes, log_id: int) -> tuple[int, SyncedMark | None]:
    newest: tuple[int, SyncedMark | None] = (0, None)
    for at in (0, _SLOT_DISTANCE):
        if len(data) < at + _SLOT.size:
            continue
        turn, owner, segment, position, offset, crc = _SLOT.unpack_from(data, at)
        fits = zlib.crc32(data[at : at + _SLOT.size - 8]) == crc and owner == log_id
        if fits and turn > newest[0]:
            newest = (turn, SyncedMark(segment, position, offset))
    return newest
