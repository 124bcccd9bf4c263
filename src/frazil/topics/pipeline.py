"""The pipeline: takes every topic with a table from the log into it, side by side, until it is told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog

from frazil.catalogs import open_catalog
from frazil.errors import FrazilError, PartialError, UnavailableError
from frazil.log.access import LogAccess, TopicInfo
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.topics.archive import ArchiveSink
from frazil.topics.engine import Engine, needs_a_person
from frazil.topics.jobs import on_spark
from frazil.topics.lane import Lane, TopicStatus
from frazil.topics.layout import ARCHIVE
from frazil.topics.sink import Runner, Sink

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
        lanes = [self._lane(info, sink) for info, sink in self._wanted()]
        list(self._pool.map(lambda lane: self._drain_lane(lane, deadline), lanes))
        failed = [lane for lane in lanes if lane.error is not None]
        if failed:
            _raise(failed, len(lanes))
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
        found = self._wanted()
        for info, sink in found:
            lane = self._lane(info, sink)
            if lane not in self._working and lane.wants(info, now):
                self._working[lane] = self._pool.submit(lane.turn)
        there = {(info.name, sink) for info, sink in found}
        for key in [k for k in self._lanes if k not in there]:
            del self._lanes[key]  # the topic is gone, or its sink was disabled

    def _wanted(self) -> list[tuple[TopicInfo, str]]:
        """Every topic and sink that is ours to run."""
        return [
            (info, sink)
            for info in self._access.topics()
            if (not self._topics or info.name in self._topics) and info.problem is None
            for sink in info.sinks
            if sink in SINKS
        ]

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


def _raise(failed: list[Lane], total: int) -> None:
    errors = [lane.error for lane in failed if lane.error is not None]
    if total == 1:
        raise errors[0]
    names = ", ".join(lane.engine.topic for lane in failed)
    raise PartialError(
        f"{len(failed)} of {total} topics could not be taken into their tables: {names}",
        cause="; ".join(e.message for e in errors),
        hint=errors[0].hint,
    )
