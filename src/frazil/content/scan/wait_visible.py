"""Waits until published messages are in the tables. If no pipeline applies them, applies them in this process."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from frazil.content.names import CONTENT, objects_name
from frazil.content.scan.engine import SparkEngine
from frazil.errors import FrazilError, InterruptedByUser
from frazil.log.log import Log
from frazil.log.protocol import LogAccess
from frazil.settings import Settings
from frazil.tables import find_position
from frazil.tables.store import LazyStore, find_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from frazil.topics.sinks.pipeline import Pipeline
    from frazil.topics.sinks.sink_upkeep import SinkUpkeep

#: Seconds without progress after which no pipeline seems to be running.
PATIENCE_S = 20.0
_LOOK_S = 0.25


def applied_offset(store: LazyStore, settings: Settings) -> int:
    """Returns the offset up to which the table of objects has the topic of events."""
    table = find_table(store.store(), objects_name(settings))
    position = None if table is None else find_position(table, CONTENT, settings.model.content.topic)
    return 0 if position is None else position.offsets.get(0, 0)


def wait_until_visible(
    settings: Settings,
    access: LogAccess,
    engine: SparkEngine,
    end: int,
    *,
    catalog: str | None = None,
    stop: threading.Event | None = None,
    patience_s: float = PATIENCE_S,
) -> bool:
    """Waits until everything below an offset is in the table. Returns whether this process applied it.

    Args:
        settings: the settings.
        access: the log.
        engine: applies messages if no pipeline does.
        end: the offset.
        catalog: name of the catalog; None: the one of the settings.
        stop: ends it.
        patience_s: seconds without progress after which no pipeline seems to be running.

    Raises:
        InterruptedByUser: `stop` was set.
        FrazilError: the messages could not be applied.
    """
    stop = stop or threading.Event()
    if _is_applied(settings, end, catalog):
        return False
    if not isinstance(access, Log) and _is_applied_elsewhere(settings, end, catalog, stop, patience_s):
        return False
    with content_pipeline(settings, access, engine.spark, engine.address, catalog) as pipeline:
        pipeline.drain(stop=stop)
    return True


def _is_applied(settings: Settings, end: int, catalog: str | None) -> bool:
    with LazyStore(settings, catalog) as store:
        return applied_offset(store, settings) >= end


def _is_applied_elsewhere(
    settings: Settings, end: int, catalog: str | None, stop: threading.Event, patience_s: float
) -> bool:
    with LazyStore(settings, catalog) as store:
        at = applied_offset(store, settings)
        moved = time.monotonic()
        while at < end:
            if stop.wait(_LOOK_S):
                raise InterruptedByUser("interrupted; what was published is in the log, and the pipeline will apply it")
            before, at = at, applied_offset(store, settings)
            if at > before:
                moved = time.monotonic()
            elif time.monotonic() - moved > patience_s:
                return False
    return True


def content_pipeline(
    settings: Settings,
    access: LogAccess,
    spark: SparkSession,
    address: str,
    catalog: str | None,
    caretaker: SinkUpkeep | None = None,
) -> Pipeline:
    """Creates a pipeline for the topic of events alone."""
    from frazil.topics.sinks.pipeline import Pipeline

    topic = settings.model.content.topic
    return Pipeline(settings, access, spark, address, topics=[topic], catalog=catalog, upkeep=caretaker)


class BackgroundPipeline:
    """A pipeline in a thread of this process. At the end of the block it applies what is left in the log."""

    def __init__(self, settings: Settings, access: LogAccess, address: str, catalog: str | None) -> None:
        self._settings, self._access, self._address, self._catalog = settings, access, address, catalog
        self._stack = ExitStack()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended: FrazilError | None = None
        self._pipeline: Pipeline | None = None

    @property
    def hangs(self) -> bool:
        """Whether it left threads behind that Python would wait for at exit."""
        return self._pipeline is not None and self._pipeline.hangs

    @property
    def runs(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Starts Spark, which takes some seconds, and then the pipeline."""
        from frazil.spark import spark_session
        from frazil.upkeep.runs.pipeline_upkeep import make_pipeline_upkeep

        settings, catalog = self._settings, self._catalog
        spark = self._stack.enter_context(spark_session(settings))
        caretaker = self._stack.enter_context(make_pipeline_upkeep(settings, spark, catalog))
        made = content_pipeline(settings, self._access, spark, self._address, catalog, caretaker)
        self._pipeline = self._stack.enter_context(made)
        self._thread = threading.Thread(target=self._run, args=(self._pipeline,), name="frazil-content-pipeline")
        self._thread.start()

    def _run(self, pipeline: Pipeline) -> None:
        try:
            self._ended = pipeline.run(self._stop)
        except FrazilError as error:
            self._ended = error

    def check(self) -> None:
        """Raises the error that ended the pipeline, if any."""
        if self._thread is not None and not self._thread.is_alive() and self._ended is not None:
            raise self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            self._stop.set()
            if self._thread is not None:
                self._thread.join()
        if error is None and self._ended is not None:
            raise self._ended
