"""Bounds of changed keys: they contain every key, and stay few."""

from __future__ import annotations

import datetime

import pyarrow as pa

from frazil.topics.sinks.keyed_bounds import _few, measure_bounds, union, widen

ROWS = pa.table({"bucket": ["b", "a", "b", "b"], "key": ["z", "é", "\U0001f600", "\uffff"], "n": [4, 3, 2, 1]})


def test_texts_are_compared_by_their_bytes_as_in_the_files_of_the_table():
    found = measure_bounds(ROWS, ["bucket", "key"], ROWS.column("bucket"))
    assert found == {
        "a": {"bucket": ("a", "a"), "key": ("é", "é")},
        "b": {"bucket": ("b", "b"), "key": ("z", "\U0001f600")},
    }


def test_without_a_group_there_is_one_box_and_without_rows_none():
    assert list(measure_bounds(ROWS, ["n"]).values()) == [{"n": (1, 4)}]
    assert measure_bounds(ROWS.slice(0, 0), ["n"]) == {}


def test_boxes_of_a_group_grow_around_both_parts_and_nothing_given_is_changed():
    first, second = {"g": {"n": (2, 3)}}, {"g": {"n": (1, 2)}, "h": {"n": (9, 9)}}
    assert union([first, second]) == {"g": {"n": (1, 3)}, "h": {"n": (9, 9)}}
    widen(grown := dict(first), second)
    assert grown["g"] == {"n": (1, 3)} and first == {"g": {"n": (2, 3)}}


def test_many_boxes_become_one_that_contains_all_of_them():
    bounds = {n: {"n": (n, n + 5)} for n in range(20)}
    assert len(_few(bounds)) == 20
    assert _few(bounds | {99: {"n": (99, 99)}}) == [{"n": (0, 99)}]


def test_times_of_any_year_keep_their_microseconds():
    times = [
        datetime.datetime(1500, 1, 1, 0, 0, 0, 1, datetime.UTC),
        datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC),
    ]
    rows = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC"))})
    assert list(measure_bounds(rows, ["t"]).values()) == [{"t": tuple(times)}]
