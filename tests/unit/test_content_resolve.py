"""What is true of each version: any order, any repetition, any cut into batches, and looks that come between."""

from __future__ import annotations

from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from frazil.content.columns import CREATE, DELETE, UPDATE
from tests.content_truth import BEGIN, Memory, Told, expected, seen, shown

SEQUENCES = ["1", "2", "21", "3", "A", "B", "C1"]

told = st.builds(
    Told,
    kind=st.sampled_from([CREATE, UPDATE, DELETE]),
    key=st.sampled_from(["a", "b"]),
    version=st.sampled_from(["", "v1", "v2"]),
    sequence=st.sampled_from(SEQUENCES),
    etag=st.sampled_from([None, "x", "y"]),
    size=st.sampled_from([None, 1, 2]),
    storage_class=st.sampled_from([None, "STANDARD", "GLACIER"]),
    marker=st.booleans(),
    content_type=st.sampled_from([None, "text/plain"]),
)


def timed(events: list[Told]) -> list[Told]:
    """Times that agree with the sequences, as a source's do; of one version there is either a marker or an object."""
    from dataclasses import replace

    return [replace(e, second=float(SEQUENCES.index(e.sequence or ""))) for e in events]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Told], list[list[Told]]]:
    """Events, and the same in any order, some of them several times, cut anyhow."""
    events = timed(draw(st.lists(told, min_size=1, max_size=14)))
    again = draw(st.lists(st.sampled_from(events), max_size=6))
    order = draw(st.permutations(events + again))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=4)))
    return events, [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True) if a < b]


@given(deliveries())
@settings(max_examples=100, deadline=None)
def test_the_same_events_in_any_order_and_multiplicity_give_the_same_table(delivered):
    events, batches = delivered
    memory = Memory()
    for batch in batches:
        memory.take(batch)
    assert shown(memory.state()) == expected(events)


@given(deliveries())
@settings(max_examples=30, deadline=None)
def test_what_is_known_is_not_written_again(delivered):
    _, batches = delivered
    memory = Memory()
    for batch in batches:
        memory.take(batch)
    before, writes = memory.state(), memory.writes
    for batch in batches:
        memory.take(batch)
    assert (memory.state(), memory.writes) == (before, writes)


def test_a_late_put_does_not_resurrect_a_deleted_object():
    memory = Memory()
    memory.take([Told(DELETE, sequence="5", second=5)])
    memory.take([Told(CREATE, sequence="4", second=4, etag="x")])
    assert memory.row()["is_deleted"]
    memory.take([Told(CREATE, sequence="6", second=6, etag="y")])
    assert (memory.row()["is_deleted"], memory.row()["etag"]) == (False, "y")


def test_the_newest_version_that_is_there_is_the_latest():
    memory = Memory()
    memory.take([Told(version="v1", sequence="1"), Told(version="v2", sequence="2")])
    memory.take([Told(version="m", sequence="3", marker=True)])
    assert [r["version_id"] for r in memory.state() if r["is_latest"]] == ["m"]
    memory.take([Told(DELETE, version="m", sequence="4")])
    assert [r["version_id"] for r in memory.state() if r["is_latest"]] == ["v2"]


# -- looks -------------------------------------------------------------------------------------------------------------


def test_a_look_beats_older_events_and_loses_to_newer_ones():
    memory = Memory(skew_s=5)
    memory.take([Told(sequence="1", second=0, etag="x")])
    memory.take([seen(100, etag="y", size=7)])
    assert (memory.row()["etag"], memory.row()["size"], memory.row()["check_after"]) == ("y", 7, None)
    memory.take([Told(DELETE, sequence="2", second=50)])
    assert not memory.row()["is_deleted"], "the delete is older than the look that found the object"
    memory.take([Told(DELETE, sequence="3", second=150)])
    assert memory.row()["is_deleted"]
    memory.take([seen(120, etag="z")])
    assert memory.row()["is_deleted"], "the look is older than the delete"
    memory.take([seen(200, gone=True)])
    assert memory.row()["is_deleted"]


def test_within_the_skew_the_bucket_is_asked_again():
    memory = Memory(skew_s=5)
    memory.take([Told(DELETE, sequence="1", second=10), seen(11, etag="x")])
    row = memory.row()
    assert not row["is_deleted"], "the look was later"
    assert (row["check_after"] - row["changed_at"]).total_seconds() == 5
    memory.take([seen(17, gone=True)])
    assert (memory.row()["is_deleted"], memory.row()["check_after"]) == (True, None)


