"""Compares the rows of a restored table with those of its source, snapshot by snapshot, with Spark.

Each row becomes a JSON text in which equal values look equal: maps are sorted by key, NaN is a word, times are counted
in microseconds. The texts are hashed and the hashes added up, so that the order of the rows does not matter and nothing
has to be shuffled. Rows themselves are compared only for the examples of a difference.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frazil.errors import NotFoundError
from frazil.observe.cancellation import raise_if_stopped
from frazil.query.on_spark import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

#: Rows of a difference that are shown, per side.
_EXAMPLES = 3
#: Columns of Iceberg that identify a row across snapshots, from format version 3 on.
_LINEAGE = ("_row_id", "_last_updated_sequence_number")


@dataclass(frozen=True)
class SnapshotComparison:
    """One snapshot, read from both tables.

    Attributes:
        examples: rows that only one side has, as JSON, with its name.
    """

    snapshot_id: int
    source_rows: int
    restored_rows: int
    is_equal: bool
    examples: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "snapshot_id": self.snapshot_id,
            "source_rows": self.source_rows,
            "restored_rows": self.restored_rows,
            "equal": self.is_equal,
            "examples": list(self.examples),
        }


@dataclass(frozen=True)
class RowComparison:
    """All snapshots that both tables have.

    Attributes:
        skipped: snapshots of the restored table that the source does not have any more.
    """

    source: str
    restored: str
    snapshots: tuple[SnapshotComparison, ...]
    skipped: tuple[int, ...]

    @property
    def is_equal(self) -> bool:
        return all(snapshot.is_equal for snapshot in self.snapshots)

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "restored": self.restored,
            "equal": self.is_equal,
            "snapshots": [snapshot.to_dict() for snapshot in self.snapshots],
            "skipped_snapshots": list(self.skipped),
        }


def compare_rows(
    spark: SparkSession,
    source: Sequence[str],
    restored: Sequence[str],
    *,
    snapshots: Collection[int] | None = None,
    stop: threading.Event | None = None,
) -> RowComparison:
    """Compares two tables in every snapshot that both have.

    Args:
        spark: a session with the catalogs of both.
        source: catalog, namespace and name.
        restored: the same of the other table.
        snapshots: only these; by default all of the restored table.
        stop: ends it between two snapshots.

    Raises:
        NotFoundError: a table does not exist, or they have no snapshot in common.
        StoppedError: `stop` was set.
    """
    with spark_errors():
        one, other = _snapshot_ids(spark, source), _snapshot_ids(spark, restored)
        wanted = [found for found in other if snapshots is None or found in snapshots]
        common = [found for found in wanted if found in set(one)]
        if wanted and not common:
            raise NotFoundError(
                f"{'.'.join(source)} has none of the snapshots of {'.'.join(restored)}: there is nothing to compare",
                hint="name the table that the backup was made of",
            )
        compared = []
        for snapshot_id in common:
            raise_if_stopped(stop)
            compared.append(_compare_snapshot(spark, source, restored, snapshot_id))
    return RowComparison(
        ".".join(source), ".".join(restored), tuple(compared), tuple(found for found in wanted if found not in common)
    )


def _compare_snapshot(
    spark: SparkSession, source: Sequence[str], restored: Sequence[str], snapshot_id: int
) -> SnapshotComparison:
    (columns, one), (other_columns, other) = (_row_texts(spark, table, snapshot_id) for table in (source, restored))
    left, right = _fingerprint(one), _fingerprint(other)
    examples: list[str] = []
    if columns != other_columns:
        examples = [f"columns of source: {', '.join(columns)}", f"columns of restored: {', '.join(other_columns)}"]
    elif left != right:
        for name, mine, theirs in (("source", one, other), ("restored", other, one)):
            only = mine.exceptAll(theirs).orderBy("row").limit(_EXAMPLES).collect()
            examples += [f"only in {name}: {row[0]}" for row in only]
    is_equal = left == right and columns == other_columns
    return SnapshotComparison(snapshot_id, left[0], right[0], is_equal, tuple(examples))


def _snapshot_ids(spark: SparkSession, table: Sequence[str]) -> list[int]:
    rows = spark.sql(f"SELECT snapshot_id FROM {_quoted(table)}.snapshots ORDER BY committed_at").collect()  # noqa: S608
    return [row[0] for row in rows]


def _row_texts(spark: SparkSession, table: Sequence[str], snapshot_id: int) -> tuple[list[str], DataFrame]:
    """The columns of a snapshot, and its rows, each as one text."""
    from pyspark.sql import functions as f

    lineage = ", ".join(("*", *_LINEAGE)) if _has_row_ids(spark, table) else "*"
    rows = spark.sql(f"SELECT {lineage} FROM {_quoted(table)} VERSION AS OF {snapshot_id}")  # noqa: S608
    # By position: names may differ in nothing but case, or contain dots.
    named = rows.toDF(*[f"c{number}" for number in range(len(rows.columns))])
    values = [_comparable(f.col(field.name), field.dataType).alias(field.name) for field in named.schema.fields]
    return rows.columns, named.select(f.to_json(f.struct(*values), {"ignoreNullFields": "false"}).alias("row"))


def _has_row_ids(spark: SparkSession, table: Sequence[str]) -> bool:
    found = spark.sql(f"SHOW TBLPROPERTIES {_quoted(table)} ('format-version')").collect()
    return bool(found) and str(found[0]["value"]).isdigit() and int(found[0]["value"]) >= 3


def _fingerprint(texts: DataFrame) -> tuple[int, int, int]:
    """Count of the rows, and two sums of 60 bits of each row's SHA-256."""
    from pyspark.sql import functions as f

    digest = f.sha2(f.col("row"), 256)

    def part(start: int) -> Column:
        return f.sum(f.conv(digest.substr(start, 15), 16, 10).cast("decimal(20,0)"))

    count, one, other = texts.agg(f.count("row"), part(1), part(17)).collect()[0]
    return int(count), int(one or 0), int(other or 0)


def _comparable(value: Column, kind: DataType) -> Column:
    """A value as JSON can say it without loss, and with one form for equal values."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if isinstance(kind, t.MapType):
        key_kind, item_kind = kind.keyType, kind.valueType

        def entry(pair: Column) -> Column:
            parts = _comparable(pair["key"], key_kind).alias("k"), _comparable(pair["value"], item_kind).alias("v")
            return f.to_json(f.struct(*parts), {"ignoreNullFields": "false"})

        return f.sort_array(f.transform(f.map_entries(value), entry))
    if isinstance(kind, t.ArrayType):
        element = kind.elementType
        return f.transform(value, lambda item: _comparable(item, element))
    if isinstance(kind, t.StructType):
        parts = [
            _comparable(value.getField(field.name), field.dataType).alias(f"c{number}")
            for number, field in enumerate(kind.fields)
        ]
        return f.when(value.isNotNull(), f.struct(*parts))
    if isinstance(kind, t.TimestampType):
        return f.unix_micros(value)
    if isinstance(kind, t.BinaryType):
        return f.hex(value)
    if type(kind).__name__ == "VariantType":
        return f.to_json(value)
    return value.cast("string")


def _quoted(table: Sequence[str]) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in table)
