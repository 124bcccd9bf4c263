"""What every store of documents promises of Arrow tables: the same as of revisions, one by one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from frazil.documents.arrow import REVISION_SCHEMA, revisions_to_table, table_to_revisions
from frazil.documents.decide import StoredRevision
from frazil.documents.sql import reads
from frazil.documents.store import DocumentStore, Write
from frazil.errors import ConflictError, UsageError
from tests.documents_kit import PLACES, Clock, kinds, place_of

EXPIRY = "2026-04-01T00:00:00Z"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def filled(services, tmp_path: Path, clock: Clock):
    """A store with histories: changed, deleted, brought back, with added columns and odd tags."""
    with place_of("sqlite", services, tmp_path, "filled").open(now=clock) as store:
        store.add_column("pages", "long")
        store.add_column("seen", "timestamp")
        for number in range(12):
            clock.advance(seconds=1)
            tags = {"n": str(number), "ü": "", "": None} if number % 3 else {}
            fields = {
                "filename": f"f{number}",
                "tags": {k: v for k, v in tags.items() if k},
                "size_bytes": number or None,
            }
            more = {"pages": number, "seen": 1.5} if number % 2 else {"attributes": {"n": [number, None]}}
            store.write([Write("put", f"d{number:02}", {**fields, **more, "storage_tier": "archive"})])
        clock.advance(seconds=1)
        store.write([Write("update", "d01", {"pages": None}), Write("delete", "d02"), Write("delete", "d03")])
        clock.advance(seconds=1)
        store.write(
            [Write("undelete", "d03"), Write("update", "d01", {"restore_status": "restored", "restore_expiry": EXPIRY})]
        )
        yield store


@pytest.fixture(params=kinds())
def store(request, services, tmp_path: Path, clock: Clock):
    with place_of(request.param, services, tmp_path).open(now=clock) as made:
        made.add_column("pages", "long")
        made.add_column("seen", "timestamp")
        yield made


def whole(store: DocumentStore) -> pa.Table:
    return pa.concat_tables([REVISION_SCHEMA.empty_table(), *store.history_tables()])


def require_same(store: DocumentStore, other: DocumentStore) -> None:
    assert store.fingerprint() == other.fingerprint()
    assert [r for batch in store.revisions() for r in batch] == [r for batch in other.revisions() for r in batch]
    assert store.get_statistics() == other.get_statistics()
    assert store.verify().is_sound


@pytest.mark.parametrize("kind", PLACES)
def test_tables_carry_all_that_revisions_carry(services, tmp_path, clock, filled, kind: str, monkeypatch):
    with place_of(kind, services, tmp_path).open(now=clock) as store:
        for column in filled.columns().values():
            store.add_column(column.name, column.type)
        assert store.load_table(whole(filled)) == 17
        require_same(store, filled)
        monkeypatch.setattr(reads, "_TABLE_BATCH", 3)
        tables = list(store.history_tables())
        revisions = [revision for batch in filled.revisions() for revision in batch]
        assert len(tables) > 5
        assert [s.revision for rows in tables for s in table_to_revisions(rows)] == revisions
        assert [s.revision for rows in store.history_tables("d09") for s in table_to_revisions(rows)] == revisions[-2:]


def test_a_repeated_table_changes_nothing(store, filled):
    rows = whole(filled)
    store.load_table(rows)
    assert store.load_table(rows) == 0
    assert store.load_table(rows.slice(0, 0)) == 0
    require_same(store, filled)


def test_a_table_adds_what_is_missing(store, filled):
    rows = whole(filled)
    assert store.load_table(rows.slice(0, 4)) == 4  # d00, and all of d01
    assert store.load_table(rows) == 13
    require_same(store, filled)


def test_a_table_continues_a_history(store, filled, clock):
    store.load_table(whole(filled))
    clock.advance(seconds=1)
    filled.update_metadata("d05", {"filename": "renamed"})
    assert store.load_table(whole(filled)) == 1
    require_same(store, filled)


def test_another_past_is_refused_and_nothing_is_loaded(store, filled, clock):
    store.put_metadata({"document_id": "d07", "filename": "other"})
    before = store.fingerprint()
    with pytest.raises(ConflictError, match="another revision 1 of document 'd07'"):
        store.load_table(whole(filled))
    assert store.fingerprint() == before


def test_a_history_with_a_gap_is_refused_and_nothing_is_loaded(store, filled):
    rows = whole(filled)
    with pytest.raises(UsageError, match="comes where 1 is expected"):
        store.load_table(pa.concat_tables([rows.slice(0, 1), rows.slice(2)]))
    assert store.fingerprint().revisions.count == 0


def test_a_column_that_the_store_does_not_have_is_refused(services, tmp_path, clock, filled):
    with place_of("sqlite", services, tmp_path).open(now=clock) as store:
        store.add_column("pages", "long")
        with pytest.raises(UsageError, match=r"column 'seen' of .* does not exist"):
            store.load_table(whole(filled))
        assert store.fingerprint().revisions.count == 0


def test_a_table_from_the_future_is_refused(store, filled, clock):
    rows = whole(filled)
    clock.advance(days=-1)
    with pytest.raises(UsageError, match="lies in the future"):
        store.load_table(rows)
    assert store.fingerprint().revisions.count == 0


def test_writes_after_a_table_have_later_moments(store, filled, clock):
    rows = whole(filled)
    store.load_table(rows)
    clock.advance(seconds=-60)
    made = store.update_metadata("d05", {"filename": "later"})
    assert made.revision == 2
    assert store.history("d05")[1].valid_from > max(s.revision.valid_from for s in table_to_revisions(rows))


def test_an_empty_tag_map_is_the_same_from_both_ways(filled, store):
    revisions = [revision for batch in filled.revisions() for revision in batch]
    made = revisions_to_table([StoredRevision(revision) for revision in revisions])
    assert made.equals(whole(filled))
