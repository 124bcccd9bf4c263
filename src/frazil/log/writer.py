"""Commits to one topic's log: drafts frames, assigns offsets, writes, syncs, and rotates segments."""

from __future__ import annotations

import time
from collections.abc import Callable

from frazil.errors import FrazilError, UnavailableError
from frazil.log import metrics
from frazil.log.batch import Batch
from frazil.log.columns import merge_columns
from frazil.log.files import Files
from frazil.log.group import Entry, Group, group_entries
from frazil.log.producers import TakenBatch
from frazil.log.protocol import Level
from frazil.log.state import State, extra_change
from frazil.observe.faultpoints import reach
from frazil.settings.model import LogSettings

_SPACE_CHECK_S = 0.5
_DISK = Level.disk

#: Called with the entries that have their outcome, and with those of the commit that do not have it yet.
Answer = Callable[[list[Entry], list[Entry]], None]


class Writer:
    """Commits groups of entries. Not thread safe: only the leader of a commit calls it.

    Args:
        topic: its name.
        log_id: the number in its frames.
        files: where the frames are written.
        settings: limits.
        on_visible: called when the visible end has moved.
    """

    def __init__(
        self, topic: str, log_id: int, files: Files, settings: LogSettings, on_visible: Callable[[], None]
    ) -> None:
        self.topic, self.files, self._settings, self._on_visible = topic, files, settings, on_visible
        self._log_id = log_id
        self.state: State = files.state
        self.epoch, self.next_offset = files.epoch, files.written
        self.skipped_to = 0
        #: From the next commit on, no offset below it is assigned.
        self.floor = 0
        self._last_time_us = files.last_time_us
        self._next_space_check = 0.0
        self.counters = CommitCounters(topic)
        self.group = self._new_group()

    @property
    def end(self) -> int:
        """The visible end: all below is on disk."""
        return max(self.files.synced.offset, self.skipped_to)

    def begin(self, floor: int | None) -> None:
        """Starts a new epoch before the first commit, and skips offsets that a table contains already."""
        if floor is not None and floor > self.next_offset:
            self.next_offset = self.skipped_to = floor
        self._begin_epoch()
        self.group = self._new_group()

    def _begin_epoch(self) -> None:
        """Takes the next epoch from the clock, since a restored older copy of the log does not know the last one."""
        self.epoch = max(self.epoch + 1, int(time.time()))

    def now(self) -> int:
        return max(self._last_time_us, time.time_ns() // 1000)

    def commit(self, entries: list[Entry], answer: Answer) -> None:
        """Writes entries, syncs if one of them requires it, and answers each as soon as its level is reached."""
        reach("log.commit.before")
        if self.floor > self.next_offset and not self._skip_to_floor(entries, answer):
            return
        self.group.renew(self.end, self.now())
        for entries_of_frame in group_entries(entries):
            try:
                self._draft(entries_of_frame)
            except FrazilError as error:
                _refuse(entries_of_frame, error)
                metrics.REFUSED.labels(self.topic, type(error).__name__).inc(sum(e.calls for e in entries_of_frame))
        self.write()
        on_disk = [e for e in entries if e.level is _DISK and e.error is None]
        if len(on_disk) < len(entries):
            answer([e for e in entries if e.level is not _DISK or e.error is not None], on_disk)
        if on_disk:
            try:
                self._sync()
            except FrazilError as error:
                _refuse(on_disk, error)
            answer(on_disk, [])
        reach("log.commit.after")

    def _skip_to_floor(self, entries: list[Entry], answer: Answer) -> bool:
        """Continues at the floor.

        What was written before is synced first, because all below the visible end is on disk.
        """
        try:
            self._sync()
        except FrazilError as error:
            _refuse(entries, error)
            answer(entries, [])
            return False
        self.begin(self.floor)
        return True

    # -- draft -------------------------------------------------------------------------------------------------------

    def _draft(self, entries_of_frame: list[Entry]) -> None:
        """Drafts the frame of one or more entries, after the frames or the segment that it needs."""
        entry = entries_of_frame[0]
        size = sum([e.size for e in entries_of_frame])
        if entry.singles is not None:
            self._ensure_segment(size + 16 * sum([e.messages for e in entries_of_frame]))
            self.group.add_messages(entries_of_frame)
        elif entry.batch is not None:
            self._draft_batch(entry, entry.batch)
        elif entry.change is not None:
            self._ensure_segment(size)
            self.group.add_state(entry.change(self.group))
            self.group.entries.append(entry)

    def _draft_batch(self, entry: Entry, batch: Batch) -> None:
        idempotent = batch.is_idempotent
        if idempotent and self._is_duplicate(entry, batch):
            return
        drafted = self.group
        self._ensure_segment(entry.size)
        # If that wrote and failed, batches that were just recorded as taken are not.
        if self.group is not drafted and idempotent and self._is_duplicate(entry, batch):
            return
        self._add_columns(batch)
        self.group.add_batch(entry, batch)
        if idempotent:
            self._record_sequence(batch, entry.offset)

    def _is_duplicate(self, entry: Entry, batch: Batch) -> bool:
        taken = self.state.producers.find_duplicate(batch, self.topic)
        if taken is None:
            return False
        entry.offset, entry.time_us, entry.duplicate = taken.offset, taken.time_us, True
        if taken.offset >= self.next_offset:  # drafted in this group: both share one outcome
            self.group.entries.append(entry)
        metrics.DUPLICATES.labels(self.topic).inc()
        return True

    def _record_sequence(self, batch: Batch, offset: int) -> None:
        producers = self.state.producers
        before = producers.get(batch.producer_id)
        assert before is not None
        kept = before.copy()
        self.group.undo.append(lambda: producers.put(kept))
        producers.take(batch.producer_id, TakenBatch(batch.sequence, offset, batch.count, self.group.time_us))

    def _add_columns(self, batch: Batch) -> None:
        if not len(batch.extra):
            return
        before = self.state.extra
        after = merge_columns(before, batch.extra, self.topic)
        if after != before:
            self.group.undo.append(lambda: setattr(self.state, "extra", before))
            self.state.extra = after
            self.group.add_state(extra_change(after))

    def _ensure_segment(self, size: int) -> None:
        """Begins a segment if there is none, if the active one is full, or if offsets have to be skipped."""
        self._check_space()
        follows = self.files.segments and self.next_offset == self.files.written
        if follows and self.files.fits(self.group.size + size, alone=not self.group.messages):
            return
        self.write()
        first = self.next_offset
        if self.files.segments and first == self.files.active.id:
            first += 1  # a segment with only state has that name already; skipping an offset is harmless
            self._begin_epoch()
        self.files.begin_segment(first, self.state, self.epoch, self.group.time_us)
        self.next_offset = first
        self.group = self._new_group()
        self._on_visible()

    def _check_space(self) -> None:
        error = self._check_limit()
        now = time.monotonic()
        if error is None and now >= self._next_space_check:
            error = self._check_disk()
            self._next_space_check = 0.0 if error else now + _SPACE_CHECK_S
        if error is not None:
            raise error

    def find_space_problem(self) -> UnavailableError | None:
        """Returns the error that an append would raise for lack of space; None if there is enough."""
        return self._check_limit() or self._check_disk()

    def _check_limit(self) -> UnavailableError | None:
        limit = self._settings.size_limit
        if self.files.size + self.group.size > limit:
            return UnavailableError(
                f"the log of topic '{self.topic}' has reached its limit of {limit:,} bytes",
                cause="its sinks have not committed enough for retention to make room",
                hint="start or repair the pipeline (frazil pipeline), or raise log.size_limit",
            )
        return None

    def _check_disk(self) -> UnavailableError | None:
        free = self.files.free()
        if free >= self._settings.min_free:
            return None
        return UnavailableError(
            f"the disk under topic '{self.topic}' has only {free:,} bytes free: {self.files.folder}",
            cause=f"log.min_free keeps {self._settings.min_free:,} bytes free",
            hint="free some space, or lower log.min_free",
        )

    # -- write -------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes the drafted frames. If that fails, they count as never drafted."""
        group = self.group
        if not group.buffers:
            return
        try:
            self.files.write(group.buffers, group.headers)
        except BaseException as error:
            for undo in reversed(group.undo):
                undo()
            _refuse(group.entries, error)
            metrics.REFUSED.labels(self.topic, type(error).__name__).inc(sum(e.calls for e in group.entries))
            self.group = self._new_group()
            if not isinstance(error, FrazilError):
                raise
            return
        self.next_offset = group.next_offset
        self._last_time_us = group.time_us
        self.counters.written(group)
        self.group = Group(self._log_id, self.epoch, group.synced, group.time_us, self.next_offset)

    def _sync(self) -> None:
        if self.files.sync():
            self.counters.synced(self.files.sync_seconds)
        self._on_visible()

    def _new_group(self) -> Group:
        return Group(self._log_id, self.epoch, self.end, self.now(), self.next_offset)


class CommitCounters:
    """Counts what a topic has committed since the metrics were last updated."""

    def __init__(self, topic: str) -> None:
        self._metrics = (
            metrics.MESSAGES.labels(topic), metrics.BYTES.labels(topic), metrics.BATCHES.labels(topic),
            metrics.SYNCS.labels(topic), metrics.SYNC_SECONDS.labels(topic),
        )  # fmt: skip
        self._counts: list[float] = [0, 0, 0, 0, 0]

    def written(self, group: Group) -> None:
        counts = self._counts
        counts[0] += group.messages
        counts[1] += group.size
        counts[2] += len(group.headers)

    def synced(self, seconds: float) -> None:
        self._counts[3] += 1
        self._counts[4] += seconds

    def show(self) -> None:
        counts, self._counts = self._counts, [0, 0, 0, 0, 0]
        for metric, count in zip(self._metrics, counts, strict=True):
            metric.inc(count)


def _refuse(entries: list[Entry], error: BaseException) -> None:
    for entry in entries:
        entry.error = error
