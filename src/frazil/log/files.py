"""The files of one topic's log for its writer: sealed segments, the active one, and the synced mark."""

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
from frazil.log.recovery import recover
from frazil.log.segment import Segment
from frazil.log.state import State
from frazil.log.synced_mark import SyncedMark, SyncedMarkFile
from frazil.observe.faultpoints import reach

_COPY_BYTES = 4 * 1024 * 1024
#: Zeros written behind the frames, so that the next ones do not extend the file: a sync that also has to write a new
#: size takes a third longer. For large groups, writing the zeros would cost more.
_ZEROS = bytes(1024 * 1024)
_LARGE_GROUP = 256 * 1024


class LogShutError(FrazilError):
    """A sync has failed, or a commit was interrupted. Until recovery has determined what is safe, the log is shut."""


class Files:
    """The files of one topic's log. Only the leader of a commit may call methods that write; reading is thread safe."""

    def __init__(self, folder: Path, topic: str, log_id: int, max_file_size: int, disk: Disk) -> None:
        self.folder, self._topic, self._log_id = folder, topic, log_id
        self._max_file_size, self._disk = max_file_size, disk
        self._lock = threading.Lock()
        self._fd = -1
        self._zeroed = 0
        self._head_size = 0
        #: The active file was written or cut since its last sync, perhaps without leaving a frame.
        self._dirty = False
        self.failed: LogShutError | None = None
        try:
            self._mark = SyncedMarkFile(folder / "synced", log_id, disk)
        except OSError as error:
            raise _make_open_error(topic, folder, error) from error
        try:
            found = recover(folder, topic, log_id, self._mark.mark, disk)
            self.segments, self.state, self.notes = found.segments, found.state, found.notes
            if self.segments:
                self._fd = disk.open(self.active.path)
                self._rewrite_unsynced()
        except OSError as error:
            self.close()
            raise _make_open_error(topic, folder, error) from error
        except BaseException:
            self.close()
            raise
        metrics.FAILED.labels(topic).set(0)
        self.sync_seconds = 0.0
        self._sealed = sum(s.size for s in self.segments[:-1])
        self.synced = SyncedMark(-1, 0, 0)
        if self.segments:
            self._advance()

    def _rewrite_unsynced(self) -> None:
        """Writes again what a crash left above the mark, because it counts from now on and has to be on disk.

        A sync alone is not enough: after a failed one, the cache takes the bytes for written.
        """
        mark, active = self._mark.mark, self.active
        at = mark.position if mark is not None and mark.segment_id == active.id else 0
        with active.path.open("rb") as file:
            file.seek(at)
            while data := file.read(min(_COPY_BYTES, active.size - at)):
                self._disk.write(self._fd, data, at)
                at += len(data)
        if at < active.size:  # only padding of the last frame is missing
            self._disk.truncate(self._fd, active.size)
        self._disk.sync(self._fd)
        self._disk.sync_folder(self.folder)  # the crash may have preceded the folder's sync for a new segment

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._sealed + self.active.size if self.segments else 0

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

    def visible(self) -> tuple[list[Segment], SyncedMark]:
        """Returns the segments, and the position up to which they are on disk."""
        with self._lock:
            return list(self.segments), self.synced

    def fits(self, size: int, *, alone: bool) -> bool:
        """Returns whether frames of this size still go into the active segment.

        Args:
            size: bytes.
            alone: no messages precede them. They fit any segment without messages, unless state fills it.
        """
        active = self.active
        empty = alone and active.end_offset == active.id and active.size <= self._head_size + self._max_file_size
        return active.size + size <= self._max_file_size or empty

    def write(self, buffers: list[Bytes], headers: list[Header]) -> None:
        """Appends frames to the active segment, all or none.

        Raises:
            UnavailableError: the disk is full or does not answer; the segment is unchanged.
        """
        if self.failed is not None:
            raise self.failed
        reach("log.write.before")
        try:
            self._write(buffers)
        except OSError as error:
            self._undo_write(error)
        reach("log.write.after")
        for header in headers:
            self.active.add_frame(header)

    def _write(self, buffers: list[Bytes]) -> None:
        at = self.active.size
        size = sum(map(len, buffers))
        self._dirty = True
        ahead = min(len(_ZEROS), self._max_file_size - at - size)
        if at + size <= self._zeroed or size > _LARGE_GROUP or ahead <= 0:
            self._disk.write_all(self._fd, buffers, at)
            return
        try:
            self._disk.write_all(self._fd, [*buffers, memoryview(_ZEROS)[:ahead]], at)
            self._zeroed = at + size + ahead
        except OSError:  # the frames may fit although the zeros do not
            self._trim()
            self._disk.write_all(self._fd, buffers, at)

    def _trim(self) -> None:
        """Cuts off what follows the last frame: zeros, or a partial write for which there was no space."""
        self._dirty = True
        self._disk.truncate(self._fd, self.active.size)
        self._zeroed = 0

    def _undo_write(self, error: OSError) -> None:
        refused = UnavailableError(
            f"topic '{self._topic}' cannot be written: {self.active.path}",
            cause=first_line(error),
            hint="free some space on that disk; nothing that was acknowledged is touched",
        )
        try:
            self._trim()
        except OSError as worse:
            self._shut_after("truncate after a failed write", worse)
        raise refused from error

    def sync(self) -> bool:
        """Syncs everything written. Returns whether there was anything to sync.

        Raises:
            LogShutError: this sync or an earlier one failed.
        """
        if self.failed is not None:
            raise self.failed
        if not self._dirty:
            return False
        reach("log.sync.before")
        began = time.perf_counter()
        try:
            self._disk.sync(self._fd)
        except OSError as error:
            self._shut_after("fdatasync", error)
        self.sync_seconds = time.perf_counter() - began
        self._dirty = False
        reach("log.sync.after")
        self._advance()
        return True

    def _advance(self) -> None:
        active = self.active
        mark = SyncedMark(active.id, active.size, active.end_offset)
        # A mark that cannot be written is merely old: recovery then trusts less, never more.
        with suppress(OSError):
            self._mark.write(mark)
        with self._lock:
            self.synced = mark

    def _shut_after(self, what: str, error: OSError) -> None:
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
        """Seals the active segment and begins the next one, whose head contains all state.

        Raises:
            UnavailableError: there is no space for it; the active segment stays.
        """
        previous = self.written if self.segments else None
        if self.segments:
            with suppress(OSError):  # zeros behind the last frame are harmless
                self._trim()
            self.sync()  # syncs the cut too: bytes behind the last frame of a sealed segment would count as damage
        reach("log.rotate.before")
        segment = Segment(self.folder, first)
        try:
            fd = self._create(segment, state.snapshot(previous), epoch, time_us)
        except OSError as error:
            raise UnavailableError(
                f"topic '{self._topic}' cannot begin a new segment: {segment.path}",
                cause=first_line(error),
                hint="free some space on that disk; nothing that was acknowledged is touched",
            ) from error
        reach("log.rotate.after")
        if self.segments:
            with suppress(OSError):  # a missing index is rebuilt at the next open
                self.active.write_index(self._disk)
            self._disk.close(self._fd)
        self._fd, self._zeroed, self._head_size, self._dirty = fd, 0, segment.size, False
        with self._lock:
            self._sealed += self.active.size if self.segments else 0
            self.segments.append(segment)
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
        except OSError:
            self._disk.close(fd)
            with suppress(OSError):
                self._disk.remove(segment.path)
            raise
        try:
            self._disk.sync(fd)
            self._disk.sync_folder(self.folder)
        except OSError as error:
            self._disk.close(fd)
            self._shut_after("the sync of a new segment", error)
        segment.add_frame(header)
        return fd

    def remove_before(self, first: int) -> list[Segment]:
        """Deletes the segments before the one that begins at an offset; the active one stays.

        The segment that the mark on disk names stays too: without it, the next open would report it as lost.
        """
        self._mark.sync()
        marked = self._mark.mark.segment_id if self._mark.mark is not None else 0
        with self._lock:
            gone = [s for s in self.segments[:-1] if s.id < min(first, marked)]
            self.segments = self.segments[len(gone) :]
            self._sealed -= sum(s.size for s in gone)
        for segment in gone:
            reach("log.remove.before")
            self._disk.remove(segment.path)
            self._disk.remove(segment.index_path)
            self._disk.sync_folder(self.folder)  # one by one: a power cut must not leave a gap
            reach("log.remove.after")
        return gone

    def sync_mark(self) -> None:
        """Syncs the mark, which need not be exact after a power cut."""
        with suppress(OSError):
            self._mark.sync()

    def free(self) -> int:
        return self._disk.free(self.folder)

    def close(self) -> None:
        if self._fd >= 0:
            if self._zeroed and self.failed is None:
                with suppress(OSError):
                    self._trim()
            self._disk.close(self._fd)
            self._fd = -1
        self.sync_mark()
        self._mark.close()


def _make_open_error(topic: str, folder: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"topic '{topic}' cannot be opened: {folder}", cause=first_line(error), hint="check that disk, and its rights"
    )
