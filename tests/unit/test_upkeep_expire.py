"""Which snapshots a policy lets go."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2

from frazil.upkeep.expiry.expire import choose
from frazil.upkeep.expiry.pin_protection import list_protections

NOW = 1_800_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR


def table(
    *history: int,
    others: dict[int, tuple[int | None, int]] | None = None,
    refs: dict[str, dict[str, Any]] | None = None,
    properties: dict[str, str] | None = None,
    current: int | None = None,
) -> TableMetadata:
    """A table whose main has snapshots 1, 2, …, by their ages in hours, oldest first.

    `others` are snapshots outside: id → (parent, age in hours).
    """
    snapshots = [snapshot(i, i - 1 if i > 1 else None, age) for i, age in enumerate(history, 1)] + [
        snapshot(i, parent, age) for i, (parent, age) in (others or {}).items()
    ]
    current = current or len(history)
    found = {
        "format-version": 2,
        "table-uuid": str(uuid.uuid4()),
        "location": "/t",
        "last-sequence-number": 100,
        "last-updated-ms": NOW,
        "last-column-id": 1,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": properties or {},
        "current-snapshot-id": current,
        "snapshots": snapshots,
        "refs": {"main": {"snapshot-id": current, "type": "branch"}, **(refs or {})},
    }
    return TableMetadataV2(**found)


def snapshot(i: int, parent: int | None, age: int) -> dict[str, Any]:
    found = {"snapshot-id": i, "sequence-number": i, "timestamp-ms": NOW - age * HOUR, "manifest-list": f"/t/{i}.avro"}
    return found | ({"parent-snapshot-id": parent} if parent else {}) | {"summary": {"operation": "append"}}


def chosen(metadata: TableMetadata, *, age: float | None = 24, most: int | None = None, least: int = 1) -> list[int]:
    max_age_s = None if age is None else age * 3600
    return choose(metadata, max_age_s=max_age_s, max_snapshots=most, min_snapshots=least, now_ms=NOW)


def tag(i: int, **more: int) -> dict[str, Any]:
    return {"snapshot-id": i, "type": "tag", **{k.replace("_", "-"): v for k, v in more.items()}}


def branch(i: int, **more: int) -> dict[str, Any]:
    return {**tag(i, **more), "type": "branch"}


def test_old_ones_go_and_the_current_one_stays_however_old():
    assert chosen(table(90, 80, 10, 1)) == [1, 2]
    assert chosen(table(90, 80, 70)) == [1, 2]
    assert chosen(table(90)) == []
    assert chosen(table(5, 4, 3)) == []


def test_a_table_without_snapshots_has_none_to_lose():
    metadata = table(90).model_copy(update={"snapshots": [], "refs": {}, "current_snapshot_id": None})
    assert chosen(metadata) == []


def test_too_many_go_however_young():
    assert chosen(table(5, 4, 3, 2, 1), most=2) == [1, 2, 3]
    assert chosen(table(5, 4, 3, 2, 1), age=None, most=2) == [1, 2, 3]
    assert chosen(table(5, 4, 3, 2, 1), age=None) == []


def test_the_least_number_stays_however_old():
    assert chosen(table(90, 80, 70, 60), least=3) == [1]
    assert chosen(table(90, 80, 70, 60), least=9) == []


def test_a_younger_time_behind_an_older_one_makes_no_gap():
    """A clock that was set back: what goes is the oldest part of the history, without a gap."""
    assert chosen(table(90, 10, 80, 1)) == [1, 2, 3]


def test_a_tag_holds_its_snapshot_alone():
    assert chosen(table(90, 80, 70, 1, refs={"release": tag(2)})) == [1, 3]


def test_a_pin_also_holds_what_came_after_it():
    assert chosen(table(90, 80, 70, 1, refs={"frazil-pin-backup-1": tag(2)})) == [1]


def test_a_tag_or_pin_whose_time_is_over_holds_nothing():
    over = tag(2, max_ref_age_ms=79 * HOUR)
    assert chosen(table(90, 80, 70, 1, refs={"release": over})) == [1, 2, 3]
    assert chosen(table(90, 80, 70, 1, refs={"frazil-pin-backup-1": over})) == [1, 2, 3]
    held = tag(2, max_ref_age_ms=81 * HOUR)
    assert chosen(table(90, 80, 70, 1, refs={"release": held})) == [1, 3]
    by_table = {"history.expire.max-ref-age-ms": str(79 * HOUR)}
    assert chosen(table(90, 80, 70, 1, refs={"release": tag(2)}, properties=by_table)) == [1, 2, 3]


def held(metadata: TableMetadata, *, age: float | None = 24, most: int | None = None) -> dict[str, tuple[int, ...]]:
    max_age_s = None if age is None else age * 3600
    found = list_protections(metadata, "ns.t", max_age_s=max_age_s, max_snapshots=most, min_snapshots=1, now_ms=NOW)
    return {hold.pin.purpose: hold.snapshots for hold in found}


def test_what_a_pin_keeps_from_going_is_known_for_each_of_them():
    lease = 100 * HOUR
    pins = {"frazil-pin-backup-1": tag(2, max_ref_age_ms=lease), "frazil-pin-replay-1": tag(3, max_ref_age_ms=lease)}
    metadata = table(90, 80, 70, 1, refs={**pins, "release": tag(1)})
    assert held(metadata) == {"backup": (2, 3), "replay": (3,)}
    assert held(metadata, age=None, most=1) == {"backup": (2, 3), "replay": (3,)}
    assert held(metadata, age=None, most=2) == {"backup": (2,)}, "the other's is among the two that stay"
    assert held(metadata, age=85) == {}, "none of theirs is old enough"


def test_a_pin_whose_lease_is_over_or_that_is_on_the_current_snapshot_is_in_nobodys_way():
    assert held(table(90, 80, 1, refs={"frazil-pin-backup-1": tag(2, max_ref_age_ms=79 * HOUR)})) == {}
    assert held(table(90, 80, 1, refs={"frazil-pin-backup-1": tag(3, max_ref_age_ms=9 * HOUR)})) == {}
    assert held(table(90, 80, 1)) == {}


def test_a_pin_in_the_way_is_told_with_the_end_of_its_lease():
    metadata = table(90, 80, 1, refs={"frazil-pin-nightly-backup-1": tag(2, max_ref_age_ms=81 * HOUR)})
    (hold,) = list_protections(metadata, "ns.t", max_age_s=3600, max_snapshots=None, now_ms=NOW)
    until = datetime.fromtimestamp((NOW + HOUR) / 1000, UTC)
    assert "1 snapshot stays" in str(hold) and "(nightly-backup) holds snapshot 2" in str(hold)
    assert f"until {until:%Y-%m-%d %H:%M:%S} UTC" in str(hold)
    assert hold.to_dict()["holds"] == [2]


def test_a_branch_keeps_its_own_number_and_age():
    others = {10: (2, 75), 11: (10, 70)}
    assert chosen(table(90, 80, 60, 1, others=others, refs={"b": branch(11)})) == [1, 2, 3, 10]
    three = branch(11, min_snapshots_to_keep=3)
    assert chosen(table(90, 80, 60, 1, others=others, refs={"b": three})) == [1, 3]
    aged = branch(11, max_snapshot_age_ms=76 * HOUR)
    assert chosen(table(90, 80, 60, 1, others=others, refs={"b": aged})) == [1, 2, 3]
    assert chosen(table(3, 2, 1, others={10: (1, 2)}, refs={"b": branch(10)}), most=1) == [2], "it has 1 in its history"


def test_main_may_say_for_itself_what_stays():
    main = {"main": branch(4, min_snapshots_to_keep=3)}
    assert chosen(table(90, 80, 70, 60, refs=main)) == [1]
    main = {"main": branch(4, max_snapshot_age_ms=100 * HOUR)}
    assert chosen(table(110, 80, 70, 60, refs=main), most=1) == [1]


@pytest.mark.parametrize("most", [None, 1])
def test_what_the_table_promises_of_its_history_is_kept(most):
    promised = {"history.expire.max-snapshot-age-ms": str(85 * HOUR)}
    assert chosen(table(90, 80, 70, 1, properties=promised), most=most) == [1]
    promised = {"history.expire.min-snapshots-to-keep": "3"}
    assert chosen(table(90, 80, 70, 60, properties=promised), most=most) == [1]


def test_a_promise_shorter_than_the_policy_does_not_shorten_it():
    assert chosen(table(90, 10, 1, properties={"history.expire.max-snapshot-age-ms": str(HOUR)})) == [1]


def test_nothing_goes_where_the_files_are_not_the_tables_own():
    assert chosen(table(90, 80, 1, properties={"gc.enabled": "false"})) == []


def test_what_no_branch_has_goes_by_age():
    """After a rollback, or staged and never published."""
    others = {10: (2, 50), 11: (2, 3)}
    assert chosen(table(90, 80, 5, 1, others=others)) == [1, 2, 10]
    assert chosen(table(90, 80, 5, 1, others=others), age=None, most=2) == [1, 2]


def test_a_rolled_back_table_keeps_what_it_points_to():
    metadata = table(90, 80, 70, 60, current=2)
    assert chosen(metadata) == [1, 3, 4]
    assert chosen(metadata.model_copy(update={"refs": {}})) == [1, 3, 4], "writers of old keep no ref to main"
