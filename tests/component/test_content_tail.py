"""Reads of content with the tail of the log: they equal reads of a table into which the sink has merged it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from frazil.catalogs import local_path
from frazil.content import tail as tail_module
from frazil.content.annotations.edits import Edit
from frazil.content.annotations.messages import edit as edit_message
from frazil.content.annotations.publish_edits import make_entries, publish
from frazil.content.columns import CREATE, DELETE, OBJECTS, UPDATE
from frazil.content.events.observation import observation
from frazil.content.names import objects_name
from frazil.content.query.duplicates import duplicates
from frazil.content.query.facets import facets
from frazil.content.query.filters import ObjectFilter
from frazil.content.query.objects import list_objects, show_object
from frazil.content.query.request import parse_search
from frazil.content.query.search import find
from frazil.content.query.totals import totals
from frazil.content.tables import ContentTables
from frazil.content.topic import ensure_events_topic
from frazil.errors import NotFoundError
from frazil.log.protocol import OffsetGoneError
from frazil.topics.reading.tail import Bound
from tests.content_sink_kit import body
from tests.content_tail_kit import TailKit, rows_of, tail_kit
from tests.content_truth import BEGIN, Told

NAMES = [name for name in OBJECTS.names if name != "frazil_order"]


@pytest.fixture
def kit(tmp_path) -> Iterator[TailKit]:
    with tail_kit(tmp_path / "home") as made:
        yield made


def put(key: str, sequence: int = 1, **more: Any) -> bytes:
    return body(Told(key=key, sequence=f"{sequence:016X}", etag=f"e{sequence}", second=sequence, **more))


def gone(key: str, sequence: int) -> bytes:
    return body(Told(DELETE, key=key, sequence=f"{sequence:016X}", second=sequence))


def keys(tables: ContentTables, **choice: Any) -> list[str]:
    return [row["key"] for row in list_objects(tables, ObjectFilter(bucket="b", **choice)).rows]


def edit(kit: TailKit, key: str, **said: Any) -> None:
    told = make_entries(kit.tables, "b", [Edit(key, **said)])
    publish(kit.log, kit.topic, "b", told, 1 << 20)


# -- what a read shows -------------------------------------------------------------------------------------------------


def test_the_first_event_is_listed_although_there_is_no_table(kit):
    with pytest.raises(NotFoundError):
        list_objects(kit.tables, ObjectFilter())
    kit.publish(put("a"))
    tables = kit.tables
    assert keys(tables) == ["a"] and tables.lag is None
    assert find(kit.tables, parse_search(bucket="b")).rows[0]["key"] == "a"
    with pytest.raises(NotFoundError):  # reads create nothing
        kit.content.store.load(objects_name(kit.settings))


def test_new_replaced_and_deleted_objects_are_shown_as_the_log_has_them(kit):
    kit.publish(put("changed"), put("deleted"), put("same"))
    kit.merge()
    kit.publish(put("changed", 2, size=7), gone("deleted", 2), put("new"))
    assert keys(kit.tables) == ["changed", "new", "same"]
    assert keys(kit.tables, deleted="only") == ["deleted"]
    assert show_object(kit.tables, "b", "changed")["size"] == 7
    assert keys(kit.merged) == ["changed", "deleted", "same"]


def test_an_event_that_is_older_than_the_table_changes_nothing(kit):
    kit.publish(gone("a", 5))
    kit.merge()
    kit.publish(put("a", 2))
    assert keys(kit.tables) == []


def test_edits_are_shown_by_the_next_read_and_by_the_next_edit(kit):
    kit.publish(put("a"))
    kit.merge()
    edit(kit, "a", add=("one",), note="at the lake", rating=4)
    edit(kit, "a", add=("two",))
    shown = show_object(kit.tables, "b", "a")
    assert (shown["user_tags"], shown["note"], shown["rating"]) == (["one", "two"], "at the lake", 4)
    assert [row["key"] for row in find(kit.tables, parse_search(bucket="b", tag=("two",))).rows] == ["a"]


def test_an_object_that_only_the_log_knows_can_be_edited(kit):
    kit.publish(put("a"))
    edit(kit, "a", add=("one",))
    assert show_object(kit.tables, "b", "a")["user_tags"] == ["one"]
    kit.merge()
    assert show_object(kit.merged, "b", "a")["user_tags"] == ["one"]


def test_an_event_without_an_order_is_shown_as_not_verified(kit):
    kit.publish(body(Told(key="a", sequence=None)))
    row = show_object(kit.tables, "b", "a")
    assert not row["is_deleted"] and row["check_after"] is not None


def test_messages_that_are_no_events_are_left_out(kit):
    kit.publish(b"no JSON", put("a"))
    tables = kit.tables
    assert keys(tables) == ["a"] and tables.lag is None


def test_pages_facets_duplicates_and_sums_equal_those_of_the_merged_table(kit):
    kit.publish(*(put(f"k{n:02}", size=n) for n in range(30)))
    kit.merge()
    kit.publish(*(put(f"k{n:02}", 2, size=100 - n) for n in range(0, 30, 4)), *(gone(f"k{n:02}", 3) for n in (4, 9)))
    kit.publish(*(put(f"n{n}", size=5) for n in range(5)))

    def answers(tables: ContentTables) -> list[Any]:
        pages: list[Any] = []
        for sort in ("key", "size", "modified"):
            after, page = None, None
            while page is None or after:
                page = list_objects(tables, ObjectFilter(bucket="b"), sort=sort, limit=7, after=after)
                after = page.after
                pages.append(page)
            pages.append(find(tables, parse_search(bucket="b"), sort=sort, limit=40))
        found = [facets(tables, parse_search(bucket="b"), by).groups for by in ("status", "extension", "size")]
        return [
            *pages,
            *found,
            duplicates(tables, parse_search(bucket="b")).to_dict(),
            totals(tables, by="prefix", bucket="b"),
        ]

    with_tail = answers(kit.tables)
    kit.merge()
    assert with_tail == answers(kit.merged)


@pytest.mark.parametrize("seed", range(8))
def test_reads_with_the_tail_equal_reads_after_the_sink_has_merged_it(kit, seed):
    rng, names = random.Random(seed), NAMES
    told, cut = list(_deliveries(rng, 60)), rng.randrange(60)
    for payload in told[:cut]:
        kit.publish(payload)
        if rng.random() < 0.1:
            kit.merge()
    kit.merge()
    for number, payload in enumerate(told[cut:]):
        kit.publish(payload)
        if number % 7 == 0:  # the same view grows
            kit.tables.read(kit.tables.objects, lambda _: None)
    if seed % 2:  # whether a row has to be verified depends on how batches are cut
        names = [name for name in NAMES if name != "check_after"]
    with_tail = rows_of(kit.tables, names)
    assert len(with_tail) > 10
    if seed % 2:
        kit.merge(rng.randint(cut, 60))
        assert rows_of(kit.tables, names) == with_tail
    kit.merge()
    assert rows_of(kit.merged, names) == with_tail == rows_of(kit.tables, names)


def _deliveries(rng: random.Random, count: int) -> Iterator[bytes]:
    """Events in any order and multiplicity, observations, and edits of versions that were heard of."""
    known: list[tuple[str, str, str]] = []
    for _ in range(count):
        if known and rng.random() < 0.2:
            yield _edit(rng, *rng.choice(known))
            continue
        bucket, key, version = place = rng.choice("bc"), f"k{rng.randrange(6)}", rng.choice(["", "", "v1", "v2"])
        known.append(place)
        second = rng.randrange(20)
        if rng.random() < 0.2:
            thing = {"key": key, "version_id": version, "exists": rng.random() < 0.7, "size": 3}
            yield observation(
                bucket, [thing | {"etag": rng.choice("st")}], BEGIN + timedelta(seconds=second, hours=1), "scan"
            )
            continue
        kind = rng.choice([CREATE, CREATE, DELETE, UPDATE])
        more = {"etag": rng.choice("st"), "size": rng.randrange(9)} if kind == CREATE else {}
        told = Told(kind, key, version, f"{second:016X}", second, bucket=bucket, **more)
        yield body(told, *([told] if rng.random() < 0.1 else []))


def _edit(rng: random.Random, bucket: str, key: str, version: str) -> bytes:
    entry = {"key": key, "version_id": version, "add": [rng.choice("xyz")], "rating": rng.randint(1, 5)}
    return edit_message(bucket, [entry], BEGIN)


# -- while others write ------------------------------------------------------------------------------------------------


def test_a_merge_during_a_read_neither_loses_nor_repeats_an_event(kit, monkeypatch):
    kit.publish(put("a"))
    kit.merge()
    kit.publish(put("a", 2), put("b"))
    read, merged = kit.tail._reader.read, []

    def merge_first(position: Any) -> Any:
        if not merged:
            merged.append(kit.merge())
            kit.publish(put("c"))
        return read(position)

    monkeypatch.setattr(kit.tail._reader, "read", merge_first)  # between the load of the table and that of the log
    assert keys(kit.tables) == keys(kit.tables) == ["a", "b", "c"]


def test_a_read_goes_on_when_the_files_it_planned_are_removed(kit):
    kit.publish(put("a"), put("b"))
    kit.merge()
    kit.publish(put("b", 2), put("c"))
    table = kit.content.store.load(objects_name(kit.settings))
    (old,) = [Path(local_path(task.file.file_path)) for task in table.scan().plan_files()]
    tables, tried = kit.tables, []

    def read(view: Any) -> list[str]:
        if not tried:
            tried.append(table.overwrite(table.scan().to_arrow()))  # a compaction, and expiry right behind it
            old.unlink()
        return sorted(view.scan(selected_fields=("key",)).to_arrow()["key"].to_pylist())

    assert tables.read(tables.objects, read) == ["a", "b", "c"] and tables.lag is None


def test_messages_that_retention_has_removed_are_looked_for_in_the_newer_table(kit, monkeypatch):
    kit.publish(put("a"))
    kit.merge()
    kit.publish(put("b"))
    read, tried = kit.tail._reader.read, []

    def removed(position: Any) -> Any:
        if not tried:
            tried.append(kit.merge())
            raise OffsetGoneError("retention", start=2)
        return read(position)

    monkeypatch.setattr(kit.tail._reader, "read", removed)
    tables = kit.tables
    assert keys(tables) == ["a", "b"] and tables.lag is None


# -- where the tail cannot be had --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [Bound(2, 1 << 20), Bound(100, 200)], ids=["messages", "bytes"])
def test_a_tail_that_is_too_long_is_stated_and_the_table_answers(kit, bound):
    kit.publish(put("a"))
    kit.merge()
    kit.new_tail(bound)
    kit.publish(put("b"), put("c"), put("d"))
    for _ in range(2):
        tables = kit.tables
        assert keys(tables) == ["a"]
        assert tables.lag is not None and tables.lag.messages == 3 and "frazil pipeline" in tables.lag.reason
    kit.merge(3)
    kit.new_tail(Bound(2, 1 << 20))
    assert keys(kit.tables) == ["a", "b", "c", "d"]


def test_the_messages_of_another_log_are_not_applied(kit):
    kit.publish(put("a"))
    kit.merge()
    kit.log.delete_topic(kit.topic)
    ensure_events_topic(kit.log, kit.settings)
    kit.publish(put("b"), put("c"))
    tables = kit.tables
    assert keys(tables) == ["a"]
    assert tables.lag is not None and tables.lag.messages is None and "was written from log" in tables.lag.reason


def test_a_topic_that_is_made_anew_leaves_nothing_of_the_one_before(kit):
    kit.publish(put("a"))
    assert keys(kit.tables) == ["a"]
    kit.log.delete_topic(kit.topic)
    ensure_events_topic(kit.log, kit.settings)
    kit.publish(put("b"))
    assert keys(kit.tables) == ["b"]


def test_a_table_that_was_rolled_back_answers_alone(kit):
    kit.publish(put("a"))
    kit.merge()
    first = kit.content.store.load(objects_name(kit.settings)).metadata.current_snapshot_id
    kit.publish(put("b"))
    kit.merge()
    table = kit.content.store.load(objects_name(kit.settings))
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    tables = kit.tables
    assert keys(tables) == ["a"]
    assert tables.lag is not None and "rolled back" in tables.lag.reason


def test_too_many_rows_to_look_through_are_stated(kit, monkeypatch):
    kit.publish(put("a"), put("b"))
    kit.merge()
    monkeypatch.setattr(tail_module, "_COMPARED", 1)
    kit.publish(put("a", 2), put("c"))
    tables = kit.tables
    assert keys(tables) == ["a", "b"] and tables.lag is not None and tables.lag.messages == 2
