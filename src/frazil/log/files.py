"""The files of one topic's log, as its writer sees them: segments, the one that grows, and the synced mark."""

from __future__ import annotations

import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path

from frazil.errors import FrazilError, UnavailableError, first_line
from frazil.log import metrics
from frazil.log.disk import Disk
from frazil.log.frame import Bytes, Header, Kind, frame_size, pack_header, padding
from frazil.log.mark import Mark, MarkFile
from frazil.log.recovery import recover
from frazil.log.segment import Segment
from frazil.log.state import State
from frazil.observe.faultpoints import reach


class LogShutError(FrazilError):
    """A sync has failed, or a commit broke off. Only recovery can tell what is safe; until then the log stays shut."""


class Files:
    """Only the leader of a commit calls what writes; anybody may look."""

    def __init__(self, folder: Path, topic: str, log_id: int, max_file_size: int, disk: Disk) -> None:
        self.folder, self._topic, self._log_id = folder, topic, log_id
        self._max_file_size, self._disk = max_file_size, disk
        self._lock = threading.Lock()
        self._fd = -1
        self._mark = MarkFile(folder / "synced", log_id, disk)
        try:
            found = recover(folder, topic, log_id, self._mark.mark, disk)
            self.segments, self.state, self.notes = found.segments, found.state, found.notes
            if self.segments:
                self._fd = disk.open(self.active.path)
                disk.sync(self._fd)  # what a crash of the process left in the cache counts from now on
        except BaseException:
            self.close()
            raise
        self.failed: LogShutError | None = None
        self.sync_seconds = 0.0
        self.size = sum(s.size for s in self.segments)
        self.synced = Mark(-1, 0, 0)
        if self.segments:
            self._advance()

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def start(self) -> int:
        return self.segments[0].id if self.segments else 0

    @property
    def written(self) -> int:
        return self.active.end_offset if self.segments else 0

    @property
    def epoch(self) -> int:
        return max((s.epoch for s in self.segments), default=0)

    @property
    def last_time_us(self) -> int:
        return max((s.last_time_us or 0 for s in self.segments), default=0)

    def visible(self) -> tuple[list[Segment], Mark]:
        """The segments, and up to where they are on disk."""
        with self._lock:
            return list(self.segments), self.synced

    def fits(self, size: int) -> bool:
        """Whether frames of this size may still go into the active segment."""
        return self.active.size + size <= self._max_file_size or self.active.end_offset == self.active.id

    def write(self, buffers: list[Bytes], headers: list[Header]) -> None:
        """Appends frames to the active segment: all of them, or none.

        Raises:
            UnavailableError: the disk is full or does not answer; the segment is as it was.
        """
        data = b"".join(buffers)
        reach("log.write.before")
        try:
            self._disk.write(self._fd, data, self.active.size)
        except OSError as error:
            self._take_back(error)
        reach("log.write.after")
        for header in headers:
            self.active.note(header)
        self.size += len(data)

    def _take_back(self, error: OSError) -> None:
        refused = UnavailableError(
            f"topic '{self._topic}' cannot be written: {self.active.path}",
            cause=first_line(error),
            hint="free some space on that disk; nothing that was acknowledged is touched",
        )
        try:
            self._disk.truncate(self._fd, self.active.size)
        except OSError as worse:
            self._fail("truncate after a failed write", worse)
        raise refused from error

    def sync(self) -> None:
        """Brings all that is written to the disk.

        Raises:
            LogShutError: now, or once before.
        """
        if self.failed is not None:
            raise self.failed
        if not self.segments or (self.synced.segment_id, self.synced.position) == (self.active.id, self.active.size):
            return
        reach("log.sync.before")
        began = time.perf_counter()
        try:
            self._disk.sync(self._fd)
        except OSError as error:
            self._fail("fdatasync", error)
        self.sync_seconds = time.perf_counter() - began
        reach("log.sync.after")
        self._advance()

    def _advance(self) -> None:
        active = self.active
        mark = Mark(active.id, active.size, active.end_offset)
        # A mark that cannot be written is only old: recovery then trusts less, never more.
        with suppress(OSError):
            self._mark.write(mark)
        with self._lock:
            self.synced = mark

    def _fail(self, what: str, error: OSError) -> None:
        self.failed = LogShutError(
            f"the disk under topic '{self._topic}' failed at {what}: {self.active.path}",
            cause=first_line(error),
            hint="check the disk, then open the log again: recovery tells what is safe",
        )
        metrics.FAILED.labels(self._topic).set(1)
        raise self.failed from error

    def shut(self, error: BaseException) -> LogShutError:
        """Shuts the log after a commit that broke off at an unknown step."""
        if self.failed is None:
            self.failed = LogShutError(
                f"a commit to topic '{self._topic}' broke off",
                cause=first_line(error),
                hint="open the log again: recovery tells what is safe",
            )
            metrics.FAILED.labels(self._topic).set(1)
        return self.failed

    def begin_segment(self, first: int, state: State, epoch: int, time_us: int) -> None:
        """Seals the active segment and begins the next one, whose head holds all state.

        Raises:
            UnavailableError: there is no space for it; the active segment stays.
        """
        previous = self.written if self.segments else None
        if self.segments:
            self.sync()
        reach("log.rotate.before")
        segment = Segment(self.folder, first)
        try:
            fd = self._create(segment, state.snapshot(previous), epoch, time_us)
        except OSError as error:
            if not isinstance(error, FileExistsError):
                with suppress(OSError):
                    self._disk.remove(segment.path)
            raise UnavailableError(
                f"topic '{self._topic}' cannot begin a new segment: {segment.path}",
                cause=first_line(error),
                hint="free some space on that disk; nothing that was acknowledged is touched",
            ) from error
        reach("log.rotate.after")
        if self.segments:
            with suppress(OSError):  # an index that is missing is made again at the next open
                self.active.write_index(self._disk)
            self._disk.close(self._fd)
        self._fd = fd
        with self._lock:
            self.segments.append(segment)
        self.size += segment.size
        self._advance()

    def _create(self, segment: Segment, body: bytes, epoch: int, time_us: int) -> int:
        header = Header(
            Kind.state, 0, self._log_id, epoch, 0, segment.id, segment.id, time_us, 0, -1, 0, len(body),
            zlib.crc32(body),
        )  # fmt: skip
        assert header.frame_size == frame_size(len(body))
        fd = self._disk.open(segment.path, create=True)
        try:
            self._disk.write(fd, pack_header(header) + body + padding(len(body)), 0)
            self._disk.sync(fd)
            self._disk.sync_folder(self.folder)
        except OSError:
            self._disk.close(fd)
            raise
        segment.note(header)
        return fd

    def remove_oldest(self, count: int) -> list[Segment]:
        """Deletes the oldest segments; the active one stays."""
        with self._lock:
            gone, self.segments = self.segments[:count], self.segments[count:]
        for segment in gone:
            reach("log.remove.before")
            self._disk.remove(segment.path)
            self._disk.remove(segment.index_path)
            reach("log.remove.after")
        self._disk.sync_folder(self.folder)
        self.size -= sum(s.size for s in gone)
        return gone

    def sync_mark(self) -> None:
        """The mark itself need not be exact after a power cut; now and then is enough."""
        with suppress(OSError):
            self._mark.sync()

    def free(self) -> int:
        return self._disk.free(self.folder)

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
        self.sync_mark()
        self._mark.close()
