"""Documents in a SQLite file, and what all databases share: set-up, migrations, query plans, several processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event, text

from frazil.documents.open import open_store, store_url
from frazil.documents.sql import migrate as migrations
from frazil.documents.sql import records
from frazil.documents.sql.counts import count_rows
from frazil.documents.sql.engine import begin_write, connect, open_engine, open_sqlite, snapshot
from frazil.documents.sql.migrate import HEAD, VERSION_TABLE, migrate
from frazil.documents.sql.reads import SqlReads
from frazil.documents.sql.records import StoredRevision, apply_revisions, load_current
from frazil.documents.sql.schema import documents, metadata
from frazil.documents.sql.store import SqlDocumentStore
from frazil.documents.store import DocumentFilter, Write
from frazil.errors import (
    ConfigError,
    ConflictError,
    FrazilError,
    IntegrityError,
    LockedError,
    NotAllowedError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from frazil.settings import load_settings
from tests.documents_kit import START, Chance, Clock, Place, all_pages, outcome, place_of

SQL_KINDS = [
    "sqlite",
    pytest.param("mysql", marks=pytest.mark.deep),
    pytest.param("postgresql", marks=pytest.mark.deep),
]


@pytest.fixture(params=SQL_KINDS)
def place(request, services, tmp_path) -> Place:
    return place_of(request.param, services, tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "archive" / "documents.db"


@pytest.fixture
def store(file):
    with SqlDocumentStore(f"sqlite:///{file}") as made:
        yield made


# -- which store


def settings_with(tmp_path: Path, **flags: str):
    return load_settings(flags={"home": str(tmp_path / "home"), **flags}, environ={})


def test_without_a_setting_the_store_is_a_private_file_in_the_home_folder(tmp_path):
    settings = settings_with(tmp_path)
    with open_store(settings) as store:
        assert store.kind == "sqlite"
        store.put_metadata({"filename": "a"})
    made = settings.model.home / "documents.db"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700


def test_the_setting_and_the_argument_choose_the_store(tmp_path):
    url = f"sqlite:///{tmp_path / 'chosen.db'}"
    chosen = settings_with(tmp_path, **{"database.url": url})
    assert store_url(chosen) == url
    assert (
        store_url(chosen, "iceberg") == store_url(settings_with(tmp_path, **{"database.url": "iceberg"})) == "iceberg"
    )
    assert store_url(chosen, "sqlite") == store_url(settings_with(tmp_path))
    with open_store(chosen) as store, open_store(settings_with(tmp_path), url) as same:
        store.put_metadata({"document_id": "d", "filename": "a"})
        assert same.get_metadata("d").filename == "a"


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "oracle://u:secret@h/d",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory&uri=true",
        "mysql+nodriver://u:secret@h/d",
        "postgresql://u:secret@h:notaport/d",
        "://",
    ],
)
def test_a_url_that_is_no_store_is_a_clear_error_without_its_password(url):
    with pytest.raises(ConfigError, match=r"database\.url") as refused:
        SqlDocumentStore(url)
    assert "secret" not in str(refused.value.to_dict())
    assert refused.value.hint


# -- the file


def test_the_files_of_a_store_can_be_read_by_this_user_only(store, file):
    store.put_metadata({"filename": "a"})
    made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
    assert set(made) >= {"documents.db", "documents.db-wal"}
    assert set(made.values()) == {0o600}


def test_a_damaged_file_is_reported_as_damaged_and_left_as_it_is(file):
    file.parent.mkdir()
    file.write_bytes(b"this is no database" * 100)
    with pytest.raises(IntegrityError, match="damaged"):
        SqlDocumentStore(f"sqlite:///{file}")
    assert file.read_bytes() == b"this is no database" * 100


def test_a_folder_or_a_file_in_the_way_is_a_clear_error(file, tmp_path):
    file.mkdir(parents=True)
    with pytest.raises(FrazilError, match=r"documents\.db"):
        SqlDocumentStore(f"sqlite:///{file}")
    (tmp_path / "plain").write_text("")
    with pytest.raises(NotAllowedError):
        SqlDocumentStore(f"sqlite:///{tmp_path / 'plain' / 'documents.db'}")


def test_a_reader_can_open_the_file_read_only_while_another_writes(store, file):
    store.put_metadata({"document_id": "d", "filename": "a"})
    engine = open_sqlite(file, read_only=True)
    reads = SqlReads(engine, b"key")
    assert reads.get_metadata("d").filename == "a"
    store.update_metadata("d", {"filename": "b"})
    assert reads.get_metadata("d").filename == "b"
    with pytest.raises(NotAllowedError, match="read-only"), begin_write(engine) as connection:
        connection.execute(documents.delete())
    engine.dispose()
    with pytest.raises(FrazilError):
        SqlReads(open_sqlite(file.parent / "missing.db", read_only=True), b"key").get_metadata("d")
    assert not (file.parent / "missing.db").exists()


def test_a_snapshot_sees_one_state_while_others_write(place):
    with place.open() as store:
        store.put_metadata({"document_id": "d", "filename": "a"})
        with snapshot(store._engine) as connection:
            first = load_current(connection, ["d"])
            thread = threading.Thread(target=lambda: store.update_metadata("d", {"filename": "b"}))
            thread.start()
            thread.join()
            assert load_current(connection, ["d"]) == first
        assert store.get_metadata("d").filename == "b"


def test_a_writer_that_waits_too_long_for_another_process_gets_an_error_that_may_be_repeated(store, file, monkeypatch):
    monkeypatch.setattr("frazil.documents.sql.engine.LOCK_WAIT_SECONDS", 0.2)
    store.put_metadata({"document_id": "d", "filename": "a"})
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with SqlDocumentStore(f"sqlite:///{file}") as other:
        assert other.get_metadata("d").filename == "a"
        with pytest.raises(LockedError) as refused:
            other.update_metadata("d", {"filename": "b"})
        assert refused.value.retryable
        holder.execute("ROLLBACK")
        assert other.update_metadata("d", {"filename": "b"}).revision == 2
    holder.close()


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_a_full_disk_refuses_the_write_and_the_store_goes_on(file):
    script = f"""
