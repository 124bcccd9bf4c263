"""A listing, an inventory and the table of objects as Spark DataFrames that can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil import errors
from frazil.content.scan.listing import Object, Page, ScanTarget, Shard, split_shards
from frazil.errors import FrazilError, UnavailableError, UsageError, first_line
from frazil.spark.arrow import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Maximum number of listing tasks.
_TASKS = 256
#: Number of unreadable folders above which one condition for each would overload Spark.
_MANY_HIDDEN = 200
_TIME = pa.timestamp("us", tz="UTC")
#: A row is an object, a skipped entry, or an error, which Spark would turn into text if it were raised.
_LISTED = pa.schema(
    [
        ("kind", pa.string()),
        ("key", pa.string()),
        ("version_id", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("is_delete_marker", pa.bool_()),
        ("is_latest", pa.bool_()),
        ("last_modified", _TIME),
        ("text", pa.string()),
    ]
)
_SQL = (
    "kind string, key string, version_id string, size bigint, etag string, is_delete_marker boolean, "
    "is_latest boolean, last_modified timestamp, text string"
)
_RECORDED = (
    "key string, version_id string, size bigint, etag string, is_delete_marker boolean, is_latest boolean, "
    "changed_at timestamp"
)
_COMPARED = ("key", "version_id", "size", "etag", "is_delete_marker", "is_latest")
#: Names of our columns in tables of S3 Inventory and S3 Metadata.
_NAMES = {
    "version_id": ("version_id", "versionid"),
    "size": ("size",),
    "etag": ("e_tag", "etag"),
    "is_delete_marker": ("is_delete_marker", "isdeletemarker"),
    "is_latest": ("is_latest", "islatest"),
    "last_modified": ("last_modified_date", "last_modified"),
}


@dataclass(frozen=True)
class ComparedSide:
    """One side of a comparison.

    Attributes:
        objects: key, version_id, size, etag, is_delete_marker, is_latest, last_modified.
        hidden: keys of which nothing is known; a folder stands for everything below it.
        has_versions: whether it distinguishes versions; else each key stands for its latest one.
        kept: its data on the executors' disks.
    """

    objects: DataFrame
    hidden: list[str]
    has_versions: bool
    kept: DataFrame | None = None

    def release(self) -> None:
        """Frees the disks of the executors."""
        if self.kept is not None:
            self.kept.unpersist()


def load_listing(spark: SparkSession, place: ScanTarget, prefix: str) -> ComparedSide:
    """Lists a target on the executors, which keep the listing on their disks.

    Raises:
        FrazilError: it cannot be listed to its end.
    """
    from pyspark import StorageLevel

    shards = split_shards(place, prefix, 4 * spark.sparkContext.defaultParallelism)
    if place.is_local and not spark.sparkContext.master.startswith("local"):
        rows = pa.Table.from_batches(_list(place, shards), _LISTED)
        found = spark.createDataFrame(rows, _SQL)
    else:
        given = spark.sparkContext.parallelize([(s.prefix, s.deep) for s in shards], min(len(shards), _TASKS))

        def listed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from _list(place, [Shard(**row) for row in batch.to_pylist()])

        found = map_in_arrow(spark.createDataFrame(given, "prefix string, deep boolean"), listed, _LISTED)
    found = found.persist(StorageLevel.DISK_ONLY)
    try:
        notes = found.where("kind <> 'object'").select("kind", "key", "text").collect()
    except Exception as error:  # Spark's errors have no base of their own
        raise UnavailableError(
            "Spark could not list it", cause=first_line(error), hint="check Spark's executors and their logs"
        ) from error
    failed = next((note.text for note in notes if note.kind == "error"), None)
    if failed is not None:
        found.unpersist()
        raise _error(failed)
    hidden = [note.key for note in notes if note.kind == "hidden"]
    return ComparedSide(found.where("kind = 'object'").drop("kind", "text"), hidden, has_versions=True, kept=found)


def _list(place: ScanTarget, shards: Iterable[Shard]) -> Iterator[pa.RecordBatch]:
    try:
        for shard in shards:
            for page in place.pages(shard):
                yield pa.RecordBatch.from_pylist(list(_rows(page)), _LISTED)
    except FrazilError as error:
        yield pa.RecordBatch.from_pylist([{"kind": "error", "text": json.dumps(error.to_dict())}], _LISTED)


def _rows(page: Page) -> Iterator[Object]:
    for seen in page.objects:
        modified = seen.get("last_modified")
        moment = None if modified is None else datetime.fromisoformat(modified)
        yield {"kind": "object", **{name: seen.get(name) for name in _COMPARED}, "last_modified": moment}
    for skipped in page.skipped:
        yield {"kind": "hidden" if skipped.unknown else "skipped", "key": skipped.key}


def _error(text: str) -> FrazilError:
    told = json.loads(text)
    kind = getattr(errors, told["error"], FrazilError)
    return (kind if issubclass(kind, FrazilError) else FrazilError)(
        told["message"], cause=told["cause"], hint=told["hint"]
    )


def load_inventory(spark: SparkSession, table: str, bucket: str, prefix: str) -> tuple[ComparedSide, datetime]:
    """Reads the contents of a bucket from a table of S3 Inventory or S3 Metadata. Returns them with the table's time.

    Args:
        spark: the session.
        table: as SQL names it.
        bucket: only this one.
        prefix: only keys that begin with it.

    Raises:
        UsageError: it has no columns `bucket` and `key`.
    """
    from pyspark.sql import functions as f

    rows = spark.table(table)
    names = {name.lower(): name for name in rows.columns}
    if not {"bucket", "key"} <= names.keys():
        raise UsageError(
            f"{table} is not an inventory",
            cause="it has no columns bucket and key",
            hint="a table of S3 Inventory or Metadata",
        )
    rows = rows.where((f.col(names["bucket"]) == bucket) & f.col(names["key"]).startswith(prefix))
    known = {ours: next((names[n] for n in theirs if n in names), None) for ours, theirs in _NAMES.items()}
    if "record_type" in names:
        rows = _newest(rows, names, known["version_id"])
    types = {
        "version_id": "string",
        "size": "bigint",
        "etag": "string",
        "is_delete_marker": "boolean",
        "is_latest": "boolean",
        "last_modified": "timestamp",
    }
    columns = [f.col(names["key"]).alias("key")]
    columns += [_column(known[ours], kind).alias(ours) for ours, kind in types.items()]
    objects = rows.select(*columns)
    objects = objects.withColumn(
        "version_id", f.when(f.col("version_id") == "null", "").otherwise(f.coalesce("version_id", f.lit("")))
    )
    objects = objects.withColumn("etag", f.expr("trim(BOTH '\"' FROM etag)"))
    objects = objects.withColumn("is_delete_marker", f.coalesce("is_delete_marker", f.lit(False)))
    written = spark.sql(f"SELECT max(committed_at) FROM {table}.snapshots").first()[0]  # noqa: S608 - quoted by the caller
    return ComparedSide(objects, [], has_versions=known["version_id"] is not None), written


def _column(name: str | None, kind: str) -> Column:
    from pyspark.sql import functions as f

    return (f.lit(None) if name is None else f.col(name)).cast(kind)


def _newest(rows: DataFrame, names: dict[str, str], version: str | None) -> DataFrame:
    """Returns the last record of each version in a journal, without permanently deleted ones."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    by = [f.col(names["key"]), _column(version, "string")]
    order = Window.partitionBy(*by).orderBy(f.col(names["sequence_number"]).desc())
    newest = rows.withColumn("_place", f.row_number().over(order)).where("_place = 1").drop("_place")
    marker = _column(names.get("is_delete_marker"), "boolean")
    return newest.where((f.col(names["record_type"]) != "DELETE") | f.coalesce(marker, f.lit(False)))


