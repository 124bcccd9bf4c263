"""The sink engine: moves one topic through one sink into its table, batch by batch, exactly once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from frazil.errors import FrazilError, UnavailableError
from frazil.log.columns import PARTITION
from frazil.log.protocol import LogAccess, Span, TopicInfo
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.observe.resilience import CircuitBreaker
from frazil.settings.model import PipelineSettings
from frazil.tables import PositionMovedError, find_position
from frazil.tables.durability import sync_metadata
from frazil.tables.writing.data_files import NotWrittenError, discard_files
from frazil.topics.positions import check_messages, check_position, check_start
from frazil.topics.sinks import metrics
from frazil.topics.sinks.archived import FilesGoneError
from frazil.topics.sinks.isolation import Trials
from frazil.topics.sinks.jobs import BatchFailedError, TasksFailedError
from frazil.topics.sinks.sink import Plan, Runner, Sink, Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from frazil.tables import Position

log = get_logger(__name__)

#: A sink that lags may take this many times the target size at once, which saves commits and jobs.
_BEHIND = 4


@dataclass(frozen=True)
class BatchResult:
    """The counts of one or more batches."""

    rows: int = 0
    dead: int = 0
    size: int = 0
    seconds: float = 0.0
    commits: int = 0

    def __add__(self, other: BatchResult) -> BatchResult:
        return BatchResult(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NOTHING = BatchResult()


class Engine:
    """One topic and one sink. Not thread safe.

    Args:
        topic: its name.
        sink: writes the tables.
        access: the log.
        run: runs the work; `on_spark(session)`.
        settings: when a batch is due, and how many tasks it may have.
        parallelism: tasks of a big batch, if the settings do not say.
        storage: the circuit breaker of the storage that tasks write to; while it is open, no batch begins.
        clock: seconds since 1970, comparable with the broker's clock.
    """

    def __init__(
        self,
        topic: str,
        sink: Sink,
        access: LogAccess,
        run: Runner,
        settings: PipelineSettings,
        *,
        parallelism: int = 2,
        storage: CircuitBreaker | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.topic = topic
        self.sink = sink
        self.offset: int | None = None
        """First offset that the table does not have; None before the first look."""
        self._access = access
        self._run = run
        self._settings = settings
        self._tasks = settings.tasks or parallelism
        self._storage = storage
        self._clock = clock
        self._backfill = sink.backfill(topic)
        self._table: Table | None = None
        self._position: Position | None = None
        self._columns: pa.Schema | None = None
        #: Id and epoch of the log at the last refresh.
        self._refreshed_for: tuple[str, int] | None = None
        self._next_sync = 0.0
        self._next_idle_work = 0.0
        self.lag_s = 0.0
        """How long the oldest message that the table does not have was waiting at the last look."""
        self._waiting_since: float | None = None
        self._empty_until = 0
        self._prepared = False
        self._backfilling = False
        self._trials = Trials()

    def run_batch(self, *, at_once: bool = False) -> BatchResult:
        """Takes one batch if one is due; with `at_once`, whatever there is.

        Any error resets the engine: the next batch reads the position from the table.

        Raises:
            ForeignLogError, TableAheadError, LogGapError, RolledBackError: an operator has to decide.
        """
        try:
            return self._run_batch(at_once)
        except PositionMovedError as error:
            metrics.CONFLICTS.labels(self.topic, self.sink.name).inc()
            log.info("another pipeline was faster", topic=self.topic, sink=self.sink.name, error=error.message)
            self.reset()
            return NOTHING
        except FilesGoneError as error:
            log.info(
                "the archive was compacted in the meantime", topic=self.topic, sink=self.sink.name, cause=error.cause
            )
            self.reset()
            assert self._backfill is not None, "only its spans have such files"
            self._backfill.missed(error)
            return NOTHING
        except BaseException:
            self.reset()
            raise

    def reset(self) -> None:
        """Discards all that is known of the table."""
        self._prepared = False
        self.invalidate()
        self.offset = None

    def invalidate(self) -> None:
        """Makes the next batch read the position from the table, which may have been rolled back or dropped."""
        self._table = self._position = self._columns = None
        self._empty_until = 0

    def catch_up(self, end: int | None = None) -> BatchResult:
        """Takes batches until the table contains the log up to its present end, or up to `end`."""
        if end is None:
            end = self.visible_end()
        total = NOTHING
        while not self.has_reached(end):
            total += self.run_batch(at_once=True)
        return total

    def report_stuck(self, behind: int) -> None:
        """Updates the lag while batches fail before they can measure it."""
        self._waiting_since = self._waiting_since or self._clock()
        labels = (self.topic, self.sink.name)
        metrics.LAG_OFFSETS.labels(*labels).set(behind)
        metrics.LAG_SECONDS.labels(*labels).set(self._clock() - self._waiting_since)

    def visible_end(self) -> int:
        """Returns the end of the log after a sync."""
        return self._access.sync(self.topic)

    def has_reached(self, end: int) -> bool:
        """Returns whether the table contains every message below an offset."""
        return self.offset is not None and max(self.offset, self._empty_until) >= end

    def idle_work_due_s(self) -> float | None:
        """Returns the seconds until the sink's next idle work on rows that it has taken; None: there is none."""
        waits = self.sink.idle_work_due_s()
        return None if waits is None else max(waits, self._next_idle_work - self._clock())

    def _run_batch(self, at_once: bool) -> BatchResult:
        if not self._prepared:
            # Before its first sync the log reads its floor from the tables: its end is not below them from then on.
            self._access.sync(self.topic)
            self._prepared = True
        before = info = self._access.info(self.topic)
        if (
            self._table is None
            or self._is_behind_log_start(info)
            or self._is_overtaken(info)
            or self._is_reopened(info)
        ):
            info = self._refresh(info)
        assert self._table is not None
        if (
            self._start(info) > info.written
        ):  # reopened, perhaps as an older copy, which reads its floor from the tables first
            self._access.sync(self.topic)
            info = self._access.info(self.topic)
        check_position(info, self._position, self.sink.name)
        start = self._start(info)
        self.offset = start
        if self._is_behind_log_start(info):
            check_start(before, start, self.sink.name)
            self.invalidate()  # retention removed it just now
            return NOTHING
        self._run_idle_work()
        if (log_start := self._log_start(info, start)) > start:
            spans = self._plan_backfill(replace(info, start=log_start), start)
        else:
            spans = self._plan_if_due(info, start, self._visible_end(info, start, at_once), at_once)
        if not spans:
            return NOTHING
        return self._commit_batch(spans)

    def _is_behind_log_start(self, info: TopicInfo) -> bool:
        """Returns whether the log has removed what comes next. The table knows if another pipeline has taken it."""
        return self._backfill is None and self._start(info) < info.start

    def _is_reopened(self, info: TopicInfo) -> bool:
        """Returns whether the log was reopened since the last refresh, perhaps as an older or an adopted copy."""
        return self._refreshed_for != (info.log_id, info.epoch)

    def _is_overtaken(self, info: TopicInfo) -> bool:
        """Returns whether another pipeline has reported a later position: its messages need not be written first."""
        return (info.sinks.get(self.sink.name) or 0) > self._start(info)

    def _refresh(self, info: TopicInfo) -> TopicInfo:
        """Reads the position from the table and reports it, since a crash may have come between commit and report."""
        reach("sink.look.before")
        self._table = self.sink.table(info)
        self._columns = info.extra
        self._position = find_position(self._table, self.sink.name, self.topic)
        info = self._access.info(self.topic)  # the table may have passed the end that the log had before
        check_messages(self._access, info, self._position, self.sink.name)
        self._refreshed_for = info.log_id, info.epoch
        reach("sink.look.after")
        if self._position is not None and self._position.log_id == info.log_id:
            sync_metadata(self._table)
            self._report(min(self._position.offsets.get(PARTITION, 0), info.written))
        elif self._position is None and info.start > 0 and self._backfill is None:
            log.warning(
                "the log begins later than the topic: earlier messages are missing from the table and cannot be read",
                topic=self.topic,
                sink=self.sink.name,
                missing=f"0 to {info.start}",
            )
        return info

    def _start(self, info: TopicInfo) -> int:
        if self._position is not None:
            return self._position.offsets.get(PARTITION, 0)
        return info.start if self._backfill is None else 0

    def _log_start(self, info: TopicInfo, start: int) -> int:
        """Returns where the log begins for the sink: behind a gap at its position that the archive can fill."""
        gap_end = next((high for low, high in info.gaps if low <= start < high), None)
        if self._backfill is not None and gap_end is not None and self._backfill.has(info, start):
            return gap_end
        return info.start

    def _plan_backfill(self, info: TopicInfo, start: int) -> list[Span]:
        """Returns the spans of the next batch from the archive, which is due at once."""
        assert self._backfill is not None
        spans = self._backfill.spans(info, start, self._settings.target_bytes, self._tasks)
        if not self._backfilling:
            self._backfilling = True
            log.info(
                "reading messages that the log no longer has from the archive",
                topic=self.topic,
                sink=self.sink.name,
                offsets=f"{start} to {info.start}",
            )
        now = self._clock()
        waited = now - spans[0].time_us / 1e6 if spans[0].time_us else 0.0
        self._update_lag(info.end - start, sum(s.size for s in spans), waited)
        return spans

    def _visible_end(self, info: TopicInfo, start: int, at_once: bool) -> int:
        """Returns the visible end. A log that does not sync each commit is asked to sync once per permitted lag."""
        if info.written <= max(info.end, start):
            return info.end
        now = self._clock()
        if not at_once and now < self._next_sync:
            return info.end
        self._next_sync = now + self._settings.max_lag_ms / 1000
        reach("sink.sync.before")
        return self._access.sync(self.topic)

    def _plan_if_due(self, info: TopicInfo, start: int, end: int, at_once: bool) -> list[Span]:
        """Returns the spans of the next batch if it is large enough, or its oldest message has waited long enough."""
        spans = self._spans(info, start) if end > start else []
        if not spans:
            # A restored log skips offsets: there may be no messages although its end lies beyond.
            self._empty_until = end
            self._waiting_since = None
            self._update_lag(0, 0, 0.0)
            return []
        now = self._clock()
        # The broker's clock may differ: the time since messages were first seen here counts too.
        self._waiting_since = min(self._waiting_since or now, spans[0].time_us / 1e6)
        waited = now - self._waiting_since
        size = sum(s.size for s in spans)
        self._update_lag(end - start, size, waited)
        if at_once or size >= self._settings.target_bytes or waited * 1000 >= self._settings.max_lag_ms:
            return spans
        return []

    def _spans(self, info: TopicInfo, start: int) -> list[Span]:
        """Returns what to take. A larger batch has more tasks, so that other topics get a core as soon."""
        target = self._settings.target_bytes
        spans = self._access.spans(self.topic, start, _BEHIND * target, self._tasks)
        size = sum(s.size for s in spans)
        times = round(size / target)
        if times > 1:
            spans = self._access.spans(self.topic, start, size, self._tasks * times)
        gap = next((low for low, _ in info.gaps if low > start), None)
        if self._backfill is None or gap is None:
            return spans
        return [replace(s, end=min(s.end, gap)) for s in spans if s.start < gap]  # the archive's batch follows

    def _commit_batch(self, spans: list[Span]) -> BatchResult:
        began = time.perf_counter()
        reach("sink.plan.before")
        # Read after the spans, so that it contains all their columns.
        info = self._access.info(self.topic)
        if self._is_reopened(info):
            return NOTHING  # reopened just now: the next batch refreshes
        if self._table is None or info.extra != self._columns:
            self._table = self.sink.table(info)
            self._columns = info.extra
        plan = Plan(info, self._position, tuple(spans), str(uuid.uuid4()), self._trials.are_exhausted(spans[0].start))
        reach("sink.plan.after")
        written = self._write(plan)
        reach("sink.write.after")
        self._table = self.sink.commit(self._table, plan, written)
        self._position = plan.reached(self.sink.name)
        self.offset = plan.end
        self._waiting_since = None
        reach("sink.report.before")
        if not self._is_reopened(self._access.info(self.topic)):  # otherwise the next batch refreshes
            self._report(plan.end)
        reach("sink.report.after")
        rows, dead = sum(w.rows for w in written), sum(w.dead for w in written)
        result = BatchResult(rows, dead, plan.size, time.perf_counter() - began, commits=1)
        self._update_metrics(result)
        return result

    def _write(self, plan: Plan) -> list[Written]:
        assert self._table is not None
        reach("sink.write.before")
        if self._storage is not None:
            self._storage.check()
        try:
            written = self.sink.write(self._table, plan, self._run)
        except TasksFailedError as failed:
            if self._storage is not None and isinstance(failed.error, NotWrittenError):
                self._storage.failed()
            self._discard(failed.written)
            if isinstance(failed.error, BatchFailedError):
                self._trials.count(self.topic, plan.spans[0].start)
            raise failed.error from failed
        if self._storage is not None:
            self._storage.answered()
        try:
            self._require_same_log(plan)
        except BaseException:
            self._discard(written)
            raise
        return written

    def _require_same_log(self, plan: Plan) -> None:
        """Raises if the log was reopened, and perhaps replaced, while the tasks read it."""
        now, before = self._access.info(self.topic), plan.info
        if (now.log_id, now.epoch) != (before.log_id, before.epoch) or now.end < plan.end:
            raise UnavailableError(
                f"the log of topic '{self.topic}' was reopened while a batch was read from it",
                hint="no action needed: the batch is retried",
            )

    def _discard(self, written: Iterable[Written]) -> None:
        """Deletes files that no commit refers to."""
        assert self._table is not None
        discard_files(self._table.io, [path for w in written for path in w.paths()])

    def _run_idle_work(self) -> None:
        now = self._clock()
        if now >= self._next_idle_work and self._position is not None:
            self._next_idle_work = now + self.sink.idle_work_every_s
            before = self._table
            assert before is not None
            self._table = self.sink.run_idle_work(before, self._position)
            if self._table.metadata_location != before.metadata_location:
                self._position = find_position(self._table, self.sink.name, self.topic)

    def _report(self, offset: int) -> None:
        self._access.report(self.topic, self.sink.name, offset)

    def _update_metrics(self, result: BatchResult) -> None:
        labels = (self.topic, self.sink.name)
        metrics.COMMITS.labels(*labels).inc()
        metrics.ROWS.labels(*labels).inc(result.rows)
        metrics.DEAD.labels(*labels).inc(result.dead)
        metrics.BYTES.labels(*labels).inc(result.size)
        metrics.SECONDS.labels(*labels).inc(result.seconds)
        metrics.OFFSET.labels(*labels).set(self.offset or 0)

    def _update_lag(self, offsets: int, size: int, seconds: float) -> None:
        self.lag_s = seconds
        labels = (self.topic, self.sink.name)
        metrics.LAG_OFFSETS.labels(*labels).set(offsets)
        metrics.LAG_BYTES.labels(*labels).set(size)
        metrics.LAG_SECONDS.labels(*labels).set(seconds)


def requires_intervention(error: BaseException) -> bool:
    """Returns whether a retry is pointless before an operator has done something."""
    return isinstance(error, FrazilError) and not error.retryable