import resource, signal
from frazil.documents.sql.store import SqlDocumentStore
from frazil.errors import FrazilError
from frazil.documents.store import Write
store = SqlDocumentStore("sqlite:///{file}")
store.put_metadata({{"document_id": "d", "filename": "a"}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, limit[1]))
try:
    store.write([Write("put", None, {{"filename": "x" * 1000, "attributes": {{"a": "y" * 5000}}}}) for _ in range(500)])
    print("written")
except FrazilError as error:
    print(type(error).__name__, error.http_status)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
print(store.get_statistics()["total_documents"], store.update_metadata("d", {{"filename": "b"}}).revision)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    first, second = out.stdout.splitlines()
    assert first.startswith("UnavailableError 503")
    assert second == "1 2"


_VICTIM = """
import sys
from frazil.documents.sql.store import SqlDocumentStore
store = SqlDocumentStore(sys.argv[1])
revision = int(sys.argv[2])
while True:
    made = store.update_metadata("d", {"size_bytes": revision + 1}, if_match=revision)
    revision = made.revision
    print(revision, flush=True)
    store.put_metadata({"document_id": f"new-{revision}", "filename": "x"}, if_match=0)
"""


@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_a_writer_that_is_killed_loses_and_doubles_nothing(place, rounds):
    with place.open() as store:
        revision = store.put_metadata({"document_id": "d", "filename": "a"}).revision
        for turn in range(rounds):
            victim = subprocess.Popen(
                [sys.executable, "-c", _VICTIM, place.url, str(revision)], stdout=subprocess.PIPE, text=True
            )
            acknowledged = [int(victim.stdout.readline()) for _ in range(5 + turn)]
            os.kill(victim.pid, signal.SIGKILL)
            acknowledged += [int(line) for line in victim.stdout.read().split("\n")[:-1]]
            victim.wait()
            store.write([])  # waits for what a server still does for the victim
            history = store.history("d")
            assert [r.revision for r in history] == list(range(1, len(history) + 1))
            assert acknowledged[-1] <= len(history) <= acknowledged[-1] + 1
            assert all(history[number - 1].document.size_bytes == number for number in acknowledged)
            revision = len(history)
        with connect(store._engine) as connection:
            assert store.get_statistics() == count_rows(connection, documents, [])


# -- migrations


def test_the_migrations_make_the_schema_of_the_code(place):
    with place.open() as store, connect(store._engine) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert context.get_current_revision() == HEAD
        assert compare_metadata(context, metadata) == []


def test_the_newest_migration_is_the_one_that_the_code_expects():
    assert ScriptDirectory(str(Path(migrations.__file__).parent)).get_current_head() == HEAD


