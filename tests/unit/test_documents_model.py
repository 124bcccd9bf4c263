"""The life cycle of a document, as pure functions."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from frazil.documents import lifecycle
from frazil.documents.fields import check_column
from frazil.documents.model import ARCHIVE_TIERS, RESTORE_STATES, TIERS, Column, Revision, parse_time
from frazil.errors import ConflictError, FrazilError, NotFoundError, UsageError

#: Attributes with one level more than they may have.
DEEP: dict = {}
for _ in range(64):
    DEEP = {"a": DEEP}
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
EXPIRY = NOW + timedelta(days=7)


def put(**fields) -> Revision:
    return lifecycle.put(None, {"document_id": "a", "filename": "a.pdf", **fields}, {}, NOW)


def update(current, changes, columns=None, now=LATER) -> Revision:
    return lifecycle.update(current, "a", changes, columns or {}, now)


def test_a_new_document_has_revision_one_and_defaults():
    made = put()
    assert (made.revision, made.operation, made.valid_from) == (1, "put", NOW)
    assert made.document["storage_tier"] == "standard"
    assert made.document["restore_status"] == "none"
    assert made.document["created_at"] == made.document["updated_at"] == NOW


def test_an_update_changes_only_what_it_names():
    made = update(put(tags={"a": "1", "b": "2"}, size_bytes=5), {"tags": {"a": None, "c": "3"}})
    assert made.document["tags"] == {"b": "2", "c": "3"}
    assert made.document["size_bytes"] == 5
    assert (made.revision, made.document["updated_at"]) == (2, LATER)


def test_an_update_is_a_merge_patch():
    before = put(tags={"a": "1"}, attributes={"scan": {"dpi": 300, "by": "x"}, "list": [1, None], "n": 1})
    made = update(before, {"tags": None, "attributes": {"scan": {"by": None, "at": {"y": None}}, "n": {"deep": 1}}})
    assert made.document["tags"] == {}
    assert made.document["attributes"] == {"scan": {"dpi": 300, "at": {}}, "list": [1, None], "n": {"deep": 1}}
    assert before.document["attributes"]["scan"] == {"dpi": 300, "by": "x"}


def test_a_restored_object_keeps_its_archive_tier():
    archived = put(storage_tier="archive")
    restored = update(archived, {"restore_status": "restored", "restore_expiry": int(EXPIRY.timestamp() * 1000)})
    assert restored.document["storage_tier"] == "archive"
    assert restored.document["restore_expiry"] == EXPIRY


def test_leaving_the_archive_ends_the_restore_and_needs_a_restored_copy():
    archived = put(storage_tier="archive")
    with pytest.raises(ConflictError, match="cannot go from tier 'archive' to 'standard'"):
        update(archived, {"storage_tier": "standard"})
    restored = update(archived, {"restore_status": "restored", "restore_expiry": EXPIRY})
    back = update(restored, {"storage_tier": "standard"})
    assert (back.document["restore_status"], back.document["restore_expiry"]) == ("none", None)


def reach(state: str) -> Revision:
    """An archived document in a restore state, by allowed changes."""
    paths = {"none": [], "expired": ["restored", "expired"], "failed": ["requested", "failed"]}
    made = put(storage_tier="deep_archive")
    for step in paths.get(state, [state]):
        made = update(made, {"restore_status": step, "restore_expiry": EXPIRY})
    return made


@pytest.mark.parametrize(("before", "after"), list(itertools.product(RESTORE_STATES, RESTORE_STATES)))
def test_restore_states_follow_the_table(before, after):
    current = reach(before)
    change = {"restore_status": after} | ({"restore_expiry": EXPIRY} if after == "restored" else {})
    if before == after or after in RESTORE_STATES[before]:
        assert update(current, change).document["restore_status"] == after
    else:
        with pytest.raises(ConflictError) as refused:
            update(current, change)
        assert all(allowed in refused.value.hint for allowed in RESTORE_STATES[before])


@pytest.mark.parametrize(("before", "after"), list(itertools.product(TIERS, TIERS)))
def test_tiers_follow_the_table(before, after):
    current = put(storage_tier=before)
    if before in ARCHIVE_TIERS and after not in ARCHIVE_TIERS:
        with pytest.raises(ConflictError, match="restored copy"):
            update(current, {"storage_tier": after})
    else:
        assert update(current, {"storage_tier": after}).document["storage_tier"] == after


def test_delete_and_undelete_are_revisions():
    deleted = lifecycle.delete(put(), "a", LATER)
    assert (deleted.revision, deleted.is_deleted) == (2, True)
    with pytest.raises(NotFoundError, match="was deleted"):
        update(deleted, {"filename": "b"})
    with pytest.raises(NotFoundError):
        lifecycle.delete(deleted, "a", LATER)
    back = lifecycle.undelete(deleted, "a", LATER)
    assert (back.revision, back.document["filename"]) == (3, "a.pdf")
    with pytest.raises(ConflictError, match="is not deleted"):
        lifecycle.undelete(back, "a", LATER)


def test_a_clock_set_back_does_not_reorder_revisions():
    made = update(put(), {"filename": "b"}, now=NOW - timedelta(days=1))
    assert made.valid_from == NOW


def test_a_stale_revision_is_refused():
    current = update(put(), {"filename": "b"})
    lifecycle.check_revision(current, "a", 2)
    with pytest.raises(ConflictError, match="has revision 2, and the request expects revision 1"):
        lifecycle.check_revision(current, "a", 1)
    with pytest.raises(ConflictError, match="expects that it does not exist"):
        lifecycle.check_revision(current, "a", 0)
    lifecycle.check_revision(None, "a", 0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1707000000, datetime(2024, 2, 3, 22, 40, tzinfo=UTC)),
        (1707000000000, datetime(2024, 2, 3, 22, 40, tzinfo=UTC)),
        ("1707000000000", datetime(2024, 2, 3, 22, 40, tzinfo=UTC)),
        ("2024-02-03T22:40:00Z", datetime(2024, 2, 3, 22, 40, tzinfo=UTC)),
        ("2024-02-03T23:40:00+01:00", datetime(2024, 2, 3, 22, 40, tzinfo=UTC)),
        ("2024-02-03", datetime(2024, 2, 3, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_times_are_epoch_seconds_milliseconds_or_iso(given, expected):
    assert parse_time(given) == expected


WRONG = {
    "document_id": ["", "a b", "../x", "x" * 300, 7, ["a"], None],
    "filename": ["", "  ", 7, "a\x00b", "\ud800", "x" * 2000, None],
    "content_type": ["pdf", "a/b/c d", 7, "text/html\n"],
    "size_bytes": [-1, 2**63, 1.5, "12", True],
    "checksum": ["abc", "SHA256:00", 5],
    "provider": ["AWS", "", "a b", 5],
    "bucket": [5, "a\nb"],
    "storage_tier": ["cold", "", 5, ["archive"], "ARCHIVE"],
    "restore_status": ["maybe", 5, {}],
    "created_at": [
        "yesterday",
        True,
        float("nan"),
        float("inf"),
        10**30,
        "0001-01-01T00:00:00+14:00",
        NOW + timedelta(days=1),
    ],
    "restore_expiry": ["soon", []],
    "tags": [["a"], {"a": 5}, {"": "x"}, {"a": "x" * 300}, {str(i): "x" for i in range(300)}, {"a": "x" * 10_000_000}],
    "attributes": ["{", "[1]", 5, {"a": float("nan")}, {"a": object()}, {"a": "x" * 70_000}, DEEP],
    "no_such_field": [1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_field_is_refused_by_name_with_a_hint(name, value):
    with pytest.raises(FrazilError) as refused:
        put(**{name: value})
    assert name in refused.value.message
    assert refused.value.hint
    assert len(refused.value.message) < 300


def test_names_may_look_like_sql_or_html():
    for name in ("'; DROP TABLE documents; --", "<script>alert(1)</script>", "%_\\", "日本語.pdf"):
        assert put(filename=name).document["filename"] == name


def test_created_at_and_id_cannot_be_changed():
    current = put()
    assert update(current, {"created_at": NOW, "size_bytes": 1}).document["created_at"] == NOW
    with pytest.raises(UsageError, match="'created_at' of document 'a' cannot be changed"):
        update(current, {"created_at": LATER - timedelta(days=3)})


def test_a_record_that_was_read_can_be_sent_back():
    record = put(tags={"a": "1"}, attributes={"pages": [1, {"x": None}]}).document.to_dict()
    again = lifecycle.put(put(), record, {}, LATER)
    assert again.document["attributes"] == {"pages": [1, {"x": None}]}
    assert again.revision == 2


def test_added_columns_are_checked_and_kept():
    columns = {"pages": Column("pages", "long"), "seen": Column("seen", "timestamp")}
    made = lifecycle.put(None, {"document_id": "a", "filename": "a", "pages": 3, "seen": "2026-01-01"}, columns, NOW)
    changed = update(made, {"seen": None}, columns)
    assert (changed.document["pages"], changed.document["seen"]) == (3, None)
    with pytest.raises(UsageError, match="'pages' is invalid"):
        update(made, {"pages": "3"}, columns)


@pytest.mark.parametrize("name", ["filename", "valid_from", "Pages", "1a", "a-b", "", "x" * 70, "a;drop"])
def test_columns_have_plain_new_names(name):
    with pytest.raises(UsageError, match="column name"):
        check_column(name, "long")
