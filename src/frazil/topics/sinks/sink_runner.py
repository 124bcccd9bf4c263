"""One engine inside a pipeline: when it is its turn, how it stands, and what it does after a failure."""

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

#: Seconds until a lane that waits for a person, or has nothing to do, looks at the table again.
REFRESH_S = 15.0
_BACKOFF = Backoff(first=0.2, longest=30.0)

State = Literal["running", "waiting", "stopped"]


@dataclass(frozen=True)
class TopicStatus:
    """How a topic stands in a sink.

    Attributes:
        topic: which.
        sink: which.
        state: running; waiting, after a failure that may pass; stopped, until a person has done something.
        reason: why it is not running.
        hint: what that person can do.
        offset: first offset that the table does not have; None before the first look.
        end: end of the log.
        rows: committed by this pipeline.
        dead: put into the dead letters by this pipeline.
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
    """Takes turns with an engine, one at a time, and keeps failures to itself."""

    def __init__(self, engine: Engine, caretaker: SinkUpkeep | None = None) -> None:
        self.engine = engine
        self._caretaker = caretaker
        self._tables = engine.sink.tables(engine.topic)
        self.busy = threading.Lock()
        self.error: FrazilError | None = None
        self.failures = 0
        self.total: BatchResult = NOTHING
        self._end = 0
        self._reached = 0
        self._last_seen: int | None = None
        self._due = 0.0
        self._looked = time.monotonic()
        self._waits_since: float | None = None

    def observe(self, info: TopicInfo) -> None:
        """What the log has by now. Also while the lane has its turn: so whoever cares for its tables knows of a lag."""
        self._end = max(info.end, info.written)
        if self._waits_since is None and not self.engine.has_reached(self._end):
            self._waits_since = time.monotonic()

    def lag_s(self) -> float:
        """How long the oldest message has been waiting: at the engine's last look, or since one was seen after it.

        None waits where the last batch has taken all that was seen.
        """
        since = self._waits_since
        if since is None:
            return 0.0 if self.engine.has_reached(self._end) else self.engine.lag_s
        return max(self.engine.lag_s, time.monotonic() - since)

    def wants(self, info: TopicInfo, now: float) -> bool:
        """Whether a turn may be of use: there is something new, or it is time to look, and no failure too short ago."""
        self.observe(info)
        self._reached = max(self._reached, self.engine.offset or info.start)
        if now < self._due:
            return False
        if not self.engine.has_reached(self._end) or now - self._looked > REFRESH_S:
            return True
        waits_s = self.engine.idle_work_due_s()
        return waits_s is not None and waits_s <= 0

    def run_batch(self, *, at_once: bool = False) -> BatchResult:
        """One turn; an error is kept, counted, and decides when the next turn may be."""
        with self.busy:
            now = time.monotonic()
            if now - self._looked > REFRESH_S:
                self._looked = now
                self.engine.invalidate()
            try:
                turn = self.engine.run_batch(at_once=at_once)
            except Exception as error:  # noqa: BLE001 - one topic must not stop the others; it is told and shown
                self._failed(error)
                return NOTHING
            self._recovered()
            self._last_seen = self.engine.offset
            self.total += turn
            self._waits_since = None
            if self._caretaker is not None and not at_once and self._caretaker.turn(self._tables, self.lag_s):
                self.engine.invalidate()
            return turn

    def refresh(self) -> int | None:
        """The visible end of the log, or None where that failed."""
        with self.busy:
            try:
                end = self.engine.visible_end()
            except Exception as error:  # noqa: BLE001 - as in `turn`
                self._failed(error)
                return None
            self._end = max(self._end, end)
            return end

    def pause(self, deadline: float | None = None) -> float:
        """Seconds until the next try after a failure."""
        now = time.monotonic()
        return max(0.0, min(self._due, deadline if deadline is not None else self._due) - now)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.error = _ours(error)
        whose = (self.engine.topic, self.engine.sink.name)
        stopped = requires_intervention(self.error)
        pause = REFRESH_S if stopped else _BACKOFF.pause(self.failures)
        self._due = time.monotonic() + pause
        metrics.FAILURES.labels(*whose).inc()
        metrics.STOPPED.labels(*whose).set(1 if stopped else 0)
        if self._end > self._reached:
            self.engine.report_stuck(self._end - self._reached)
        tell = log.error if stopped or self.failures == 1 else log.warning
        tell(
            "a batch failed",
            topic=whose[0],
            sink=whose[1],
            error=self.error.message,
            cause=self.error.cause,
            hint=self.error.hint,
            again_in=round(pause, 1),
            exc_info=error if self.error is not error else None,
        )

    def _recovered(self) -> None:
        if self.failures:
            log.info("a topic goes on", topic=self.engine.topic, sink=self.engine.sink.name)
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


def _ours(error: Exception) -> FrazilError:
    if isinstance(error, FrazilError):
        return error
    told = f"unexpected {type(error).__name__}: {first_line(error)}"
    return UnexpectedError(told, hint="the same with -v shows where; please report it")
