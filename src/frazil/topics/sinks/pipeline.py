"""The pipeline: moves every topic with a table from the log into it, concurrently, until it is stopped."""

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
from frazil.topics.sinks.remaining import (
    make_drain_error,
    make_interrupt_error,
    make_stop_error,
    make_timeout_error,
    make_unusable_error,
)
from frazil.topics.sinks.sink import Runner, Sink
from frazil.topics.sinks.sink_runner import SinkRunner, TopicStatus
from frazil.topics.sinks.sink_upkeep import SinkUpkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from frazil.topics.sinks.registry import SinkMaker

log = get_logger(__name__)

#: Topics processed at once. Spark shares its cores between their jobs.
_THREADS = 8
#: Bounds of the seconds between two polls of the log; within them, a tenth of the permitted lag.
_TICK_S = (0.01, 0.2)
#: Consecutive failures after which `drain` gives up a topic.
_MAX_FAILURES = 5
#: Seconds between two checks whether to stop waiting for a thread.
_POLL_S = 0.1

#: Seconds that `drain` waits for idle work on rows that a sink has taken.
_IDLE_WORK_WAIT_S = 20.0

T = TypeVar("T")


class Pipeline:
    """Runs the sinks of all topics.

    Calls that may hang, in a broker, a catalog or Spark, run in threads that the pipeline can abandon: `run` and
    `drain` return in bounded time once they are told to stop.

    Args:
        settings: the settings.
        access: the log.
        spark: runs the work.
        address: where Spark's executors reach the log; see `flight_address`.
        topics: only these.
        catalog: name of the catalog; by default the one of the settings.
        upkeep: maintains the tables between batches; None: no upkeep.
        sinks: by name; by default all registered ones.
        run: replaces Spark in tests.
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
        upkeep: SinkUpkeep | None = None,
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
        self._upkeep = upkeep
        self._spark = spark
        self._parallelism = spark.sparkContext.defaultParallelism if spark is not None else 1
        self._sinks: dict[str, Sink] = {}
        self._runners: dict[tuple[str, str], SinkRunner] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="frazil-pipeline")
        self._query_pool = ThreadPoolExecutor(1, thread_name_prefix="frazil-pipeline-look")
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
        """Works until it is stopped; then finishes the running batches and takes the rest of the log.

        A topic that fails is retried and does not affect others. See `status`.

        Args:
            stop: set to stop it.
            ready: called once, when every topic has been refreshed or has failed.
            grace_s: seconds after `stop` within which this returns, whatever hangs; by default those of the settings.

        Returns:
            An error that describes what is left in the log; None: nothing.

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
                topics = self._run_in_thread(self._list_topics, stop=stop)
            except UnavailableError as error:
                log.warning("the log does not answer", error=error.message, cause=error.cause)
                stop.wait(1.0)
                continue
            except _GivenUpError:
                break
            self._start_batches(topics)
            if ready is not None and all(_is_initialised(runner) for runner in self._runners.values()):
                ready(self.status())
                ready = None
        return self._finish(time.monotonic() + (self._stop_s if grace_s is None else grace_s))

    def drain(self, seconds: float | None = None, *, stop: threading.Event | None = None) -> list[TopicStatus]:
        """Takes all that is in the log now; returns the status of each topic.

        Args:
            seconds: after which it gives up; None: no limit.
            stop: set to end it after the running batches.

        Raises:
            PartialError: some topics could not be taken; others were.
            FrazilError: the only topic could not be taken.
            InterruptedByUser: it was stopped before everything was taken.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            topics = self._run_in_thread(self._list_topics, deadline, stop)
        except _GivenUpError as error:
            raise UnavailableError(f"the {self._access.where} does not answer in time") from error
        runners = [self._get_runner(info, sink) for info, sink in self._pair_with_sinks(topics)]
        futures = {runner: self._pool.submit(self._drain_runner, runner, deadline, stop) for runner in runners}
        self._wait(futures.values(), deadline, stop)
        failed = {runner.engine.topic: runner.error for runner in runners if runner.error is not None}
        failed |= {
            runner.engine.topic: make_timeout_error(runner.engine.topic)
            for runner, future in futures.items()
            if not future.done()
        }
        failed |= {info.name: make_unusable_error(info) for info in topics if info.problem is not None}
        statuses = [runner.status() for runner in runners]
        if (
            stop is not None
            and stop.is_set()
            and not all(future.done() and future.result() for future in futures.values())
        ):
            raise make_interrupt_error(statuses)
        if failed:
            raise make_drain_error(failed, len({info.name for info in topics}), statuses)
        return statuses

    def status(self) -> list[TopicStatus]:
        return [runner.status() for runner in list(self._runners.values())]

    @property
    def hangs(self) -> bool:
        """Whether a thread was in a call when the pipeline was closed: Python would wait for it at exit."""
        return self._ended.is_set() and any(not future.done() for future in self._unfinished)

    def close(self) -> None:
        """Ends the threads. Those that hang in a call are abandoned."""
        self._ended.set()
        self._unfinished = {future for future in (*self._unfinished, *self._working.values()) if not future.done()}
        for pool in (self._pool, self._query_pool):
            pool.shutdown(wait=not self._unfinished, cancel_futures=True)
        if not self._unfinished:  # otherwise one of them may still use it
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_batches(self, topics: Sequence[TopicInfo]) -> None:
        """Starts a batch of each sink for which one is due."""
        now = time.monotonic()
        self._working = {runner: future for runner, future in self._working.items() if not future.done()}
        self._log_broken_topics(topics)
        found = self._pair_with_sinks(topics)
        for info, sink in found:
            runner = self._get_runner(info, sink)
            if runner in self._working:
                runner.observe(info)
            elif runner.is_due(info, now):
                self._working[runner] = self._pool.submit(runner.run_batch)
        present = {(info.name, sink) for info, sink in found}
        for key in [k for k, runner in self._runners.items() if k not in present and runner not in self._working]:
            del self._runners[key]  # the topic was deleted, or its sink disabled
            metrics.forget(*key)

    def _list_topics(self) -> list[TopicInfo]:
        """Lists the topics of our sinks, and those whose sinks are unknown because they cannot be opened."""
        return [
            info
            for info in self._access.topics()
            if (not self._topics or info.name in self._topics)
            and (info.problem or self._makers.keys() & info.sinks.keys())
        ]

    def _log_broken_topics(self, topics: Sequence[TopicInfo]) -> None:
        make_unusable_error = {info.name: info.problem for info in topics if info.problem is not None}
        for name in make_unusable_error.keys() - self._broken.keys():
            log.error(
                "a topic cannot be used",
                topic=name,
                problem=make_unusable_error[name],
                hint=f"frazil topic verify {name}",
            )
        self._broken = make_unusable_error

    def _pair_with_sinks(self, topics: Sequence[TopicInfo]) -> list[tuple[TopicInfo, str]]:
        return [(info, sink) for info in topics if info.problem is None for sink in info.sinks if sink in self._makers]

    def _make_sink(self, name: str) -> Sink:
        return self._makers[name](self._store, self._settings, self._address, self._spark)

    def _get_runner(self, info: TopicInfo, name: str) -> SinkRunner:
        key = (info.name, name)
        if key not in self._runners:
            sink = self._sinks.setdefault(name, self._make_sink(name))
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
            self._runners[key] = SinkRunner(engine, self._upkeep)
        return self._runners[key]

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self, deadline: float) -> FrazilError | None:
        """Finishes the running batches and takes the rest.

        What cannot be taken stays in the log for the next pipeline.
        """
        if self._upkeep is not None:
            self._upkeep.stop()
        self._wait(self._working.values(), deadline)
        self._working = {}
        try:
            self._require_spark()
            self.drain(max(0.0, deadline - time.monotonic()))
        except FrazilError as error:
            return make_stop_error(self.status(), error)
        return None

    def _require_spark(self) -> None:
        if self._spark is not None and not lives(self._spark):
            raise SetupError(
                "Spark has ended while the pipeline ran",
                cause="its JVM is gone: killed, or out of memory",
                hint="start the pipeline again, with more spark.driver_memory if it happens again",
            )

    def _run_in_thread(
        self, query: Callable[[], T], deadline: float | None = None, stop: threading.Event | None = None
    ) -> T:
        """Runs a query in a thread and returns its result.

        Raises:
            _GivenUpError: it was time to stop before there was a result.
        """
        answer = self._query_pool.submit(query)
        self._wait([answer], deadline, stop, grace_s=0.0)
        if not answer.done():
            raise _GivenUpError
        return answer.result()

    def _wait(
        self,
        futures: Collection[Future[Any]],
        deadline: float | None = None,
        stop: threading.Event | None = None,
        *,
        grace_s: float | None = None,
    ) -> None:
        """Waits for all, until the deadline or some time after `stop`.

        Those that are not done are kept as unfinished.
        """
        self._unfinished.update(futures)
        while wait(futures, None if deadline is None and stop is None else _POLL_S).not_done:
            now = time.monotonic()
            if deadline is not None and now > deadline:
                return
            if stop is not None and stop.is_set():
                given_up = now + (self._stop_s if grace_s is None else grace_s)
                deadline, stop = min(deadline or given_up, given_up), None
        self._unfinished.difference_update(futures)

    def _drain_runner(self, runner: SinkRunner, deadline: float | None, stop: threading.Event | None) -> bool:
        """Returns whether the table contains all that the log had, and the idle work on it is done."""
        end: int | None = None
        runner.failures = 0
        while end is None or not runner.engine.has_reached(end) or self._wait_for_idle_work(runner, deadline):
            if self._ended.is_set() or (stop is not None and stop.is_set()):
                return False
            if deadline is not None and time.monotonic() > deadline:
                runner.error = runner.error or make_timeout_error(runner.engine.topic)
                return False
            if end is None:
                end = runner.refresh()
            else:
                runner.run_batch(at_once=True)
            if runner.error is not None:
                if requires_intervention(runner.error) or runner.failures >= _MAX_FAILURES:
                    return False
                self._ended.wait(runner.pause(deadline))
        return True

    def _wait_for_idle_work(self, runner: SinkRunner, deadline: float | None) -> bool:
        """Waits for idle work that is due soon; returns False if there is none."""
        wait_s = runner.engine.idle_work_due_s()
        left = _IDLE_WORK_WAIT_S if deadline is None else min(_IDLE_WORK_WAIT_S, deadline - time.monotonic())
        if wait_s is None or wait_s > left:
            return False
        self._ended.wait(max(wait_s, _POLL_S))
        return True


class _GivenUpError(Exception):
    """It was time to stop before there was a result."""


def _is_initialised(runner: SinkRunner) -> bool:
    return runner.engine.offset is not None or runner.error is not None
