"""The store of documents in Iceberg: who writes, who reads, and what the projection is built from."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from frazil.documents import lifecycle
from frazil.documents.arrow import revisions_to_table
from frazil.documents.decide import KEY_AGE, StoredRevision
from frazil.documents.iceberg.projection import ProjectionFolder
from frazil.documents.iceberg.store import IcebergDocumentStore
from frazil.documents.messages import encode_revision
from frazil.documents.names import DOCUMENTS, metadata_name
from frazil.documents.store import Write
from frazil.documents.transfer.imports import import_documents
from frazil.errors import ConflictError, FrazilError, UnavailableError, UsageError
from frazil.log.batch import Batch, batch_with_headers
from frazil.log.protocol import LogAccess
from frazil.log.remote.broker import Broker
from frazil.log.trust import add_mark
from frazil.observe.faultpoints import handled
from frazil.tables import Position, commit_append, find_position
from frazil.tables.store import LazyStore
from frazil.topics import open_log
from frazil.topics.connection import silent
from frazil.topics.handover import connect_again, ending_for_server
from tests.documents_iceberg_kit import TOPIC, Home, everything, put
from tests.documents_kit import Clock, Oracle
from tests.parquet_kit import parquet_with_bad_text, unchecked_texts
from tests.sink_kit import SinkKit, put_dead_letters, until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def rebuilds(caplog) -> list[str]:
    return [record for record in caplog.text.splitlines() if "built anew" in record]


@pytest.fixture
def filled(home: Home) -> Home:
    """Documents of which the tables have the first half, and the log all; the owner has gone."""
    with home.owner() as (store, log):
        for number in range(6):
            put(store, f"d{number}", size_bytes=number, tags={"kind": "a"})
        store.add_column("department", "string")
        store.update_metadata("d0", {"department": "sales"}, idempotency_key="once")
        store.delete_metadata("d1")
        home.advance(log)
        store.update_metadata("d0", {"size_bytes": 100})
        store.undelete_metadata("d1")
        store.load_revisions([[r] for r in _foreign_history()])
        put(store, "last")
    return home


def _foreign_history():
    from tests.documents_kit import Clock, Oracle

    clock, oracle = Clock(), Oracle()
    for number in range(3):
        write = Write("put", f"loaded{number}", {"filename": "loaded.pdf"})
        oracle.apply([write], [decision.revision for decision in oracle.decide([write], clock.advance(seconds=1))])
    return [revision for history in oracle.histories.values() for revision in history]


# -- who writes and who reads


def test_an_acknowledged_write_is_visible_at_once_in_another_process(home):
    code = """
store = home.store()
store.refresh()
print("ready", flush=True)
for line in sys.stdin:
    document_id, size = line.split()
    print(store.get_metadata(document_id).size_bytes == int(size), flush=True)
"""
    with home.owner() as (store, log), Broker(log) as broker:
        log.announce(flight=broker.address)
        put(store, "d", size_bytes=0)
        reader = home.python(code)
        assert reader.stdout.readline() == "ready\n"
        seen = []
        for size in range(1, 100):
            store.update_metadata("d", {"size_bytes": size})
            reader.stdin.write(f"d {size}\n")
            reader.stdin.flush()
            seen.append(reader.stdout.readline())
        reader.communicate(timeout=60)
    assert seen == ["True\n"] * 99


def test_processes_without_a_server_take_turns_and_each_revision_has_one_winner(home):
    code = """
from frazil.errors import ConflictError
store, won = home.store(), 0
print("ready", flush=True)
sys.stdin.readline()
while (revision := store.get_metadata("d").revision) < 13:
    try:
        store.update_metadata("d", {"provider": arguments[0]}, if_match=revision)
        won += 1
    except ConflictError:
        pass
