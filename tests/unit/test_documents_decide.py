"""Which revisions a batch of writes makes: the same on every store."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from frazil.documents.decide import MAX_WRITES, decide_writes, ids_of, keys_of, new_document_id, next_moment
from frazil.documents.model import Column
from frazil.documents.store import Write
from frazil.errors import ConflictError, NotFoundError, UsageError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
COLUMNS = {"pages": Column("pages", "long")}


def decide(*writes: Write, current=(), repeats=None, now=NOW):
    latest = {revision.document_id: revision for revision in current}
    return decide_writes(writes, latest, repeats or {}, COLUMNS, now)


def put(**values) -> Write:
    return Write("put", None, {"filename": "a.pdf", **values})


def first(**values):
    return decide(put(document_id="d", **values))[0].revision


def test_a_document_without_an_id_gets_a_uuid_of_version_7_and_later_ones_sort_later():
    made = [decide(put(), now=NOW + timedelta(seconds=i))[0].revision.document_id for i in range(20)]
    assert made == sorted(made)
    assert len(set(made)) == 20
    assert {uuid.UUID(document_id).version for document_id in made} == {7}
    assert {uuid.UUID(new_document_id(NOW)).variant for _ in range(20)} == {uuid.RFC_4122}


def test_writes_of_one_batch_see_each_other():
    made = decide(
        put(document_id="d"),
        Write("update", "d", {"filename": "b.pdf"}, if_match=1),
        Write("delete", "d", if_match=2),
        Write("undelete", "d", if_match=3),
    )
    assert [(d.revision.operation, d.revision.revision) for d in made] == [
        ("put", 1),
        ("update", 2),
        ("delete", 3),
        ("undelete", 4),
    ]
    assert made[-1].revision.document.filename == "b.pdf"
    assert {d.revision.valid_from for d in made} == {NOW}


def test_one_refused_write_refuses_the_batch_and_says_which_it_is():
    with pytest.raises(ConflictError) as refused:
        decide(put(document_id="d"), Write("update", "d", {"filename": "b"}, if_match=7))
    assert "write 2 of 2" in str(refused.value.message)
    assert refused.value.to_dict()["write"] == 2


@pytest.mark.parametrize(
    ("operation", "if_match"), [("put", 2), ("put", 0), ("update", 2), ("update", 0), ("delete", 2), ("undelete", 9)]
)
def test_another_revision_than_expected_is_a_conflict(operation, if_match):
    with pytest.raises(ConflictError):
        decide(Write(operation, "d", {"filename": "b"}, if_match), current=[first()])


def test_a_put_that_expects_no_document_brings_a_deleted_one_back_as_its_next_revision():
    deleted = decide(Write("delete", "d"), current=[first()])[0].revision
    made = decide(Write("put", "d", {"filename": "b"}, if_match=0), current=[deleted])[0].revision
    assert (made.revision, made.document.filename) == (3, "b")


def test_an_unknown_document_is_not_found_whatever_revision_is_expected():
    for operation in ("update", "delete", "undelete"):
        with pytest.raises(NotFoundError):
            decide(Write(operation, "d", {"filename": "b"}))
    with pytest.raises(NotFoundError):
        decide(Write("update", "d", {"filename": "b"}, if_match=4))


def test_a_repeated_request_gets_its_first_result_and_makes_nothing():
    write = Write("put", None, {"filename": "a", "tags": {"x": "y", "a": "b"}}, idempotency_key="k")
    made = decide(write)[0]
    assert made.idempotency_key == "k"
    again = Write("put", None, {"tags": {"a": "b", "x": "y"}, "filename": "a"}, idempotency_key="k")
    repeated = decide(again, repeats={"k": made}, now=NOW + timedelta(days=1))[0]
    assert repeated.is_repeat
    assert repeated.revision == made.revision
    both = decide(write, again)
    assert both[1].is_repeat
    assert both[1].revision == both[0].revision


@pytest.mark.parametrize(
    "other",
    [
        Write("put", None, {"filename": "b"}, idempotency_key="k"),
        Write("put", "d", {"filename": "a"}, idempotency_key="k"),
        Write("put", None, {"filename": "a"}, 0, idempotency_key="k"),
        Write("update", "d", {"filename": "a"}, idempotency_key="k"),
    ],
)
def test_the_key_of_another_request_is_a_conflict(other):
    made = decide(Write("put", None, {"filename": "a"}, idempotency_key="k"))[0]
    with pytest.raises(ConflictError, match="belongs to another request"):
        decide(other, repeats={"k": made})


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", "\ud800", 5, b"k", ["k"]])
def test_a_key_that_is_none_is_refused(key):
    with pytest.raises(UsageError):
        keys_of([Write("put", None, {"filename": "a"}, idempotency_key=key)])
    with pytest.raises(UsageError):
        decide(Write("put", None, {"filename": "a"}, idempotency_key=key))


@pytest.mark.parametrize(
    "write",
    [
        Write("put", "d", {"filename": "a", "document_id": "e"}),
        Write("put", None, {"filename": "a", "document_id": ""}),
        Write("put", None, {"filename": "a", "document_id": None}),
        Write("put", "../etc", {"filename": "a"}),
        Write("put", 7, {"filename": "a"}),
        Write("put", "d", {"filename": "a"}, if_match=-1),
        Write("put", "d", {"filename": "a"}, if_match=True),
        Write("put", "d", {"filename": "a"}, if_match="1"),
        Write("put", "d", "filename"),
        Write("put", "d", ["filename"]),
        Write("put", "d", None),
        Write("merge", "d", {"filename": "a"}),
        Write(None, "d", {"filename": "a"}),
        Write("update", None, {"filename": "a"}),
        Write("update", "no such id", {"filename": "a"}),
        Write("delete", 5),
        Write("delete", "d\0"),
        Write("undelete", "d" * 256),
        Write("put", "d", {"filename": "a", "x": object()}, idempotency_key="k"),
    ],
)
def test_a_request_that_is_wrong_in_itself_is_refused(write):
    with pytest.raises(UsageError):
        decide(write)


def test_too_many_writes_at_once_are_refused():
    with pytest.raises(UsageError, match="50,001 writes"):
        decide(*[put()] * (MAX_WRITES + 1))


def test_only_ids_that_can_exist_are_looked_up():
    writes = [put(document_id="a"), Write("update", "b"), Write("delete", "c\0"), Write("put", 5, {}), put()]
    assert ids_of([*writes, Write("put", None, "x")]) == {"a", "b"}


def test_moments_never_repeat_even_if_the_clock_is_set_back():
    assert next_moment(None, NOW) == NOW
    assert next_moment(NOW - timedelta(hours=1), NOW) == NOW
    assert next_moment(NOW, NOW) == NOW + timedelta(microseconds=1)
    assert next_moment(NOW, NOW - timedelta(days=1)) == NOW + timedelta(microseconds=1)


def test_a_cleared_added_column_is_absent():
    current = first(pages=12)
    assert current.document.columns == {"pages": 12}
    made = decide(Write("update", "d", {"pages": None}), current=[current])[0].revision
    assert made.document.columns == {}


def test_a_small_batch_that_would_repeat_a_large_document_many_times_is_refused():
    large = first(attributes={"text": "x" * 60_000})
    updates = [Write("update", "d", {"size_bytes": number}) for number in range(2_000)]
    with pytest.raises(UsageError, match="revisions of more than 64 MiB"):
        decide(*updates, current=[large])
    assert len(decide(*updates[:500], current=[large])) == 500
