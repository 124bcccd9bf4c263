"""Selects the rows of the table of objects to run extractors on, and which ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal

from frazil.content.buckets import is_readable, require_readable
from frazil.extract import Extractor
from frazil.extract.registry import TYPE
from frazil.extract.status import CHANGED, FAILED, GONE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Mode = Literal["missing", "failed", "stale", "all"]
MODES: tuple[Mode, ...] = ("missing", "failed", "stale", "all")

#: The columns of selected rows: what identifies an object and the content of a result.
CHOSEN = (
    "bucket", "key", "version_id", "etag", "size", "content_type", "last_modified", "is_latest", "detected_type",
    "created", "wanted",
)  # fmt: skip
_PENDING = "pending"
_ERASED = "erased"


@dataclass(frozen=True)
class ExtractionRequest:
    """The objects and extractors to run.

    Attributes:
        bucket: only this one, as the tables name it; None: all.
        prefix: only keys that begin with it.
        mode: missing: what no extractor has looked into that would; failed: failed, gone or changed before; stale: by
            an older version of an extractor; all: everything again.
        only: only by these extractors; empty: by those of the settings.
        latest: only the newest version of each key.
        limit: at most so many objects.
    """

    bucket: str | None = None
    prefix: str = ""
    mode: Mode = "missing"
    only: tuple[str, ...] = ()
    latest: bool = False
    limit: int | None = None


@dataclass(frozen=True)
class ExtractionPlan:
    """What an extraction would read.

    Attributes:
        objects: how many.
        bytes: that they have together; how much of it is read depends on the extractors.
        by_extractor: how many objects each would look into, where the type is known.
    """

    objects: int
    bytes: int
    by_extractor: dict[str, int]


def select_rows(
    spark: SparkSession,
    table: str,
    asked: ExtractionRequest,
    extractors: Sequence[Extractor],
    buckets: Sequence[str] | None = None,
) -> DataFrame:
    """Selects rows, with the names of the extractors to run on each; see CHOSEN.

    Args:
        spark: the session.
        table: of objects, as SQL names it.
        asked: what.
        extractors: by whom.
        buckets: patterns of the buckets and folders that may be read; None: all.
    """
    from pyspark.sql import functions as f

    rows = _with_all_columns(spark.table(table))
    here = ~f.col("is_deleted") & ~f.col("is_delete_marker") & (_status() != _ERASED)
    # An event must not cause files of this machine to be read: folders are listed by users who can read them.
    here &= ~f.col("bucket").startswith("file://") | f.col("dialect").isNull()
    if asked.bucket is not None:
        require_readable(asked.bucket, buckets)
        here &= f.col("bucket") == asked.bucket
    elif buckets is not None:
        known = [row.bucket for row in rows.select("bucket").distinct().collect()]
        here &= f.col("bucket").isin([bucket for bucket in known if is_readable(bucket, buckets)])
    if asked.prefix:
        here &= f.col("key").startswith(asked.prefix)
    if asked.latest:
        here &= f.col("is_latest")
    named = [f.when(_wants(one, asked.mode), f.lit(one.name)) for one in extractors]
    wanted = f.filter(f.array(*named), lambda name: name.isNotNull())
    rows = rows.where(here).where(reduce(or_, [_wants(one, asked.mode) for one in extractors]))
    chosen = rows.withColumns({"wanted": wanted, "created": f.col("frazil_order.created")}).select(*CHOSEN)
    return chosen if asked.limit is None else chosen.limit(asked.limit)


def count_selected(chosen: DataFrame) -> ExtractionPlan:
    """Counts the selected objects, their bytes, and the objects of each extractor."""
    from pyspark.sql import functions as f

    total = chosen.agg(f.count("*"), f.sum("size")).first()
    names = chosen.select(f.explode("wanted").alias("name")).groupBy("name").count().collect()
    return ExtractionPlan(int(total[0]), int(total[1] or 0), {row[0]: int(row[1]) for row in sorted(names)})


def _with_all_columns(rows: DataFrame) -> DataFrame:
    """Adds missing columns as nulls. An old table gets them with the next batch of the sink."""
    from pyspark.sql import functions as f

    states = "map<string, struct<version: string, status: string, reason: string, at: timestamp>>"
    kinds = {"extraction_status": "string", "extraction": states, "detected_type": "string"}
    missing = {name: f.lit(None).cast(kind) for name, kind in kinds.items() if name not in rows.columns}
    return rows.withColumns(missing) if missing else rows


def _status() -> Column:
    from pyspark.sql import functions as f

    return f.coalesce(f.col("extraction_status"), f.lit(_PENDING))


def _wants(one: Extractor, mode: Mode) -> Column:
    """Returns the condition under which an extractor runs on a row. While the type is unknown, it applies to all."""
    from pyspark.sql import functions as f

    detected, state = f.col("detected_type"), f.col("extraction").getItem(one.name)
    applies = detected.isNull() | _takes(one, detected)
    type_state = f.col("extraction").getItem(TYPE)
    match mode:
        case "missing":
            # If type detection failed, it has to be repeated, and no other extractor is missing.
            return applies & ((_status() == _PENDING) | (state.isNull() & (detected.isNotNull() | type_state.isNull())))
        case "failed":
            return _has_failed(state) | (detected.isNull() & _has_failed(type_state))
        case "stale":
            return f.coalesce(state["version"] != one.version, f.lit(False))
        case "all":
            return applies


def _has_failed(state: Column) -> Column:
    from pyspark.sql import functions as f

    return f.coalesce(state["status"].isin(FAILED, GONE, CHANGED), f.lit(False))


def _takes(one: Extractor, detected: Column) -> Column:
    """`Extractor.takes` as a Spark expression."""
    from pyspark.sql import functions as f

    if "*/*" in one.types:
        return f.lit(True)
    families = [t.removesuffix("*") for t in one.types if t.endswith("/*")]
    tests = [detected.startswith(family) for family in families]
    plain = [t for t in one.types if not t.endswith("/*")]
    return reduce(or_, [*tests, *([detected.isin(*plain)] if plain else [])], f.lit(False))
