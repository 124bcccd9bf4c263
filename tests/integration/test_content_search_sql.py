"""The SQL of docs/search.md on Spark finds what it finds on DuckDB; a search does not find what Spark has deleted."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from frazil.content.query.facets import facet
from frazil.content.query.request import parse_search
from frazil.content.query.search import find
from frazil.settings import Settings
from frazil.tables.cache import ByteCache
from tests.content_kit import Content, an_object
from tests.content_search_kit import ANSWERS, examples, plain, rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def content_in(lane_settings: Settings) -> Content:
    """The table, in a namespace of its own."""
    content = lane_settings.model.content.model_copy(update={"namespace": f"content_{uuid.uuid4().hex[:8]}"})
    return Content(replace(lane_settings, model=lane_settings.model.model_copy(update={"content": content})), "sql")


def test_each_example_on_spark(lane_settings, spark):
    here = content_in(lane_settings)
    here.add_objects(rows())
    spark.catalog.setCurrentCatalog("sql")
    for name, text in examples("spark").items():
        found = spark.sql(text.replace("content.objects", here.tables.objects)).toArrow()
        assert plain(found) == ANSWERS[name], name


def test_what_spark_has_deleted_or_rewritten_is_not_found(lane_settings, spark):
    here, cache = content_in(lane_settings), ByteCache()
    here.add_objects([an_object(f"{n:04}", size=n, labels=["even"] if n % 2 == 0 else ["odd"]) for n in range(1000)])
    assert facet(here.tables, parse_search(), "label", cache=cache)[0]["objects"] == 500
    spark.sql(f"DELETE FROM sql.{here.tables.objects} WHERE size % 4 = 0")
    spark.sql(f"UPDATE sql.{here.tables.objects} SET labels = array('changed', 'even'), rating = 4 WHERE key = '0001'")
    for again in (cache, None):
        found = find(here.tables, parse_search(label=["even"]), limit=1000, cache=again).rows
        assert [row["size"] for row in found] == [1, *range(2, 1000, 4)]
        assert [row["key"] for row in find(here.tables, parse_search(rating="4"), cache=again).rows] == ["0001"]
        assert facet(here.tables, parse_search(), "label", cache=again)[0] == {
            "value": "odd",
            "objects": 499,
            "bytes": 249_999,
        }