def test_an_open_of_an_up_to_date_store_does_not_even_load_alembic(store, file):
    script = (
        f"import sys; from frazil.documents.sql.store import SqlDocumentStore; SqlDocumentStore('sqlite:///{file}'); "
        "print('alembic' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert out.stdout.strip() == "False"


def test_the_schema_of_a_newer_version_is_refused_and_left_as_it_is(place):
    with place.open() as store:
        engine = store._engine
        with begin_write(engine) as connection:
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
        try:
            with pytest.raises(UnsupportedError, match="9999"):
                place.open()
            with connect(engine) as connection:
                assert connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}")) == "9999"
        finally:
            with begin_write(engine) as connection:
                connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{HEAD}'"))


def test_a_table_of_somebody_else_is_not_taken_over(file):
    file.parent.mkdir()
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE documents (title TEXT)")
        other.execute("INSERT INTO documents VALUES ('mine')")
    with pytest.raises(ConflictError, match="'documents' that Frazil did not make"):
        SqlDocumentStore(f"sqlite:///{file}")
    with sqlite3.connect(file) as other:
        assert other.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [("documents",)]


def _without_tables(place: Place) -> None:
    with place.open() as store:
        metadata.drop_all(store._engine)
        with begin_write(store._engine) as connection:
            connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))


def test_many_that_open_an_empty_database_at_once_agree_on_its_schema(place):
    _without_tables(place)
    results = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        with place.open() as store:
            results.append((outcome(lambda: store.put_metadata({"filename": "a"}).revision), store._cursor_key))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    with place.open() as store:
        assert store.get_statistics()["total_documents"] == 4


@pytest.mark.parametrize("failing", ["documents", "document_columns", "history_by_key"])
def test_a_migration_that_breaks_off_is_completed_by_the_next_open(place, failing):
    _without_tables(place)
    engine = open_engine(place.url)

    @event.listens_for(engine, "before_cursor_execute")
    def _break(connection, cursor, statement, *rest) -> None:
        if f" {failing} " in statement.replace("\n", " ").replace('"', "") and statement.strip().startswith("CREATE"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate(engine)
    engine.dispose()
    with place.open() as store, connect(store._engine) as connection:
        assert (
            compare_metadata(MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}), metadata)
            == []
        )
        store.put_metadata({"filename": "a"})


# -- queries


def plans_of(store: SqlDocumentStore, call) -> list[str]:
    seen = []

    def note(connection, cursor, statement, parameters, *rest) -> None:
        if statement.startswith("SELECT"):
            seen.append((statement, parameters))

    event.listen(store._engine, "before_cursor_execute", note)
    call()
    event.remove(store._engine, "before_cursor_execute", note)
    with connect(store._engine) as connection:
        return [
            " | ".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters))
            for statement, parameters in seen
        ]


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize(
    ("sort", "conditions", "as_of", "index"),
    [
        ("created_at", {}, None, "documents_by_creation"),
        ("created_at", {"storage_tier": "archive"}, None, "documents_by_tier"),
        ("created_at", {"storage_tier": "archive", "start_date": START}, None, "documents_by_tier"),
        ("created_at", {"provider": "aws"}, None, "documents_by_creation"),
        ("filename", {}, None, "documents_by_name"),
        ("filename", {"name_prefix": "a"}, None, "documents_by_name"),
        ("document_id", {}, None, "autoindex_documents"),
        ("created_at", {}, START, "history_by_creation"),
        ("created_at", {"storage_tier": "archive"}, START, "history_by_creation"),
    ],
)
def test_pages_come_from_an_index_without_sorting(store, sort, conditions, as_of, index, descending):
    store.write(
        [
            Write(
                "put", f"d{n}", {"filename": f"a{n}", "storage_tier": "archive", "provider": "aws", "created_at": START}
            )
            for n in range(9)
        ]
    )
    as_of = store.get_metadata("d0").updated_at if as_of else None
    where = DocumentFilter(**conditions)
    plans = plans_of(store, lambda: all_pages(store, where, sort=sort, descending=descending, limit=4, as_of=as_of))
    assert len(plans) == 3
    for plan in plans:
        assert index in plan
        assert "TEMP B-TREE" not in plan
    if not conditions:
        assert "SEARCH" in plans[-1], "later pages begin at the cursor"


