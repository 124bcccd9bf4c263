"""The embedded log: a folder of topics, open in one process."""

from __future__ import annotations

import contextlib
import difflib
import secrets
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from frazil.errors import ConflictError, FrazilError, IntegrityError, NotFoundError, UnsupportedError, UsageError
from frazil.log import metrics, reading
from frazil.log.batch import Batch, batch_with_headers
from frazil.log.disk import Disk
from frazil.log.local_reader import LocalFrames
from frazil.log.maintenance import importing, retention
from frazil.log.names import check_name, check_topic_name
from frazil.log.owner import Owner
from frazil.log.protocol import Ack, Chunk, Imported, Level, Registration, Retained, Span, Storage, TopicInfo
from frazil.log.topic import PATIENCE_S, TopicLog
from frazil.log.topic_file import TopicFile
from frazil.log.trust import ensure_key, get_configured_key
from frazil.observe.logs import get_logger
from frazil.settings.model import LogSettings
from frazil.settings.permissions import make_private_folder, make_tree_private

#: Returns the first offset that the tables of a topic (name, log id) do not contain; None: there are no tables.
FloorOf = Callable[[str, str], int | None]

_DELETED = ".deleted-"
#: By name: cheaper per message than the lookup of an Enum.
_LEVELS: dict[str, Level] = {level.value: level for level in Level}
#: How long a failure to open a topic is remembered before the next try.
_BROKEN_S = 1.0

log = get_logger(__name__)