print(won, flush=True)
"""
    with home.store() as store:
        put(store, "d")
        racers = [home.python(code, name) for name in ("left", "right")]
        assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 2
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        won = [int(racer.communicate(timeout=100)[0]) for racer in racers]
        history = store.history("d")
    assert [revision.revision for revision in history] == list(range(1, 14))
    assert won == [sum(r.document.provider == name for r in history) for name in ("left", "right")]


def test_many_clients_of_one_owner_have_one_winner_for_each_revision(home):
    won: list[int] = []

    def race(store) -> None:
        while (revision := store.get_metadata("d").revision) < 41:
            with suppress(ConflictError):
                won.append(store.update_metadata("d", {"size_bytes": revision}, if_match=revision).revision)

    with home.owner() as (store, _):
        put(store, "d")
        threads = [threading.Thread(target=race, args=(store,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == list(range(2, len(won) + 2))
        assert [r.revision for r in store.history("d")] == list(range(1, len(won) + 2))


def test_requests_that_are_decided_together_are_refused_one_by_one(home):
    outcomes: dict[int, object] = {}
    with home.owner() as (store, log):
        put(store, "d")
        before = log.info(TOPIC).end
        go = threading.Barrier(8)

        def write(number: int) -> None:
            go.wait()
            try:
                writes = [
                    Write("put", f"new{number}", {"filename": "a"}),
                    Write("update", "d", {"size_bytes": -number}),
                ]
                outcomes[number] = store.write(writes if number % 2 else writes[:1])
            except UsageError as error:
                outcomes[number] = error

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [isinstance(outcomes[n], UsageError) for n in range(8)] == [False, True] * 4
        assert store.get_statistics()["total_documents"] == 5
        assert log.info(TOPIC).end == before + 4


def test_a_message_that_somebody_else_publishes_changes_no_document(home, caplog):
    with home.owner() as (store, log):
        made = put(store, "d")
        [payload] = [stored.to_dict() for stored in store.history("d")]
        forged = json.dumps({"type": "revision", "version": 1, "operation": "delete", "document": payload}).encode()
        log.append(TOPIC, Batch.of_messages([forged, b"{"]))
        assert store.update_metadata("d", {"size_bytes": 1}).revision == 2
        assert store.get_metadata("d").size_bytes == 1
        assert store.history("d")[0].document == made
        state = everything(store)
        store.rebuild()
        assert everything(store) == state
        assert store.verify().is_sound


def test_a_message_that_comes_again_counts_once(home):
    with home.owner() as (store, log):
        put(store, "d")
        store.update_metadata("d", {"size_bytes": 1})
        state = everything(store)
        payloads = [encode_revision(stored) for batch in store.stored_revisions() for stored in batch]
        log.append(TOPIC, batch_with_headers(payloads, [None] * 2, [add_mark({})] * 2), internal=True)
        assert store.update_metadata("d", {"size_bytes": 2}).revision == 3
        state = everything(store)
        store.rebuild()
        assert everything(store) == state
        assert [r.revision for r in store.history("d")] == [1, 2, 3]


def test_a_message_that_others_replay_is_known_before_the_next_write_is_decided(home):
    with home.owner() as (store, log):
        put(store, "other")
        replayed = StoredRevision(lifecycle.put(None, {"document_id": "d", "filename": "r.pdf"}, {}, datetime.now(UTC)))
        log.append(TOPIC, batch_with_headers([encode_revision(replayed)], [None], [add_mark({})]), internal=True)
        made = put(store, "d")
        assert (made.revision, made.filename) == (2, "d.pdf")
        assert [revision.document.filename for revision in store.history("d")] == ["r.pdf", "d.pdf"]
        state = everything(store)
        store.rebuild()
        assert everything(store) == state


def test_the_projection_is_rebuilt_where_retention_took_messages_without_revisions(home):
    home.flags = {"log.max_file_size": "20000"}
    with home.owner() as (store, log):
        put(store, "d")
        home.advance(log)
        log.append(TOPIC, Batch.of_messages([b"x" * 2000] * 30))  # of strangers: dead letters, no revisions
        info = log.info(TOPIC)
        with LazyStore(home.settings) as tables:
            metadata = tables.store().load(metadata_name(home.settings))
            before = find_position(metadata, DOCUMENTS, TOPIC)
            reached = Position(DOCUMENTS, TOPIC, {0: info.end}, info.log_id, info.epoch, str(uuid.uuid4()))
            commit_append(tables.store(), metadata, [], expected=before, reached=reached)
        store.refresh()
        state = everything(store)
        log.report(TOPIC, DOCUMENTS, info.end)
        assert log.retain(TOPIC, size=0).segments > 0
        store.rebuild()
        assert everything(store) == state
        assert store.verify().is_sound
        assert len(store.via_table().page(as_of=datetime.now(UTC)).documents) == 1


def test_a_batch_that_the_log_would_not_take_is_refused_and_others_go_on(home):
    home.flags = {"log.max_batch_size": "20000", "log.max_message_size": "10000"}
    with home.owner() as (store, _):
        large = [Write("put", f"x{n}", {"filename": "a", "attributes": {"text": "x" * 9000}}) for n in range(20)]
        with pytest.raises(UsageError, match="the log takes at most"):
            store.write(large)
        assert store.get_statistics()["total_documents"] == 0
        threads = [threading.Thread(target=store.write, args=([write],)) for write in large]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.get_statistics()["total_documents"] == 20


def test_retention_leaves_in_the_log_what_the_tables_do_not_have(home):
    home.flags = {"log.max_file_size": "20000"}
    with home.owner() as (store, log):
        for number in range(30):
            put(store, f"d{number}", attributes={"text": "x" * 2000})
        assert log.retain(TOPIC, size=0).segments == 0
        home.advance(log)
        log.report(TOPIC, "documents", log.info(TOPIC).end)
        assert log.retain(TOPIC, size=0).segments > 0
        state = everything(store)
        store.rebuild()
        assert everything(store) == state


# -- the projection


@pytest.mark.parametrize(
    "how", ["deleted", "foreign", *(pytest.param(how, marks=pytest.mark.deep) for how in ("header", "middle", "empty"))]
)
def test_a_projection_that_is_lost_or_damaged_is_built_anew(filled, tmp_path, how):
    with filled.store() as store:
        state = everything(store)
        assert len(state[0]) == 14
    file = filled.link.resolve()
    if how == "deleted":
        shutil.rmtree(file.parent)
    elif how == "header":
        file.write_bytes(b"not a database" + file.read_bytes()[14:])
    elif how == "middle":
        content = bytearray(file.read_bytes())
        content[4096 : len(content)] = b"\xff" * (len(content) - 4096)
        file.write_bytes(content)
    elif how == "empty":
        file.write_bytes(b"")
    else:
        other = Home(tmp_path / "other")
        with other.store() as store:
            put(store, "elsewhere")
        file.unlink()
        other.copy_projection(filled.link.parent / "copied")
        (filled.link.parent / "copied").replace(filled.link)
    with filled.store() as store:
        assert everything(store) == state
        assert store.update_metadata("d0", {"size_bytes": 7}).revision == 4
        assert store.verify().findings == []


def test_a_projection_that_disappears_under_its_owner_and_its_readers_is_built_anew(filled):
    with filled.owner() as (store, log), filled.store() as reader, Broker(log) as broker:
        log.announce(flight=broker.address)
        state = everything(reader)
        shutil.rmtree(filled.link.parent)
        assert everything(store) == state
        assert everything(reader) == state
        store.update_metadata("d0", {"size_bytes": 7})
        assert reader.get_metadata("d0").size_bytes == 7


def test_damage_that_a_read_finds_is_repaired_and_the_read_answered(filled):
    with filled.store() as store:
        for number in range(300):
            put(store, f"more{number}", attributes={"text": "x" * 300})
        expected = store.history("d0")
    file = filled.link.resolve()
    pages = file.stat().st_size // 4096
    with sqlite3.connect(file) as database:
        root = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'document_history'").fetchone()[0]
    assert root < pages
    with filled.store() as store:
        store.get_statistics()
        content = bytearray(file.read_bytes())
        content[(root - 1) * 4096 : root * 4096] = b"\xff" * 4096
        file.write_bytes(content)
        with filled.store() as other:
            assert other.history("d0") == expected


@pytest.mark.parametrize("wal", ["without", "beside"])
def test_a_copy_of_another_day_is_brought_up_to_date(filled, tmp_path, wal):
    with filled.store() as store:
        store.get_statistics()
    filled.copy_projection(tmp_path / "copy")
    with filled.owner() as (store, _):
        for number in range(50):
            put(store, f"later{number}")
        store.update_metadata("d0", {"size_bytes": 7})
        state = everything(store)
        if wal == "beside":  # as after a kill: the write-ahead log of the newer file stays
            with store.connection() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            put(store, "very-last")
            state = everything(store)
            files = {p.name: p.read_bytes() for p in filled.link.parent.iterdir() if p.name.endswith("-wal")}
            assert any(files.values())
    file = filled.link.resolve()
    shutil.copyfile(tmp_path / "copy", file)
    if wal == "beside":
        for name, content in files.items():
            (file.parent / name).write_bytes(content)
    with filled.store() as store:
        assert everything(store) == state
        assert store.verify().findings == []


def test_a_rebuild_answers_readers_all_the_time(filled):
    with filled.owner() as (store, log), filled.store() as reader, Broker(log) as broker:
        log.announce(flight=broker.address)
        state = everything(reader)
        stop, seen, failed = threading.Event(), [], []

        def read() -> None:
            while not stop.is_set():
                try:
                    seen.append(everything(reader) == state)
                except FrazilError as error:
                    failed.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(5):
            store.rebuild()
        stop.set()
        thread.join()
        assert seen and all(seen) and not failed
        assert len(list(filled.link.parent.glob("projection-*.db"))) == 1


def test_pages_go_on_while_the_projection_is_replaced(filled):
    with filled.owner() as (store, _):
        first = store.page(limit=4)
        store.rebuild()
        rest = store.page(limit=50, cursor=first.next_cursor)
        assert first.documents + rest.documents == store.page(limit=54).documents


# -- crashes between log and projection


@pytest.mark.parametrize("step", ["documents.append.after", "documents.publish.after"])
def test_a_change_that_the_projection_did_not_take_is_taken_from_the_log(home, step):
    with home.owner() as (store, _):
        put(store, "d")

        def fail(reached: str) -> None:
            if reached == step:
                raise OSError("disk full")

        with handled(fail):
            assert store.update_metadata("d", {"size_bytes": 5}, idempotency_key="k").revision == 2
        assert store.get_metadata("d").size_bytes == 5
        assert store.update_metadata("d", {"size_bytes": 5}, idempotency_key="k").revision == 2
        assert [r.revision for r in store.history("d")] == [1, 2]
        assert store.verify().findings == []


def test_a_change_whose_outcome_is_unknown_is_decided_by_the_log(home):
    with home.owner() as (store, log):
        put(store, "d")
        append = log.append

        def lost(*args, **kwargs):
            append(*args, **kwargs)
            raise FrazilError("the sync failed")

        log.append = lost
        with pytest.raises(FrazilError, match="sync failed"):
            store.update_metadata("d", {"size_bytes": 5}, if_match=1)
        log.append = append
        with pytest.raises(ConflictError, match="has revision 2"):
            store.update_metadata("d", {"size_bytes": 6}, if_match=1)
        assert store.get_metadata("d").size_bytes == 5


def test_a_refused_append_changes_nothing(home):
    with home.owner() as (store, log):
        put(store, "d")
        state, append = everything(store), log.append

        def refused(*args, **kwargs):
            raise UnavailableError("the disk is full")

        log.append = refused
        with pytest.raises(UnavailableError):
            store.update_metadata("d", {"size_bytes": 5})
        assert everything(store) == state
        log.append = append
        assert store.update_metadata("d", {"size_bytes": 6}).revision == 2


# -- log, tables and catalog


def test_offsets_that_the_tables_know_are_not_used_again_when_an_older_log_is_brought_back(home):
    with home.owner() as (store, log):
        put(store, "kept")
    home.copy_log("log-before")
    with home.owner() as (store, log):
        put(store, "merged")
        home.advance(log)
        put(store, "lost")
        reached = log.info(TOPIC).end
    home.bring_log_back("log-before")
    with home.store() as store:
        made = put(store, "new")
        assert {d.document_id for d in store.list_metadata()} == {"kept", "merged", "new"}
        assert store.get_metadata("new") == made
        assert store.verify().findings == []
    with home.owner() as (_, log):
        assert log.info(TOPIC).end > reached - 1
        home.advance(log)
    with home.store() as store:
        state = everything(store)
        store.rebuild()
        assert everything(store) == state


def test_log_and_projection_of_yesterday_beside_the_tables_of_today_lose_nothing_that_the_tables_have(home):
    with home.owner() as (store, log):
        put(store, "kept")
    home.copy_log("log-before")
    shutil.copytree(home.link.parent, home.folder / "documents-before", symlinks=True)
    with home.owner() as (store, log):
        put(store, "merged")
        store.update_metadata("kept", {"size_bytes": 5})
        home.advance(log)
        state = everything(store)
    home.bring_log_back("log-before")
    shutil.rmtree(home.link.parent)
    (home.folder / "documents-before").rename(home.link.parent)
    with home.store() as store:
        assert store.update_metadata("kept", {"size_bytes": 6}).revision == 3
        assert everything(store)[0][1:2] == state[0][1:2]
        assert [r.revision for r in store.history("merged")] == [1]
        assert store.verify().findings == []


def test_an_older_log_that_has_grown_again_is_not_taken_for_the_newer_one(home, monkeypatch):
    with home.owner() as (store, _):
        put(store, "kept")
    home.copy_log("log-before")
    with home.owner() as (store, _):
        put(store, "lost")
    shutil.copytree(home.link.parent, home.folder / "documents-before", symlinks=True)
    home.bring_log_back("log-before")
    later = time.time() + 5
    monkeypatch.setattr("time.time", lambda: later)  # who copies a folder back needs longer than a second
    with home.store() as store:
        put(store, "new")
        put(store, "newer")
    shutil.rmtree(home.link.parent)
    shutil.copytree(home.folder / "documents-before", home.link.parent, symlinks=True)
    with home.store() as store:
        assert {d.document_id for d in store.list_metadata()} == {"kept", "new", "newer"}


def test_writes_and_reads_go_on_while_the_catalog_is_unreachable(filled):
    catalog = next(path for path in filled.folder.rglob("*.db") if "catalog" in path.name)
    away = catalog.with_name("away")

    def break_catalog() -> None:
        catalog.rename(away)
        catalog.mkdir()

    with filled.owner() as (store, _):
        store.update_metadata("d0", {"size_bytes": 1})
        break_catalog()
        assert store.update_metadata("d0", {"size_bytes": 2}).revision == 5
        assert store.get_metadata("d0").size_bytes == 2
        state = everything(store)
    with filled.owner() as (store, log):  # a server that starts meanwhile does not know which offsets are safe
        assert everything(store) == state
        before = log.info(TOPIC).end
        with pytest.raises(FrazilError):
            store.update_metadata("d0", {"size_bytes": 3})
        assert log.info(TOPIC).end == before
        catalog.rmdir()
        away.rename(catalog)
        assert store.update_metadata("d0", {"size_bytes": 3}).revision == 6


def test_loaded_documents_are_one_message_and_survive_the_loss_of_the_projection(filled):
    with filled.owner() as (store, log):
        state = everything(store)
        before = log.info(TOPIC).end
        assert store.load_revisions([_foreign_history()]) == 0
        assert log.info(TOPIC).end == before
        store.rebuild()
        assert everything(store) == state
        filled.advance(log)
        store.rebuild()
        assert everything(store) == state
        assert store.verify().findings == []


def test_a_file_with_revisions_that_are_there_already_is_replaced_by_one_without_them(home):

    def staged() -> list[Path]:
        return list((home.folder / "warehouse").rglob("_bulk/*.parquet"))

    history = _foreign_history()
    with home.owner() as (store, log):
        assert store.load_table(revisions_to_table([StoredRevision(history[0])])) == 1
        before = staged()
        rows = revisions_to_table([StoredRevision(revision) for revision in history])
        assert store.load_table(rows) == len(history) - 1
        assert store.load_table(rows) == 0
        assert len(staged()) == len(before) + 1
        state = everything(store)
        assert [stored.revision for stored in state[0]] == history
        store.rebuild()
        assert everything(store) == state
        home.advance(log)
        assert store.verify().findings == []


@pytest.mark.parametrize("field", ["filename", pytest.param("tags", marks=pytest.mark.deep)])
def test_a_text_that_is_not_utf_8_is_not_imported_and_the_store_goes_on(home, field):
    content = parquet_with_bad_text(field, 0)
    with home.owner() as (store, log):
        store.add_column("note", "string")
        put(store, "before")
        state, end = everything(store), log.info(TOPIC).end
        with pytest.raises(UsageError) as refused:
            import_documents(store, io.BytesIO(content), "parquet")
        assert f"line 1: field '{field}' is not UTF-8" in str(refused.value.cause)
        assert (everything(store), log.info(TOPIC).end) == (state, end)
        report = import_documents(store, io.BytesIO(content), "parquet", skip_bad=io.BytesIO())
        assert (report.created, report.bad) == (2, 1)
        put(store, "after")
        store.rebuild()
        assert {d.document_id for d in store.list_metadata()} == {"before", "after", "d1", "d2"}


def test_revisions_whose_text_is_not_utf_8_are_not_published(home):
    rows = revisions_to_table([StoredRevision(_foreign_history()[0])])
    place = rows.schema.get_field_index("bucket")
    with home.owner() as (store, log):
        put(store, "before")
        end = log.info(TOPIC).end
        with pytest.raises(UsageError, match="cannot be staged"):
            store.load_table(rows.set_column(place, rows.schema.field(place), unchecked_texts([b"\xff"])))
        assert log.info(TOPIC).end == end
        assert not list((home.folder / "warehouse").rglob("_bulk/*.parquet"))
        put(store, "after")


def test_a_revision_that_the_tables_never_got_is_told_and_stops_nothing(home):
    with home.owner() as (store, log):
        put(store, "d")
        put(store, "other")
        store.update_metadata("d", {"size_bytes": 2})
        home.advance(log)
        with LazyStore(home.settings) as tables:  # as if it had become a dead letter
            tables.store().load("document_archive.document_history").delete("document_id = 'd' and revision = 2")
        store.update_metadata("d", {"size_bytes": 3})
        store.delete_metadata("other")
        statistics = store.get_statistics()
        store.rebuild()
        assert store.get_statistics() == statistics
        assert [r.revision for r in store.history("d")] == [1, 3]
        assert store.get_metadata("d").size_bytes == 3
        assert "document 'd' has gaps in its revisions: [1, 3]" in "\n".join(store.verify().findings)
        assert store.update_metadata("d", {"size_bytes": 4}).revision == 4


# -- verify


def test_verify_names_every_revision_that_differs(filled):
    with filled.owner() as (store, log):
        home_end = log.info(TOPIC).end
        filled.advance(log, end=home_end)
        assert store.verify().findings == []
        with sqlite3.connect(filled.link.resolve()) as database:
            database.execute("UPDATE document_history SET provider = 'x' WHERE document_id = 'd2'")
            database.execute("DELETE FROM document_history WHERE document_id = 'd3'")
        findings = "\n".join(store.verify().findings)
        assert "revision 1 of document 'd2' differs in the projection: provider" in findings
        assert "revision 1 of document 'd3' is missing in the projection" in findings
        store.rebuild()
        assert store.verify().findings == []


def test_verify_finds_a_wrong_row_of_the_tables(filled):
    with filled.owner() as (store, log):
        filled.advance(log)
        with LazyStore(filled.settings) as tables:
            table = tables.store().load("document_archive.document_metadata")
            table.delete("document_id = 'd2'")
        assert "document 'd2' is missing in the table of present documents" in "\n".join(store.verify().findings)


def test_several_generations_are_never_left_behind(filled):
    folder = ProjectionFolder(filled.link.parent)
    with filled.store() as store:
        for _ in range(3):
            store.rebuild()
        store.get_statistics()
    assert folder.link.is_symlink()
    assert len(list(filled.link.parent.glob("*.db"))) == 2


# -- a pipeline without a server


def test_a_pipeline_that_has_the_log_hands_it_over_for_a_write_and_gets_it_back(home):
    with home.store() as store:
        put(store, "d")
    stop, has_log = threading.Event(), threading.Event()
    offsets: list[int] = []

    def run_pipeline() -> None:
        access: LogAccess | None = open_log(home.settings)
        while access is not None and not stop.is_set():
            with access, Broker(access) as broker:
                access.announce(flight=broker.address)
                offsets.append(access.info(TOPIC).end)
                with ending_for_server(access, stop) as ending:
                    has_log.set()
                    ending.wait()
            access = connect_again(home.settings, stop, note=silent)
        if access is not None:
            access.close()

    pipeline = threading.Thread(target=run_pipeline)
    pipeline.start()
    has_log.wait()
    try:
        with home.store() as store:
            assert store.get_metadata("d").revision == 1
            assert offsets == [1], "a read leaves the log where it is"
            assert store.update_metadata("d", {"size_bytes": 1}).revision == 2
            until(lambda: offsets == [1, 2])
            assert store.get_metadata("d").revision == 2
    finally:
        stop.set()
        pipeline.join()


@pytest.mark.parametrize("merged", ["nothing", "the first", "all"])
def test_a_key_that_came_again_after_its_age_is_no_obstacle_to_a_rebuild(home, merged):
    """The tables and the log keep every key for good."""
    clock = Clock()
    with open_log(home.settings) as log, IcebergDocumentStore(home.settings, log, now=clock) as store:
        put(store, "a")
        first = store.update_metadata("a", {"size_bytes": 1}, idempotency_key="k")
        if merged != "nothing":
            home.advance(log)
        clock.advance(days=KEY_AGE.days, seconds=1)
        second = store.update_metadata("a", {"size_bytes": 2}, idempotency_key="k")
        assert (first.revision, second.revision) == (2, 3)
        if merged == "all":
            home.advance(log)
        state = everything(store)
        assert store.verify().findings == []
        store.rebuild()
        assert everything(store) == state
        assert store.verify().findings == []
        assert store.update_metadata("a", {"size_bytes": 2}, idempotency_key="k") == second
        assert [s.idempotency_key for batch in store.stored_revisions() for s in batch] == [None, None, "k"]


class Staged:
    """A store into which files were loaded, and what becomes of the files."""

    def __init__(self, home: Home, store: IcebergDocumentStore, log: Any) -> None:
        self.home, self.store, self.log = home, store, log
        self._loaded = 0

    def load(self) -> Path:
        """Loads a document by a staged file, in a message of a segment of its own, and returns the file."""
        before = set(self.files())
        self._loaded += 1
        clock, oracle = Clock(), Oracle()
        write = Write("put", f"loaded{self._loaded}", {"filename": "loaded.pdf"})
        oracle.apply([write], [d.revision for d in oracle.decide([write], clock.advance(seconds=self._loaded))])
        self.store._tidied_next = 0.0  # as after an hour
        assert self.store.load_revisions(oracle.histories.values()) == 1
        (made,) = set(self.files()) - before
        return made

    def files(self) -> list[Path]:
        return sorted(self.home.folder.rglob("_bulk/*.parquet"))

    def merge(self) -> None:
        self.home.advance(self.log)
        self.log.report(TOPIC, DOCUMENTS, self.log.info(TOPIC).end)

    def retain(self) -> None:
        """Removes what there is by now from the log."""
        for _ in range(20):
            put(self.store, str(uuid.uuid4()), attributes={"text": "x" * 2000})
        self.merge()
        assert self.log.retain(TOPIC, size=0).segments > 0
        put(self.store, str(uuid.uuid4()))


@pytest.fixture
def staged(home: Home) -> Iterator[Staged]:
    home.flags = {"log.max_file_size": "20000"}
    with home.owner() as (store, log):
        yield Staged(home, store, log)


def make_old(file: Path, days: float = 2) -> None:
    then = time.time() - days * 86_400
    os.utime(file, (then, then))


def test_a_staged_file_goes_when_the_tables_have_it_and_the_log_has_passed_it(staged: Staged):
    first = staged.load()
    make_old(first)
    staged.load()
    assert first.exists(), "the tables do not have it"
    staged.merge()
    staged.load()
    assert first.exists(), "the log has the message that names it: a rewind would read it"
    young = staged.files()[-1] if staged.files()[-1] != first else staged.files()[0]
    staged.retain()
    staged.load()
    assert not first.exists() and young.exists(), "only what was surely published before is removed"
    assert staged.store.verify().findings == []
    staged.store.rebuild()
    assert staged.store.get_metadata("loaded1").filename == "loaded.pdf"


def test_a_staged_file_that_a_dead_letter_names_stays(staged: Staged):
    """It may be sent again, behind newer messages, when somebody has removed the reason."""
    refused, other = staged.load(), staged.load()
    for file in (refused, other):
        make_old(file)
    with LazyStore(staged.home.settings) as tables:
        kit = SinkKit(staged.home.settings, staged.log, staged.log, tables)
        payload = json.dumps({"type": "bulk", "version": 1, "files": [{"uri": refused.as_uri()}]}).encode()
        put_dead_letters(kit, TOPIC, 0, 1, sink=DOCUMENTS, payload=pa.array([payload], pa.binary()))
    staged.retain()
    staged.load()
    assert refused.exists() and not other.exists()


def test_a_folder_that_cannot_be_tidied_stops_no_load(staged: Staged, monkeypatch):
    def fail(*_args, **_more):
        raise UnavailableError("the bucket does not answer")

    make_old(staged.load())
    staged.retain()
    monkeypatch.setattr("frazil.documents.iceberg.staged_removal.TableStorage.list", fail)
    assert staged.load().exists()
