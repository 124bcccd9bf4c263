"""What Frazil promises of every store of documents. One suite, all kinds, real servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from frazil.documents.convenience import Convenience
from frazil.documents.decide import KEY_AGE
from frazil.documents.model import Column, Revision
from frazil.documents.sql import reads
from frazil.documents.store import SORT_FIELDS, DocumentFilter, DocumentStore, Write
from frazil.errors import ConflictError, NotFoundError, UsageError
from tests.documents_kit import (
    PLACES,
    START,
    Chance,
    Clock,
    Oracle,
    Place,
    all_pages,
    kinds,
    outcome,
    place_of,
    require_same_past,
    run_schedule,
)

EXPIRY = "2026-04-01T00:00:00Z"
FULL = {
    "document_id": "all:fields@1",
    "filename": "Jahresbericht 2025 – ü.pdf ",
    "content_type": "application/pdf; charset=utf-8",
    "size_bytes": 2**63 - 1,
    "checksum": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "provider": "aws",
    "bucket": "archive",
    "object_key": "2025/'quoted' \"path\"/%_\\.pdf",
    "version_id": "3/L4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY+MTRCxf3vjVBH40Nr8X8gdRQBpUMLUo",
    "storage_tier": "deep_archive",
    "restore_status": "restored",
    "restore_requested_at": "2026-02-28T11:59:59.123456Z",
    "restore_expiry": "9999-12-30T00:00:00Z",
    "created_at": "0001-01-02T00:00:00.000001Z",
    "tags": {"Project": "Apollo 😀", "empty": "", "ключ": "значение"},
    "attributes": {"pages": 12, "big": 2**63, "ratio": 0.1, "deep": {"list": [1, None, {"a": "ü\u0000"}]}, "": "x"},
}


@pytest.fixture(params=kinds())
def place(request, services, tmp_path: Path) -> Place:
    return place_of(request.param, services, tmp_path)


@pytest.fixture(params=list(PLACES))
def any_place(request, services, tmp_path: Path) -> Place:
    """For the promises that `make test` shows on every kind of store."""
    return place_of(request.param, services, tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place, clock):
    with place.open(now=clock) as made:
        yield made


def put(store: DocumentStore, document_id: str, **values):
    return store.put_metadata({"document_id": document_id, "filename": f"{document_id}.pdf", **values})


def state_of(store: DocumentStore):
    """All that a store can answer about the present and the past."""
    return [revision for batch in store.revisions() for revision in batch], store.get_statistics(), store.columns()


# -- the record


def test_every_field_comes_back_as_it_was_written_now_and_from_the_past(any_place, clock):
    with any_place.open(now=clock) as store:
        made = store.put_metadata(FULL)
        expected = {**made}
        assert {name: made.to_dict()[name] for name in ("filename", "object_key", "tags", "attributes")} == {
            name: FULL[name] for name in ("filename", "object_key", "tags", "attributes")
        }
        assert made.created_at == datetime(1, 1, 2, microsecond=1, tzinfo=UTC)
    with any_place.open(now=clock) as store:
        for found in (
            store.get_metadata("all:fields@1"),
            store.get_time_travel_snapshot("all:fields@1", made.updated_at),
            store.history("all:fields@1")[0].document,
            store.page().documents[0],
            store.list_metadata(as_of=made.updated_at)[0],
        ):
            assert {**found} == expected
            assert [type(value) for value in found.values()] == [type(value) for value in made.values()]


def test_a_minimal_document_gets_the_defaults(store, clock):
    made = store.put_metadata({"filename": "a.pdf"})
    assert (made.storage_tier, made.restore_status, made.tags, made.attributes) == ("standard", "none", {}, {})
    assert made.created_at == made.updated_at == START
    assert store.get_metadata(made.document_id) == made


def test_a_document_is_put_updated_deleted_and_brought_back(store, clock):
    made = put(store, "d", tags={"a": "1", "b": "2"})
    clock.advance(seconds=1)
    changed = store.update_metadata("d", {"tags": {"b": None, "c": "3"}, "provider": "aws"}, if_match=made.revision)
    assert (changed.tags, changed.provider, changed.revision) == ({"a": "1", "c": "3"}, "aws", 2)
    assert store.get_metadata("d") == changed
    clock.advance(seconds=1)
    deleted = store.delete_metadata("d")
    assert deleted.tags == changed.tags
    with pytest.raises(NotFoundError, match="was deleted at 2026-03-01T12:00:02"):
        store.get_metadata("d")
    assert store.list_metadata() == []
    assert store.undelete_metadata("d").revision == 4
    assert [revision.operation for revision in store.history("d")] == ["put", "update", "delete", "undelete"]


# -- one winner


def test_a_stale_revision_is_refused_and_changes_nothing(store):
    put(store, "d")
    store.update_metadata("d", {"provider": "aws"}, if_match=1)
    before = state_of(store)
    for call in (
        lambda: store.update_metadata("d", {"provider": "gcs"}, if_match=1),
        lambda: store.delete_metadata("d", if_match=1),
        lambda: store.put_metadata({"document_id": "d", "filename": "x"}, if_match=0),
        lambda: store.put_metadata({"document_id": "d", "filename": "x"}, if_match=3),
    ):
        with pytest.raises(ConflictError):
            call()
    assert state_of(store) == before


def test_of_many_threads_that_write_one_revision_one_wins(any_place):
    with any_place.open() as store:
        put(store, "d")
        start, results = threading.Barrier(8), []

        def write(number: int) -> None:
            start.wait()
            results.append(outcome(lambda: store.update_metadata("d", {"provider": f"p{number}"}, if_match=1)))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(isinstance(result, type) and issubclass(result, ConflictError) for result in results) == 7
        assert [revision.revision for revision in store.history("d")] == [1, 2]


def test_many_writers_lose_no_update_and_leave_no_gap(any_place):
    """Each thread has its own store object, as processes have."""
    writers, writes = 4, 6
    with any_place.open() as store:
        put(store, "d", attributes={})

        def work(number: int) -> None:
            with any_place.open() as own:
                for turn in range(writes):
                    own.update_metadata("d", {"attributes": {f"w{number}-{turn}": 1}})
                    own.put_metadata({"filename": f"w{number}-{turn}"})

        threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        history = store.history("d")
        assert [revision.revision for revision in history] == list(range(1, writers * writes + 2))
        assert len(history[-1].document.attributes) == writers * writes
        moments = [revision.valid_from for batch in store.revisions() for revision in batch]
        assert len(set(moments)) == len(moments) == 2 * writers * writes + 1
        assert store.get_statistics()["total_documents"] == writers * writes + 1


_RACER = """
import sys
from frazil.documents.sql.store import SqlDocumentStore
from frazil.errors import ConflictError
store = SqlDocumentStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
won = 0
for revision in range(1, 41):
    try:
        store.update_metadata("d", {"provider": sys.argv[2]}, if_match=revision)
        won += 1
    except ConflictError:
        pass
    while store.history("d")[-1].revision == revision:
        pass
