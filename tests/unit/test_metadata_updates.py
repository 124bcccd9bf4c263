"""The difference of two table metadata as updates of a REST commit."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.errors import UnsupportedError
from frazil.tables.metadata_losses import find_losses, normalize
from frazil.tables.metadata_updates import MetadataUpdates, diff_metadata

Json = dict[str, Any]
LONG_AGO, NOW = 1_600_000_000_000, 1_700_000_000_000


def field(number: int, name: str, kind: object = "long") -> Json:
    return {"id": number, "name": name, "required": False, "type": kind}


def schema(number: int, *fields: Json) -> Json:
    return {"type": "struct", "schema-id": number, "fields": list(fields) or [field(1, "id")]}


def snapshot(number: int, sequence: int, parent: int | None = None, **more: object) -> Json:
    found = {
        "snapshot-id": number,
        "sequence-number": sequence,
        "timestamp-ms": LONG_AGO + sequence,
        "summary": {"operation": "append"},
        "manifest-list": f"s3://b/t/metadata/{number}.avro",
        "schema-id": 0,
        **{key.replace("_", "-"): value for key, value in more.items()},
    }
    return found if parent is None else found | {"parent-snapshot-id": parent}


def table(*snapshots: Json, **more: object) -> Json:
    """Metadata whose last snapshot is current."""
    current = snapshots[-1]["snapshot-id"] if snapshots else None
    return {
        "format-version": 2,
        "table-uuid": "u",
        "location": "s3://b/t",
        "last-updated-ms": NOW - 1000,
        "last-column-id": 1,
        "schemas": [schema(0)],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {},
        "snapshots": list(snapshots),
        "current-snapshot-id": current,
        "refs": {"main": {"snapshot-id": current, "type": "branch"}} if snapshots else {},
        "snapshot-log": [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in snapshots],
        "last-sequence-number": max((s["sequence-number"] for s in snapshots), default=0),
        **{key.replace("_", "-"): value for key, value in more.items()},
    }


def diff(base: Json, wanted: Json) -> MetadataUpdates:
    return diff_metadata(base, wanted, now_ms=NOW)


def actions(found: MetadataUpdates) -> list[str]:
    return [update["action"] for update in found.updates]


def added(found: MetadataUpdates) -> list[Json]:
    return [update["snapshot"] for update in found.updates if update["action"] == "add-snapshot"]


def test_equal_metadata_needs_no_update():
    same = table(snapshot(1, 1), snapshot(2, 2, 1))
    assert diff(same, same).updates == []
    assert diff(same, same).losses == ()


def test_the_commit_requires_the_table_as_it_was():
    found = diff(table(snapshot(7, 1)), table(snapshot(7, 1), properties={"a": "b"})).requirements
    assert {"type": "assert-table-uuid", "uuid": "u"} in found
    assert {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7} in found
    empty = diff(table(), table()).requirements
    assert {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None} in empty


def test_main_is_set_after_other_references_and_then_the_time_is_now():
    wanted = table(snapshot(1, 1), snapshot(2, 2, 1))
    wanted["refs"]["tagged"] = {"snapshot-id": 1, "type": "tag"}
    found = diff(table(), wanted)
    assert actions(found) == [*["add-snapshot"] * 2, *["set-snapshot-ref"] * 2, "add-snapshot", "remove-snapshots"]
    assert [update.get("ref-name") for update in found.updates[2:4]] == ["tagged", "main"]
    assert added(found)[-1]["timestamp-ms"] == NOW
    assert found.updates[-1]["snapshot-ids"] == [added(found)[-1]["snapshot-id"]]


def test_entries_of_the_snapshot_log_that_one_commit_cannot_make_are_named():
    found = diff(table(), table(*(snapshot(n, n, n - 1 or None) for n in range(1, 6))))
    assert found.losses == ("4 of 5 entries of the snapshot log are lost: time travel by timestamp misses them",)


def test_a_snapshot_with_another_manifest_list_is_exchanged_under_its_id():
    moved = snapshot(1, 1, manifest_list="s3://b/moved/metadata/1.avro")
    found = diff(table(snapshot(1, 1), snapshot(2, 2, 1)), table(moved))
    assert actions(found)[:3] == ["remove-snapshot-ref", "remove-snapshots", "add-snapshot"]
    assert found.updates[1]["snapshot-ids"] == [1, 2]
    assert found.losses == ()


def test_older_sequence_numbers_are_made_room_for():
    wanted = table(snapshot(3, 3), snapshot(4, 4, 3))
    moved = [{**s, "manifest-list": s["manifest-list"] + "x"} for s in wanted["snapshots"]]
    found = diff(table(*wanted["snapshots"], snapshot(9, 9, 4)), {**wanted, "snapshots": moved})
    assert [(s["sequence-number"], s.get("parent-snapshot-id")) for s in added(found)][:2] == [(3, None), (4, 3)]
    orphaned = table(snapshot(4, 4, 3))
    found = diff(table(snapshot(9, 9)), orphaned)
    first, second = added(found)[:2]
    assert (first["sequence-number"], first.get("parent-snapshot-id")) == (3, None)
    assert second["snapshot-id"] == 4


def test_sequence_numbers_that_expired_snapshots_had_are_not_given_out_again():
    wanted = table(snapshot(1, 1), last_sequence_number=8)
    assert max(s["sequence-number"] for s in added(diff(table(), wanted))) == 8


def test_row_ids_of_expired_snapshots_are_not_given_out_again():
    first = snapshot(5, 5, first_row_id=100, added_rows=10)
    wanted = table(first, snapshot(6, 6, 5, first_row_id=150, added_rows=10), format_version=3, next_row_id=500)
    found = diff(table(format_version=3, next_row_id=0), wanted)
    reached = 0
    for each in added(found):
        assert each["first-row-id"] >= reached
        reached += each["added-rows"]
    assert reached == 500
    assert all("next-row-id" not in loss for loss in found.losses)


def test_row_ids_that_the_table_has_given_out_cannot_come_back():
    wanted = table(snapshot(5, 5, first_row_id=0, added_rows=10), format_version=3, next_row_id=10)
    with pytest.raises(UnsupportedError) as refused:
        diff(table(format_version=3, next_row_id=20), wanted)
    assert "row ids of snapshot 5" in (refused.value.cause or "")


def test_snapshots_without_row_ids_come_before_the_upgrade():
    wanted = table(snapshot(1, 1), snapshot(2, 2, 1, first_row_id=0, added_rows=3), format_version=3, next_row_id=3)
    assert actions(diff(table(), wanted))[:3] == ["add-snapshot", "upgrade-format-version", "add-snapshot"]
    with pytest.raises(UnsupportedError):
        diff(table(format_version=3, next_row_id=0), wanted)


def test_a_commit_that_moves_no_reference_cannot_be_made_twice():
    base = table(snapshot(1, 1))
    found = diff(base, table(snapshot(1, 1), properties={"a": "b"}))
    assert {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1} in found.requirements
    placeholder = next(update["schema"] for update in found.updates if update["action"] == "add-schema")
    assert placeholder["fields"][0]["id"] == 2
    assert {"action": "remove-schemas", "schema-ids": [placeholder["schema-id"]]} in found.updates
    moved = diff(base, table(snapshot(1, 1), snapshot(2, 2, 1)))
    assert "add-schema" not in actions(moved)


def test_gaps_in_schema_ids_are_filled_and_emptied_again():
    schemas = [schema(0), schema(3, field(1, "id"), field(2, "name", "string"))]
    found = diff(table(), table(snapshot(1, 1), schemas=schemas, current_schema_id=3, last_column_id=9))
    ids = [update["schema"]["schema-id"] for update in found.updates if update["action"] == "add-schema"]
    assert ids == [1, 2, 3, 4]
    assert found.updates[-1] == {"action": "remove-schemas", "schema-ids": [1, 2, 4]}
    assert {"action": "set-current-schema", "schema-id": 3} in found.updates
    assert max(u["last-column-id"] for u in found.updates if u["action"] == "add-schema") == 9
    assert found.losses == ()


def test_a_schema_whose_id_is_taken_gets_another_and_that_is_named():
    other = schema(0, field(1, "other"))
    found = diff(table(), table(snapshot(1, 1), schemas=[other]))
    assert found.updates[0]["schema"]["schema-id"] == 1
    assert added(found)[0]["schema-id"] == 1
    assert "schemas have other ids: 0" in found.losses


def test_a_spec_of_a_dropped_column_is_added_while_a_schema_with_it_is_current():
    schemas = [schema(0), schema(1, field(1, "id"), field(2, "day", "date")), schema(2, field(1, "id"), field(3, "x"))]
    spec = {"spec-id": 1, "fields": [{"name": "m", "transform": "month", "source-id": 2, "field-id": 1000}]}
    specs = [{"spec-id": 0, "fields": []}, spec]
    more = {"current_schema_id": 2, "last_column_id": 3, "last_partition_id": 1000}
    found = diff(table(), table(snapshot(1, 1), schemas=schemas, partition_specs=specs, **more))
    assert actions(found)[:5] == ["add-schema", "add-schema", "set-current-schema", "add-spec", "set-current-schema"]
    assert [u["schema-id"] for u in found.updates if u["action"] == "set-current-schema"] == [1, 2]


def test_another_partition_spec_of_the_same_number_is_refused():
    spec = {"spec-id": 0, "fields": [{"name": "p", "transform": "identity", "source-id": 1, "field-id": 1000}]}
    with pytest.raises(UnsupportedError):
        diff(table(), table(partition_specs=[spec]))


def test_snapshots_of_format_version_1_cannot_follow_each_other_in_a_later_version():
    with pytest.raises(UnsupportedError) as refused:
        diff(table(), table(snapshot(1, 0), snapshot(2, 0, 1)))
    assert "format version 1" in (refused.value.cause or "")
    old = {"format_version": 1}
    assert diff(table(**old), table(snapshot(1, 0), snapshot(2, 0, 1), **old)).losses != ()


def test_another_sort_order_of_the_same_number_is_refused():
    order = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    one, other = ([{"order-id": 1, "fields": [{**order, "direction": way}]}] for way in ("asc", "desc"))
    with pytest.raises(UnsupportedError):
        diff(table(sort_orders=one), table(sort_orders=other))


def test_nessie_gets_no_placeholder_and_no_removal():
    base, wanted = table(snapshot(1, 1)), table(snapshot(2, 1))
    found = diff_metadata(base, wanted, now_ms=NOW, keeps_history=False)
    assert actions(found) == ["add-snapshot", "set-snapshot-ref"]


def test_metadata_of_format_version_1_compares_with_what_it_means():
    old = {
        "format-version": 1,
        "table-uuid": "u",
        "location": "s3://b/t",
        "last-updated-ms": 5,
        "last-column-id": 1,
        "schema": {"type": "struct", "fields": [field(1, "id")]},
        "partition-spec": [{"name": "p", "transform": "identity", "source-id": 1}],
        "snapshots": [],
        "current-snapshot-id": -1,
    }
    found = normalize(old)
    assert found["partition-specs"][0]["fields"][0]["field-id"] == found["last-partition-id"] == 1000
    assert (found["refs"], found["current-snapshot-id"]) == ({}, None)
    assert find_losses(old, old) == ()


def test_every_difference_is_named():
    wanted = table(snapshot(1, 1), properties={"a": "b"}, last_column_id=4)
    wanted["refs"]["tagged"] = {"snapshot-id": 1, "type": "tag"}
    wanted["statistics"] = [{"snapshot-id": 1, "statistics-path": "s3://b/t/s.puffin"}]
    shown = table(table_uuid="v", location="s3://b/u", properties={"c": "d"})
    losses = " | ".join(find_losses(shown, wanted))
    for word in ("UUID", "location", "1 of 1 snapshots", "snapshot log", "main, tagged", "statistics of 1",
                 "differ: a", "added: c", "last-column-id", "last-sequence-number"):  # fmt: skip
        assert word in losses
