"""Runs a batch's work on Spark.

A plain RDD job has the least overhead. Three sources of delay are removed: before each job, Spark's workers search
every zip and jar on their path again (100 ms); after it, the collector visits every object (70 ms); and TCP with the
JVM waits 40 ms for an acknowledgement. Errors of tasks would come back as text, so that a task returns its error as a
value.
"""

from __future__ import annotations

import gc
import sys
import time
import zipimport
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from frazil.errors import FrazilError, UnavailableError, first_line
from frazil.log.memory import keep_freed_memory
from frazil.log.protocol import Span
from frazil.settings import Settings
from frazil.topics.sinks.sink import Runner, Work, Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = {"spark.python.unix.domain.socket.enabled": "true", "spark.scheduler.mode": "FAIR"}
#: Handing out tasks is little work, and for minutes the JVM would spend half a core on optimising it. So code has to
#: run ten times as often as usual before it is: that of a compaction does so soon.
_JVM_OPTIONS = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_STAY_S = 0.3
_MOST_WARM = 64
_JVMS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


class BatchFailedError(FrazilError):
    """A batch failed for an unknown reason; it is retried."""

    retryable = True


@dataclass(frozen=True)
class Failed:
    error: FrazilError


@dataclass(frozen=True)
class _Task:
    work: Work

    def __call__(self, spans: Iterable[Span]) -> Iterator[Written | Failed]:
        for span in spans:
            try:
                yield self.work(span)
            except FrazilError as error:
                yield Failed(error)
            except Exception as error:  # noqa: BLE001 - told to the driver, which decides
                told = f"{type(error).__name__}: {first_line(error)}"
                yield Failed(BatchFailedError(f"offsets {span.start} to {span.end} could not be written", cause=told))


class _SparkTask(_Task):
    def __call__(self, spans: Iterable[Span]) -> Iterator[Written | Failed]:
        yield from super().__call__(spans)
        end_task()


def end_task() -> None:
    """Cleans up after each task in a worker, so that its next ones are cheap."""
    _clear_import_caches()
    _freeze_loaded_objects()
    keep_freed_memory()


def _clear_import_caches() -> None:
    """Makes this process forget the zips and jars on its path; an import that needs one finds it again."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


@cache
def _freeze_loaded_objects() -> None:
    """Exempts loaded objects, which stay anyway, from garbage collection; once per worker."""
    gc.freeze()


def for_pipeline(settings: Settings) -> Settings:
    """Returns the settings of a session that runs many small jobs; the user's settings take precedence."""
    spark = settings.model.spark
    conf = {**_CONF, **spark.conf, **{name: f"{_JVM_OPTIONS} {spark.conf.get(name, '')}".strip() for name in _JVMS}}
    model = settings.model.model_copy(update={"spark": spark.model_copy(update={"conf": conf})})
    return Settings(model, settings.origins, settings.notices)


def on_spark(spark: SparkSession) -> Runner:
    context = spark.sparkContext

    def run(work: Work, spans: Sequence[Span]) -> list[Written]:
        try:
            results = context.parallelize(spans, len(spans)).mapPartitions(_SparkTask(work)).collect()
        except Exception as error:  # Spark's errors have no base of their own
            raise UnavailableError(
                "Spark could not run the batch",
                cause=_extract_jvm_message(error),
                hint="look at Spark's executors and their log",
            ) from error
        return all_written(results, spans)

    return run


def warm_up(spark: SparkSession) -> None:
    """Starts as many Python workers as tasks can run at once, so that the first batches need not wait for them."""
    with suppress(Exception):  # the batches themselves report what is wrong
        context = spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", "warm-up")  # batches need not wait for the last of them
        tasks = min(context.defaultParallelism, _MOST_WARM)
        context.parallelize(range(tasks), tasks).mapPartitions(_load).collect()


def _load(_: Iterable[int]) -> Iterator[int]:
    """Imports what a task needs. It waits a moment, so that no worker gets two of these tasks."""
    import_module("frazil.topics.sinks.archive")
    import_module("frazil.log.remote.client")
    _clear_import_caches()
    keep_freed_memory()
    time.sleep(_STAY_S)
    yield 0


def _extract_jvm_message(error: Exception) -> str:
    """Returns the JVM's own message, if there is one: py4j's text only states the call."""
    thrown = getattr(error, "java_exception", None)
    try:
        return first_line(Exception(thrown.getMessage())) if thrown is not None else first_line(error)
    except Exception:  # noqa: BLE001 - the JVM may be gone
        return type(error).__name__


def in_process(work: Work, spans: Sequence[Span]) -> list[Written]:
    """Runs the work without Spark, one span after the other."""
    return all_written(list(_Task(work)(spans)), spans)


class TasksFailedError(FrazilError):
    """Some tasks of a batch failed. `written` lists the files of the others, which are no longer needed."""

    def __init__(self, error: FrazilError, written: list[Written]) -> None:
        super().__init__(error.message, cause=error.cause, hint=error.hint)
        self.error = error
        self.written = written


def all_written(results: Sequence[Written | Failed], spans: Sequence[Span]) -> list[Written]:
    """Returns the results if there is one for each span.

    Raises:
        TasksFailedError: otherwise.
    """
    failed = [r.error for r in results if isinstance(r, Failed)]
    written = [r for r in results if isinstance(r, Written)]
    if failed:
        raise TasksFailedError(failed[0], written)
    if len(written) != len(spans):
        raise TasksFailedError(BatchFailedError(f"{len(written)} of {len(spans)} tasks have a result"), written)
    return written
