"""`frazil sql` without a JVM: names of tables, statements that no engine takes, and errors that show the place."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.errors import FrazilError, NotFoundError, SetupError, UnsupportedError, UsageError
from frazil.query import run_sql
from frazil.query.duck import DuckQuery
from frazil.settings import Settings, load_settings
from frazil.tables import TableStore
from tests.tables import open_store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Settings:
    """A lake whose settings have no Java: whatever would start Spark fails."""
    home = tmp_path_factory.mktemp("sql")
    flags = {"home": str(home), "spark.java_home": str(home / "no-java")}
    settings = load_settings(flags=flags, environ={})
    with open_store(settings.catalog()) as store:
        make(store, "demo.photos", 1, 2)
        make(store, "demo.orders", 3)
        make(store, "frazil.upkeep_history", 7)
        make(store, "memory.orders", 8)
        make(store, "demo.Orders", 4)
        store.catalog.create_namespace("topics")
        now = datetime(2026, 1, 31, tzinfo=UTC)
        messages = [{"offset": n, "publish_time": now, "payload": f'{{"id": {n % 100}}}'.encode()} for n in (7, 107)]
        rows = pa.Table.from_pylist(messages)
        store.catalog.create_table("topics.orders", rows.schema).append(rows)
    return settings


def make(store: TableStore, name: str, *ids: int) -> None:
    store.catalog.create_namespace_if_not_exists(name.split(".")[0])
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    store.catalog.create_table(name, rows.schema).append(rows)


def ids(settings: Settings, statement: str) -> list[int]:
    result = run_sql(statement, settings)
    assert result.engine == "duckdb"
    return [row["id"] for row in result.table.to_pylist()]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("SELECT id FROM frazil.upkeep_history", [7]),
        ("SELECT id FROM frazil.frazil.upkeep_history", [7]),
        ('SELECT h.id FROM "frazil"."upkeep_history" AS h', [7]),
        ("SELECT id FROM frazil.upkeep_history UNION ALL SELECT id FROM frazil.demo.photos ORDER BY id", [1, 2, 7]),
        ("SELECT a.id FROM frazil.upkeep_history a JOIN frazil.frazil.upkeep_history b ON a.id = b.id", [7]),
        ("SELECT id FROM memory.orders", [8]),
        ("SELECT id FROM demo.photos UNION SELECT id FROM frazil.demo.photos ORDER BY id", [1, 2]),
        ("SELECT id FROM demo.photos WHERE id = 1; -- done", [1]),
    ],
)
def test_a_namespace_may_have_the_name_of_its_catalog(settings, statement, found):
    assert ids(settings, statement) == found


def test_tables_whose_names_differ_only_in_case_are_not_mixed_up(settings):
    assert ids(settings, 'SELECT id FROM demo."Orders"') == [4]
    assert ids(settings, "SELECT id FROM demo.orders") == [3]
    with pytest.raises(UnsupportedError, match=r"demo\.orders.*demo\.Orders|demo\.Orders.*demo\.orders"):
        run_sql('SELECT id FROM demo.orders UNION SELECT id FROM demo."Orders"', settings, engine="duckdb")


@pytest.mark.parametrize(
    ("statement", "near"),
    [
        ("SELECT * FROM demo.phtos", "demo.photos"),
        ("SELECT * FROM dem.photos p, demo.photos q WHERE p.id = q.id", "demo.photos"),
        ("SELECT * FROM frazil.demo.order", "demo.orders"),
        ("SELECT * FROM frazil.upkeep_histry", "frazil.upkeep_history"),
    ],
)
def test_a_misspelt_table_is_reported_with_the_nearest_name_and_without_spark(settings, statement, near):
    with pytest.raises(NotFoundError) as missing:
        run_sql(statement, settings)
    assert missing.value.hint == near


def test_a_table_without_a_namespace_is_refused_without_spark(settings):
    with pytest.raises(UsageError, match="photos") as refused:
        run_sql("SELECT * FROM photos", settings)
    assert "namespace.table" in str(refused.value.hint)


@pytest.mark.parametrize("engine", ["auto", "duckdb", "spark"])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1; SELECT 2",
        "CREATE TABLE demo.a (id BIGINT) USING iceberg; INSERT INTO demo.a VALUES (1);",
        "SELECT ';' AS a; -- one\n/* and */ SELECT `b`",
    ],
)
def test_several_statements_are_refused_in_plain_words(settings, statement, engine):
    with pytest.raises(UsageError, match="one statement at a time, but the text has 2"):
        run_sql(statement, settings, engine=engine)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT ';' AS \"a;b\" -- ;\n /* ; */ ;",
        "SELECT 'it''s; fine' AS a",
        r"SELECT 'C:\', length('; x') AS a",
        "SELECT $$one; two$$ AS a",
    ],
)
def test_a_semicolon_in_a_string_or_comment_ends_no_statement(settings, statement):
    assert run_sql(statement, settings).table.num_rows == 1


def test_only_a_text_with_a_statement_is_run(settings):
    with pytest.raises(UsageError, match="empty"):
        run_sql(" ; -- nothing\n;", settings)


def test_a_syntax_error_shows_the_marked_place(settings):
    with pytest.raises(UsageError) as refused:
        run_sql("SELECT id\nFRM demo.photos", settings, engine="duckdb")
    lines = str(refused.value.cause).splitlines()
    assert "syntax error" in lines[0]
    assert lines[1].index("demo") == lines[2].index("^")


def test_without_java_the_error_says_why_duckdb_does_not_do(settings):
    with pytest.raises(SetupError, match=r"DuckDB cannot run this: .*syntax error"):
        run_sql("SELEC 1", settings)


@pytest.mark.parametrize(
    "statement",
    [
        "SHOW TABLES",
        "-- all\n show tables",
        "SELECT * FROM demo.photos AT (TIMESTAMP => TIMESTAMP '2020-01-01')",
        "SELECT * FROM demo.photos.snapshots",
        "DELETE FROM demo.photos",
    ],
)
def test_what_duckdb_would_answer_from_its_own_catalog_or_not_at_all_is_left_to_spark(settings, statement):
    with pytest.raises(SetupError):
        run_sql(statement, settings)


def test_duckdb_downloads_nothing(settings):
    """`iceberg_scan` in a statement would make DuckDB fetch its extension from the network."""
    with pytest.raises(FrazilError) as refused:
        DuckQuery.parse("SELECT * FROM iceberg_scan('/x')", settings.catalog(), settings.model.network)
    assert "download" not in str(refused.value.cause)


def test_the_documented_queries_of_a_topic_need_no_spark(settings):
    pages = [(ROOT / name).read_text() for name in ("README.md", "docs/topics.md", "docs/sql.md")]
    calls = {line for page in pages for line in page.splitlines() if line.startswith('frazil sql "SELECT o.offset')}
    assert len(calls) == 4
    for call in calls:
        rows = run_sql(shlex.split(call, comments=True)[2], settings, engine="duckdb").table.to_pylist()
        assert {row["offset"] for row in rows} <= {7, 107}
        assert {row["id"] for row in rows if "id" in row} <= {"7"}
        assert rows
