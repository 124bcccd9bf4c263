"""Engines: run a function over many tasks, on this machine or on Spark.

The caller gives a function of a module and tasks that can be pickled. Results come in any order. Tasks are taken from
their iterable as work is done, so that memory does not grow with their number.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from frazil.errors import UnavailableError, first_line
from frazil.observe.cancellation import raise_if_stopped
from frazil.settings import Settings
from frazil.tables.relocation.worker import Worker, run_captured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

EngineChoice = Literal["auto", "local", "spark"]
TaskKind = Literal["io", "cpu"]

#: Bytes from which `auto` takes Spark, where that is a cluster.
_LARGE = 64 * 1024**3
#: Seconds of CPU work in this process before others are started for it: each costs half a second and 200 MiB.
_ALONE_S = 3.0
#: Tasks that are given to a pool per worker, so that none waits for the next one.
_AHEAD = 2
#: Tasks of one Spark job per core, and jobs at a time: while one ends, the next keeps the cores busy.
_PER_CORE, _JOBS = 8, 2


class Engine(Protocol):
    """Runs functions over tasks.

    Attributes:
        name: `local` or `spark`.
    """

    @property
    def name(self) -> str: ...

    def map(self, function: Callable[[T], R], tasks: Iterable[T], *, kind: TaskKind) -> Iterator[R]:
        """Yields the result of each task, in any order.

        The first error is raised and no further task is begun; those that run come to their end before.

        Args:
            function: of a module, or a `partial` of one.
            tasks: iterated in the calling thread, a few ahead of the results.
            kind: whether a task mostly waits for files, or computes.

        Raises:
            StoppedError: the engine's stop event was set.
            FrazilError: as the function raised it.
        """


@contextmanager
def open_engine(
    choice: EngineChoice,
    settings: Settings,
    *,
    size_hint: int = 0,
    concurrency: int | None = None,
    stop: threading.Event | None = None,
    spark: Callable[[], SparkSession] | None = None,
) -> Iterator[Engine]:
    """Opens an engine for the time of a block.

    Args:
        choice: `auto` takes Spark for much work if `spark.master` is a cluster.
        settings: all of them.
        size_hint: bytes that the work is about.
        concurrency: files at a time; by default by the number of cores. Spark uses its own.
        stop: ends the work between two tasks.
        spark: gives a session that the caller closes; None: one for the block.
    """
    is_cluster = not settings.model.spark.master.startswith("local")
    if choice == "local" or (choice == "auto" and not (is_cluster and size_hint >= _LARGE)):
        with LocalEngine(concurrency, stop) as engine:
            yield engine
    elif spark is not None:
        yield SparkEngine(spark, stop)
    else:
        from frazil.spark import spark_session

        with spark_session(settings) as session:
            yield SparkEngine(lambda: session, stop)


class LocalEngine:
    """Threads for what waits, processes for what computes. Both start when they are needed."""

    name = "local"

    def __init__(self, concurrency: int | None = None, stop: threading.Event | None = None) -> None:
        self._stop = stop
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = concurrency or min(16, 4 * self._cores)
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    def map(self, function: Callable[[T], R], tasks: Iterable[T], *, kind: TaskKind) -> Iterator[R]:
        if kind == "io":
            yield from _map_bounded(function, iter(tasks), self._threads, self._stop)
            return
        remaining = iter(tasks)
        yield from self._map_here(function, remaining)
        if self._cores > 1:
            yield from _map_bounded(lambda task: self._call(function, task), remaining, self._cores, self._stop)

    def _map_here(self, function: Callable[[T], R], tasks: Iterator[T]) -> Iterator[R]:
        """Runs tasks in this thread; where there are further cores, only for a while."""
        spent = 0.0
        for task in tasks:
            raise_if_stopped(self._stop)
            began = time.monotonic()
            result = function(task)
            spent += time.monotonic() - began
            yield result
            if self._cores > 1 and (spent > _ALONE_S or self._idle):
                return

    def _call(self, function: Callable[[T], R], task: T) -> R:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or Worker()
        try:
            return worker.call(function, task)
        finally:
            if worker.is_alive():
                with self._lock:
                    self._idle.append(worker)
            else:
                worker.close()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        while self._idle:
            self._idle.pop().close()


class SparkEngine:
    """A Spark task for each task. The executors need Frazil, as they do for sinks."""

    name = "spark"

    def __init__(self, spark: Callable[[], SparkSession], stop: threading.Event | None = None) -> None:
        self._spark = spark
        self._stop = stop

    def map(self, function: Callable[[T], R], tasks: Iterable[T], *, kind: TaskKind) -> Iterator[R]:
        size = _PER_CORE * self._spark().sparkContext.defaultParallelism
        for results in _map_bounded(lambda batch: self._run(function, batch), _batches(tasks, size), _JOBS, self._stop):
            yield from results

    def _run(self, function: Callable[[T], R], tasks: list[T]) -> list[R]:
        # In each thread: a session of upkeep tags the jobs of the thread that fetches it.
        context = self._spark().sparkContext
        try:
            answers = context.parallelize(tasks, len(tasks)).map(_Captured(function)).collect()
        except Exception as error:  # Spark's errors have no base of their own
            raise UnavailableError(
                "Spark could not run the tasks", cause=_describe(error), hint="look at Spark's executors and their log"
            ) from error
        for succeeded, value in answers:
            if not succeeded:
                raise value
        return [value for _, value in answers]


class _Captured:
    """A function whose errors are values: Spark would repeat the task, and return a stack trace."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, task: Any) -> tuple[bool, Any]:
        return run_captured(self.function, task)


def _map_bounded(
    function: Callable[[T], R], tasks: Iterator[T], workers: int, stop: threading.Event | None
) -> Iterator[R]:
    """Runs a function on threads, with a bounded number of tasks and results in memory."""
    pool = ThreadPoolExecutor(workers, "frazil-engine")
    pending: set[Future[R]] = set()
    try:
        while True:
            if stop is not None and stop.is_set():
                # What is done by now counts: a later run need not repeat it.
                running = [future for future in pending if not future.cancel()]
                yield from (future.result() for future in running)
                raise_if_stopped(stop)
            for task in itertools.islice(tasks, _AHEAD * workers - len(pending)):
                pending.add(pool.submit(function, task))
            if not pending:
                return
            done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _batches(tasks: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(tasks)
    while batch := list(itertools.islice(remaining, size)):
        yield batch


def _describe(error: Exception) -> str:
    """Returns the JVM's message if there is one: py4j's says only that a call failed."""
    thrown = getattr(error, "java_exception", None)
    try:
        return first_line(Exception(thrown.getMessage())) if thrown is not None else first_line(error)
    except Exception:  # noqa: BLE001 - the JVM may be gone
        return type(error).__name__