def test_where_both_say_the_same_nobody_has_to_ask():
    memory = Memory(skew_s=5)
    memory.take([Told(DELETE, sequence="1", second=10), seen(11, gone=True)])
    assert (memory.row()["is_deleted"], memory.row()["check_after"]) == (True, None)
    memory.take([Told(CREATE, sequence="2", second=20, etag="x"), seen(21, etag="x")])
    assert (memory.row()["is_deleted"], memory.row()["check_after"]) == (False, None)


@settings(deadline=None)
@given(st.permutations([seen(1, etag="x"), seen(9, gone=True), seen(5, etag="y")]))
def test_of_several_looks_the_last_one_counts(order):
    memory = Memory()
    for look in order:
        memory.take([look])
    assert memory.row()["is_deleted"]


def test_of_two_looks_in_the_same_second_that_which_came_later_counts_if_it_says_otherwise():
    memory = Memory()
    memory.take([seen(10, gone=True)])
    memory.take([seen(10, etag="x", size=1)])
    assert not memory.row()["is_deleted"]
    writes = memory.writes
    memory.take([seen(10, etag="x", size=1)])
    assert memory.writes == writes, "the same again is no news"


def test_a_look_that_finds_the_same_content_keeps_what_is_known_of_it():
    memory = Memory()
    memory.take([Told(sequence="1", second=0, etag="x", content_type="text/plain")])
    memory.take([seen(100, etag="x")])
    assert memory.row()["content_type"] == "text/plain"
    memory.take([seen(200, etag="y")])
    assert memory.row()["content_type"] is None


def test_an_event_that_tells_no_content_changes_none_while_the_store_does_not_answer():
    """Events about tags and ACL have no size, often no etag, and no order: they wait for the bucket's answer."""
    known = {"etag": "x", "size": 7, "storage_class": "STANDARD", "content_type": "text/plain"}
    for etag in (None, "x"):
        for first in (Told(sequence="1", second=0, **known), seen(0, **known)):
            memory = Memory()
            memory.take([first])
            memory.take_unverified([Told(UPDATE, sequence=None, second=100, etag=etag)])
            row = memory.row()
            assert {name: row[name] for name in known} == known
            assert row["last_modified"] == BEGIN
            assert row["check_after"] is not None
            memory.take([seen(200, etag="y", size=8)])
            assert (memory.row()["size"], memory.row()["check_after"]) == (8, None)


def test_an_event_that_tells_another_content_does_not_keep_the_size_of_the_old_one():
    memory = Memory()
    memory.take([Told(sequence="1", second=0, etag="x", size=7)])
    memory.take_unverified([Told(UPDATE, sequence=None, second=100, etag="y")])
    assert (memory.row()["etag"], memory.row()["size"]) == ("y", None)


def test_a_look_in_whole_seconds_does_not_make_a_time_less_exact():
    memory = Memory()
    memory.take([Told(sequence="1", second=3.25, etag="x")])
    memory.take([seen(100, etag="x", modified=3)])
    assert memory.row()["last_modified"] == BEGIN + timedelta(seconds=3.25)
    memory.take([seen(200, etag="x", modified=4)])
    assert memory.row()["last_modified"] == BEGIN + timedelta(seconds=4)


def test_who_has_looked_at_all_versions_knows_the_latest_and_later_ones_are_newer():
    memory = Memory()
    memory.take([Told(version="v1", sequence="1", second=1), Told(version="v2", sequence="2", second=2)])
    looks = [seen(50, version="v1", latest=True, etag="1"), seen(50, version="v2", latest=False, etag="2")]
    memory.take(looks)
    assert [r["version_id"] for r in memory.state() if r["is_latest"]] == ["v1"]
    memory.take([Told(version="v3", sequence="3", second=60)])
    assert [r["version_id"] for r in memory.state() if r["is_latest"]] == ["v3"]


@pytest.mark.parametrize("batches", [1, 2])
def test_what_a_second_dialect_says_is_not_compared_but_counts_by_its_time(batches):
    first = [Told(sequence="FF", second=0, etag="x", dialect="aws")]
    second = [Told(DELETE, sequence="0001", second=100, dialect="minio")]
    memory = Memory()
    for batch in [first, second] if batches == 2 else [[*second, *first]]:
        memory.take(batch)
    assert memory.row()["is_deleted"]
    assert (memory.row()["dialect"], memory.row()["sequence"]) == ("aws", "FF")
    memory.take([Told(CREATE, sequence="0002", second=50, dialect="minio", etag="late")])
    assert memory.row()["is_deleted"]
