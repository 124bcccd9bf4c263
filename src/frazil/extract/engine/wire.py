"""What a task and the process that looks inside say to each other, through pipes, and the board that they share.

A frame is JSON and some bytes, each with its length before it. The board is shared memory, so that what was being done
is known of a process that has crashed: one line for each of its threads.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from frazil.extract import Limits
from frazil.extract.engine.source import ObjectRef, Source
from frazil.settings.model import NetworkSettings, S3Settings

_HEAD: Final = struct.Struct(">II")
_LINE: Final = struct.Struct("=dqii")

IDLE: Final = 0
LOOKING: Final = 1
READING: Final = 2


@dataclass(frozen=True)
class WorkerConfig:
    """What a process that looks inside must know.

    Attributes:
        extractors: name → module and attribute.
        limits: for each object.
        threads: objects at once.
        open_source: opens an object of a bucket or folder; a function of a module, so that it can be pickled.
        s3: how to reach buckets.
        network: patience.
        cache: folder of what can be made again, such as the model of `labels`; None: that of the settings there.
    """

    extractors: dict[str, str]
    limits: Limits
    threads: int
    open_source: Callable[[ObjectRef, S3Settings, NetworkSettings], Source]
    s3: S3Settings
    network: NetworkSettings
    cache: Path | None = None


@dataclass(frozen=True)
class Job:
    """One object that is to be looked into.

    Attributes:
        number: by which its result is known.
        wanted: which content.
        content_type: as it was uploaded.
        detected_type: if it is known already; else `type` is run.
        names: of the extractors; None: all that there are.
    """

    number: int
    wanted: ObjectRef
    content_type: str | None = None
    detected_type: str | None = None
    names: tuple[str, ...] | None = None

    def packed(self) -> list[Any]:
        w = self.wanted
        wanted = [w.bucket, w.key, w.version_id, w.is_latest, w.etag, w.size]
        return [self.number, wanted, self.content_type, self.detected_type, self.names]

    @classmethod
    def unpacked(cls, packed: list[Any]) -> Job:
        number, wanted, content_type, detected, names = packed
        return cls(number, ObjectRef(*wanted), content_type, detected, None if names is None else tuple(names))


def encode_frame(value: Any, extra: bytes = b"") -> bytes:
    text = orjson.dumps(value)
    return b"".join((_HEAD.pack(len(text), len(extra)), text, extra))


class FrameDecoder:
    """Takes bytes as they come, and gives the frames that are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Any, bytes]]:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEAD.size:
            text, extra = _HEAD.unpack_from(self._buffer, at)
            end = at + _HEAD.size + text + extra
            if len(self._buffer) < end:
                break
            begin = at + _HEAD.size
            found = bytes(self._buffer[begin:end])
            at = end
            yield orjson.loads(found[:text]), found[text:]
        del self._buffer[:at]


def write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


@dataclass(frozen=True)
class ThreadStatus:
    """What a thread is at.

    Attributes:
        began: by the monotonic clock, which all processes share.
        number: of the job.
        extractor: which of the configuration's.
        state: LOOKING or READING.
    """

    began: float
    number: int
    extractor: int
    state: int


class StatusBoard:
    """One line for each thread of a process that looks inside."""

    def __init__(self, file: int, lines: int) -> None:
        self._lines = lines
        self._memory = mmap.mmap(file, lines * _LINE.size)

    @staticmethod
    def make(lines: int) -> int:
        """A file for a board."""
        if sys.platform == "linux":
            file = os.memfd_create("frazil-board", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as temporary:
                file = os.dup(temporary.fileno())
        os.ftruncate(file, lines * _LINE.size)
        return file

    def write(self, line: int, began: float, number: int, extractor: int, state: int) -> None:
        # Not `pack_into`, which writes zeros first.
        at = line * _LINE.size
        self._memory[at : at + _LINE.size] = _LINE.pack(began, number, extractor, state)

    def busy(self) -> list[ThreadStatus]:
        """What is being done. A line that is written at this moment may be half old: look twice before you judge."""
        found = (ThreadStatus(*fields) for fields in _LINE.iter_unpack(self._memory[:]))
        return [line for line in found if line.state != IDLE]

    def close(self) -> None:
        self._memory.close()


class StatusMarker:
    """Writes one thread's line. The clock stands still while the storage is asked."""

    def __init__(self, board: StatusBoard, line: int) -> None:
        self._board, self._line = board, line
        self._began = self._paused = 0.0
        self._number = self._extractor = 0

    def begin(self, number: int, extractor: int) -> None:
        self._number, self._extractor, self._began = number, extractor, time.monotonic()
        self._board.write(self._line, self._began, number, extractor, LOOKING)

    def reading(self, begins: bool) -> None:
        now = time.monotonic()
        if begins:
            self._paused = now
            self._board.write(self._line, now, self._number, self._extractor, READING)
        else:
            self._began += now - self._paused
            self._board.write(self._line, self._began, self._number, self._extractor, LOOKING)

    def idle(self) -> None:
        self._board.write(self._line, time.monotonic(), self._number, self._extractor, IDLE)
