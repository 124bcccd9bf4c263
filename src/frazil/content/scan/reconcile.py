"""Compares the table of objects with the contents of a bucket or folder, and publishes the differences.

A plan is made by a full outer join on Spark, and changes nothing. To apply it, each key that differs is looked up
again, and the answer is published as an observation. So an outdated plan does no harm, and after an applied one the
next comparison finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from frazil.content.scan.frames import ComparedSide, is_hidden
from frazil.content.scan.listing import PAGE, Object, ScanTarget
from frazil.content.scan.publish import ObservationPublisher
from frazil.errors import FrazilError, UnavailableError, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MISSING = "missing"
ORPHANED = "orphaned"
MISMATCHED = "mismatched"
FAULTS = (MISSING, ORPHANED, MISMATCHED)
#: Changed while the bucket was listed, so that a difference says nothing about the table.
RECENT = "recent"
#: In the table, but below a folder that cannot be read.
UNKNOWN = "unknown"

_COLUMNS = ("key", "version_id", "reason", "size", "recorded_size", "etag", "recorded_etag")


@dataclass(frozen=True)
class ReconcilePlan:
    """The differences. Their columns are `kind`, key, version_id, reason, and size and etag of both sides."""

    differences: DataFrame
    counts: dict[str, int]
    matching: int
    first: dict[str, list[dict[str, Any]]]

    @property
    def faults(self) -> int:
        return sum(self.counts[kind] for kind in FAULTS)


def compare(
    side: ComparedSide, table: DataFrame, began: datetime, *, skew_s: float, events: bool, first: int
) -> ReconcilePlan:
    """Compares a target with the table.

    Args:
        side: the target, as a listing or an inventory shows it.
        table: the table; see `recorded`.
        began: when the listing began, by the storage's clock.
        skew_s: maximum clock skew.
        events: whether events for recent writes may still be on their way.
        first: number of differences of each kind to return.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    theirs, ours = side.objects.alias("b"), table.alias("t")
    same = f.col("b.key") == f.col("t.key")
    if side.has_versions:
        same &= f.col("b.version_id") == f.col("t.version_id")
    edge = f.lit(began - timedelta(seconds=skew_s))
    recent = f.coalesce(f.col("t.changed_at") > edge, f.lit(False))
    if events:
        recent |= f.coalesce(f.col("b.last_modified") > edge, f.lit(False))
    reason = (
        f.when(f.col("t.key").isNull(), "in the bucket, not in the table")
        .when(f.col("b.key").isNull(), "in the table, not in the bucket")
        .when(f.col("b.is_delete_marker") != f.col("t.is_delete_marker"), "only one of them is a delete marker")
        .when(f.col("b.size") != f.col("t.size"), "the sizes differ")
        .when(f.col("b.etag") != f.col("t.etag"), "the etags differ")
        .when(f.col("b.is_latest") != f.col("t.is_latest"), "only one of them is the latest version")
    )
    kind = (
        f.when(f.col("reason").isNull(), "matching")
        .when(f.col("recent"), RECENT)
        .when(f.col("t.key").isNull(), MISSING)
        .when(f.col("b.key").isNull() & is_hidden(f.col("t.key"), side.hidden), UNKNOWN)
        .when(f.col("b.key").isNull(), ORPHANED)
        .otherwise(MISMATCHED)
    )
    joined = theirs.join(ours, same, "full_outer").withColumn("reason", reason).withColumn("recent", recent)
    judged = joined.select(
        kind.alias("kind"),
        f.coalesce("b.key", "t.key").alias("key"),
        f.coalesce("t.version_id", "b.version_id").alias("version_id"),
        "reason",
        f.col("b.size").alias("size"),
        f.col("t.size").alias("recorded_size"),
        f.col("b.etag").alias("etag"),
        f.col("t.etag").alias("recorded_etag"),
    ).persist(StorageLevel.DISK_ONLY)
    try:
        counts = {row.kind: row["count"] for row in judged.groupBy("kind").count().collect()}
        shown = {kind: _first(judged, kind, first) for kind in FAULTS if counts.get(kind)}
    except Exception as error:  # Spark's errors have no base of their own
        raise UnavailableError(
            "Spark could not compare the table with the listing",
            cause=first_line(error),
            hint="check Spark's executors and their logs",
        ) from error
    return ReconcilePlan(
        judged.where(f.col("kind").isin(*FAULTS)),
        {kind: counts.get(kind, 0) for kind in (*FAULTS, RECENT, UNKNOWN)},
        counts.get("matching", 0),
        shown,
    )


