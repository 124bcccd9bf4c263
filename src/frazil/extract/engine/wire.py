"""The protocol between a task and its worker processes: frames through pipes, and a status board.

A frame is JSON and binary data, each preceded by its length. The status board is shared memory with one entry per
thread, so that the work of a crashed process is known.
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
RUNNING: Final = 1
READING: Final = 2


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker process.

    Attributes:
        extractors: name → module and attribute.
        limits: for each object.
        threads: objects processed concurrently.
        open_source: opens an object of a bucket or folder; a function of a module, so that it can be pickled.
        s3: how to reach buckets.
        network: timeouts and retries.
        cache: the cache folder, such as for the model of `labels`; None: that of the settings there.
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
    """One object to run extractors on.

    Attributes:
        number: identifies its result.
        wanted: the content to read.
        content_type: the type it was uploaded with.
        detected_type: if known already; else `type` runs.
        names: of the extractors; None: all.
    """

    number: int
    wanted: ObjectRef
    content_type: str | None = None
    detected_type: str | None = None
    names: tuple[str, ...] | None = None

    def pack(self) -> list[Any]:
        w = self.wanted
        wanted = [w.bucket, w.key, w.version_id, w.is_latest, w.etag, w.size]
        return [self.number, wanted, self.content_type, self.detected_type, self.names]

    @classmethod
    def unpack(cls, packed: list[Any]) -> Job:
        number, wanted, content_type, detected, names = packed
        return cls(number, ObjectRef(*wanted), content_type, detected, None if names is None else tuple(names))


def encode_frame(value: Any, extra: bytes = b"") -> bytes:
    text = orjson.dumps(value)
    return b"".join((_HEAD.pack(len(text), len(extra)), text, extra))


class FrameDecoder:
    """Decodes frames from bytes as they arrive."""

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
    """What a thread is doing.

    Attributes:
        began: start, by the monotonic clock, which all processes share.
        number: of the job.
        extractor: which of the configuration's.
        state: RUNNING or READING.
    """

    began: float
    number: int
    extractor: int
    state: int


class StatusBoard:
    """Shared memory with one entry for each thread of a worker process."""

    def __init__(self, file: int, lines: int) -> None:
        self._lines = lines
        self._memory = mmap.mmap(file, lines * _LINE.size)

    @staticmethod
    def make(lines: int) -> int:
        """Creates the file of a board."""
        if sys.platform == "linux":
            file = os.memfd_create("frazil-board", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as temporary:
                file = os.dup(temporary.fileno())
        os.ftruncate(file, lines * _LINE.size)
        return file

    def write(self, line: int, began: float, number: int, extractor: int, state: int) -> None:
        # Not `pack_into`, which writes zeros first: readers would see them.
        at = line * _LINE.size
        self._memory[at : at + _LINE.size] = _LINE.pack(began, number, extractor, state)

    def busy(self) -> list[ThreadStatus]:
        """Returns the threads that are busy. An entry being written may be torn: read twice before you act on it."""
        found = (ThreadStatus(*fields) for fields in _LINE.iter_unpack(self._memory[:]))
        return [line for line in found if line.state != IDLE]

    def close(self) -> None:
        self._memory.close()


class StatusMarker:
    """Writes one thread's entry. Its clock is stopped during requests to the storage."""

    def __init__(self, board: StatusBoard, line: int) -> None:
        self._board, self._line = board, line
        self._began = self._paused = 0.0
        self._number = self._extractor = 0

    def begin(self, number: int, extractor: int) -> None:
        self._number, self._extractor, self._began = number, extractor, time.monotonic()
        self._board.write(self._line, self._began, number, extractor, RUNNING)

    def reading(self, begins: bool) -> None:
        now = time.monotonic()
        if begins:
            self._paused = now
            self._board.write(self._line, now, self._number, self._extractor, READING)
        else:
            self._began += now - self._paused
            self._board.write(self._line, self._began, self._number, self._extractor, RUNNING)

    def idle(self) -> None:
        self._board.write(self._line, time.monotonic(), self._number, self._extractor, IDLE)
