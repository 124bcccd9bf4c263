"""Runs one engine inside a pipeline: when its next batch is due, its status, and its retries after failures."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

from frazil.errors import FrazilError, first_line
from frazil.log.protocol import TopicInfo
from frazil.observe.backoff import Backoff
from frazil.observe.logs import get_logger
from frazil.topics.sinks import metrics
from frazil.topics.sinks.engine import NOTHING, BatchResult, Engine, requires_intervention
from frazil.topics.sinks.sink_upkeep import SinkUpkeep

log = get_logger(__name__)

#: Seconds between refreshes of a sink that is idle or needs intervention.
REFRESH_S = 15.0
_BACKOFF = Backoff(first=0.2, longest=30.0)

State = Literal["running", "waiting", "stopped"]


@dataclass(frozen=True)
class TopicStatus:
    """The status of a topic in a sink.

    Attributes:
        topic: its name.
        sink: its name.
        state: running; waiting, after a failure that is retried; stopped, until an operator intervenes.
        reason: why it is not running.
        hint: what the operator can do.
        offset: first offset that the table does not contain; None before the first refresh.
        end: end of the log.
        rows: committed by this pipeline.
        dead: dead letters of this pipeline.
        commits: of this pipeline.
        seconds: spent in those batches.
    """

    topic: str
    sink: str
    state: State
    reason: str | None
    hint: str | None
    offset: int | None
    end: int
    rows: int
    dead: int
    commits: int
    seconds: float


class SinkRunner:
    """Runs the batches of an engine, one at a time, and contains its failures."""

    def __init__(self, engine: Engine, upkeep: SinkUpkeep | None = None) -> None:
        self.engine = engine
        self._upkeep = upkeep
        self._tables = engine.sink.tables(engine.topic)
        self.busy = threading.Lock()
        self.error: FrazilError | None = None
        self.failures = 0
        self.total: BatchResult = NOTHING
        self._end = 0
        self._reached = 0
        self._last_seen: int | None = None
        self._due = 0.0
        self._refreshed_at = time.monotonic()
        self._waiting_since: float | None = None

    def observe(self, info: TopicInfo) -> None:
        """Records the end of the log, also while a batch runs, so that its tables' upkeep sees the lag."""
        self._end = max(info.end, info.written)
        if self._waiting_since is None and not self.engine.has_reached(self._end):
            self._waiting_since = time.monotonic()

    def lag_s(self) -> float:
        """Returns how long the oldest message has waited, as of the last batch or of the first observation after it.

        Nothing waits if the last batch took all that was observed.
        """
        since = self._waiting_since
        if since is None:
            return 0.0 if self.engine.has_reached(self._end) else self.engine.lag_s
        return max(self.engine.lag_s, time.monotonic() - since)

    def is_due(self, info: TopicInfo, now: float) -> bool:
        """Returns whether a batch may be of use: there are messages, or a refresh is due, and no retry is pending."""
        self.observe(info)
        self._reached = max(self._reached, self.engine.offset or info.start)
        if now < self._due:
            return False
        if not self.engine.has_reached(self._end) or now - self._refreshed_at > REFRESH_S:
            return True
        idle_work_s = self.engine.idle_work_due_s()
        return idle_work_s is not None and idle_work_s <= 0

    def run_batch(self, *, at_once: bool = False) -> BatchResult:
        """Runs one batch. An error is stored and counted, and determines when the next batch is due."""
        with self.busy:
            now = time.monotonic()
            if now - self._refreshed_at > REFRESH_S:
                self._refreshed_at = now
                self.engine.invalidate()
            try:
                result = self.engine.run_batch(at_once=at_once)
            except Exception as error:  # noqa: BLE001 - one topic must not stop the others; it is logged and shown
                self._failed(error)
                return NOTHING
            self._recovered()
            self._last_seen = self.engine.offset
            self.total += result
            self._waiting_since = None
            if self._upkeep is not None and not at_once and self._upkeep.run_turn(self._tables, self.lag_s):
                self.engine.invalidate()
            return result

    def refresh(self) -> int | None:
        """Returns the visible end of the log, or None if that failed."""
        with self.busy:
            try:
                end = self.engine.visible_end()
            except Exception as error:  # noqa: BLE001 - as in `result`
                self._failed(error)
                return None
            self._end = max(self._end, end)
            return end

    def pause(self, deadline: float | None = None) -> float:
        """Returns the seconds until the next try after a failure."""
        now = time.monotonic()
        return max(0.0, min(self._due, deadline if deadline is not None else self._due) - now)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.error = _wrap_error(error)
        labels = (self.engine.topic, self.engine.sink.name)
        stopped = requires_intervention(self.error)
        pause = REFRESH_S if stopped else _BACKOFF.pause(self.failures)
        self._due = time.monotonic() + pause
        metrics.FAILURES.labels(*labels).inc()
        metrics.STOPPED.labels(*labels).set(1 if stopped else 0)
        if self._end > self._reached:
            self.engine.report_stuck(self._end - self._reached)
        write_log = log.error if stopped or self.failures == 1 else log.warning
        write_log(
            "a batch failed",
            topic=labels[0],
            sink=labels[1],
            error=self.error.message,
            cause=self.error.cause,
            hint=self.error.hint,
            again_in=round(pause, 1),
            exc_info=error if self.error is not error else None,
        )

    def _recovered(self) -> None:
        if self.failures:
            log.info("a topic recovered", topic=self.engine.topic, sink=self.engine.sink.name)
            metrics.STOPPED.labels(self.engine.topic, self.engine.sink.name).set(0)
        self.failures, self.error, self._due = 0, None, 0.0

    def status(self) -> TopicStatus:
        error, total = self.error, self.total
        state: State = "running" if error is None else "stopped" if requires_intervention(error) else "waiting"
        return TopicStatus(
            self.engine.topic,
            self.engine.sink.name,
            state,
            error.message if error else None,
            error.hint if error else None,
            self._last_seen if self.engine.offset is None else self.engine.offset,
            self._end,
            total.rows,
            total.dead,
            total.commits,
            round(total.seconds, 3),
        )


class UnexpectedError(FrazilError):
    """An unexpected error. The operation is retried."""

    retryable = True


def _wrap_error(error: Exception) -> FrazilError:
    if isinstance(error, FrazilError):
        return error
    message = f"unexpected {type(error).__name__}: {first_line(error)}"
    return UnexpectedError(message, hint="the same with -v shows where; please report it")