print(won, flush=True)
"""


def test_of_two_processes_that_write_the_same_revisions_one_wins_each(place):
    if place.url is None:
        pytest.skip("its processes meet at the owner of the log: see the tests of the Iceberg store")
    with place.open() as store:
        put(store, "d")
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", _RACER, place.url, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in ("left", "right")
        ]
        assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 2
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        won = [int(racer.communicate(timeout=120)[0]) for racer in racers]
        history = store.history("d")
        assert [revision.revision for revision in history] == list(range(1, 42))
        assert sum(won) == 40
        by_name = [sum(r.document.provider == name for r in history) for name in ("left", "right")]
        assert won == by_name


# -- batches and repetitions


def test_a_batch_is_applied_in_order_and_at_one_moment(store):
    made = store.write(
        [
            Write("put", "a", {"filename": "a"}),
            Write("put", "b", {"filename": "b"}),
            Write("update", "a", {"provider": "aws"}, if_match=1),
            Write("delete", "b"),
        ]
    )
    assert [(r.document_id, r.revision) for r in made] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert {r.valid_from for r in made} == {made[0].valid_from}
    assert [d.document_id for d in store.list_metadata()] == ["a"]
    assert [d.provider for d in store.list_metadata(as_of=made[0].valid_from)] == ["aws"]
    assert store.write([]) == []


def test_one_refused_write_of_a_batch_changes_nothing(store):
    put(store, "d")
    before = state_of(store)
    good = [Write("put", None, {"filename": "x"}), Write("update", "d", {"provider": "aws"})]
    for bad in (Write("update", "d", {"no_such": 1}), Write("delete", "nobody"), Write("update", "d", {}, if_match=9)):
        with pytest.raises((UsageError, NotFoundError, ConflictError), match="write 3 of 3"):
            store.write([*good, bad])
    assert state_of(store) == before


def test_a_repeated_request_returns_its_first_result_even_later_and_elsewhere(any_place, clock):
    with any_place.open(now=clock) as store:
        made = store.put_metadata({"filename": "a"}, idempotency_key="k1")
        deleted = store.delete_metadata(made.document_id, idempotency_key="k2")
        clock.advance(days=1)
    with any_place.open(now=clock) as store:
        assert store.put_metadata({"filename": "a"}, idempotency_key="k1") == made
        assert store.delete_metadata(made.document_id, idempotency_key="k2") == deleted
        assert len(store.history(made.document_id)) == 2
        with pytest.raises(ConflictError, match="belongs to another request"):
            store.put_metadata({"filename": "b"}, idempotency_key="k1")
        assert store.get_statistics()["total_documents"] == 0


def test_an_idempotency_key_is_forgotten_after_its_age_and_is_free_again(any_place, clock):
    with any_place.open(now=clock) as store:
        made = store.put_metadata({"filename": "a"}, idempotency_key="k1")
        clock.advance(seconds=KEY_AGE.total_seconds() - 1)
        assert store.put_metadata({"filename": "a"}, idempotency_key="k1") == made
    clock.advance(seconds=2)
    with any_place.open(now=clock) as store:
        other = store.put_metadata({"filename": "b"}, idempotency_key="k1")
        assert other.document_id != made.document_id
        assert store.put_metadata({"filename": "b"}, idempotency_key="k1") == other
        assert [len(store.history(d.document_id)) for d in (made, other)] == [1, 1]


def test_old_idempotency_keys_are_removed_by_later_ones(store, clock):
    """A few with each write, so that there are never many more than those that count."""
    first = [Write("put", f"old{n}", {"filename": "a"}, None, f"old{n}") for n in range(300)]
    store.write(first)
    clock.advance(days=KEY_AGE.days + 1)
    for batch in range(10):
        store.write([Write("put", f"n{batch}-{n}", {"filename": "a"}, None, f"n{batch}-{n}") for n in range(50)])
    kept = [s.idempotency_key for batch in store.stored_revisions() for s in batch if s.idempotency_key]
    assert len([key for key in kept if key.startswith("n")]) == 500
    assert not [key for key in kept if key.startswith("old")]


# -- the past


def test_the_past_is_answered_as_it_was_acknowledged(any_place, clock):
    with any_place.open(now=clock) as store:
        first = put(store, "d", size_bytes=10, storage_tier="archive")
        clock.advance(hours=1)
        second = store.update_metadata("d", {"size_bytes": 20})
        clock.advance(hours=1)
        store.delete_metadata("d")
        clock.advance(hours=1)
        store.undelete_metadata("d")
        before, micro = START - timedelta(microseconds=1), timedelta(microseconds=1)
        for as_of, expected in (
            (START, first),
            (second.updated_at - micro, first),
            (second.updated_at, second),
            ((START + timedelta(hours=1, minutes=59)).timestamp(), second),
            ((START + timedelta(hours=1, minutes=59)).timestamp() * 1000, second),
            ("2026-03-01T13:30:00+00:00", second),
        ):
            assert store.get_time_travel_snapshot("d", as_of) == expected
            assert store.list_metadata(as_of=as_of) == [expected]
            assert store.get_statistics(as_of=as_of)["total_size_bytes"] == expected.size_bytes
        with pytest.raises(NotFoundError, match=r"did not exist at 2026-03-01T11:59:59\.999999Z"):
            store.get_time_travel_snapshot("d", before)
        with pytest.raises(NotFoundError, match="was deleted at 2026-03-01T14:00:00"):
            store.get_time_travel_snapshot("d", START + timedelta(hours=2, minutes=1))
        with pytest.raises(NotFoundError, match="'nobody' does not exist"):
            store.get_time_travel_snapshot("nobody", START)
        assert store.list_metadata(as_of=before) == store.list_metadata(as_of=START + timedelta(hours=2)) == []
        assert store.list_metadata(as_of="9999-01-01")[0].revision == 4


def test_a_clock_that_is_set_back_does_not_change_the_past(store, clock):
    first = put(store, "d")
    clock.advance(days=-30)
    second = store.update_metadata("d", {"provider": "aws"})
    other = put(store, "e")
    assert first.updated_at < second.updated_at < other.updated_at
    assert other.created_at == other.updated_at
    assert store.get_time_travel_snapshot("d", first.updated_at) == first
    assert store.list_metadata(as_of=second.updated_at) == [second]


# -- listing


@pytest.fixture(scope="module", params=kinds())
def library(request, services, tmp_path_factory):
    """Documents that differ in all that a filter looks at, and the moment at which they are there. Tests only read."""
    clock = Clock()
    place = place_of(request.param, services, tmp_path_factory.mktemp("library"), "library")
    with place.open(now=clock) as store:
        yield store, fill_library(store, clock)


def fill_library(store: DocumentStore, clock: Clock) -> datetime:
    rows = [
        ("alpha.pdf", 10, "standard", "aws", "application/pdf", {"Project": "Apollo", "year": "1969"}),
        ("Alpha.pdf", None, "archive", "aws", "application/pdf", {"project": "apollo"}),
        ("beta 100%.txt", 0, "archive", "azure", "text/plain", {}),
        ("beta_100x.txt", 2**40, "deep_archive", None, "text/plain", {"note": "Straße"}),
        ("ütopia \U0001f600.txt", 7, "infrequent", "gcs", None, {"x\\y": 'a"b'}),
    ]
    for n, (name, size, tier, provider, kind, tags) in enumerate(rows):
        store.put_metadata(
            {
                "document_id": f"d{n}",
                "filename": name,
                "size_bytes": size,
                "storage_tier": tier,
                "provider": provider,
                "content_type": kind,
                "tags": tags,
                "created_at": START - timedelta(days=n),
                "bucket": f"bucket-{n % 2}",
                "object_key": name,
            }
        )
    store.update_metadata("d1", {"restore_status": "restored", "restore_expiry": EXPIRY})
    moment = store.get_metadata("d1").updated_at
    clock.advance(hours=1)
    store.write([Write("delete", f"d{n}") for n in range(5)])
    store.put_metadata({"document_id": "later", "filename": "alpha.pdf later"})
    return moment


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, "01234"),
        ({"storage_tier": "archive"}, "12"),
        ({"provider": "aws"}, "01"),
        ({"restore_status": "restored"}, "1"),
        ({"restore_status": "none", "provider": "aws"}, "0"),
        ({"content_type": "text/plain"}, "23"),
        ({"bucket": "bucket-1"}, "13"),
        ({"object_key": "Alpha.pdf"}, "1"),
        ({"start_date": START - timedelta(days=1)}, "01"),
        ({"end_date": START - timedelta(days=1)}, "234"),
        ({"start_date": "2026-02-26T12:00:00Z", "end_date": (START - timedelta(days=1)).timestamp()}, "23"),
        ({"start_date": START, "end_date": START}, ""),
        ({"min_size": 7}, "034"),
        ({"max_size": 9}, "24"),
        ({"min_size": 0, "max_size": 0}, "2"),
        ({"min_size": -5}, "0234"),
        ({"name_prefix": "a"}, "0"),
        ({"name_prefix": "alpha"}, "0"),
        ({"name_prefix": "Alpha.pdf"}, "1"),
        ({"name_prefix": "beta 100%"}, "2"),
        ({"name_prefix": "beta_"}, "3"),
        ({"name_prefix": "ü"}, "4"),
        ({"name_prefix": "ütopia \U0001f600"}, "4"),
        ({"name_prefix": "\U0010ffff"}, ""),
        ({"name_prefix": ""}, "01234"),
        ({"words": "ALPHA"}, "01"),
        ({"words": "apollo alpha"}, "01"),
        ({"words": "1969 apollo"}, "0"),
        ({"words": "STRASSE"}, "3"),
        ({"words": "100%"}, "2"),
        ({"words": "_"}, "3"),
        ({"words": "ÜTOPIA \U0001f600"}, "4"),
        ({"words": "   "}, "01234"),
        ({"words": "' OR 1=1 --"}, ""),
        ({"tags": {"Project": "Apollo"}}, "0"),
        ({"tags": {"project": "apollo"}}, "1"),
        ({"tags": {"project": "Apollo"}}, ""),
        ({"tags": {"Project": None}}, "0"),
        ({"tags": {"Project": None, "year": "1969"}}, "0"),
        ({"tags": {"year": "196"}}, ""),
        ({"tags": {"x\\y": 'a"b'}}, "4"),
        ({"tags": {}}, "01234"),
    ],
)
def test_filters_find_what_they_say(library, conditions, expected):
    store, moment = library
    where = DocumentFilter(**conditions)
    assert "".join(sorted(d.document_id[1:] for d in all_pages(store, where, as_of=moment))) == expected
    assert [d.document_id[1:] for d in store.list_metadata(**conditions, as_of=moment)] == list(expected)
    assert "".join(d.document_id[1:] for b in store.iterate(where, as_of=moment) for d in b) == expected[::-1]


def test_the_present_is_filtered_like_the_past(store, clock):
    fill_library(store, clock)
    store.write([Write("undelete", f"d{n}") for n in range(5)])
    for conditions, expected in (
        ({"words": "apollo"}, "01"),
        ({"tags": {"Project": None}}, "0"),
        ({"min_size": 8}, "03"),
    ):
        assert [d.document_id[1:] for d in store.list_metadata(**conditions)] == list(expected)
    assert [d.document_id for d in store.list_metadata("archive", START - timedelta(days=2), START)] == ["d1", "d2"]
    assert [d.document_id for d in store.list_metadata(limit=2)] == ["later", "d0"]


@pytest.mark.parametrize("descending", [True, False])
def test_texts_are_ordered_by_code_point_and_missing_sizes_are_the_smallest(store, descending):
    names = ["B", "Z ", "Z", "a", "b", "z", "~", "ä", "Ä", "\ud7ff", "\ue000", "\uffff", "\U0001f600", "Z!"]
    for n, name in enumerate(names):
        put(store, f"d{n}", size_bytes=None if n % 3 == 0 else n % 3)
        store.update_metadata(f"d{n}", {"filename": name})
    found = [d.filename for d in all_pages(store, sort="filename", descending=descending, limit=3)]
    assert found == sorted(names, reverse=descending)
    sizes = [d.size_bytes or 0 for d in all_pages(store, sort="size_bytes", descending=descending, limit=2)]
    assert sizes == sorted(sizes, reverse=descending)
    assert len(sizes) == len(names)


@pytest.mark.parametrize("sort", SORT_FIELDS)
def test_pages_neither_repeat_nor_skip_what_did_not_change_while_rows_change(store, clock, sort):
    chance = Chance(3)
    ids = [f"d{n:02}" for n in range(40)]
    for document_id in ids:
        fields = {name: chance.fields()[name] for name in ("filename", "size_bytes")}
        put(store, document_id, **fields, created_at=START - timedelta(days=chance.random.randint(0, 3)))
        clock.advance(microseconds=chance.random.randint(0, 1))
    touched, found, cursor = set(), [], None
    while True:
        page = store.page(sort=sort, limit=7, cursor=cursor)
        found += [d.document_id for d in page.documents]
        cursor = page.next_cursor
        if cursor is None:
            break
        clock.advance(seconds=1)
        changed, removed = chance.random.sample(sorted(set(ids) - touched), 2)
        touched |= {changed, removed}
        store.update_metadata(changed, {"filename": chance.text(), "size_bytes": chance.random.randint(0, 9)})
        store.delete_metadata(removed)
        store.put_metadata({"filename": chance.text()})
    unchanged = [document_id for document_id in found if document_id in set(ids) - touched]
    assert sorted(unchanged) == sorted(set(ids) - touched)


def test_the_pages_of_a_past_moment_do_not_change(store, clock):
    for n in range(20):
        put(store, f"d{n}")
    moment = clock.advance(seconds=1)
    clock.advance(seconds=1)
    page = store.page(limit=8, as_of=moment, sort="filename")
    store.write([Write("delete", f"d{n}") for n in range(0, 20, 2)])
    rest = store.page(limit=50, as_of=moment.isoformat(), sort="filename", cursor=page.next_cursor)
    assert len({d.document_id for d in page.documents + rest.documents}) == 20
    assert rest.next_cursor is None


def test_a_forged_or_foreign_cursor_is_refused(store, place, services, tmp_path):
    for n in range(5):
        put(store, f"d{n}")
    cursor = store.page(limit=2).next_cursor
    where = DocumentFilter(provider="aws")
    for wrong in (
        lambda: store.page(limit=2, cursor=cursor[:-4] + "AAAA"),
        lambda: store.page(limit=2, cursor=("B" if cursor[0] == "A" else "A") + cursor[1:]),
        lambda: store.page(limit=2, cursor="' OR 1=1 --"),
        lambda: store.page(limit=2, cursor=""),
        lambda: store.page(where, limit=2, cursor=cursor),
        lambda: store.page(limit=2, cursor=cursor, sort="filename"),
        lambda: store.page(limit=2, cursor=cursor, descending=False),
        lambda: store.page(limit=2, cursor=cursor, as_of=START),
    ):
        with pytest.raises(UsageError, match="cursor is invalid"):
            wrong()
    with place.open() as again:
        assert len(again.page(limit=3, cursor=cursor).documents) == 3


@pytest.mark.parametrize(
    "conditions",
    [
        {"storage_tier": "glacier"},
        {"storage_tier": 5},
        {"restore_status": "RESTORED"},
        {"restore_status": "' OR 1=1 --"},
        {"provider": ["aws"]},
        {"bucket": "a\0b"},
        {"object_key": "x" * 2000},
        {"content_type": "\ud800"},
        {"start_date": "yesterday"},
        {"start_date": 10**30},
        {"end_date": float("nan")},
        {"end_date": True},
        {"min_size": "1"},
        {"max_size": 1.5},
        {"max_size": 2**63},
        {"min_size": True},
        {"tags": ["x"]},
        {"tags": {"": "x"}},
        {"tags": {"a": 5}},
        {"tags": {f"t{n}": "x" for n in range(1000)}},
        {"name_prefix": 5},
        {"name_prefix": "\ud800"},
        {"words": "x " * 400},
        {"words": "\x1d"},
    ],
)
def test_a_filter_that_is_wrong_is_refused_by_name(store, conditions):
    (name,) = conditions
    for call in (
        lambda: store.page(DocumentFilter(**conditions)),
        lambda: store.list_metadata(**conditions),
        lambda: list(store.iterate(DocumentFilter(**conditions))),
    ):
        with pytest.raises(UsageError, match=name):
            call()


def test_a_listing_that_is_wrong_is_refused(store):
    for options in (
        {"sort": "size"},
        {"sort": "filename; DROP TABLE documents"},
        {"sort": None},
        {"limit": 0},
        {"limit": -1},
        {"limit": 10**6},
        {"limit": "5"},
        {"limit": True},
        {"as_of": "soon"},
        {"as_of": "2026-13-01"},
    ):
        with pytest.raises(UsageError):
            store.page(**options)
    for filters in ({"colour": "red"}, {"limit": 0}, {"limit": 2.5}, {"as_of": "soon"}):
        with pytest.raises(UsageError):
            store.list_metadata(**filters)
    for timestamp in ("", "x", None, 10**40, "12345678901234567890"):
        with pytest.raises(UsageError):
            store.get_time_travel_snapshot("d", timestamp)
    with pytest.raises(UsageError):
        store.get_statistics(as_of="soon")


@pytest.mark.parametrize("document_id", ["nobody", "", "x" * 300, "d\0", "\ud800", "' OR 1=1 --", "<b>", None, 5])
def test_an_unknown_id_is_not_found(store, document_id):
    put(store, "d")
    for read in (store.get_metadata, store.history, lambda i: store.get_time_travel_snapshot(i, START)):
        with pytest.raises(NotFoundError):
            read(document_id)
    for write in (
        store.delete_metadata,
        store.undelete_metadata,
        lambda i: store.update_metadata(i, {"provider": "x"}),
    ):
        with pytest.raises((NotFoundError, UsageError)):
            write(document_id)
    assert store.get_statistics()["total_documents"] == 1


# -- statistics


def test_statistics_follow_every_write_and_exceed_64_bits(any_place, clock):
    with any_place.open(now=clock) as store:
        huge = 2**63 - 1
        for n in range(4):
            put(store, f"d{n}", size_bytes=huge, provider="aws" if n else None, storage_tier="archive")
        moment = store.get_metadata("d3").updated_at
        expected = {
            "total_documents": 4,
            "total_size_bytes": 4 * huge,
            "by_provider": {"aws": 3, "unknown": 1},
            "by_tier": {"archive": 4},
            "by_restore_status": {"none": 4},
        }
        assert store.get_statistics() == store.get_statistics(as_of=moment) == expected
        clock.advance(seconds=1)
        store.update_metadata("d1", {"restore_status": "requested", "size_bytes": 1})
        store.delete_metadata("d2")
        store.update_metadata("d3", {"provider": "gcs"})
        now = store.get_statistics()
        assert now == store.get_statistics(as_of=clock.advance(seconds=1))
        assert now["total_size_bytes"] == 2 * huge + 1
        assert now["by_provider"] == {"aws": 1, "gcs": 1, "unknown": 1}
        assert now["by_restore_status"] == {"none": 2, "requested": 1}
        assert store.get_statistics(as_of=moment) == expected
        for n in (0, 1, 3):
            store.delete_metadata(f"d{n}")
        assert store.get_statistics()["by_tier"] == {}


# -- added columns


def test_a_column_is_added_to_a_live_store_and_other_handles_of_it_use_it_at_once(any_place, clock):
    with any_place.open(now=clock) as store, any_place.open(now=clock) as other:
        put(store, "old")
        with pytest.raises(UsageError, match="'retention' does not exist"):
            other.update_metadata("old", {"retention": "10y"})
        moment = store.get_metadata("old").updated_at
        for name, kind in (("retention", "string"), ("pages", "long"), ("score", "double"), ("legal", "boolean")):
            assert store.add_column(name, kind) == store.add_column(name, kind) == Column(name, kind)
        other.add_column("review_at", "timestamp")
        values = {"retention": "10y", "pages": -(2**63), "score": 2.0, "legal": False, "review_at": "2030-01-01"}
        made = other.update_metadata("old", values)
        assert (made["retention"], made["score"], made["review_at"]) == ("10y", 2.0, datetime(2030, 1, 1, tzinfo=UTC))
        assert type(made["score"]) is float
        for found in (store.get_metadata("old"), store.page().documents[0], store.history("old")[-1].document):
            assert found == made
        assert store.get_time_travel_snapshot("old", moment).columns == {}
        assert store.update_metadata("old", {"pages": None}).columns == {k: made[k] for k in values if k != "pages"}
        assert list(store.columns()) == ["legal", "pages", "retention", "review_at", "score"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("filename", "string"),
        ("document_id", "long"),
        ("columns", "string"),
        ("Pages", "long"),
        ("1st", "long"),
        ("a" * 64, "long"),
        ("", "long"),
        ("x; DROP TABLE documents", "long"),
        ("pages", "json"),
        ("pages", ""),
        ("taken", "long"),
    ],
)
def test_a_column_that_is_wrong_is_refused_and_changes_nothing(store, name, kind):
    store.add_column("taken", "string")
    before = state_of(store)
    with pytest.raises((UsageError, ConflictError)):
        store.add_column(name, kind)
    assert state_of(store) == before


# -- bad input


WRONG = {
    "document_id": ["", "a b", "../x", "d\0", "x" * 256, 5, None, ["d"], "\ud800", "<script>", "-d", "é"],
    "filename": ["", "   ", None, 5, b"a.pdf", ["a"], "a\nb", "a\0", "\ud800", "x" * 1025, "é" * 513],
    "content_type": ["pdf", "a/b/c", "text/plain\n", 5, "x" * 600 + "/y", "text/<b>"],
    "size_bytes": [-1, 1.5, "5", True, 2**63, float("nan"), [1]],
    "checksum": ["abc", "sha256:", "SHA256:abc", "sha256:ü", 5, "sha256:" + "a" * 400, "md5:'; DROP TABLE documents"],
    "provider": ["AWS", "a b", "", 5, "x" * 64, "'--", "-a"],
    "bucket": [5, "a\0b", "x" * 1025, "\ud800", ["b"]],
    "object_key": [5, "a\x1fb", "x" * 1025, {"k": 1}],
    "version_id": [5, "\x7f", "x" * 1025],
    "storage_tier": ["glacier", "Standard", "", 5, ["archive"], "standard "],
    "restore_status": ["done", "", 5, "Requested", {"a": 1}],
    "restore_requested_at": ["yesterday", [1], {}, True, 10**40, "2999-01-01", float("inf")],
    "restore_expiry": ["soon", [1], True, 10**40, "0000-01-01"],
    "created_at": ["", "2026-02-30", True, [2026], 10**40, "2999-01-01", START + timedelta(minutes=6), -(10**30)],
    "tags": [
        "a=b",
        ["a"],
        {"": "x"},
        {"a": 5},
        {5: "a"},
        {"a": ["b"]},
        {"a\n": "b"},
        {"a": "b\0"},
        {"a": "\ud800"},
        {"a": "x" * 257},
        {"x" * 257: "a"},
        {f"t{n}": "" for n in range(257)},
        {f"t{n}": "x" * 10_000 for n in range(1024)},
    ],
    "attributes": [
        "{",
        "[]",
        5,
        ["a"],
        {"a": {1, 2}},
        {"a": float("nan")},
        {"a": 2**64},
        {"a": "\ud800"},
        {"a": b"b"},
        {"a": "x" * 70_000},
        {"a": datetime(2026, 1, 1)},
    ],
    "no_such_field": [1, None, "x"],
    "operation": ["delete"],
    "search_text": ["x"],
    "valid_from": [5],
    "columns": [{"a": 1}],
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_field_that_is_wrong_is_refused_by_name_and_changes_nothing(store, name):
    put(store, "d", tags={"a": "b"})
    before = state_of(store)
    for value in WRONG[name]:
        calls = [lambda value=value: store.put_metadata({"document_id": "new", "filename": "x", name: value})]
        if name != "document_id":
            calls += [
                lambda value=value: store.update_metadata("d", {name: value}),
                lambda value=value: store.write(
                    [Write("put", None, {"filename": "y"}), Write("update", "d", {name: value})]
                ),
            ]
        for call in calls:
            with pytest.raises(UsageError) as refused:
                call()
            assert name in refused.value.message
            assert len(refused.value.message) < 600
    assert state_of(store) == before


def test_texts_that_look_like_sql_or_html_are_only_texts(any_place):
    with any_place.open() as store:
        for n, text in enumerate(
            ("'; DROP TABLE documents; --", "<script>alert(1)</script>", "%s %(x)s :x ?", "\\'\\")
        ):
            made = put(store, f"d{n}", bucket=text, tags={text: text})
            made = store.update_metadata(f"d{n}", {"filename": text})
            assert (made.filename, made.bucket, made.tags) == (text, text, {text: text})
            assert store.list_metadata(name_prefix=text, bucket=text, tags={text: text}, words=text) == [made]
        assert store.get_statistics()["total_documents"] == 4


def test_the_largest_document_fits(any_place):
    tags = {f"{n:03}" + "é" * 126: "ß" * 128 for n in range(256)}
    with any_place.open() as store:
        made = put(store, "d" * 255, object_key="\U0001f600" * 256, tags=tags, attributes={"a": "x" * 65_000})
        store.add_column("note", "string")
        made = store.update_metadata("d" * 255, {"note": "ü" * 32_768})
        assert store.get_metadata("d" * 255) == made == store.list_metadata(tags={f"255{'é' * 126}": "ß" * 128})[0]


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0", "\ud800", 5])
def test_an_idempotency_key_that_is_wrong_is_refused_and_changes_nothing(store, key):
    with pytest.raises(UsageError, match="key"):
        store.put_metadata({"filename": "a"}, idempotency_key=key)
    assert state_of(store)[0] == []


# -- loading and streaming


def histories(clock: Clock, seed: int, writes: int) -> Oracle:
    oracle, chance = Oracle(), Chance(seed, documents=25)
    for _ in range(writes):
        clock.advance(seconds=1)
        latest = {i: history[-1].revision for i, history in oracle.histories.items()}
        write = chance.write(latest)
        made = outcome(lambda write=write: oracle.decide([write], clock.now))
        if isinstance(made, list):
            oracle.load([made[0].revision])
    return oracle


def test_loaded_histories_are_complete_and_a_repeated_load_adds_nothing(any_place, clock):
    source = histories(clock, 5, 150)
    ordered = [revision for i in sorted(source.histories) for revision in source.histories[i]]
    middle = next(n for n in range(40, 150) if ordered[n].revision == 1)
    with any_place.open(now=clock) as store:
        assert store.load_revisions([ordered[:middle]]) == middle
        assert store.load_revisions([ordered[:20], ordered[20:]]) == len(ordered) - middle
        assert store.load_revisions(iter([ordered])) == 0
        require_same_past(store, source)
        assert store.get_statistics() == source.statistics()
        moment = ordered[50].valid_from
        assert store.get_statistics(as_of=moment) == source.statistics(moment)
        assert all_pages(store, sort="filename", limit=7) == source.list(DocumentFilter(), "filename")
        living = min(source.at())
        assert store.update_metadata(living, {"provider": "x"}).revision == len(source.histories[living]) + 1


def test_a_load_that_contradicts_the_store_or_itself_is_refused_and_changes_nothing(store, clock):
    source = histories(clock, 6, 150)
    ordered = [revision for i in sorted(source.histories) for revision in source.histories[i]]
    long = next(h for h in source.histories.values() if len(h) > 2 and not h[0].is_deleted)
    put(store, "mine")
    before = state_of(store)

    def changed(of: Revision, **fields) -> Revision:
        own = {name: value for name, value in fields.items() if name in ("operation", "valid_from")}
        rest = {name: value for name, value in fields.items() if name not in own}
        return replace(of, document=replace(of.document, **rest), **own)

    first = long[0]
    later = START + timedelta(days=400)
    for wrong in (
        [store.history("mine")[0], changed(store.history("mine")[0], revision=3)],
        [changed(store.history("mine")[0], filename="another")],
        long[1:],
        [long[0], long[2]],
        [long[0], long[0]],
        [long[0], changed(long[1], valid_from=START - timedelta(days=9), updated_at=START - timedelta(days=9))],
        [changed(first, document_id="a b")],
        [changed(first, filename="")],
        [changed(first, filename="a\0b")],
        [changed(first, size_bytes=-1)],
        [changed(first, size_bytes=2**63)],
        [changed(first, storage_tier="glacier")],
        [changed(first, storage_tier="standard", restore_status="restored")],
        [changed(first, revision=0)],
        [changed(first, operation="merge")],
        [changed(first, operation="delete")],
        [changed(first, valid_from=later, updated_at=later)],
        [changed(first, updated_at=later)],
        [changed(first, created_at=datetime(2026, 1, 1))],
        [changed(first, tags={"a": 5})],
        [changed(first, columns={"no_such": 1})],
    ):
        with pytest.raises((UsageError, ConflictError)):
            store.load_revisions([[*ordered[:1], *wrong] if wrong[0].document_id != ordered[0].document_id else wrong])
        assert state_of(store) == before


def test_revisions_stream_in_order_without_splitting_a_document_and_resume_after_one(store, clock, monkeypatch):
    monkeypatch.setattr(reads, "_HISTORY_BATCH", 7)
    source = histories(clock, 7, 150)
    store.load_revisions([source.histories[i] for i in source.histories])
    put(store, "long")
    for n in range(20):
        store.update_metadata("long", {"size_bytes": n})
    batches = list(store.revisions())
    flat = [(r.document_id, r.revision) for batch in batches for r in batch]
    assert flat == sorted(flat)
    assert len(flat) == sum(map(len, source.histories.values())) + 21
    ids = [{r.document_id for r in batch} for batch in batches]
    assert sum(map(len, ids)) == len(set().union(*ids))
    after = batches[2][-1].document_id
    assert list(store.revisions(after=after)) == batches[3:]


def test_a_stream_goes_on_while_documents_come_and_go(store, monkeypatch):
    monkeypatch.setattr(reads, "_BATCH", 10)
    store.write([Write("put", f"d{n:02}", {"filename": "x", "created_at": START}) for n in range(35)])
    seen = []
    for number, batch in enumerate(store.iterate()):
        seen += [d.document_id for d in batch]
        store.delete_metadata(f"d{number:02}")
        store.put_metadata({"document_id": f"a{number}", "filename": "y", "created_at": START})
    assert seen == [f"d{n:02}" for n in range(35)]


# -- life


def test_async_twins_do_what_the_methods_do(store):
    assert isinstance(store, Convenience)

    async def work():
        made = await store.aput_metadata({"document_id": "d", "filename": "a"}, if_match=0)
        made = await store.aupdate_metadata("d", {"provider": "aws"}, if_match=made.revision)
        assert await store.aget_metadata("d") == made
        assert await store.alist_metadata(provider="aws") == [made]
        assert (await store.apage(DocumentFilter(provider="aws"))).documents == [made]
        assert [batch async for batch in store.aiterate()] == [[made]]
        assert (await store.aget_statistics())["total_documents"] == 1
        assert await store.aget_time_travel_snapshot("d", made.updated_at) == made
        await store.adelete_metadata("d")
        await store.aundelete_metadata("d")
        assert len(await store.ahistory("d")) == 4
        assert len(await store.awrite([Write("delete", "d")])) == 1

    asyncio.run(work())


def test_an_acknowledged_write_is_seen_by_every_other_handle_at_once(place):
    with place.open() as one, place.open() as two:
        for n in range(5):
            made = one.put_metadata({"document_id": "d", "filename": f"{n}"})
            two.refresh()
            assert two.get_metadata("d") == made
            assert two.get_statistics()["total_documents"] == 1
            one, two = two, one


# -- everything at once


def seeds(count: int) -> list:
    return [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(1, count))]


@pytest.mark.deep
@pytest.mark.parametrize("seed", seeds(4))
def test_random_writes_are_answered_like_by_the_oracle_now_and_in_the_past(any_place, seed):
    run_schedule(any_place, seed, 120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 106))
def test_long_random_schedules_are_answered_like_by_the_oracle(any_place, seed):
    run_schedule(any_place, seed, 500)
