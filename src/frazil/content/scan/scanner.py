"""Scans a bucket or folder: lists its shards and publishes, page by page, what the table does not know.

A scan runs in rounds. In each, every task lists a number of pages; then the driver records their progress. A page
counts once the log has acknowledged its observations. A scan that is interrupted resumes after the last recorded page:
if a task fails, that is the page before the failure; if the driver is killed, the last round is listed again, which
does no harm.

It starts in this process. A large target that other machines can reach moves to executors, which take seconds to start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from frazil.content.scan.executors import (
    THREADS,
    RunTasks,
    TaskRunner,
    count_waits,
    is_io_bound,
    run_in_threads,
    run_inline,
)
from frazil.content.scan.known_objects import KnownObjects
from frazil.content.scan.listing import Page, ScanTarget, split_shards, utc_text
from frazil.content.scan.publish import LazyObservationPublisher
from frazil.content.scan.state import ScanCounts, ScanState, ScanStateFile, ShardProgress, state_file
from frazil.content.topic import ensure_events_topic
from frazil.errors import FrazilError, InterruptedByUser, first_line
from frazil.log.protocol import LogAccess
from frazil.observe.faultpoints import reach
from frazil.settings import Settings

#: Shards per concurrent task, so that all have work although some shards are small.
_SHARDS = 4
#: Pages that a task lists in a round, and shards that it may start.
_PAGES = 64
_BEGUN = 256
#: Pages of the first round, which shows whether listing is I/O-bound; and pages listed before executors take over.
_PAGES_FIRST = 4
_PAGES_HERE = 256

Progress = Callable[[ScanCounts, int], None]


@dataclass(frozen=True)
class ScanResult:
    """The result of a scan.

    Attributes:
        tally: what was listed, including before an interruption.
        listed: objects that this run listed.
        told: objects that this run published, including missing ones.
        gone: how many of these are missing.
        began_at: when it first started, by the storage's clock.
        resumed: whether it resumed an interrupted scan.
        seconds: duration of this run.
    """

    tally: ScanCounts
    listed: int
    told: int
    gone: int
    began_at: str
    resumed: bool
    seconds: float


@dataclass(frozen=True)
class ScanTaskReport:
    """What a task has done, what is left of its shards, and the error that ended it early, if any."""

    left: tuple[ShardProgress, ...]
    tally: ScanCounts
    told: int = 0
    waits: int = 0
    error: FrazilError | None = None


@dataclass(frozen=True)
class ScanTask:
    """A task that lists shards and publishes what the table does not know.

    Attributes:
        place: bucket or folder.
        log: the log, or its address.
        topic: of events.
        max_bytes: of one message.
        known: the objects that the table has.
        everything: publish also what the table knows.
        pages: that it lists at most.
        stop: ends it between two pages.
        before_publishing: called before the first message; raises if there should be none.
        key: of the log, where `log` is an address.
    """

    place: ScanTarget
    log: LogAccess | str
    topic: str
    max_bytes: int
    known: Callable[[], KnownObjects]
    everything: bool = False
    pages: int = _PAGES
    stop: threading.Event | None = None
    before_publishing: Callable[[], None] | None = None
    key: str | None = field(default=None, repr=False)

    def __call__(self, parts: Sequence[ShardProgress]) -> ScanTaskReport:
        progress = _TaskProgress(parts)
        try:
            publisher = LazyObservationPublisher(
                self.log, self.topic, self.place.bucket, "scan", self.max_bytes, self.before_publishing, self.key
            )
            with publisher:
                progress.go(self, self.known(), publisher)
        except KeyboardInterrupt:
            if self.stop is None:
                raise
            self.stop.set()
        except FrazilError as error:
            return progress.report(error)
        except Exception as error:  # noqa: BLE001 - reported to the driver with the progress
            cause = f"{type(error).__name__}: {first_line(error)}"
            return progress.report(FrazilError(f"{self.place.bucket} could not be listed", cause=cause))
        return progress.report(InterruptedByUser("interrupted") if self.is_stopped else None)

    @property
    def is_stopped(self) -> bool:
        return self.stop is not None and self.stop.is_set()


class _TaskProgress:
    """The progress of a task. Ctrl-C may come between any two steps, so a page updates all of it at once."""

    def __init__(self, parts: Sequence[ShardProgress]) -> None:
        self._done = ScanTaskReport(tuple(parts), ScanCounts())
        self._waits = 0

    def go(self, look: ScanTask, known: KnownObjects, publisher: LazyObservationPublisher) -> None:
        while self._done.left and self._done.tally.pages < look.pages and not look.is_stopped:
            part = self._done.left[0]
            for page in self._listed(look.place.pages(part.shard, part.position)):
                reach("content.scan.page.before")
                news = known.diff(page.objects)
                told = page.objects if look.everything else news.objects
                publisher.publish(told, page.observed_at)
                left = self._done.left[1:]
                if page.next is not None:
                    left = (ShardProgress(part.shard, page.next), *left)
                tally = self._done.tally.plus(_tally(page, publisher.end, news.new, news.changed))
                self._done = ScanTaskReport(left, tally, self._done.told + len(told))
                reach("content.scan.page.after")
                if tally.pages >= look.pages or look.is_stopped:
                    break

    def _listed(self, pages: Iterator[Page]) -> Iterator[Page]:
        """Yields the pages, counting the waits while listing them."""
        while True:
            before = count_waits()
            page = next(pages, None)
            self._waits += count_waits() - before
            if page is None:
                return
            yield page

    def report(self, error: FrazilError | None = None) -> ScanTaskReport:
        return replace(self._done, waits=self._waits, error=error)


def _tally(page: Page, end: int, new: int, changed: int) -> ScanCounts:
    size = sum(found.get("size") or 0 for found in page.objects)
    return ScanCounts(len(page.objects), size, 1, end, len(page.skipped), page.skipped, new, changed)


def run_scan(
    settings: Settings,
    access: LogAccess,
    place: ScanTarget,
    known: KnownObjects,
    *,
    elsewhere: Callable[[], TaskRunner] | None = None,
    prefix: str = "",
    restart: bool = False,
    everything: bool = False,
    behind: bool = False,
    gone: Callable[[LazyObservationPublisher], int] | None = None,
    tasks: int = 1,
    pages: int = _PAGES,
    pages_here: int = _PAGES_HERE,
    progress: Progress | None = None,
    before_publishing: Callable[[], None] | None = None,
) -> ScanResult:
    """Publishes every object that the table does not know, or knows differently.

    Args:
        settings: the settings.
        access: the log.
        place: bucket or folder.
        known: what the table has of it.
        elsewhere: gives another way to run tasks, once the place has proved to be large; None: all is done here.
        prefix: only keys that begin with it.
        restart: begin anew although a scan has broken off.
        everything: tell also what the table knows.
        behind: whether the table has not heard all that is in the log: then what it knows may change.
        gone: tells of what is in the table and not in the place; is called at the end, and gives their number.
        tasks: that can run at once.
        pages: that a task lists in a round.
        pages_here: that are listed before `elsewhere` is asked.
        progress: called after each round with the counts so far, and the number of shards left.
        before_publishing: called before the first message; raises if there should be none.

    Raises:
        FrazilError: it broke off. What was seen until then is in the log, and the next scan goes on behind it.
    """
    began = time.monotonic()
    info = ensure_events_topic(access, settings)
    versions = str(getattr(place, "versions", None))
    told = vanished = 0
    with state_file(settings, place.bucket, prefix) as file:
        what = (place.bucket, prefix, versions, info.name, info.log_id, str(everything))
        found = None if restart else file.read(what)
        state = found or ScanState(
            what, utc_text(place.now()), tuple(map(ShardProgress, split_shards(place, prefix, _SHARDS * tasks)))
        )
        max_bytes = settings.model.log.max_message_size
        look = ScanTask(
            place, access, info.name, max_bytes, lambda: known, everything or behind, pages,
            before_publishing=before_publishing, key=access.key,
        )  # fmt: skip
        try:
            for after, in_round in _rounds(state, file, look, elsewhere, tasks, pages_here):
                state, told = after, told + in_round
                reach("content.scan.round")
                if progress is not None:
                    progress(state.tally, len(state.left))
            if gone is not None:
                with LazyObservationPublisher(
                    access, info.name, place.bucket, "scan", max_bytes, before_publishing
                ) as publisher:
                    vanished = gone(publisher)
                    state = replace(state, tally=state.tally.plus(ScanCounts(end=publisher.end)))
        except (FrazilError, KeyboardInterrupt) as error:
            seen = state.tally.objects
            broken = error if isinstance(error, FrazilError) else InterruptedByUser("interrupted")
            raise broken.adding(
                f"{seen:,} objects were seen, and the same command resumes from there", seen=seen
            ) from None
        file.remove()
    listed = state.tally.objects - (found.tally.objects if found is not None else 0)
    seconds = time.monotonic() - began
    return ScanResult(state.tally, listed, told + vanished, vanished, state.began_at, found is not None, seconds)


def _rounds(
    state: ScanState,
    file: ScanStateFile,
    look: ScanTask,
    elsewhere: Callable[[], TaskRunner] | None,
    tasks: int,
    pages_here: int,
) -> Iterator[tuple[ScanState, int]]:
    """Yields the recorded state after each round, and how many objects it published. The first round is short."""
    run: RunTasks = run_inline
    listed, stop = 0, threading.Event()
    look = replace(look, stop=stop)
    wide = replace(look, pages=min(look.pages, _PAGES_FIRST))
    while state.left:
        now, later = state.left[: tasks * _BEGUN], state.left[tasks * _BEGUN :]
        reports: list[ScanTaskReport] = run(wide, [now[task::tasks] for task in range(min(tasks, len(now)))])
        tally = ScanCounts()
        for report in reports:
            tally = tally.plus(report.tally)
        state = state.after([part for report in reports for part in report.left] + list(later), tally)
        file.write(state)
        yield state, sum(report.told for report in reports)
        failed = next((report.error for report in reports if report.error is not None), None)
        if failed is not None:
            raise failed
        listed += tally.pages
        if run is run_inline:
            wide = look
            if not look.place.is_local or is_io_bound(sum(report.waits for report in reports), tally.objects):
                run, tasks = run_in_threads(stop), max(tasks, THREADS)
        if elsewhere is not None and listed >= pages_here and state.left:
            way, elsewhere = elsewhere(), None
            run, tasks = way.run, way.tasks
            wide = replace(look, log=way.address, known=way.known, stop=None, before_publishing=None)