def test_lookups_search_by_key(store):
    made = store.put_metadata({"document_id": "d", "filename": "a"}, idempotency_key="k")
    for call in (
        lambda: store.get_metadata("d"),
        lambda: store.history("d"),
        lambda: store.get_time_travel_snapshot("d", made.updated_at),
        lambda: store.put_metadata({"document_id": "d", "filename": "a"}, idempotency_key="k"),
        lambda: list(store.revisions("a")),
    ):
        plans = plans_of(store, call)
        assert plans
        assert not [plan for plan in plans if "SCAN document" in plan and "document_columns" not in plan]


def test_the_kept_statistics_equal_a_count_of_the_rows(place):
    chance, clock = Chance(11), Clock()
    with place.open(now=clock) as store:
        for _ in range(150):
            clock.advance(seconds=1)
            latest = {d.document_id: d.revision for d in store.list_metadata()}
            outcome(
                lambda latest=latest: store.write([chance.write(latest) for _ in range(chance.random.choice((1, 2)))])
            )
        with connect(store._engine) as connection:
            assert store.get_statistics() == count_rows(connection, documents, [])
        assert store.get_statistics()["total_documents"] > 20


def test_a_batch_of_many_documents_is_one_transaction(place):
    with place.open() as store:
        made = store.write([Write("put", None, {"filename": f"f{n}", "size_bytes": n}) for n in range(3000)])
        again = store.write([Write("update", r.document_id, {"provider": "aws"}, if_match=1) for r in made])
        assert {r.valid_from for r in again} == {again[0].valid_from}
        assert store.get_statistics()["by_provider"] == {"aws": 3000}
        assert len(all_pages(store, limit=1000, as_of=made[0].valid_from)) == 3000
        store.write([Write("delete", r.document_id) for r in made[:1500]])
        assert store.get_statistics()["total_documents"] == 1500
        assert sum(len(batch) for batch in store.revisions()) == 7500
        with pytest.raises(NotFoundError):
            store.get_metadata(made[0].document_id)


# -- many threads


def test_threads_that_wait_share_a_transaction_and_each_gets_its_own_outcome(store):
    store.write([Write("put", f"d{n}", {"filename": "a"}) for n in range(16)])
    commits, results = [], {}
    event.listen(store._engine, "commit", commits.append)

    def work(number: int) -> None:
        bad = number % 4 == 3
        change = {"size_bytes": -1} if bad else {"size_bytes": number}
        results[number] = outcome(lambda: store.update_metadata(f"d{number}", change, if_match=1))

    with begin_write(store._engine):  # all of them queue behind this one
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while len(store._group._pending) < 15 and time.monotonic() < deadline:
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert len(commits) <= 3
    assert [number for number in results if results[number] is UsageError] == [n for n in results if n % 4 == 3]
    made = [results[number] for number in results if number % 4 != 3]
    assert all(store.get_metadata(document.document_id) == document for document in made)
    assert len({document.updated_at for document in made}) == 12


def test_what_the_database_refuses_in_one_request_concerns_no_other(store, monkeypatch):
    apply = records.apply_decided

    def refuse(connection, revisions) -> None:
        if any(stored.revision.document_id == "poison" for stored in revisions):
            raise FrazilError("the database refuses it")
        apply(connection, revisions)

    monkeypatch.setattr("frazil.documents.sql.store.apply_decided", refuse)
    results = {}
    names = ["a", "poison", "b", "c"]

    def work(number: int) -> None:
        results[names[number]] = outcome(
            lambda: store.put_metadata({"document_id": names[number], "filename": "x"}).revision
        )

    with begin_write(store._engine):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while len(store._group._pending) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert results == {"a": 1, "b": 1, "c": 1, "poison": FrazilError}
    assert store.get_statistics()["total_documents"] == 3


# -- the functions that the projection uses


def test_revisions_that_do_not_follow_what_is_stored_are_refused_and_change_nothing(place):
    with place.open() as store:
        store.put_metadata({"document_id": "d", "filename": "a"})
        first = store.history("d")[0]
        before = store.get_statistics()

        def of(revision: int, document_id: str = "d") -> StoredRevision:
            document = replace(first.document, document_id=document_id, revision=revision)
            return StoredRevision(replace(first, document=document))

        for wrong in ([of(3)], [of(2), of(4)], [of(1)], [of(2, "other")], [of(1, "x"), of(2, "x"), of(2, "x")]):
            with pytest.raises(FrazilError), begin_write(store._engine) as connection:
                apply_revisions(connection, wrong)
        assert [r.revision for r in store.history("d")] == [1]
        assert store.get_statistics() == before