class Log:
    """A log in this process, opened with `Log.open`; implements `LogAccess`.

    One process owns it at a time; its threads and coroutines share it.
    """

    def __init__(self, directory: Path, settings: LogSettings, *, floor: FloorOf | None, disk: Disk) -> None:
        self.directory = directory
        self.settings = settings
        self.broker_addr = "embedded"
        self._floor, self._disk = floor, disk
        self._lock = threading.RLock()
        self._open: dict[str, TopicLog] = {}
        self._files: dict[str, TopicFile] = {}
        self._reported: dict[str, dict[str, int]] = {}
        self._broken: dict[str, tuple[FrazilError, float]] = {}
        self._stop = threading.Event()
        self._closing = threading.Lock()
        self._owner = Owner.take(directory)
        self.key = get_configured_key(settings) or ensure_key(directory)
        for left in (directory / "topics").glob(f"{_DELETED}*"):  # left by a crash during the deletion of a topic
            shutil.rmtree(left, ignore_errors=True)
        self._housekeeping = threading.Thread(target=self._run_housekeeping, name="frazil-log-keeper", daemon=True)
        self._housekeeping.start()

    @classmethod
    def open(
        cls,
        directory: Path,
        settings: LogSettings | None = None,
        *,
        floor: FloorOf | None = None,
        disk: Disk | None = None,
    ) -> Self:
        """Opens a log; creates the folder if it is missing.

        Args:
            directory: the log's folder.
            settings: sizes, limits and sync mode.
            floor: returns the offset that the tables of a topic have reached. Needed for storage `iceberg`.
            disk: the disk; replaced in tests.

        Raises:
            LockedError: another process owns it; the message names it.
        """
        disk = disk or Disk()
        topics = directory / "topics"
        made = [p for p in (topics, *topics.parents) if not p.exists()]
        make_private_folder(topics)
        make_tree_private(directory)  # a folder of an older version
        for path in made:  # otherwise a power cut may lose the whole folder, with all that is synced inside
            disk.sync_folder(path.parent)
        return cls(directory, settings or LogSettings(), floor=floor, disk=disk)

    @property
    def where(self) -> str:
        return f"log at {self.directory}"

    def announce(self, **addresses: str) -> None:
        """Publishes the addresses at which this log is served in the lock file: `flight=…`, `http=…`."""
        self.broker_addr = addresses.get("flight", self.broker_addr)
        self._owner.announce(addresses)

    def offer_handover(self) -> None:
        """Announces in the lock file that this process closes the log when a server asks for it."""
        self._owner.offer()

    # -- topics ----------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, *, storage: Storage = "log", exist_ok: bool = False) -> TopicInfo:
        check_topic_name(name)
        with self._lock:
            if name in self._names():
                if not exist_ok:
                    raise ConflictError(f"there is a topic '{name}' already", hint=f"frazil topic show {name}")
                return self.info(name)
            TopicFile.create(self._folder(name), name, storage, self._disk)
        return self.info(name)

    def topics(self) -> list[TopicInfo]:
        """Returns every topic; one that cannot be opened is listed with its problem."""
        return [self._info_or_problem(name) for name in self._names()]

    def is_open(self, topic: str) -> bool:
        """Returns whether a topic is open. Otherwise its first use opens it, which may mean to recover it."""
        return topic in self._open

    def info(self, topic: str) -> TopicInfo:
        opened, kept = self._topic_and_file(topic)
        segments, _ = opened.visible()
        times = [s for s in segments if s.last_time_us is not None]
        return TopicInfo(
            name=topic,
            log_id=kept.log_id,
            epoch=opened.epoch,
            storage=kept.storage,
            created_at=kept.created_at,
            broker_addr=self.broker_addr,
            sync_mode=self.settings.sync_mode,
            start=opened.start,
            end=opened.end,
            written=max(opened.files.written, opened.end),
            size=opened.files.size,
            segments=len(segments),
            first_time_us=times[0].first_time_us if times else None,
            last_time_us=times[-1].last_time_us if times else None,
            extra=opened.state.extra,
            gaps=opened.gaps(),
            sinks={sink: self._reported.get(topic, {}).get(sink) for sink in kept.sinks},
            subscriptions=dict(opened.state.subscriptions),
            retention_age_s=kept.retention_age_s,
            retention_bytes=kept.retention_bytes,
            refuses=opened.refuses,
        )

    def _info_or_problem(self, name: str) -> TopicInfo:
        try:
            return self.info(name)
        except FrazilError as error:
            return TopicFile.describe_broken(name, self._folder(name), error.in_one_line, self.broker_addr)

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic's log. Its table, if any, is kept."""
        known = self._open.get(topic)
        with known.segments_lock if known is not None else contextlib.nullcontext(), self._lock:
            if topic not in self._names():
                raise self._not_found(topic)
            opened = self._open.pop(topic, None)
            if opened is not None:
                with contextlib.suppress(FrazilError):  # of a disk that fails; what it had is not wanted any more
                    opened.close()
            self._files.pop(topic, None)
            self._reported.pop(topic, None)
            self._broken.pop(topic, None)
            gone = self.directory / "topics" / f"{_DELETED}{topic}-{secrets.token_hex(4)}"
            self._disk.rename(self._folder(topic), gone)
            self._disk.sync_folder(gone.parent)
            metrics.forget(topic)
        shutil.rmtree(gone, ignore_errors=True)

    def configure(self, topic: str, changes: dict[str, Any]) -> TopicInfo:
        """Changes `storage`, `sinks`, `retention_age_s`, `retention_bytes` and `floor`, which only rises.

        Raises:
            UnavailableError: the topic gets a table, and the catalog does not answer; nothing has changed.
            ForeignLogError: a table of that name was written from another log; nothing has changed.
        """
        opened, kept = self._topic_and_file(topic)
        gets_table = changes.get("storage") == "iceberg" and kept.storage != "iceberg"
        floor = (self._ask_floor(topic, kept.log_id) if gets_table else None) or 0
        with self._lock:
            _, kept = self._topic_and_file(topic)
            changed = self._files[topic] = kept.update(changes, self._folder(topic), self._disk)
        if floor or changed.floor > kept.floor:
            opened.raise_floor(max(floor, changed.floor))
        return self.info(topic)

    def raise_floor(self, topic: str, offset: int) -> None:
        """Assigns no offset below this one from now on: tables contain them already."""
        self._topic(topic).raise_floor(offset)

    def _ask_floor(self, topic: str, log_id: str) -> int | None:
        if self._floor is None:
            raise UsageError(
                f"topic '{topic}' has a table, and this log was opened without a way to ask it",
                cause="offsets that the table knows must not be given out again",
                hint="frazil.topics.open_log(settings), or the broker: frazil serve",
            )
        return self._floor(topic, log_id)

    def _folder(self, topic: str) -> Path:
        return self.directory / "topics" / topic

    def _names(self) -> list[str]:
        found = (p for p in (self.directory / "topics").iterdir() if not p.name.startswith("."))
        return sorted(p.name for p in found if (p / "topic.json").exists())

    def _not_found(self, topic: str) -> NotFoundError:
        close = difflib.get_close_matches(topic, self._names(), n=1)
        return NotFoundError(
            f"topic '{topic}' does not exist in the {self.where}",
            hint=f"'{close[0]}'" if close else f"frazil topic create {topic}",
        )

    def _topic(self, name: str) -> TopicLog:
        opened = self._open.get(name)
        if opened is not None:
            return opened
        check_topic_name(name)
        with self._lock:
            if self._stop.is_set():
                raise UsageError(f"the {self.where} is closed")
            if name not in self._open:
                if name not in self._names():
                    raise self._not_found(name)
                self._open[name] = self._opened(name)
            return self._open[name]

    def _topic_and_file(self, name: str) -> tuple[TopicLog, TopicFile]:
        opened, kept = self._topic(name), self._files.get(name)
        if kept is None:  # deleted just now
            raise self._not_found(name)
        return opened, kept

    def _opened(self, name: str) -> TopicLog:
        """Opens a topic. After a failure, later calls get the same error for a while instead of another scan."""
        error, until = self._broken.get(name, (None, 0.0))
        if error is not None and time.monotonic() < until:
            raise error
        began = time.monotonic()
        try:
            return self._open_topic(name)
        except (IntegrityError, UnsupportedError) as failed:
            now = time.monotonic()
            self._broken[name] = (failed, now + max(_BROKEN_S, 10 * (now - began)))
            raise

    def _open_topic(self, name: str) -> TopicLog:
        kept = TopicFile.read(self._folder(name))
        self._files[name] = kept

        def floor() -> int | None:
            present = self._files[name]
            asked = self._ask_floor(name, kept.log_id) if present.storage == "iceberg" else None
            return max(asked or 0, present.floor) or None

        opened = TopicLog(name, self._folder(name), kept.log_id, self.settings, disk=self._disk, floor=floor)
        for note in opened.files.notes:
            log.warning("recovered", topic=name, note=note)
        return opened

    # -- publish ---------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        request_id: int | None = None,
        headers: dict[str, str] | None = None,
        level: Level | str | None = None,
    ) -> Ack:
        """Publishes one message from this thread; returns when it is as safe as the level requires."""
        asked = _level(level)
        opened = self._open.get(topic) or self._topic(topic)
        if headers:
            return opened.append(batch_with_headers([payload], [request_id], [headers]), asked)
        return opened.publish(payload, request_id, asked)

    def publish_async(
        self,
        topic: str,
        payload: bytes,
        *,
        request_id: int | None = None,
        headers: dict[str, str] | None = None,
        level: Level | str | None = None,
    ) -> Awaitable[Ack]:
        """Publishes one message from a coroutine: `await log.publish_async(…)`."""
        asked = _level(level)
        opened = self._open.get(topic) or self._topic(topic)
        if headers:
            return opened.append_async(batch_with_headers([payload], [request_id], [headers]), asked)
        return opened.publish_async(payload, request_id, asked)

    def append(self, topic: str, batch: Batch, level: Level | str | None = None, *, internal: bool = False) -> Ack:
        return self._topic(topic).append(batch, _level(level), internal=internal)

    def append_async(self, topic: str, batch: Batch, level: Level | str | None = None) -> Awaitable[Ack]:
        return self._topic(topic).append_async(batch, _level(level))

    def append_many(
        self, topic: str, batches: list[tuple[Batch, Level | None]], *, internal: bool = False
    ) -> list[Ack | FrazilError]:
        """Appends batches in one commit; each is accepted or refused on its own."""
        return self._topic(topic).append_many(batches, internal=internal)

    def register(self, topic: str, name: str | None = None, producer_id: int | None = None) -> Registration:
        return self._topic(topic).register(name, producer_id)

    def sync(self, topic: str) -> int:
        return self._topic(topic).sync()

    def is_prepared(self, topic: str) -> bool:
        """Returns whether the topic's tables have been queried, so that it can accept messages."""
        return self._topic(topic).is_prepared

    def prepare(self, topic: str) -> None:
        """Queries the topic's tables for their offsets ahead of the first message."""
        self._topic(topic).prepare()

    # -- read ------------------------------------------------------------------------------------------------------

    def wait(self, topic: str, offset: int, timeout: float) -> int:
        return self._topic(topic).wait(offset, timeout)

    def chunks(self, topic: str, start: int, end: int | None = None) -> Iterator[Chunk]:
        return reading.chunks(self._topic(topic), start, end)

    def places(self, topic: str, start: int, end: int) -> LocalFrames:
        """Returns where the visible frames of a range lie, for `read_local_frames` on the same machine."""
        opened = self._topic(topic)
        found, names = reading.places(opened, start, end)
        here = str(self.directory.absolute())
        folder = str(self._folder(topic).absolute())
        return LocalFrames(here, folder, self._owner.word, int(opened.log_id[:16], 16), names, found)

    def spans(self, topic: str, start: int, max_bytes: int, pieces: int) -> list[Span]:
        return reading.spans(self._topic(topic), start, max_bytes, pieces)

    def offset_at(self, topic: str, time_us: int) -> int:
        return reading.offset_at(self._topic(topic), time_us)

    def epoch_below(self, topic: str, offset: int) -> int:
        return reading.epoch_below(self._topic(topic), offset)

    def commit(self, topic: str, subscription: str, offset: int) -> None:
        self._topic(topic).commit(subscription, offset)

    # -- retention -------------------------------------------------------------------------------------------------

    def report(self, topic: str, sink: str, offset: int) -> None:
        check_name(sink, "sink")
        with self._lock:  # a report for a deleted topic must not count for the next topic of that name
            self._topic(topic)
            self._reported.setdefault(topic, {})[sink] = offset

    def retain(
        self, topic: str, *, age_s: float | None = None, size: int | None = None, dry_run: bool = False
    ) -> Retained:
        with self._lock_segments(topic) as (opened, kept):
            policy = retention.policy_of(kept, self.settings)
            if age_s is not None or size is not None:
                policy = retention.Policy(age_s, size)
            committed = retention.committed_by_all(kept, self._reported.get(topic, {}))
            return retention.retain(opened, policy, committed, dry_run=dry_run)

    def import_segments(self, topic: str) -> Imported:
        """Installs segments that `importing.Stage` has made for offsets before the log's start."""
        with self._lock_segments(topic) as (opened, _):
            return importing.install(opened, self._disk)

    @contextlib.contextmanager
    def _lock_segments(self, topic: str) -> Iterator[tuple[TopicLog, TopicFile]]:
        """Yields a topic whose segments no other caller adds or removes. Other topics are not affected."""
        opened = self._topic(topic)
        with opened.segments_lock:
            now, kept = self._topic_and_file(topic)
            if now is not opened:  # deleted and created again: its files have the same names
                raise ConflictError(f"topic '{topic}' was deleted and created again in the meantime", hint="try again")
            yield opened, kept

    # -- background ------------------------------------------------------------------------------------------------

    def _run_housekeeping(self) -> None:
        """Writes buffered entries, syncs by interval, and applies retention."""
        interval = self.settings.sync_interval_ms / 1000
        rounds = 0
        failing: dict[str, str] = {}
        while not self._stop.wait(interval):
            rounds += 1
            for name, topic in list(self._open.items()):
                try:
                    self._maintain_topic(name, topic, retain=rounds % max(1, int(10 / interval)) == 0)
                    failing.pop(name, None)
                except Exception as error:  # logged once; the other topics are not affected
                    kind = type(error).__name__
                    if failing.get(name) != kind and not topic.queue.closed:
                        failing[name] = kind
                        log.exception("housekeeping of a topic failed", topic=name, kind=kind)

    def _maintain_topic(self, name: str, topic: TopicLog, *, retain: bool) -> None:
        topic.flush()
        topic.show_metrics()
        if self.settings.sync_mode == "periodic" and topic.files.written > topic.end:
            topic.sync()
        topic.files.sync_mark()
        if retain and not topic.segments_lock.locked():
            self.retain(name)

    def close(self) -> None:
        """Writes and syncs what is pending, and releases the folder. Further calls do nothing.

        Raises:
            UnavailableError: a commit hangs in the disk. The folder stays locked until it has ended.
        """
        if not self._closing.acquire(blocking=False):
            return  # the first call releases the folder once nothing writes there any more
        self._stop.set()
        if self._housekeeping is not threading.current_thread():
            self._housekeeping.join(PATIENCE_S)
        with self._lock:
            opened, self._open = list(self._open.values()), {}
        with contextlib.ExitStack() as stack:
            stack.callback(self._release, opened)
            for topic in opened:
                stack.callback(_close, topic)

    def _release(self, opened: list[TopicLog]) -> None:
        """Releases the folder once no thread of this log can write there any more."""
        busy = [topic.queue for topic in opened if topic.queue.is_busy]
        has_housekeeping = self._housekeeping.is_alive() and self._housekeeping is not threading.current_thread()

        def release() -> None:
            if has_housekeeping:
                self._housekeeping.join()
            for queue in busy:
                queue.wait_until_idle()
            self._owner.release()

        if busy or has_housekeeping:
            threading.Thread(target=release, name="frazil-log-closer", daemon=True).start()
        else:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close(topic: TopicLog) -> None:
    with topic.segments_lock:  # a running import finishes first: afterwards the folder may belong to another process
        topic.close()


def _level(asked: Level | str | None) -> Level | None:
    """Does what `Level(…)` does, which would cost as much as the rest of a call."""
    return asked if asked is None or type(asked) is Level else _LEVELS.get(asked) or Level(asked)
