"""`frazil sql` on tables that DuckDB 1.5.5 reads wrongly: the answer is Spark's, by whichever engine."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import permutations

import pytest

from frazil.errors import UnsupportedError
from frazil.query import Result, run_sql
from tests.rewrite_kit import Bench, delete_equal

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def bench(spark, lane_settings) -> Bench:
    return Bench(lane_settings, "sql", spark)


@pytest.fixture(autouse=True)
def one_session(monkeypatch, spark):
    """The session of the test run takes the place of one of the command's own: a process has only one."""
    monkeypatch.setattr("frazil.query.on_spark.spark_session", lambda _settings: nullcontext(spark))


def ask(bench: Bench, statement: str, engine: str = "auto") -> Result:
    return run_sql(statement, bench.settings, engine=engine, catalog=bench.catalog)


def same(bench: Bench, statement: str) -> str:
    """Asserts that the answer is Spark's, and returns the engine that gave it."""
    found = ask(bench, statement)
    rows = [tuple(row.values()) for row in found.table.to_pylist()]
    assert rows == bench.sql(statement)
    return found.engine


def refused(bench: Bench, statement: str) -> str:
    with pytest.raises(UnsupportedError) as error:
        ask(bench, statement, "duckdb")
    assert error.value.hint == "--engine spark"
    return error.value.in_one_line


def test_deletion_vectors_in_one_puffin_file_are_not_mixed_up(bench, tmp_path):
    """With DuckDB's default settings, some of these orders give wrong counts."""
    table = f"{bench.catalog}.{bench.namespace}.vectors"
    options = "'format-version' = '3', 'write.delete.mode' = 'merge-on-read'"
    bench.sql(
        f"CREATE TABLE {table} (id BIGINT, part INT) USING iceberg PARTITIONED BY (part) "
        f"LOCATION '{tmp_path.as_uri()}' TBLPROPERTIES ({options})"  # DuckDB caches nothing of a path without a scheme
    )
    rows = "SELECT id, CAST(id % 3 AS INT) AS part FROM range(0, 30000, 1, 1) ORDER BY part"
    bench.sql(f"INSERT INTO {table} {rows}")
    bench.sql(f"DELETE FROM {table} WHERE id % (3 + part) = 0")
    vectors = bench.sql(f"SELECT count(*), count(DISTINCT file_path) FROM {table}.delete_files")
    assert vectors == [(3, 1)], "several vectors in one file"
    left = [sum(1 for n in range(part, 30_000, 3) if n % (3 + part)) for part in range(3)]
    for first, second in permutations(range(3), 2):
        counts = f"SELECT (SELECT count(*) FROM {table} WHERE part = {first}) AS a, (SELECT count(*) FROM {table}"
        found = ask(bench, f"{counts} WHERE part = {second}) AS b")
        assert found.engine == "duckdb"
        assert found.table.to_pylist() == [{"a": left[first], "b": left[second]}]


def test_equality_deletes_of_one_partition_spare_the_others(bench):
    table = bench.table(partition="part", columns=", part INT")
    bench.insert(table, 0, 5, rows=5, select="CAST(id % 3 AS INT) AS part")
    delete_equal(bench, table, "person 1", "person 2", "person 3", partition=1)
    statement = f"SELECT id FROM {table} ORDER BY id"
    assert bench.sql(statement) == [(0,), (2,), (3,), (4,), (5,), (6,), (7,), (8,), (9,)]
    assert same(bench, statement) == "spark"
    assert "equality deletes" in refused(bench, statement)
    bench.sql(f"DELETE FROM {table} WHERE true")
    bench.insert(table, 20, rows=2, select="1 AS part")
    assert same(bench, statement) == "duckdb", "no equality delete is left in the current snapshot"


def test_a_partition_field_that_crashes_duckdb_is_read_by_spark(bench):
    table = bench.table(partition="`größe`", columns=", `größe` INT")
    bench.insert(table, 0, rows=4, select="CAST(id % 2 AS INT) AS `größe`")
    statement = f"SELECT count(*), sum(id) FROM {table}"
    assert same(bench, statement) == "spark"
    assert "größe" in refused(bench, statement)


@pytest.mark.parametrize("file_format", ["avro", pytest.param("orc", marks=pytest.mark.deep)])
def test_files_in_a_format_that_duckdb_does_not_read_are_read_by_spark(bench, file_format):
    table = bench.table(write__format__default=file_format)
    bench.insert(table, 0, rows=4)
    statement = f"SELECT sum(id) FROM {table}"
    assert same(bench, statement) == "spark"
    assert file_format.upper() in refused(bench, statement)


def test_a_view_is_read_by_spark(bench):
    table = bench.table()
    bench.insert(table, 0, rows=4)
    bench.sql(f"CREATE VIEW {table}_view AS SELECT id FROM {table}")
    assert same(bench, f"SELECT sum(id) FROM {table}_view") == "spark"
    assert "view" in refused(bench, f"SELECT sum(id) FROM {table}_view")


def test_spark_shows_the_marked_place_of_a_syntax_error(bench):
    with pytest.raises(Exception, match="Spark cannot read this SQL") as error:
        ask(bench, "SELECT id\nFRM demo.photos VERSION AS OF 1", "spark")
    lines = str(error.value.cause).splitlines()
    assert "Syntax error" in lines[0]
    assert lines[-2].index("demo") == lines[-1].index("^")
