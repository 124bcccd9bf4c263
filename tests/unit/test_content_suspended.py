"""Buckets whose versioning is switched on and suspended: events and listings in any order lead to what is there."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from frazil.content.columns import DELETE
from tests.content_bucket import BURIED, NULL, Bucket, Clocks, played
from tests.content_truth import BEGIN, Memory, Told, seen

SKEW_S = 5.0

clocks = st.builds(
    Clocks,
    whole_events=st.booleans(),
    whole_listings=st.booleans(),
    whole_modified=st.booleans(),
    ahead=st.sampled_from([0.0, 0.0, 1.5, -1.5]),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "delete", "remove", "enable", "suspend", "list", "list"]),
        st.sampled_from([0.1, 0.4, 2.0, 20.0]),
        st.integers(0, 3),
        st.sampled_from(["x", "y"]),
    ),
    min_size=1,
    max_size=12,
)


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[Bucket, list[list[Told]]]:
    """A bucket after some operations, and its events and listings in any order, some of them twice, cut anyhow."""
    bucket = Bucket(draw(clocks), now=100.0)
    begun = draw(st.sampled_from([(), BURIED]))
    known = played(bucket, [*begun, *draw(steps)], before=draw(st.sampled_from([0, 0, 2, 4])))
    again = draw(st.lists(st.sampled_from(known), max_size=3)) if known else []
    order = draw(st.permutations(known + again))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=5)))
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True) if a < b]
    return bucket, [[told for part in some for told in part] for some in parts if some]


def shown(memory: Memory) -> dict[str, tuple[Any, ...]]:
    return {
        row["version_id"]: (row["etag"], row["is_delete_marker"], row["is_latest"])
        for row in memory.state()
        if not row["is_deleted"]
    }


def ask(memory: Memory, bucket: Bucket) -> bool:
    """Answers the questions that the table has; whether it has any."""
    due = [row for row in memory.state() if row["check_after"] is not None]
    if due:
        second = max((row["check_after"] - BEGIN).total_seconds() for row in due)
        memory.take(bucket.answer({row["version_id"] for row in due}, max(second, bucket.now) + 1))
    return bool(due)


def check(delivered: tuple[Bucket, list[list[Told]]]) -> None:
    bucket, batches = delivered
    memory = Memory(skew_s=SKEW_S)
    for batch in batches:
        memory.take(batch)
    truth = bucket.truth()
    for _ in range(3):
        if not ask(memory, bucket):
            break
    assert not any(row["check_after"] for row in memory.state()), "the answers settle it"
    assert shown(memory) == truth


@given(deliveries())
@settings(max_examples=150, deadline=None)
def test_events_and_listings_of_a_suspended_bucket_in_any_order_lead_to_what_is_there(delivered):
    check(delivered)


@pytest.mark.deep
@pytest.mark.long("rare schedules are what it is for")
@given(deliveries())
@settings(max_examples=1_500, deadline=None)
def test_many_schedules_of_a_suspended_bucket_lead_to_what_is_there(delivered):
    check(delivered)


def a_listing(second: float) -> list[Told]:
    """A suspended bucket: `v1` is the current version, the null version is older."""
    return [
        seen(second, version="v1", etag="new", latest=True, modified=20),
        seen(second, version=NULL, etag="old", latest=False, modified=10),
    ]


@pytest.mark.parametrize("knows_creation", [True, False])
def test_an_overwritten_null_version_is_the_latest_although_a_listing_saw_it_below_another(knows_creation):
    memory = Memory()
    if knows_creation:
        memory.take([Told(version="v1", sequence="2", second=20, etag="new")])
    memory.take(a_listing(50))
    memory.take([Told(version=NULL, sequence="3", second=60, etag="newest")])
    assert [row["version_id"] for row in memory.state() if row["is_latest"]] == [NULL]


def test_a_delete_in_a_suspended_bucket_hides_the_object_that_a_listing_saw_as_current():
    memory = Memory()
    memory.take(a_listing(50))
    memory.take([Told(version=NULL, sequence="3", second=60, marker=True)])
    (latest,) = [row for row in memory.state() if row["is_latest"]]
    assert (latest["version_id"], latest["is_delete_marker"]) == (NULL, True)
    memory.take([Told(DELETE, version=NULL, sequence="4", second=70)])
    assert [row["version_id"] for row in memory.state() if row["is_latest"]] == ["v1"]


def test_a_null_version_that_is_written_again_after_a_newer_version_is_the_latest():
    memory = Memory()
    memory.take([seen(50, version=NULL, etag="x", latest=True, modified=10)])
    memory.take([Told(version="v2", sequence="3", second=60, etag="y")])
    memory.take([Told(version=NULL, sequence="4", second=70, etag="z")])
    assert [row["version_id"] for row in memory.state() if row["is_latest"]] == [NULL]


def test_a_question_stays_open_until_it_is_answered_whatever_else_comes():
    memory = Memory(skew_s=5)
    memory.take([seen(60, etag="x", latest=True), Told(sequence="1", second=61, etag="y")])
    assert memory.row()["check_after"] is not None
    memory.take([Told(version="v9", sequence="0", second=1), Told(DELETE, version="v9", sequence="01", second=2)])
    assert memory.row()["check_after"] is not None
