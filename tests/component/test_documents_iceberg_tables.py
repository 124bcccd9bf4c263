"""Reads from the Iceberg tables and the log's tail: the answers of the projection, and what was read for them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.documents.iceberg import sorting
from frazil.documents.store import SORT_FIELDS, DocumentFilter, Write
from frazil.documents.tables import ensure_metadata
from frazil.errors import UnavailableError, UsageError
from frazil.log.batch import batch_with_headers
from frazil.log.messages import decode_chunk
from frazil.log.trust import add_mark
from frazil.tables.store import LazyStore
from frazil.topics.dead_letters.batches import REPLAYED_FROM
from tests.documents_iceberg_kit import TOPIC, Home, everything, put

TIERS = ("standard", "infrequent", "archive")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def fill(home: Home, store, log, *, merged: int = 3) -> list[datetime]:
    """Documents of three years, changed and deleted by chance, in several commits, and a tail; some moments of it."""
    chance, moments = random.Random(5), []
    for batch in range(merged + 1):
        writes = []
        for number in range(40):
            created = datetime(2023 + number % 3, 1 + number % 12, 1, tzinfo=UTC) + timedelta(hours=batch)
            values = {
                "filename": chance.choice(["report", "Übersicht", "plan"]) + f"-{number}.pdf",
                "size_bytes": chance.choice([None, 5, 1000, 2**40]),
                "provider": chance.choice([None, "aws", "gcp"]),
                "storage_tier": chance.choice(TIERS),
                "tags": {"project": chance.choice(["Apollo", "Gemini"]), "n": str(number)},
                "created_at": created,
            }
            writes.append(Write("put", f"d{batch}-{number}", values))
        store.write(writes)
        for _ in range(20 if batch else 0):
            document_id = f"d{chance.randrange(batch)}-{chance.randrange(40)}"
            found = store.history(document_id)[-1]
            if found.is_deleted:
                store.undelete_metadata(document_id)
            elif chance.random() < 0.3:
                store.delete_metadata(document_id)
            else:
                store.update_metadata(document_id, {"provider": "azure", "size_bytes": 7})
        moments.append(store.last_change())
        if batch == 1:
            store.add_column("department", "string")
            store.update_metadata("d1-0" if not store.history("d1-0")[-1].is_deleted else "d1-1", {"department": "x"})
        if batch < merged:
            home.advance(log)
    return moments


FILTERS = [
    DocumentFilter(),
    DocumentFilter(storage_tier="archive"),
    DocumentFilter(provider="azure", min_size=6, max_size=7),
    DocumentFilter(start_date="2024-03-01", end_date="2025-02-01T00:00:00Z"),
    DocumentFilter(name_prefix="Über"),
    DocumentFilter(words="übersicht apollo"),
    DocumentFilter(tags={"project": "Gemini", "n": None}, storage_tier="standard"),
    DocumentFilter(provider="nobody"),
]


def test_the_tables_with_the_tail_answer_as_the_projection_does_now_and_in_the_past(home):
    with home.owner() as (store, log):
        moments = fill(home, store, log, merged=2)
        tables = store.via_table()
        for as_of in (None, *moments[1:]):
            assert tables.get_statistics(as_of=as_of) == store.get_statistics(as_of=as_of)
            for number, where in enumerate(FILTERS):
                options = {
                    "sort": SORT_FIELDS[number % len(SORT_FIELDS)],
                    "descending": number % 2 == 0,
                    "as_of": as_of,
                }
                assert pages(tables, where, options) == pages(store, where, options)
        assert tables.explanation.tail_messages > 0
        assert sum(map(len, tables.iterate())) == store.get_statistics()["total_documents"]


def messages_of(log) -> list[dict]:
    info = log.info(TOPIC)
    return [
        row
        for chunk in log.chunks(TOPIC, info.start, info.end)
        for row in decode_chunk(chunk, info.view, info.start, info.end).to_pylist()
    ]


def pages(reads, where: DocumentFilter, options: dict) -> list:
    found, cursor = [], None
    while True:
        page = reads.page(where, limit=33, cursor=cursor, **options)
        found.append(page.documents)
        if (cursor := page.next_cursor) is None:
            return found


def test_before_the_first_commit_the_log_alone_is_read(home):
    with home.owner() as (store, _):
        for number in range(3):
            put(store, f"d{number}", created_at=datetime(2025, 1, 1 + number, tzinfo=UTC))
        store.delete_metadata("d1")
        tables = store.via_table()
        assert tables.page().documents == store.page().documents
        assert tables.get_statistics() == store.get_statistics()
        assert tables.explanation.files == 0


def test_partitions_and_bounds_leave_files_out_and_the_second_query_fetches_no_manifest(home):
    with home.owner() as (store, log):
        fill(home, store, log)
        home.advance(log)
        tables = store.via_table(explains=True)
        all_of_it = DocumentFilter()
        one_month = DocumentFilter(start_date="2024-02-01", end_date="2024-03-01")
        tables.page(all_of_it)
        whole = tables.explanation
        assert (whole.files, whole.files_skipped) == (12, 0)
        assert whole.manifests_fetched >= 2
        page = tables.page(one_month)
        first = tables.explanation
        assert {document.created_at.month for document in page.documents} == {2}
        assert first.files - first.files_skipped == 1
        assert first.manifests_fetched == 0
        assert 0 < first.requests < whole.requests
        assert 0 < first.bytes < whole.bytes
        assert first.row_groups == 1


def test_row_groups_are_left_out_by_their_bounds(home):
    with home.owner() as (store, log), LazyStore(home.settings) as catalog:
        ensure_metadata(catalog.store(), home.settings).transaction().set_properties(
            {"write.parquet.row-group-limit": "5"}
        ).commit_transaction()
        for number in range(20):
            put(store, f"d{number:02}", created_at=datetime(2024, 2, 1 + number, tzinfo=UTC))
        home.advance(log)
        tables = store.via_table(explains=True)
        page = tables.page(DocumentFilter(start_date="2024-02-07", end_date="2024-02-09"))
        assert [document.document_id for document in page.documents] == ["d07", "d06"]
        found = tables.explanation
        assert (found.files, found.files_skipped, found.row_groups, found.row_groups_skipped) == (1, 0, 4, 3)


def test_cursors_belong_to_the_kind_of_reading_that_made_them(home):
    with home.owner() as (store, log):
        fill(home, store, log, merged=1)
        tables = store.via_table()
        cursor = tables.page(limit=5).next_cursor
        with pytest.raises(UsageError, match="cursor is invalid"):
            store.page(limit=5, cursor=cursor)
        with pytest.raises(UsageError, match="cursor is invalid"):
            tables.page(limit=5, cursor=store.page(limit=5).next_cursor)


def test_a_tail_that_is_too_long_is_said_and_not_left_out(home, monkeypatch):
    from frazil.documents.iceberg import table_reads
    from frazil.topics.reading.tail import Bound

    monkeypatch.setattr(table_reads, "BOUND", Bound(messages=3, bytes=1 << 20))
    with home.owner() as (store, _):
        for number in range(4):
            put(store, f"d{number}")
        with pytest.raises(UnavailableError, match="too far behind"):
            store.via_table().page()
        assert len(everything(store)[1]) == 4


def test_loaded_files_of_the_tail_are_read_too(home):
    with home.owner() as (store, log):
        put(store, "d")
        home.advance(log)
        past = store.history("d")
    other = Home(home.folder.with_name("other"))
    with other.owner() as (store, _):
        assert store.load_revisions([past]) == 1
        assert [d.document_id for d in store.via_table().page().documents] == ["d"]


@pytest.mark.parametrize("is_merged", [True, False])
@pytest.mark.parametrize("end", ["update", "delete", "undelete"])
def test_a_replayed_message_does_not_hide_later_revisions(home, end: str, is_merged: bool):
    """The tables have passed a message that became a dead letter; it is sent again, and not merged yet."""
    with home.owner() as (store, log):
        put(store, "d", size_bytes=5, storage_tier="standard")
        store.update_metadata("d", {"size_bytes": 6})
        store.update_metadata("d", {"storage_tier": "infrequent", "filename": "new"})
        put(store, "other")
        if end != "update":
            store.delete_metadata("d")
        if end == "undelete":
            store.undelete_metadata("d")
        if is_merged:
            home.advance(log)
        found = {row["offset"]: row["payload"] for row in messages_of(log)}
        for offset in (0, 1):
            headers = add_mark({REPLAYED_FROM: f"documents/0/{offset}"})
            log.append(TOPIC, batch_with_headers([found[offset]], [None], [headers]), internal=True)
        put(store, "new")
        tables = store.via_table()
        for where in (DocumentFilter(), DocumentFilter(storage_tier="standard"), DocumentFilter(name_prefix="d")):
            assert tables.page(where).documents == store.page(where).documents
        assert tables.get_statistics() == store.get_statistics()
        home.advance(log)
        assert tables.page().documents == store.page().documents


def test_a_replayed_message_that_the_tables_lack_is_read(home):
    with home.owner() as (store, log):
        put(store, "d")
        store.update_metadata("d", {"size_bytes": 6})
        home.advance(log, end=1)
        (payload,) = [row["payload"] for row in messages_of(log) if row["offset"] == 1]
        log.append(
            TOPIC, batch_with_headers([payload], [None], [add_mark({REPLAYED_FROM: "documents/0/1"})]), internal=True
        )
        assert [d.size_bytes for d in store.via_table().page().documents] == [6]


@pytest.mark.parametrize("per_range", [3, 50, 1_000])
def test_rows_are_sorted_the_same_in_any_number_of_ranges(tmp_path, monkeypatch, per_range):
    monkeypatch.setattr(sorting, "_PER_RANGE", per_range)
    monkeypatch.setattr(sorting, "_SAMPLED", 4)
    chance = random.Random(per_range)
    ids = [chance.choice("aZ\U0001f600é") + str(chance.randrange(40)) for _ in range(300)]
    revisions = [chance.randrange(5) for _ in ids]
    one = pa.table({"document_id": ids[:200], "revision": revisions[:200], "offset": pa.array(range(200), pa.int64())})
    other = pa.table({"document_id": ids[200:], "revision": revisions[200:], "department": ["x"] * 100})
    sources = [sorting.ArrowSource(one), sorting.ArrowSource(other), sorting.ArrowSource(one.slice(0, 0))]
    found = pa.concat_tables(sorting.sort_rows(sources, ("document_id", "revision"), tmp_path))
    assert found.column_names == ["document_id", "revision", "offset", "department"]
    keys = list(zip(found.column("document_id").to_pylist(), found.column("revision").to_pylist(), strict=True))
    assert keys == sorted(zip(ids, revisions, strict=True))
    assert found.column("department").null_count == 200
    assert list(tmp_path.iterdir()) == []


def test_a_projection_is_built_from_many_ranges_as_from_one(home, monkeypatch):
    monkeypatch.setattr(sorting, "_PER_RANGE", 7)
    monkeypatch.setattr(sorting, "_SAMPLED", 3)
    with home.owner() as (store, log):
        fill(home, store, log, merged=2)
        state = everything(store)
        store.rebuild()
        assert everything(store) == state
        assert store.verify().findings == []
