"""The pipeline: takes every topic with a table from the log into it, side by side, until it is told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog

from frazil.catalogs import open_catalog
from frazil.errors import FrazilError, IntegrityError, PartialError, UnavailableError
from frazil.log.access import LogAccess, TopicInfo
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.topics.layout import ARCHIVE
from frazil.topics.sinks import metrics
from frazil.topics.sinks.archive import ArchiveSink
from frazil.topics.sinks.engine import Engine, needs_a_person
from frazil.topics.sinks.jobs import on_spark
from frazil.topics.sinks.lane import Lane, TopicStatus
from frazil.topics.sinks.sink import Runner, Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

#: Topics that are worked on at once. Spark shares its cores between their jobs.
_THREADS = 8
#: Seconds between two looks at the log, at least and at most; between them a tenth of the lag that is allowed.
_TICK_S = (0.01, 0.2)
#: Failures in a row after which `drain` gives a topic up.
_PATIENCE = 5
#: Seconds that are left for what is still in the log when the pipeline is told to stop.
GRACE_S = 20.0

SinkMaker = Callable[[TableStore, Settings, str], Sink]
SINKS: dict[str, SinkMaker] = {ARCHIVE: ArchiveSink}


class Pipeline:
    """Runs the sinks of all topics.

    Args:
        settings: the settings.
        access: the log.
        spark: where the work is done.
        address: where Spark's executors reach the log; see `flight_address`.
        topics: only these.
        catalog: name of the catalog; by default the one of the settings.
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
        run: Runner | None = None,
    ) -> None:
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
        self._parallelism = spark.sparkContext.defaultParallelism if spark is not None else 1
        self._sinks: dict[str, Sink] = {}
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="frazil-pipeline")
        self._working: dict[Lane, Future[object]] = {}
        self._broken: dict[str, str] = {}

    def run(self, stop: threading.Event, *, grace_s: float = GRACE_S) -> None:
        """Works until told to stop; then ends the running batches, and takes what is still in the log, in bounded time.

        A topic that fails is tried again; the others go on. See `status`.
        """
        lag = self._settings.model.pipeline.max_lag_ms / 1000
        pause = min(max(lag / 10, _TICK_S[0]), _TICK_S[1])
        while not stop.wait(pause):
            try:
                self._tick()
            except UnavailableError as error:
                log.warning("the log does not answer", error=error.message, cause=error.cause)
                stop.wait(1.0)
        self._settle()
        try:
            self.drain(grace_s)
        except FrazilError as error:
            # It is in the log, and the next pipeline takes it.
            log.warning("stopped before everything was in its table", error=error.message, cause=error.cause)

    def drain(self, seconds: float | None = None) -> list[TopicStatus]:
        """Takes all that is in the log now, and returns how it went.

        Raises:
            PartialError: some topics could not be taken; others were.
            FrazilError: the only topic could not be taken.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        topics = self._ours()
        lanes = [self._lane(info, sink) for info, sink in _with_sinks(topics)]
        list(self._pool.map(lambda lane: self._drain_lane(lane, deadline), lanes))
        failed = {lane.engine.topic: lane.error for lane in lanes if lane.error is not None}
        failed |= {info.name: _broken(info) for info in topics if info.problem is not None}
        if failed:
            _raise(failed, len({info.name for info in topics}))
        return [lane.status() for lane in lanes]

    def status(self) -> list[TopicStatus]:
        return [lane.status() for lane in list(self._lanes.values())]

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tick(self) -> None:
        """Gives a turn to each lane that has something to do."""
        now = time.monotonic()
        self._working = {lane: turn for lane, turn in self._working.items() if not turn.done()}
        topics = self._ours()
        self._tell_broken(topics)
        found = _with_sinks(topics)
        for info, sink in found:
            lane = self._lane(info, sink)
            if lane not in self._working and lane.wants(info, now):
                self._working[lane] = self._pool.submit(lane.turn)
        there = {(info.name, sink) for info, sink in found}
        for key in [k for k, lane in self._lanes.items() if k not in there and lane not in self._working]:
            del self._lanes[key]  # the topic is gone, or its sink was disabled
            metrics.forget(*key)

    def _ours(self) -> list[TopicInfo]:
        """The topics with a sink that is ours to run, or of which nobody knows because they cannot be opened."""
        return [
            info
            for info in self._access.topics()
            if (not self._topics or info.name in self._topics) and (info.problem or SINKS.keys() & info.sinks.keys())
        ]

    def _tell_broken(self, topics: Sequence[TopicInfo]) -> None:
        broken = {info.name: info.problem for info in topics if info.problem is not None}
        for name in broken.keys() - self._broken.keys():
            log.error("a topic cannot be used", topic=name, problem=broken[name], hint=f"frazil topic verify {name}")
        self._broken = broken

    def _lane(self, info: TopicInfo, name: str) -> Lane:
        key = (info.name, name)
        if key not in self._lanes:
            sink = self._sinks.setdefault(name, SINKS[name](self._store, self._settings, self._address))
            pipeline = self._settings.model.pipeline
            engine = Engine(info.name, sink, self._access, self._run, pipeline, parallelism=self._parallelism)
            self._lanes[key] = Lane(engine)
        return self._lanes[key]

    def _settle(self) -> None:
        wait(self._working.values())
        self._working = {}

    def _drain_lane(self, lane: Lane, deadline: float | None) -> None:
        end: int | None = None
        lane.failures = 0
        while end is None or not lane.engine.has_reached(end):
            if deadline is not None and time.monotonic() > deadline:
                lane.error = lane.error or UnavailableError(
                    f"topic '{lane.engine.topic}' was not taken in time", hint="the next pipeline goes on with it"
                )
                return
            if end is None:
                end = lane.look()
            else:
                lane.turn(at_once=True)
            if lane.error is not None:
                if needs_a_person(lane.error) or lane.failures >= _PATIENCE:
                    return
                time.sleep(lane.pause(deadline))


def _with_sinks(topics: Sequence[TopicInfo]) -> list[tuple[TopicInfo, str]]:
    return [(info, sink) for info in topics if info.problem is None for sink in info.sinks if sink in SINKS]


def _broken(info: TopicInfo) -> FrazilError:
    return IntegrityError(
        f"topic '{info.name}' cannot be used", cause=info.problem, hint=f"frazil topic verify {info.name}"
    )


def _raise(failed: Mapping[str, FrazilError], total: int) -> None:
    errors = list(failed.values())
    if total == 1:
        raise errors[0]
    raise PartialError(
        f"{len(failed)} of {total} topics could not be taken into their tables: {', '.join(failed)}",
        cause="; ".join(e.message for e in errors),
        hint=errors[0].hint,
    )
