"""Which part of a history is restored, and where its folders go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from frazil.backup.restore_contents import SeenSet, get_refs, map_folders, select_history
from frazil.backup.restore_location import check_location
from frazil.errors import NotAllowedError, NotFoundError, UsageError
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.table_metadata import trim_metadata


def metadata(**changes: Any) -> dict[str, Any]:
    """Three snapshots; the second added a column, the third partitions by it."""
    columns = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "day", "type": "date"}]
    snapshots = [
        {"snapshot-id": n, "parent-snapshot-id": n - 1 or None, "timestamp-ms": n * 1000, "sequence-number": n,
         "schema-id": min(n, 2) - 1, "manifest-list": f"/t/metadata/{n}.avro", "summary": {"operation": "append"}}
        for n in (1, 2, 3)
    ]  # fmt: skip
    return {
        "format-version": 2, "table-uuid": "u", "location": "/t", "last-sequence-number": 3, "last-updated-ms": 3000,
        "last-column-id": 2, "current-schema-id": 1, "default-spec-id": 1, "last-partition-id": 1000,
        "schemas": [
            {"type": "struct", "schema-id": 0, "fields": columns[:1]},
            {"type": "struct", "schema-id": 1, "fields": columns},
        ],
        "partition-specs": [
            {"spec-id": 0, "fields": []},
            {"spec-id": 1, "fields": [{"source-id": 2, "field-id": 1000, "name": "day", "transform": "identity"}]},
        ],
        "default-sort-order-id": 0, "sort-orders": [{"order-id": 0, "fields": []}], "properties": {},
        "current-snapshot-id": 3, "snapshots": snapshots,
        "snapshot-log": [{"snapshot-id": n, "timestamp-ms": n * 1000} for n in (1, 2, 3)],
        "metadata-log": [], "statistics": [],
        "refs": {
            "main": {"snapshot-id": 3, "type": "branch"},
            "old": {"snapshot-id": 1, "type": "tag"},
            "new": {"snapshot-id": 3, "type": "tag"},
        },
        **changes,
    }  # fmt: skip


def test_all_of_a_history_is_the_same_metadata():
    whole = metadata()
    assert select_history(whole) == (whole, [])
    assert select_history(whole, snapshot=3) == (whole, [])


def test_a_snapshot_takes_its_columns_and_a_partitioning_that_fits_them():
    found, notes = select_history(metadata(), snapshot=1)
    assert [s["snapshot-id"] for s in found["snapshots"]] == [1]
    assert sorted(get_refs(found)) == ["main", "old"]
    assert (found["current-schema-id"], found["default-spec-id"]) == (0, 0)
    assert len(notes) == 2
    assert "new" in notes[1]
    found, _ = select_history(metadata(), snapshot=2)
    assert (found["current-schema-id"], found["default-spec-id"]) == (1, 1)


@pytest.mark.parametrize(("second", "expected"), [(1, 1), (2.999, 2), (3, 3), (99, 3)])
def test_a_time_chooses_what_was_current_then(second, expected):
    found, _ = select_history(metadata(), as_of=datetime.fromtimestamp(second, UTC))
    assert found["current-snapshot-id"] == expected


def test_after_a_clock_was_set_back_a_time_means_what_it_means_to_engines():
    log = [{"snapshot-id": n, "timestamp-ms": t} for n, t in ((1, 1000), (2, 5000), (3, 4000))]
    found, _ = select_history(metadata(**{"snapshot-log": log}), as_of=datetime.fromtimestamp(5, UTC))
    assert found["current-snapshot-id"] == 3


def test_what_is_not_in_the_history_is_refused():
    with pytest.raises(NotFoundError, match="no snapshot 9"):
        select_history(metadata(), snapshot=9)
    with pytest.raises(NotFoundError, match="current at"):
        select_history(metadata(), as_of=datetime.fromtimestamp(0.5, UTC))
    with pytest.raises(UsageError):
        select_history(metadata(), snapshot=1, as_of=datetime.now(UTC))


def test_a_backup_of_a_tag_has_no_current_snapshot_and_says_so():
    tag = trim_metadata(metadata(), refs=["old"])
    found, notes = select_history(tag)
    assert found is tag
    assert "old" in notes[0]
    with pytest.raises(NotFoundError, match="no current snapshot") as caught:
        select_history(tag, current_only=True)
    assert caught.value.hint == "--snapshot 1"
    found, _ = select_history(tag, snapshot=1, current_only=True)
    assert found["current-snapshot-id"] == 1
    assert list(get_refs(found)) == ["main"]


def test_only_the_current_snapshot():
    found, notes = select_history(metadata(), current_only=True)
    assert [s["snapshot-id"] for s in found["snapshots"]] == [3]
    assert list(get_refs(found)) == ["main"]
    assert len(notes) == 2


def test_every_folder_gets_a_place_below_the_target():
    folders = ("/w/t", "s3://other/data", "/w/t/metadata", "/elsewhere")
    pairs = map_folders(folders, "/new/t", "backup-1")
    assert pairs[0] == ("/w/t", "/new/t")
    assert [source for source, _ in pairs] == ["/w/t", "s3://other/data", "/elsewhere"]
    targets = [target for _, target in pairs]
    assert len(set(targets)) == 3
    assert all(target.startswith("/new/t/relocated/") for target in targets[1:])
    assert map_folders(folders, "/new/t", "backup-2")[1] != pairs[1], "a table that was restored before has its own"
    assert PrefixMap(pairs).map("file:/w/t/data/x") == "/new/t/data/x"


@pytest.mark.parametrize("location", ["/a/../b", "s3://b/./x", "/", "s3://bucket", "s3://bucket/", "file:///"])
def test_places_that_nothing_is_restored_to(location):
    with pytest.raises(NotAllowedError):
        check_location(location)


def test_a_place_is_absolute():
    with pytest.raises(UsageError):
        check_location("some/where")
    assert check_location("s3a://b/x/") == "s3a://b/x"


def test_a_set_of_texts_by_their_digests():
    seen = SeenSet()
    assert [seen.add(text) for text in ("a", "b", "a")] == [True, True, False]
    assert ("a" in seen, seen.discard("a"), seen.discard("a"), len(seen)) == (True, True, False, 1)
