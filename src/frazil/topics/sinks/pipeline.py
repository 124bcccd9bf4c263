"""The pipeline: takes every topic with a table from the log into it, side by side, until it is told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from frazil.catalogs import open_catalog
from frazil.errors import FrazilError, SetupError, UnavailableError
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.observe.logs import get_logger
from frazil.settings import Settings
from frazil.spark.jvm import lives
from frazil.tables import TableStore
from frazil.topics.sinks import metrics
from frazil.topics.sinks.engine import Engine, requires_intervention
from frazil.topics.sinks.jobs import on_spark, warm_up
from frazil.topics.sinks.registry import sink_definitions
from frazil.topics.sinks.remaining import broken, interrupted, not_drained, not_taken, stopped_early
from frazil.topics.sinks.sink import Runner, Sink
from frazil.topics.sinks.sink_runner import SinkRunner, TopicStatus
from frazil.topics.sinks.sink_upkeep import SinkUpkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from frazil.topics.sinks.registry import SinkMaker

log = get_logger(__name__)

#: Topics that are worked on at once. Spark shares its cores between their jobs.
_THREADS = 8
#: Seconds between two looks at the log, at least and at most; between them a tenth of the lag that is allowed.
_TICK_S = (0.01, 0.2)
#: Failures in a row after which `drain` gives a topic up.
_PATIENCE = 5
#: Seconds between two looks whether it is time to stop waiting for a thread.
_LOOK_S = 0.1

#: Seconds that `drain` waits for a sink that has something to do with what it has taken.
_SETTLES_S = 20.0

T = TypeVar("T")


class Pipeline:
    """Runs the sinks of all topics.

    Whatever may hang, in a broker, a catalog or Spark, does so in a thread of its own, so that the pipeline can always
    give it up: `run` and `drain` return in bounded time once they are told to stop.

    Args:
        settings: the settings.
        access: the log.
        spark: where the work is done.
        address: where Spark's executors reach the log; see `flight_address`.
        topics: only these.
        catalog: name of the catalog; by default the one of the settings.
        caretaker: cares for the tables between batches; None: nobody.
        sinks: by name; by default all that are registered.
        run: instead of Spark, for tests.
    """

    def __init__(
        self,
        settings: Settings,
        access: LogAccess,
        spark: SparkSession | None,
        address: str,
        *,
        topics: Sequence[str] = (),
        catalog: str | None = None,
        caretaker: SinkUpkeep | None = None,
        sinks: Mapping[str, SinkMaker] | None = None,
        run: Runner | None = None,
    ) -> None:
        self._makers = sinks or {name: sink.make for name, sink in sink_definitions().items()}
        chosen = settings.catalog(catalog)
        network = settings.model.network
        self._settings = settings
        self._access = access
        self._address = address
        self._topics = frozenset(topics)
        self._store = TableStore(open_catalog(chosen, network), chosen, network)
        if run is None:
            assert spark is not None, "one of the two does the work"
            run = on_spark(spark)
        self._run = run
        self._caretaker = caretaker
        self._spark = spark
        self._parallelism = spark.sparkContext.defaultParallelism if spark is not None else 1
        self._sinks: dict[str, Sink] = {}
        self._lanes: dict[tuple[str, str], SinkRunner] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="frazil-pipeline")
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="frazil-pipeline-look")
        self._working: dict[SinkRunner, Future[object]] = {}
        self._unfinished: set[Future[Any]] = set()
        self._ended = threading.Event()
        self._stop_s = settings.model.pipeline.stop_s
        self._broken: dict[str, str] = {}

    def run(
        self,
        stop: threading.Event,
        *,
        ready: Callable[[list[TopicStatus]], None] | None = None,
        grace_s: float | None = None,
    ) -> FrazilError | None:
        """Works until told to stop; then ends the running batches, and takes what is still in the log.

        A topic that fails is tried again; the others go on. See `status`.

        Args:
            stop: tells it.
            ready: called once, when every topic that is there has been looked at, for good or ill.
            grace_s: seconds after `stop` in which this returns, whatever hangs; by default those of the settings.

        Returns:
            What was left in the log, as the error to tell; None: nothing.

        Raises:
            SetupError: Spark has ended.
        """
        if self._spark is not None:
            threading.Thread(target=warm_up, args=(self._spark,), name="frazil-pipeline-warm-up", daemon=True).start()
        lag = self._settings.model.pipeline.max_lag_ms / 1000
        pause = min(max(lag / 10, _TICK_S[0]), _TICK_S[1])
        while not stop.wait(pause):
            self._require_spark()
            try:
                topics = self._ask(self._ours, stop=stop)
            except UnavailableError as error:
                log.warning("the log does not answer", error=error.message, cause=error.cause)
                stop.wait(1.0)
                continue
            except _GivenUpError:
                break
            self._give_turns(topics)
            if ready is not None and all(_has_looked(lane) for lane in self._lanes.values()):
                ready(self.status())
                ready = None
        return self._finish(time.monotonic() + (self._stop_s if grace_s is None else grace_s))

    def drain(self, seconds: float | None = None, *, stop: threading.Event | None = None) -> list[TopicStatus]:
        """Takes all that is in the log now, and returns how it went.

        Args:
            seconds: after which it gives up; None: it takes its time.
            stop: set by whoever wants it to end after the batches that run.

        Raises:
            PartialError: some topics could not be taken; others were.
            FrazilError: the only topic could not be taken.
            InterruptedByUser: it was stopped before everything was taken.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            topics = self._ask(self._ours, deadline, stop)
        except _GivenUpError as error:
            raise UnavailableError(f"the {self._access.where} does not answer in time") from error
        lanes = [self._lane(info, sink) for info, sink in self._with_sinks(topics)]
        turns = {lane: self._pool.submit(self._drain_lane, lane, deadline, stop) for lane in lanes}
        self._wait(turns.values(), deadline, stop)
        failed = {lane.engine.topic: lane.error for lane in lanes if lane.error is not None}
        failed |= {lane.engine.topic: not_taken(lane.engine.topic) for lane, turn in turns.items() if not turn.done()}
        failed |= {info.name: broken(info) for info in topics if info.problem is not None}
        statuses = [lane.status() for lane in lanes]
        if stop is not None and stop.is_set() and not all(turn.done() and turn.result() for turn in turns.values()):
            raise interrupted(statuses)
        if failed:
            raise not_drained(failed, len({info.name for info in topics}), statuses)
        return statuses

    def status(self) -> list[TopicStatus]:
        return [lane.status() for lane in list(self._lanes.values())]

    @property
    def hangs(self) -> bool:
        """Whether it was closed while a thread of its own was in a call: Python would wait for that at its end."""
        return self._ended.is_set() and any(not turn.done() for turn in self._unfinished)

    def close(self) -> None:
        """Ends its threads. Those that hang in a call are left to themselves."""
        self._ended.set()
        self._unfinished = {turn for turn in (*self._unfinished, *self._working.values()) if not turn.done()}
        for pool in (self._pool, self._looking):
            pool.shutdown(wait=not self._unfinished, cancel_futures=True)
        if not self._unfinished:  # else one of them may use it
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _give_turns(self, topics: Sequence[TopicInfo]) -> None:
        """Gives a turn to each lane that has something to do."""
        now = time.monotonic()
        self._working = {lane: turn for lane, turn in self._working.items() if not turn.done()}
        self._tell_broken(topics)
        found = self._with_sinks(topics)
        for info, sink in found:
            lane = self._lane(info, sink)
            if lane in self._working:
                lane.observe(info)
            elif lane.wants(info, now):
                self._working[lane] = self._pool.submit(lane.run_batch)
        there = {(info.name, sink) for info, sink in found}
        for key in [k for k, lane in self._lanes.items() if k not in there and lane not in self._working]:
            del self._lanes[key]  # the topic is gone, or its sink was disabled
            metrics.forget(*key)

    def _ours(self) -> list[TopicInfo]:
        """The topics with a sink that is ours to run, or of which nobody knows because they cannot be opened."""
        return [
            info
            for info in self._access.topics()
            if (not self._topics or info.name in self._topics)
            and (info.problem or self._makers.keys() & info.sinks.keys())
        ]

    def _tell_broken(self, topics: Sequence[TopicInfo]) -> None:
        broken = {info.name: info.problem for info in topics if info.problem is not None}
        for name in broken.keys() - self._broken.keys():
            log.error("a topic cannot be used", topic=name, problem=broken[name], hint=f"frazil topic verify {name}")
        self._broken = broken

    def _with_sinks(self, topics: Sequence[TopicInfo]) -> list[tuple[TopicInfo, str]]:
        return [(info, sink) for info in topics if info.problem is None for sink in info.sinks if sink in self._makers]

    def _made(self, name: str) -> Sink:
        return self._makers[name](self._store, self._settings, self._address, self._spark)

    def _lane(self, info: TopicInfo, name: str) -> SinkRunner:
        key = (info.name, name)
        if key not in self._lanes:
            sink = self._sinks.setdefault(name, self._made(name))
            pipeline = self._settings.model.pipeline
            engine = Engine(
                info.name,
                sink,
                self._access,
                self._run,
                pipeline,
                parallelism=self._parallelism,
                storage=self._store.breaker("storage"),
            )
            self._lanes[key] = SinkRunner(engine, self._caretaker)
        return self._lanes[key]

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, deadline: float) -> FrazilError | None:
        """Ends the running batches, and takes what is left. What cannot be taken waits in the log for the next one."""
        if self._caretaker is not None:
            self._caretaker.end()
        self._wait(self._working.values(), deadline)
        self._working = {}
        try:
            self._require_spark()
            self.drain(max(0.0, deadline - time.monotonic()))
        except FrazilError as error:
            return stopped_early(self.status(), error)
        return None

    def _require_spark(self) -> None:
        if self._spark is not None and not lives(self._spark):
            raise SetupError(
                "Spark has ended while the pipeline ran",
                cause="its JVM is gone: killed, or out of memory",
                hint="start the pipeline again, with more spark.driver_memory if it happens again",
            )

    def _ask(self, question: Callable[[], T], deadline: float | None = None, stop: threading.Event | None = None) -> T:
        """What a thread finds out.

        Raises:
            _GivenUpError: it was time to stop before there was an answer.
        """
        answer = self._looking.submit(question)
        self._wait([answer], deadline, stop, grace_s=0.0)
        if not answer.done():
            raise _GivenUpError
        return answer.result()

    def _wait(
        self,
        turns: Collection[Future[Any]],
        deadline: float | None = None,
        stop: threading.Event | None = None,
        *,
        grace_s: float | None = None,
    ) -> None:
        """Until all are done, or the deadline, or some time after `stop`. What is not done by then is remembered."""
        self._unfinished.update(turns)
        while wait(turns, None if deadline is None and stop is None else _LOOK_S).not_done:
            now = time.monotonic()
            if deadline is not None and now > deadline:
                return
            if stop is not None and stop.is_set():
                given_up = now + (self._stop_s if grace_s is None else grace_s)
                deadline, stop = min(deadline or given_up, given_up), None
        self._unfinished.difference_update(turns)

    def _drain_lane(self, lane: SinkRunner, deadline: float | None, stop: threading.Event | None) -> bool:
        """Whether the table has all that the log had, and what belongs to that is done."""
        end: int | None = None
        lane.failures = 0
        while end is None or not lane.engine.has_reached(end) or self._settles(lane, deadline):
            if self._ended.is_set() or (stop is not None and stop.is_set()):
                return False
            if deadline is not None and time.monotonic() > deadline:
                lane.error = lane.error or not_taken(lane.engine.topic)
                return False
            if end is None:
                end = lane.refresh()
            else:
                lane.run_batch(at_once=True)
            if lane.error is not None:
                if requires_intervention(lane.error) or lane.failures >= _PATIENCE:
                    return False
                self._ended.wait(lane.pause(deadline))
        return True

    def _settles(self, lane: SinkRunner, deadline: float | None) -> bool:
        """Waits for what the sink has to do soon with what it has taken; False: there is nothing, or not soon."""
        wait_s = lane.engine.idle_work_due_s()
        left = _SETTLES_S if deadline is None else min(_SETTLES_S, deadline - time.monotonic())
        if wait_s is None or wait_s > left:
            return False
        self._ended.wait(max(wait_s, _LOOK_S))
        return True


class _GivenUpError(Exception):
    """There was no answer before it was time to stop."""


def _has_looked(lane: SinkRunner) -> bool:
    return lane.engine.offset is not None or lane.error is not None