def _first(judged: DataFrame, kind: str, count: int) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f

    rows = judged.where(f.col("kind") == kind).orderBy("key", "version_id").limit(count).collect()
    return [{name: row[name] for name in _COLUMNS} for row in rows]


@dataclass(frozen=True)
class PublishedCounts:
    """The observations that were published: how many exist, how many do not, and the offset after the last message."""

    there: int = 0
    gone: int = 0
    end: int = 0
    error: FrazilError | None = None

    def plus(self, other: PublishedCounts) -> PublishedCounts:
        end, error = max(self.end, other.end), self.error or other.error
        return PublishedCounts(self.there + other.there, self.gone + other.gone, end, error)


@dataclass(frozen=True)
class RepairTask:
    """A task that looks up keys in the target again, and publishes the answers."""

    place: ScanTarget
    address: str
    topic: str
    max_bytes: int
    key: str | None = field(default=None, repr=False)

    def __call__(self, keys: Iterable[tuple[str, str]]) -> Iterator[PublishedCounts]:
        from frazil.log.remote.producer import Producer

        told, asked = PublishedCounts(), iter(keys)
        some = list(islice(asked, PAGE))
        if not some:
            return
        try:
            with Producer(self.address, self.topic, internal=True, key=self.key) as producer:
                publisher = ObservationPublisher(producer, self.place.bucket, "reconcile", self.max_bytes)
                while some:
                    for observed_at, objects in _join_same_time(self.place.look_up(some)):
                        publisher.publish(objects, observed_at)
                        there = sum(found["exists"] for found in objects)
                        told = PublishedCounts(told.there + there, told.gone + len(objects) - there, publisher.end)
                    some = list(islice(asked, PAGE))
        except FrazilError as error:
            told = PublishedCounts(told.there, told.gone, told.end, error)
        yield told


def _join_same_time(answers: Iterator[tuple[datetime, list[Object]]]) -> Iterator[tuple[datetime, list[Object]]]:
    """Joins successive answers with the same time."""
    at: datetime | None = None
    gathered: list[Object] = []
    for observed_at, objects in answers:
        if at is not None and observed_at != at:
            yield at, gathered
            gathered = []
        at = observed_at
        gathered += objects
    if at is not None and gathered:
        yield at, gathered


def apply_plan(plan: ReconcilePlan, repair: RepairTask) -> PublishedCounts:
    """Looks up every difference again, and publishes the answers.

    Raises:
        FrazilError: some keys could not be looked up or published; the others are in the log.
    """
    keys = plan.differences.select("key", "version_id")
    master = keys.sparkSession.sparkContext.master
    if repair.place.is_local and not master.startswith("local"):
        reports = list(repair((row.key, row.version_id) for row in keys.toLocalIterator()))
    else:
        work = _Partition(repair)
        try:
            reports = keys.rdd.mapPartitions(work).collect()
        except Exception as error:  # Spark's errors have no base of their own
            raise UnavailableError(
                "Spark could not look up the differences",
                cause=first_line(error),
                hint="check Spark's executors and their logs",
            ) from error
    told = PublishedCounts()
    for report in reports:
        told = told.plus(report)
    if told.error is not None:
        done = told.there + told.gone
        raise told.error.adding(f"{done:,} observations were published; the same command repairs the rest", told=done)
    return told


@dataclass(frozen=True)
class _Partition:
    repair: RepairTask

    def __call__(self, rows: Iterable[Any]) -> Iterator[PublishedCounts]:
        yield from self.repair((row.key, row.version_id) for row in rows)