def load_recorded(spark: SparkSession, table: str | None, bucket: str, prefix: str, *, has_versions: bool) -> DataFrame:
    """Reads the existing objects from the table of objects: the compared columns and changed_at.

    Args:
        spark: the session.
        table: as SQL names it; None: there is none yet.
        bucket: only this one.
        prefix: only keys that begin with it.
        has_versions: all versions; else the latest of each key, if that is no delete marker.
    """
    from pyspark.sql import functions as f

    if table is None:
        return spark.createDataFrame([], _RECORDED)
    rows = spark.table(table).where(
        (f.col("bucket") == bucket) & f.col("key").startswith(prefix) & ~f.col("is_deleted")
    )
    if not has_versions:
        rows = rows.where("is_latest AND NOT is_delete_marker")
    return rows.select(*_COMPARED, "changed_at")


def is_hidden(key: Column, hidden: Sequence[str]) -> Column:
    """Whether nothing is known of a key. With very many unreadable folders this is assumed for all keys."""
    from functools import reduce

    from pyspark.sql import functions as f

    if len(hidden) > _MANY_HIDDEN:
        return f.lit(True)
    tests: list[Any] = [key.startswith(place) if place.endswith("/") else key == f.lit(place) for place in hidden]
    return reduce(lambda one, other: one | other, tests, f.lit(False))
