"""The SQL of docs/search.md on DuckDB; and names of tables with another name behind them."""

from __future__ import annotations

import pytest

from frazil.content.query.filters import Similar
from frazil.content.query.request import parse_search
from frazil.content.query.search import find
from frazil.query import run_sql
from tests.content_kit import Content
from tests.content_search_kit import ANSWERS, CAT, examples, plain, rows


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> Content:
    made = Content.at(tmp_path_factory.mktemp("sql"))
    made.add_objects(rows())
    return made


def test_every_example_is_there_for_both_engines():
    assert set(examples("duckdb")) == set(examples("spark")) == set(ANSWERS)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_example_on_duckdb(content, name):
    found = run_sql(examples("duckdb")[name], content.settings, engine="duckdb").table
    assert plain(found) == ANSWERS[name]


def test_a_search_finds_what_its_query_finds(content):
    searches = {
        "labels": parse_search(label=["tabby cat"]),
        "json": parse_search(exif=["ISOSpeedRatings>=400"]),
        "box": parse_search(box="-20,170,-10,-170"),
        "radius": parse_search(near="48.8584,2.2945", radius="10km"),
        "similar": parse_search(similar=Similar(0b1111, 10)),
    }
    for name, search in searches.items():
        assert [row["key"] for row in find(content.tables, search).rows] == [row[0] for row in ANSWERS[name]]
    found = find(content.tables, searches["radius"]).rows
    assert [(row["key"], round(row["distance_km"], 3)) for row in found] == ANSWERS["radius"]


@pytest.mark.parametrize(
    "text",
    [
        'SELECT o.key FROM content."objects" AS o WHERE o.key LIKE \'%cat.jpg\'',
        """SELECT o.key FROM content.objects o JOIN content.objects AS "P" ON o.key = "P".key WHERE
           o.content_hash = 'aa' AND o.user_tags IS NOT NULL""",
        "WITH x AS (SELECT * FROM frazil.content.objects AS y) SELECT key FROM x AS z WHERE key = '2024/cat.jpg'",
    ],
    ids=str,
)  # fmt: skip
def test_a_table_with_another_name_is_the_same_table(content, text):
    assert plain(run_sql(text, content.settings, engine="duckdb").table) == [(CAT,)]
    assert run_sql(text, content.settings, engine="auto").engine == "duckdb"
