"""The Spark job of extraction: selects rows, runs extractors in tasks, and sums up their reports.

What is found goes into the log as it is found, and from there into the table. A job that breaks off needs no repair:
what was applied is no longer missing, and the next one begins with the rest.
"""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from frazil.content.extraction import metrics
from frazil.content.extraction.selection import ExtractionPlan, ExtractionRequest, count_selected, select_rows
from frazil.content.extraction.task import REPORT, ExtractionReport, ExtractionTask
from frazil.content.names import objects_name
from frazil.content.scan.session import ScanSession
from frazil.content.thumbnails import ThumbnailStore
from frazil.content.topic import ensure_events_topic
from frazil.errors import InterruptedByUser, UnavailableError, first_line
from frazil.extract import Extractor, Limits
from frazil.extract.registry import TYPE, extractors, registry
from frazil.settings import Settings
from frazil.spark.arrow import map_in_arrow
from frazil.tables.store import LazyStore, find_table

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

#: Objects per task: few enough to show progress, enough to outweigh its start.
_FEWEST, _MOST = 100, 1000
_LOOK_S = 0.5

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Extracted:
    """The result of an extraction.

    Attributes:
        report: in numbers; see `ExtractionReport`.
        chosen: objects that were selected.
        seconds: that it took, without the start of Spark.
        notes: what is worth knowing.
    """

    report: ExtractionReport
    chosen: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def objects(self) -> int:
        return self.report.objects

    @property
    def by_status(self) -> dict[str, int]:
        return dict(self.report.by_status)

    @property
    def bytes_read(self) -> int:
        return self.report.bytes_read

    @property
    def end(self) -> int:
        """The offset after the last message; 0 if nothing was published."""
        return self.report.end


def limits_of(settings: Settings) -> Limits:
    section = settings.model.content.extract
    return Limits(
        max_bytes=section.max_bytes,
        max_range_bytes=section.max_range_bytes,
        max_pixels=section.max_pixels,
        max_json_bytes=section.max_json_bytes,
        max_memory_bytes=section.max_memory_bytes,
        timeout_s=section.timeout_s,
    )


def count_planned(session: ScanSession, asked: ExtractionRequest) -> ExtractionPlan:
    """Counts what `extract` would read."""
    rows = _chosen(session, asked, extractors(session.settings, asked.only))
    return ExtractionPlan(0, 0, {}) if rows is None else count_selected(rows)


def extract(
    session: ScanSession, asked: ExtractionRequest | None = None, *, progress: Progress | None = None
) -> Extracted:
    """Runs extractors on objects, and publishes results; `session.wait_until_visible(done.end)` waits for the table.

    Args:
        session: log, tables and Spark.
        asked: the objects and extractors; None: all pending objects.
        progress: called with the number of objects done, and of all.

    Raises:
        UsageError: an extractor is not known.
        InterruptedByUser: by Ctrl-C. Published results stay, and the next run continues there.
        FrazilError: it broke off, likewise.
    """
    asked = asked or ExtractionRequest()
    chosen = extractors(session.settings, asked.only)
    rows = _chosen(session, asked, chosen)
    if rows is None:
        return Extracted(ExtractionReport(), 0, 0.0)
    began = time.monotonic()
    task, notes = _task(session, chosen)
    rows = _kept(rows)
    try:
        count = rows.count()
        report = _run(session, rows, count, task, progress) if count else ExtractionReport()
    finally:
        rows.unpersist()
    metrics.add(report)
    if report.error is not None:
        told = f"{report.objects:,} of {count:,} objects were extracted, and the same command continues with the rest"
        raise report.error.adding(told, objects=report.objects)
    if report.thumbnails_failed:
        notes += (f"{report.thumbnails_failed:,} thumbnails could not be written: {report.thumbnail_reason}",)
    return Extracted(report, count, time.monotonic() - began, notes)


def snapshot(session: ScanSession) -> int | None:
    """Returns the snapshot id of the table of objects; None if it does not exist yet."""
    with LazyStore(session.settings, session.catalog) as store:
        table = find_table(store.store(), objects_name(session.settings))
    return None if table is None else table.metadata.current_snapshot_id


