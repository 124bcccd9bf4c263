"""Runs the tasks of a scan: one after the other, in threads, or on Spark's executors."""

from __future__ import annotations

import resource
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from frazil.content.scan.known_objects import KnownObjects
from frazil.errors import UnavailableError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Concurrent tasks if listing is I/O-bound.
THREADS = 8
#: Waits per object above which a task is I/O-bound.
_WAITS = 0.5

T = TypeVar("T")
R = TypeVar("R")
#: Runs a function on each item, concurrently if possible.
RunTasks = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


@dataclass(frozen=True)
class TaskRunner:
    """Where tasks run, how many at once, and what they need there: the log's address and the known objects."""

    run: RunTasks
    tasks: int
    address: str
    known: Callable[[], KnownObjects]


def run_inline(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [work(item) for item in items]


def run_in_threads(stop: threading.Event) -> RunTasks:
    """Runs tasks in threads. Only for I/O-bound work: busy threads make Python slower, not faster.

    Args:
        stop: set by an interrupt, to end the tasks.
    """

    def run(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="frazil-look") as pool:
            turns = [pool.submit(work, item) for item in items]
            try:
                wait(turns)
            except KeyboardInterrupt:
                stop.set()
            return [turn.result() for turn in turns]

    return run


def count_waits() -> int:
    """Returns the number of voluntary context switches of this thread; 0 where the system does not count them."""
    of_thread = getattr(resource, "RUSAGE_THREAD", None)  # Linux has it
    return 0 if of_thread is None else resource.getrusage(of_thread).ru_nvcsw


def is_io_bound(waits: int, objects: int) -> bool:
    """Whether listing is mostly waiting, as for files on a network."""
    return waits > _WAITS * objects


def run_on_executors(spark: SparkSession, address: str, known: KnownObjects) -> TaskRunner:
    """Runs tasks on Spark. The known objects are distributed as a file that each machine maps into memory once."""
    from pyspark import SparkFiles

    context = spark.sparkContext
    name = f"frazil-known-{uuid.uuid4().hex}.npy"
    path = Path(SparkFiles.getRootDirectory()) / name  # Spark serves it from where it is, and removes this folder
    known.save(path)
    context.addFile(str(path))

    def run(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        try:
            found: list[R] = context.parallelize(items, len(items)).map(work).collect()
        except Exception as error:  # Spark's errors have no base of their own
            raise UnavailableError(
                "Spark could not run the tasks", cause=first_line(error), hint="check Spark's executors and their logs"
            ) from error
        return found

    return TaskRunner(run, 2 * context.defaultParallelism, address, partial(_load_distributed, name))


def _load_distributed(name: str) -> KnownObjects:
    from pyspark import SparkFiles

    return KnownObjects.load(SparkFiles.get(name))
