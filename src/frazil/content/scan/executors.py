"""Ways to run the tasks of a scan: one after the other, in threads, or on Spark's executors."""

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

#: Tasks that run at once where listing is mostly waiting.
THREADS = 8
#: Where a task waits more often than this for each object, it waits for disk or network.
_WAITS = 0.5

T = TypeVar("T")
R = TypeVar("R")
#: Runs a function on each item, side by side where it can.
RunTasks = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


@dataclass(frozen=True)
class TaskRunner:
    """Where tasks run, how many of them at once, and what they need there: the log and what the table knows."""

    run: RunTasks
    tasks: int
    address: str
    known: Callable[[], KnownObjects]


def run_inline(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [work(item) for item in items]


def run_in_threads(stop: threading.Event) -> RunTasks:
    """Only for work that waits: threads that all have something to do make Python slower, not faster.

    Args:
        stop: is set by an interrupt; work that hears of it ends.
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
    """How often this thread has given its core away because it had to wait for something."""
    of_thread = getattr(resource, "RUSAGE_THREAD", None)  # Linux has it
    return 0 if of_thread is None else resource.getrusage(of_thread).ru_nvcsw


def is_io_bound(waits: int, objects: int) -> bool:
    """Whether listing so many objects is mostly waiting, as for files on the other side of a network."""
    return waits > _WAITS * objects


def run_on_executors(spark: SparkSession, address: str, known: KnownObjects) -> TaskRunner:
    """Tasks on Spark. What the table knows goes there as a file, of which each machine has one copy in memory."""
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
                "Spark could not run the tasks", cause=first_line(error), hint="look at Spark's executors and their log"
            ) from error
        return found

    return TaskRunner(run, 2 * context.defaultParallelism, address, partial(_sent, name))


def _sent(name: str) -> KnownObjects:
    from pyspark import SparkFiles

    return KnownObjects.load(SparkFiles.get(name))
