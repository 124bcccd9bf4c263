"""Chapter 1: one table, three engines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from frazil.catalogs import load_table, open_catalog
from frazil.catalogs.describe import file_rows, snapshot_rows
from frazil.demo.session import SharedSession
from frazil.demo.stage import Stage
from frazil.errors import IntegrityError
from frazil.query import run_sql
from frazil.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

TABLE = "demo.photos"
_CAMERAS = "array('Canon R6', 'Nikon Z8', 'Fuji X-T5', 'Pixel 9')"
_QUESTION = f"SELECT camera, count(*) AS photos, sum(size_bytes) AS bytes FROM {TABLE} GROUP BY camera ORDER BY camera"  # noqa: S608


def chapter(stage: Stage, settings: Settings, session: SharedSession) -> None:
    stage.chapter("Chapter 1: one table, three engines")
    with stage.step("open the embedded catalog (one SQLite file, no server)"):
        catalog = open_catalog(settings.catalog(), settings.model.network)
    spark = session.get()
    _create(stage, spark)
    _evolve(stage, spark, catalog, settings)
    _ask_three_engines(stage, spark, catalog, settings)
    _travel(stage, spark)
    stage.say("What happened to the table, snapshot by snapshot:")
    rows = snapshot_rows(load_table(catalog, settings.catalog(), TABLE))
    stage.table(
        ["committed at", "operation", "rows added", "files added", "files removed", "total rows"],
        [
            [r["committed_at"], r["operation"], r["added_rows"], r["added_files"], r["removed_files"], r["total_rows"]]
            for r in rows
        ],
    )


def _create(stage: Stage, spark: SparkSession) -> None:
    with stage.step(f"Spark creates {TABLE}, partitioned by month, and writes 5,000 rows"):
        spark.sql("CREATE NAMESPACE IF NOT EXISTS demo")
        spark.sql(
            f"CREATE TABLE {TABLE} (id BIGINT, path STRING, camera STRING, size BIGINT, taken_at TIMESTAMP) "
            "USING iceberg PARTITIONED BY (months(taken_at))"
        )
        _insert(spark, 0, 5000, "id, path, camera, size, taken_at")


def _insert(spark: SparkSession, start: int, end: int, columns: str) -> None:
    spark.range(start, end).selectExpr(
        "id",
        "format_string('2025/%05d.jpg', id) AS path",
        f"element_at({_CAMERAS}, cast(id % 4 + 1 AS int)) AS camera",
        "1000000 + (id * 7919) % 4000000 AS size",
        "timestamp '2025-01-01 00:00:00' + make_interval(0, 0, 0, cast(id % 120 AS int)) AS taken_at",
        "array('sky', 'people') AS labels",
    ).createOrReplaceTempView("new_photos")
    spark.sql(f"INSERT INTO {TABLE} SELECT {columns} FROM new_photos")  # noqa: S608


def _evolve(stage: Stage, spark: SparkSession, catalog: Catalog, settings: Settings) -> None:
    before = _paths(catalog, settings)
    with stage.step("the schema evolves: a column is added, another renamed; no file is rewritten") as record:
        spark.sql(f"ALTER TABLE {TABLE} ADD COLUMN labels ARRAY<STRING>")
        spark.sql(f"ALTER TABLE {TABLE} RENAME COLUMN size TO size_bytes")
        record["files_rewritten"] = len(before - _paths(catalog, settings))
    with stage.step("1,000 more rows, with labels"):
        _insert(spark, 5000, 6000, "id, path, camera, size AS size_bytes, taken_at, labels")


def _paths(catalog: Catalog, settings: Settings) -> set[str]:
    return {row["path"] for row in file_rows(load_table(catalog, settings.catalog(), TABLE))}


def _ask_three_engines(stage: Stage, spark: SparkSession, catalog: Catalog, settings: Settings) -> None:
    answers: dict[str, list[tuple[Any, ...]]] = {}
    seconds: dict[str, float] = {}
    engines: dict[str, Callable[[], list[tuple[Any, ...]]]] = {
        "Spark": lambda: [tuple(row) for row in spark.sql(_QUESTION).collect()],
        "DuckDB": lambda: [
            tuple(row.values()) for row in run_sql(_QUESTION, settings, engine="duckdb").table.to_pylist()
        ],
        "PyIceberg": lambda: _pyiceberg_answer(catalog, settings),
    }
    for engine, ask in engines.items():
        began = time.perf_counter()
        answers[engine] = [(camera, int(photos), int(size)) for camera, photos, size in ask()]
        seconds[engine] = time.perf_counter() - began
    if len({tuple(answer) for answer in answers.values()}) != 1:
        raise IntegrityError("the three engines disagree", cause=str(answers), hint="please report it")
    stage.say("The same question to three engines; the same answer:")
    stage.table(["camera", "photos", "bytes"], answers["Spark"])
    stage.table(["engine", "first answer in"], [[engine, f"{took * 1000:.0f} ms"] for engine, took in seconds.items()])


def _pyiceberg_answer(catalog: Catalog, settings: Settings) -> list[tuple[Any, ...]]:
    rows = load_table(catalog, settings.catalog(), TABLE).scan(selected_fields=("camera", "size_bytes")).to_arrow()
    grouped = rows.group_by("camera").aggregate([("camera", "count"), ("size_bytes", "sum")]).sort_by("camera")
    return [(r["camera"], r["camera_count"], r["size_bytes_sum"]) for r in grouped.to_pylist()]


def _travel(stage: Stage, spark: SparkSession) -> None:
    before = spark.sql(f"SELECT snapshot_id FROM {TABLE}.snapshots ORDER BY committed_at DESC LIMIT 1").first()[0]  # noqa: S608
    with stage.step("delete all Nikon photos"):
        spark.sql(f"DELETE FROM {TABLE} WHERE camera = 'Nikon Z8'")  # noqa: S608
    with stage.step("time travel: the table now, and as it was before"):
        now = spark.sql(f"SELECT count(*) FROM {TABLE}").first()[0]  # noqa: S608
        then = spark.sql(f"SELECT count(*) FROM {TABLE} VERSION AS OF {before}").first()[0]  # noqa: S608
    stage.table(["as of", "rows"], [["now", now], [f"snapshot {before}", then]])
