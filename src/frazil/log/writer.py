"""Commits to one topic's log: drafts frames, gives out offsets, writes, syncs, and rotates segments."""

from __future__ import annotations

import time
from collections.abc import Callable

from frazil.errors import FrazilError, UnavailableError
from frazil.log import metrics
from frazil.log.batch import Batch
from frazil.log.columns import merged
from frazil.log.files import Files
from frazil.log.group import Entry, Group, pieces
from frazil.log.producers import Taken
from frazil.log.protocol import Level
from frazil.log.state import State, extra_change
from frazil.observe.faultpoints import reach
from frazil.settings.model import LogSettings

_SPACE_CHECK_S = 0.5
_DISK = Level.disk

#: Is told which entries are done, and which of the commit are left.
Answer = Callable[[list[Entry], list[Entry]], None]


class Writer:
    """Only one thread at a time commits: the leader.

    Args:
        topic: its name.
        log_id: the number that stands in its frames.
        files: where the frames go.
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
        #: No offset below it is given out from the next commit on.
        self.floor = 0
        self._last_time_us = files.last_time_us
        self._next_space_check = 0.0
        self.tally = Tally(topic)
        self.group = self._new_group()

    @property
    def end(self) -> int:
        """The visible end: all below is on disk."""
        return max(self.files.synced.offset, self.skipped_to)

    def begin(self, floor: int | None) -> None:
        """Before the first commit: a new epoch, and no offset that a table knows already."""
        if floor is not None and floor > self.next_offset:
            self.next_offset = self.skipped_to = floor
        self._begin_epoch()
        self.group = self._new_group()

    def _begin_epoch(self) -> None:
        """By the clock: an older copy of the log that is brought back does not know which number came next."""
        self.epoch = max(self.epoch + 1, int(time.time()))

    def now(self) -> int:
        return max(self._last_time_us, time.time_ns() // 1000)

    def commit(self, entries: list[Entry], answer: Answer) -> None:
        """Writes entries, syncs if one wants that, and answers each as soon as its level is reached."""
        reach("log.commit.before")
        if self.floor > self.next_offset and not self._skip(entries, answer):
            return
        self.group.renew(self.end, self.now())
        for piece in pieces(entries):
            try:
                self._add(piece)
            except FrazilError as error:
                _refuse(piece, error)
                metrics.REFUSED.labels(self.topic, type(error).__name__).inc(sum(e.calls for e in piece))
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

    def _skip(self, entries: list[Entry], answer: Answer) -> bool:
        """Goes on at the floor. What was written before is synced first: all below the visible end is on disk."""
        try:
            self._sync()
        except FrazilError as error:
            _refuse(entries, error)
            answer(entries, [])
            return False
        self.begin(self.floor)
        return True

    # -- draft -------------------------------------------------------------------------------------------------------

    def _add(self, piece: list[Entry]) -> None:
        """Drafts the frame of a piece; what it needs before it is drafted too, or a new segment begun."""
        entry = piece[0]
        size = sum([e.size for e in piece])
        if entry.singles is not None:
            self._make_room(size + 16 * sum([e.messages for e in piece]))
            self.group.add_messages(piece)
        elif entry.batch is not None:
            self._add_batch(entry, entry.batch)
        elif entry.change is not None:
            self._make_room(size)
            self.group.add_state(entry.change(self.group))
            self.group.entries.append(entry)

    def _add_batch(self, entry: Entry, batch: Batch) -> None:
        idempotent = batch.is_idempotent
        if idempotent and self._is_duplicate(entry, batch):
            return
        drafted = self.group
        self._make_room(entry.size)
        # If that wrote, and failed, then batches that counted as taken a moment ago are not.
        if self.group is not drafted and idempotent and self._is_duplicate(entry, batch):
            return
        self._learn_columns(batch)
        self.group.add_batch(entry, batch)
        if idempotent:
            self._remember(batch, entry.offset)

    def _is_duplicate(self, entry: Entry, batch: Batch) -> bool:
        taken = self.state.producers.judge(batch, self.topic)
        if taken is None:
            return False
        entry.offset, entry.time_us, entry.duplicate = taken.offset, taken.time_us, True
        if taken.offset >= self.next_offset:  # drafted in this very group: what happens to that happens to this
            self.group.entries.append(entry)
        metrics.DUPLICATES.labels(self.topic).inc()
        return True

    def _remember(self, batch: Batch, offset: int) -> None:
        producers = self.state.producers
        before = producers.get(batch.producer_id)
        assert before is not None
        kept = before.copy()
        self.group.undo.append(lambda: producers.put(kept))
        producers.take(batch.producer_id, Taken(batch.sequence, offset, batch.count, self.group.time_us))

    def _learn_columns(self, batch: Batch) -> None:
        if not len(batch.extra):
            return
        before = self.state.extra
        after = merged(before, batch.extra, self.topic)
        if after != before:
            self.group.undo.append(lambda: setattr(self.state, "extra", before))
            self.state.extra = after
            self.group.add_state(extra_change(after))

    def _make_room(self, size: int) -> None:
        """Begins a segment where there is none, where this one is full, and where offsets have to be skipped."""
        self._check_space()
        follows = self.files.segments and self.next_offset == self.files.written
        if follows and self.files.fits(self.group.size + size, alone=not self.group.messages):
            return
        self.write()
        first = self.next_offset
        if self.files.segments and first == self.files.active.id:
            first += 1  # a segment of nothing but state: its name is taken, and an offset is cheap
            self._begin_epoch()
        self.files.begin_segment(first, self.state, self.epoch, self.group.time_us)
        self.next_offset = first
        self.group = self._new_group()
        self._on_visible()

    def _check_space(self) -> None:
        error = self._over_limit()
        now = time.monotonic()
        if error is None and now >= self._next_space_check:
            error = self._disk_is_full()
            self._next_space_check = 0.0 if error else now + _SPACE_CHECK_S
        if error is not None:
            raise error

    def lack_of_space(self) -> UnavailableError | None:
        """The error that an append would end with for want of space; None if there is enough."""
        return self._over_limit() or self._disk_is_full()

    def _over_limit(self) -> UnavailableError | None:
        limit = self._settings.size_limit
        if self.files.size + self.group.size > limit:
            return UnavailableError(
                f"the log of topic '{self.topic}' has reached its limit of {limit:,} bytes",
                cause="its sinks have not committed enough for retention to make room",
                hint="start or repair the pipeline (frazil pipeline), or raise log.size_limit",
            )
        return None

    def _disk_is_full(self) -> UnavailableError | None:
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
        """Writes the frames drafted so far. If that fails, it is as if they had never been drafted."""
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
        self.tally.written(group)
        self.group = Group(self._log_id, self.epoch, group.synced, group.time_us, self.next_offset)

    def _sync(self) -> None:
        if self.files.sync():
            self.tally.synced(self.files.sync_seconds)
        self._on_visible()

    def _new_group(self) -> Group:
        return Group(self._log_id, self.epoch, self.end, self.now(), self.next_offset)


class Tally:
    """What a topic has counted since the metrics were last brought up to date."""

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
