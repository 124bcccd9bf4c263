"""Scans a bucket or folder on Spark: executors list its shards and tell the log what they see, page by page.

A scan goes in rounds. In each, every task lists a number of pages; then the driver notes how far all have come. A page
counts when the log has acknowledged it. A scan that breaks off goes on behind the last page that was noted: where a
task fails that is the one before the fault, and where the driver is killed, the last round is told again, which does no
harm.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from frazil.content.looking.listing import Page, Place, split, utc_text
from frazil.content.looking.state import Part, State, StateFile, Tally, state_file
from frazil.content.looking.telling import Teller
from frazil.content.topic import ensure_events_topic
from frazil.errors import FrazilError, UnavailableError, first_line
from frazil.log.access import LogAccess
from frazil.observe.faultpoints import reach
from frazil.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Shards that are wanted for each task that can run at once, so that all have work although some are small.
_SHARDS = 4
#: Pages that a task lists in a round, and shards that it may begin.
_PAGES = 64
_BEGUN = 256
#: Pages that are listed before anything is sent to executors, which need seconds to begin.
_PAGES_HERE = 4

T = TypeVar("T")
R = TypeVar("R")
#: Runs a function on each item, side by side where it can.
Runner = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


@dataclass(frozen=True)
class Scanned:
    """What a scan has done.

    Attributes:
        tally: what was seen, also before it broke off.
        listed: objects that were seen this time.
        began_at: when it first began, by the storage's clock.
        resumed: whether it went on where one before it broke off.
        seconds: that it took this time.
    """

    tally: Tally
    listed: int
    began_at: str
    resumed: bool
    seconds: float


@dataclass(frozen=True)
class Report:
    """What a task has done: what is left of its parts, and why it ended before its time, if it did."""

    left: tuple[Part, ...]
    tally: Tally
    error: FrazilError | None = None


@dataclass(frozen=True)
class Look:
    """What a task does: lists its parts and tells the log."""

    place: Place
    address: str
    topic: str
    max_bytes: int
    pages: int = _PAGES

    def __call__(self, parts: Sequence[Part]) -> Report:
        from frazil.log.remote.producer import Producer

        doing = _Doing(deque(parts))
        try:
            with Producer(self.address, self.topic) as producer:
                doing.go(self.place, Teller(producer, self.place.bucket, "scan", self.max_bytes), self.pages)
        except FrazilError as error:
            return doing.report(error)
        except Exception as error:  # noqa: BLE001 - told to the driver, with how far it had come
            told = f"{type(error).__name__}: {first_line(error)}"
            return doing.report(FrazilError(f"{self.place.bucket} could not be listed", cause=told))
        return doing.report()


@dataclass
class _Doing:
    left: deque[Part]
    tally: Tally = field(default_factory=Tally)

    def go(self, place: Place, teller: Teller, pages: int) -> None:
        while self.left and self.tally.pages < pages:
            part = self.left[0]
            for page in place.pages(part.shard, part.position):
                reach("content.scan.page.before")
                if page.objects:
                    teller.tell(page.objects, page.observed_at)
                self._count(page, teller.end)
                self.left.popleft()
                if page.next is not None:
                    self.left.appendleft(Part(part.shard, page.next))
                reach("content.scan.page.after")
                if self.tally.pages >= pages:
                    break

    def _count(self, page: Page, end: int) -> None:
        size = sum(found.get("size") or 0 for found in page.objects)
        self.tally = self.tally.plus(Tally(len(page.objects), size, 1, end, len(page.skipped), page.skipped))

    def report(self, error: FrazilError | None = None) -> Report:
        return Report(tuple(self.left), self.tally, error)


def scan(
    settings: Settings,
    access: LogAccess,
    address: str,
    place: Place,
    run: Runner,
    *,
    prefix: str = "",
    restart: bool = False,
    tasks: int = 1,
    pages: int = _PAGES,
    progress: Callable[[Tally, int], None] | None = None,
) -> Scanned:
    """Tells the log of every object there is.

    Args:
        settings: the settings.
        access: the log.
        address: where executors reach it.
        place: bucket or folder.
        run: runs the tasks; see `on_executors`.
        prefix: only keys that begin with it.
        restart: begin anew although a scan has broken off.
        tasks: that can run at once.
        pages: that a task lists in a round.
        progress: is told after each round what was seen, and how many shards are left.

    Raises:
        FrazilError: it broke off. What was seen until then is in the log, and the next scan goes on behind it.
    """
    began = time.monotonic()
    info = ensure_events_topic(access, settings)
    versions = str(getattr(place, "versions", None))
    with state_file(settings, place.bucket, prefix) as file:
        what = (place.bucket, prefix, versions, info.name, info.log_id)
        found = None if restart else file.read(what)
        state = found or State(what, utc_text(place.now()), tuple(map(Part, split(place, prefix, _SHARDS * tasks))))
        look = Look(place, address, info.name, settings.model.log.max_message_size, pages)
        try:
            for after in _rounds(state, file, look, run, 2 * tasks):
                state = after
                reach("content.scan.round")
                if progress is not None:
                    progress(state.tally, len(state.left))
        except FrazilError as error:
            seen = state.tally.objects
            error.adding(f"{seen:,} objects were seen, and the same command goes on there", seen=seen)
            raise
        file.remove()
    listed = state.tally.objects - (found.tally.objects if found is not None else 0)
    return Scanned(state.tally, listed, state.began_at, found is not None, time.monotonic() - began)


def _rounds(state: State, file: StateFile, look: Look, run: Runner, tasks: int) -> Iterator[State]:
    """The state after each round, once it is noted. The first is a short one here: a small place needs no more."""
    ways = chain([(here, replace(look, pages=min(look.pages, _PAGES_HERE)))], repeat((run, look)))
    while state.left:
        run, look = next(ways)
        now, later = state.left[: tasks * _BEGUN], state.left[tasks * _BEGUN :]
        reports: list[Report] = run(look, [now[task::tasks] for task in range(min(tasks, len(now)))])
        tally = Tally()
        for report in reports:
            tally = tally.plus(report.tally)
        state = state.after([part for report in reports for part in report.left] + list(later), tally)
        file.write(state)
        yield state
        failed = next((report.error for report in reports if report.error is not None), None)
        if failed is not None:
            raise failed


def on_executors(spark: SparkSession, place: Place) -> Runner:
    """Runs tasks on Spark; where executors on other machines could not see the place, in this process."""
    context = spark.sparkContext
    if place.is_local and not context.master.startswith("local"):
        return here

    def run(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        try:
            found: list[R] = context.parallelize(items, len(items)).map(work).collect()
        except Exception as error:  # Spark's errors have no base of their own
            raise UnavailableError(
                "Spark could not run the tasks", cause=first_line(error), hint="look at Spark's executors and their log"
            ) from error
        return found

    return run


def here(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [work(item) for item in items]
