"""The documented queries on Spark, as text and as views, find what DuckDB finds; reading sees what Spark deletes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from frazil.content.coalesced import Source
from frazil.content.query.filters import ObjectFilter
from frazil.content.query.objects import list_objects
from frazil.content.query.totals import totals
from frazil.content.views import NAMES, Queries, create_views, require_views
from frazil.errors import UnsupportedError
from frazil.query import run_sql
from frazil.settings import Settings
from tests.content_kit import NOON, Content, a_change, an_object, at

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TIME = NOON.replace(tzinfo=None)


def empty_content(lane_settings: Settings, catalog: str) -> Content:
    """Both tables, in a namespace of their own."""
    content = lane_settings.model.content.model_copy(update={"namespace": f"content_{uuid.uuid4().hex[:8]}"})
    return Content(replace(lane_settings, model=lane_settings.model.model_copy(update={"content": content})), catalog)


def content_in(lane_settings: Settings, catalog: str) -> Content:
    made = empty_content(lane_settings, catalog)
    made.add_objects(
        [
            an_object("a", etag="ea", metadata="{}", labels=["Bird"], image_width=4, tags=[("k", "v")]),
            an_object("b", etag="eb", size=None, last_modified=None),
            an_object("v", version_id="v1", is_latest=False, etag="same"),
            an_object("v", version_id="v2", etag="same", labels=["Pond"], metadata="{}", last_modified=at(1)),
            an_object("gone", is_latest=False, is_deleted=True),
            an_object("marked", version_id="m", is_delete_marker=True),
        ]
    )
    seen: dict[str, Any] = {"dialect": "observed", "record_timestamp": TIME + timedelta(seconds=9)}
    made.add_changes(
        [
            a_change("a", "01", e_tag="ea", size=5, object_tags=[("k", "v")], last_modified_date=TIME),
            a_change("a", "01", e_tag="ea", size=5, object_tags=[("k", "v")], last_modified_date=TIME),
            a_change("a", "02", "UPDATE_METADATA", storage_class="GLACIER"),
            a_change("a", "03", "UPDATE_METADATA"),
            a_change("b", "!1", e_tag="eb", version_id="", **seen),
            a_change("b", "05", e_tag="older"),
            a_change("v", "01", version_id="v1", e_tag="same"),
            a_change("v", "02", version_id="v2", e_tag="same"),
            a_change("v", "03", "UPDATE_METADATA", version_id="v1"),
            a_change("gone", "01"),
            a_change("gone", "02", "DELETE", is_delete_marker=None),
            a_change("marked", "01", version_id="v1"),
            a_change("marked", "02", "DELETE", version_id="m", is_delete_marker=True),
        ]
    )
    return made


def queries(content: Content, dialect: str, **options: Any) -> Queries:
    source = Source(content.tables.journal, **({"columns": options.pop("columns")} if "columns" in options else {}))
    return Queries(content.tables.objects, source, dialect, **options)  # type: ignore[arg-type]


def rows(found: Any) -> list[str]:
    """Rows of either engine, as texts: each has its own way with maps and times."""
    plain = [{name: _plain(value) for name, value in row.items()} for row in found.to_pylist()]
    return sorted(map(str, plain))


def _plain(value: Any) -> Any:
    if hasattr(value, "tzinfo"):
        return value.replace(tzinfo=None)
    return dict(value) if isinstance(value, list) and value and isinstance(value[0], tuple) else value


@pytest.fixture(scope="module")
def content(lane_settings, spark) -> Iterator[Content]:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # a dozen rows
    yield content_in(lane_settings, "sql")
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "tombstones"),
    [*((name, False) for name in NAMES), ("current_objects", True), ("s3_metadata_coalesced", True)],
)
def test_both_engines_find_the_same(content, spark, name, tombstones):
    spark.catalog.setCurrentCatalog("sql")
    on_spark = spark.sql(queries(content, "spark", tombstones=tombstones).text(name)).toArrow()
    on_duckdb = run_sql(
        queries(content, "duckdb", tombstones=tombstones).text(name), content.settings, catalog="sql", engine="duckdb"
    ).table
    assert on_spark.column_names == on_duckdb.column_names
    assert rows(on_spark) == rows(on_duckdb)
    assert on_spark.num_rows >= 3


def test_the_text_for_a_real_journal_runs_on_spark(content, spark):
    spark.catalog.setCurrentCatalog("sql")
    columns = tuple(n for n in Source("j").columns[:21])
    text = queries(content, "spark", columns=columns).text("s3_metadata_coalesced")
    found = {(r["key"], r["version_id"]): r["is_latest_version"] for r in spark.sql(text).collect()}
    assert found == {
        ("a", None): True, ("b", None): True, ("v", "v1"): False, ("v", "v2"): True, ("marked", "v1"): False,
    }  # fmt: skip
    inventory = tuple(n for n in columns if not n.startswith(("record_", "request", "source_")))
    assert spark.sql(queries(content, "spark", columns=inventory).text("objects_with_content")).count() > 0


def events_of_one_second(key: str) -> list[dict[str, Any]]:
    """As EventBridge tells them: whole seconds, and no sequencer for a tag."""
    second = {"record_timestamp": TIME + timedelta(seconds=5)}
    tag = {"version_id": "v2", "event_name": "Object Tags Added", **second}
    return [
        a_change(key, "01", version_id="v1", record_timestamp=TIME),
        a_change(key, "0A", version_id="v2", **second),
        a_change(key, f"!{5:020d}", "UPDATE_METADATA", **tag),
        a_change(key, "0B", "DELETE", version_id="v2", is_delete_marker=None, **second),
    ]


def test_a_version_that_was_created_tagged_and_deleted_within_one_second_is_gone_on_spark_too(lane_settings, spark):
    here = empty_content(lane_settings, "sql")
    transition = [
        a_change("moved", "01", storage_class="STANDARD"),
        a_change("moved", "02", "UPDATE_METADATA", storage_class="GLACIER"),
        a_change("moved", "03", "UPDATE_METADATA"),
    ]
    here.add_changes([*events_of_one_second("in order"), *events_of_one_second("reversed")[::-1], *transition])
    spark.catalog.setCurrentCatalog("sql")
    text = queries(here, "spark").text("s3_metadata_coalesced")
    found = {
        (r["key"], r["version_id"]): (r["is_latest_version"], r["storage_class"]) for r in spark.sql(text).collect()
    }
    assert found == {
        ("in order", "v1"): (True, None), ("reversed", "v1"): (True, None), ("moved", None): (True, "GLACIER")
    }  # fmt: skip


@pytest.mark.parametrize("catalog", ["sql", "rest", "glue"])
def test_views_are_made_where_the_catalog_has_them(lane_settings, spark, content, catalog):
    here = content if catalog == "sql" else content_in(lane_settings, catalog)
    if catalog == "glue":
        with pytest.raises(UnsupportedError, match="no Iceberg views") as refused:
            require_views(here.store, here.tables.objects)
        assert refused.value.hint == "frazil content views --sql NAME"
        return
    require_views(here.store, here.tables.objects)
    namespace = here.settings.model.content.namespace
    names = NAMES if catalog == "sql" else NAMES[:1]
    create_views(spark, catalog, namespace, queries(here, "spark"), names[:1])
    made = create_views(spark, catalog, namespace, queries(here, "spark"), names)
    assert made == [f"{catalog}.{namespace}.{name}" for name in names]
    spark.catalog.setCurrentCatalog("sql")  # a view knows its own
    for name, view in zip(names, made, strict=True):
        on_duckdb = run_sql(queries(here, "duckdb").text(name), here.settings, catalog=catalog, engine="duckdb").table
        assert rows(spark.sql(f"SELECT * FROM {view}").toArrow()) == rows(on_duckdb)


def test_rows_that_spark_has_deleted_are_not_read(lane_settings, spark):
    here = content_in(lane_settings, "sql")
    here.add_objects([an_object(f"many/{n:04}", size=n) for n in range(1000)])
    spark.sql(f"DELETE FROM sql.{here.tables.objects} WHERE key LIKE 'many/%' AND size % 10 <> 0")
    files = [f.delete_files for f in here.store.load(here.tables.objects).scan().plan_files()]
    assert any(files), "merge-on-read writes deletes"
    found = list_objects(here.tables, ObjectFilter(prefix="many/", min_size=15), limit=1000).rows
    assert [row["size"] for row in found] == list(range(20, 1000, 10))
    assert totals(here.tables, prefix="many/").total["objects"] == 100