def _chosen(session: ScanSession, asked: ExtractionRequest, chosen: list[Extractor]) -> DataFrame | None:
    """Returns the selected rows; None if there is no table yet."""
    table = session.objects_table()
    buckets = session.settings.model.content.buckets
    return None if table is None else select_rows(session.engine.spark, table, asked, chosen, buckets)


def _task(session: ScanSession, chosen: list[Extractor]) -> tuple[ExtractionTask, tuple[str, ...]]:
    settings = session.settings
    model = settings.model
    names = tuple(e.name for e in chosen)
    if TYPE not in names and TYPE in registry().found:
        names = (TYPE, *names)
    pictures: ThumbnailStore | None = ThumbnailStore.of(settings)
    notes: tuple[str, ...] = ()
    if pictures is not None and pictures.folder is not None and not _is_local(session):
        notes = ("no thumbnails are kept: a cluster needs a bucket for them (content.extract.thumbnails)",)
        pictures = None
    made = ExtractionTask(
        session.engine.address,
        ensure_events_topic(session.access, settings).name,
        model.log.max_message_size,
        names,
        limits_of(settings),
        model.content.extract.concurrency,
        model.s3,
        model.network,
        pictures,
        key=session.access.key,
    )
    return made, notes


def _is_local(session: ScanSession) -> bool:
    return bool(session.engine.spark.sparkContext.master.startswith("local"))


def _kept(rows: DataFrame) -> DataFrame:
    from pyspark import StorageLevel

    return rows.persist(StorageLevel.DISK_ONLY)


def _run(
    session: ScanSession, rows: DataFrame, count: int, task: ExtractionTask, progress: Progress | None
) -> ExtractionReport:
    """Runs the task on executors; for folders here, because executors on other machines cannot see them."""
    report = ExtractionReport()
    with _watching(session, count, progress) as counted:
        task = replace(task, counted=_Counting(counted))
        if not _is_local(session):
            report.add(_here(rows.where("bucket LIKE 'file://%'"), replace(task, thumbnails=None)))
            rows = rows.where("bucket NOT LIKE 'file://%'")
        for one in _on_executors(session, rows, count, task):
            report.add(one)
    return report


def _here(rows: DataFrame, task: ExtractionTask) -> ExtractionReport:
    return task.run(row.asDict() for row in rows.toLocalIterator(prefetchPartitions=True))


def _on_executors(session: ScanSession, rows: DataFrame, count: int, task: ExtractionTask) -> list[ExtractionReport]:
    context = session.engine.spark.sparkContext
    at_once = context.defaultParallelism
    share = min(max(count // (4 * at_once), _FEWEST), _MOST)
    spread = rows.repartition(max(1, -(-count // share))).sortWithinPartitions("bucket", "key")
    group = f"frazil-extract-{uuid.uuid4().hex}"
    context.setJobGroup(group, "looking into objects", interruptOnCancel=True)
    try:
        found = map_in_arrow(spread, task, REPORT).collect()
    except KeyboardInterrupt as error:
        context.cancelJobGroup(group)
        raise InterruptedByUser("interrupted; what was found until now is in the log") from error
    except Exception as error:  # Spark's errors have no base of their own
        raise UnavailableError(
            "Spark could not run the tasks", cause=first_line(error), hint="check Spark's executors and their logs"
        ) from error
    return [pickle.loads(bytes(row[0])) for row in found]  # noqa: S301 - from our own tasks


class _Counting:
    """An accumulator that the driver sees when a task has ended."""

    def __init__(self, counter: Accumulator[int]) -> None:
        self._counter = counter

    def __call__(self, more: int) -> None:
        self._counter.add(more)


@contextmanager
def _watching(session: ScanSession, count: int, progress: Progress | None) -> Iterator[Any]:
    counter = session.engine.spark.sparkContext.accumulator(0)
    if progress is None:
        yield counter
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            progress(min(counter.value, count), count)

    watcher = threading.Thread(target=watch, name="frazil-extract-progress", daemon=True)
    progress(0, count)
    watcher.start()
    try:
        yield counter
    finally:
        ended.set()
        watcher.join()
        progress(min(counter.value, count), count)
