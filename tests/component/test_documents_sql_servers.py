"""Documents on a database server that restarts, breaks connections, is away, or rejects us."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pymysql
import pytest
from sqlalchemy import event

from frazil.documents.sql import transactions
from frazil.documents.sql.store import SqlDocumentStore
from frazil.documents.store import Write
from frazil.errors import (
    CredentialsError,
    FrazilError,
    LockedError,
    NotFoundError,
    SetupError,
    UnavailableError,
    UsageError,
)
from tests.documents_kit import START, Clock, Place, place_of
from tests.services import mariadb, postgres
from tests.services.process import free_port, start

SERVERS = ["mysql", "postgresql"]
_EXECUTE = b"E\x00\x00\x00\x09\x00\x00\x00\x00\x00"


@pytest.fixture(params=SERVERS)
def place(request, services, tmp_path) -> Place:
    return place_of(request.param, services, tmp_path)


class Proxy:
    """Passes bytes on between clients and a server, and breaks a connection when it sees a COMMIT."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.break_next: str | None = None  # "before" or "after" the server has the COMMIT
        self.sign = b"COMMIT"
        self.broken = 0
        self.refusing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                if self.refusing:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self.target))
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._backward, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        parsed = False
        with suppress(OSError):
            while data := client.recv(65536):
                if data[:1] == b"P":  # PostgreSQL: the statement first, its execution later
                    parsed = b"commit\0" in data
                if self.break_next and (self.sign in data or (parsed and _EXECUTE in data)):
                    when, self.break_next = self.break_next, None
                    self.broken += 1
                    if when == "after":
                        client.shutdown(socket.SHUT_WR)  # the answer no longer arrives
                        server.sendall(data)
                        time.sleep(0.1)
                    break
                server.sendall(data)
        self._close(client, server)

    def _backward(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        self._close(client, server)

    def _close(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def proxied(place: Place) -> Iterator[tuple[SqlDocumentStore, Proxy]]:
    host, _, rest = place.url.rpartition(":")
    port, _, database = rest.partition("/")
    proxy = Proxy(int(port))
    with SqlDocumentStore(f"{host}:{proxy.port}/{database}") as store:
        yield store, proxy
    proxy.listener.close()


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.deep), "after"])
def test_a_connection_that_breaks_at_the_commit_neither_loses_nor_doubles_a_write(place, when):
    with proxied(place) as (store, proxy):
        store.put_metadata({"document_id": "d", "filename": "a", "attributes": {"n": 1.5}})
        for turn in range(1, 4):
            proxy.break_next = when
            made = store.update_metadata("d", {"size_bytes": turn}, if_match=turn)
            assert (made.revision, made.size_bytes) == (turn + 1, turn)
            proxy.break_next = when
            assert store.put_metadata({"filename": "new"}).revision == 1
        assert proxy.broken == 6
        proxy.break_next = when
        made = store.delete_metadata("d", if_match=4, idempotency_key="k")
        assert store.delete_metadata("d", if_match=4, idempotency_key="k") == made
        proxy.break_next = when
        store.add_column("pages", "long")
        proxy.break_next = when
        revision = store.history("d")[0]
        other = replace(revision, document=replace(revision.document, document_id="e"))
        assert store.load_revisions([[other]]) == 1
        assert proxy.broken == 9
        assert [r.revision for r in store.history("d")] == [1, 2, 3, 4, 5]
        assert [r.revision for r in store.history("e")] == [1]
        assert store.get_statistics()["total_documents"] == 4


@pytest.mark.deep
@pytest.mark.parametrize("kind", SERVERS)
def test_a_connection_that_breaks_within_a_large_batch_repeats_it(kind, services, tmp_path):
    batch = [Write("put", f"d{n}", {"filename": f"mark-{n}"}) for n in range(200)]
    with proxied(place_of(kind, services, tmp_path)) as (store, proxy):
        store.put_metadata({"filename": "a"})
        proxy.break_next, proxy.sign = "after", b"mark-150"
        assert [r.revision for r in store.write(batch)] == [1] * 200
        assert proxy.broken == 1
        assert store.get_statistics()["total_documents"] == 201
        assert len(store.history("d150")) == 1


@pytest.mark.deep
def test_when_the_server_stays_away_after_a_commit_the_error_says_that_the_outcome_is_unknown(place, monkeypatch):
    monkeypatch.setattr(transactions, "PATIENCE_SECONDS", 0.3)
    with proxied(place) as (store, proxy):
        store.put_metadata({"document_id": "d", "filename": "a"})
        proxy.break_next, proxy.refusing = "after", True
        with pytest.raises(UnavailableError, match="is not known"):
            store.update_metadata("d", {"size_bytes": 1})
        with pytest.raises(UnavailableError, match="cannot reach the database"):
            store.get_metadata("d")
        with pytest.raises(UnavailableError, match="cannot reach the database"):
            store.update_metadata("d", {"size_bytes": 2})
        proxy.refusing = False
        deadline = time.monotonic() + 20
        while store.get_metadata("d").size_bytes is None:  # the server may still be writing
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [revision.document.size_bytes for revision in store.history("d")] == [None, 1]


@pytest.mark.deep
@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_is_killed_and_restarted_during_writes_loses_and_doubles_nothing(kind, services):
    server = services.own(mariadb.start_mariadb if kind == "mysql" else postgres.start_postgres)
    writers = 3
    with SqlDocumentStore(server.url) as store:
        store.write([_put(f"d{number}") for number in range(writers)])
        acknowledged = [[] for _ in range(writers)]
        in_doubt, other, stop = [0] * writers, [], threading.Event()

        def work(number: int) -> None:
            mark = 0
            while not stop.is_set():
                mark += 1
                try:
                    made = store.update_metadata(f"d{number}", {"attributes": {f"m{mark}": 1}})
                    acknowledged[number].append(made)
                except UnavailableError:
                    in_doubt[number] += 1
                except FrazilError as error:
                    other.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        process = server.process
        for _ in range(3):
            time.sleep(0.7)
            process.popen.kill()
            process.stop()
            process = _start_again(server, process, kind)
            services._started[f"again-{process.pid}"] = replace(server, process=process)
        time.sleep(1.5)
        stop.set()
        for thread in threads:
            thread.join()
        assert other == []
        for number in range(writers):
            history = store.history(f"d{number}")
            stored = {revision.revision: revision.document for revision in history}
            assert sorted(stored) == list(range(1, len(stored) + 1))
            assert len(acknowledged[number]) > 3
            assert all(stored[made.revision] == made for made in acknowledged[number])
            assert len(stored) - 1 - len(acknowledged[number]) <= in_doubt[number]
            assert len(history[-1].document.attributes) == len(stored) - 1
        assert store.get_statistics()["total_documents"] == writers


def _put(document_id: str) -> Write:
    return Write("put", document_id, {"filename": "a"})


def _start_again(server, process, kind: str):
    user = "postgres" if kind == "postgresql" and os.geteuid() == 0 else None
    again = start(
        process.name,
        process.popen.args,
        folder=process.log.parent,
        port=process.port,
        user=user,
    )
    module = mariadb if kind == "mysql" else postgres
    again.wait_ready(lambda: module._answers(server))
    return again


def test_a_server_that_is_away_is_unavailable_and_its_password_is_not_shown(place):
    scheme = place.url.partition("://")[0]
    with pytest.raises(UnavailableError) as refused:
        SqlDocumentStore(f"{scheme}://frazil:top-secret@127.0.0.1:{free_port()}/frazil")
    assert "127.0.0.1" in refused.value.message
    assert "top-secret" not in str(refused.value.to_dict())
    assert refused.value.retryable


def test_wrong_credentials_and_a_missing_database_are_said_so_without_the_password(place):
    with pytest.raises(CredentialsError) as refused:
        SqlDocumentStore(place.url.replace("frazil-secret", "top-secret"))
    assert "top-secret" not in str(refused.value.to_dict())
    with pytest.raises(NotFoundError, match="does not exist") as refused:
        SqlDocumentStore(place.url.rpartition("/")[0] + "/no_such_database")
    assert "frazil-secret" not in str(refused.value.to_dict())


@pytest.mark.deep
def test_a_writer_that_holds_the_lock_too_long_is_an_error_that_may_be_repeated(place, monkeypatch):
    with place.open() as store, place.open() as other:
        statement = (
            "SET SESSION innodb_lock_wait_timeout = 1"
            if place.kind == "mysql"
            else "SET SESSION lock_timeout = '500ms'"
        )

        @event.listens_for(other._engine, "begin")
        def _short(connection) -> None:
            connection.exec_driver_sql(statement)

        with store._engine.connect() as holder:
            holder.exec_driver_sql("SELECT * FROM store_state WHERE name = 'clock' FOR UPDATE")
            with pytest.raises(LockedError):
                other.put_metadata({"filename": "a"})
        assert other.put_metadata({"filename": "a"}).revision == 1


def test_the_kinds_of_databases_are_told_apart(place):
    with place.open() as store:
        assert store.kind == place.kind


@pytest.mark.parametrize(("url", "extra"), [("mysql://u:pw@h/d", "mysql"), ("postgresql://u:pw@h/d", "postgres")])
def test_a_missing_driver_says_what_to_install(monkeypatch, url, extra):
    monkeypatch.setattr("frazil.documents.sql.engine.find_spec", lambda name: None)
    with pytest.raises(SetupError) as refused:
        SqlDocumentStore(url)
    assert f"frazil[{extra}]" in refused.value.hint
    assert "pw" not in str(refused.value.to_dict()).replace("pip", "")


def test_a_login_that_the_driver_cannot_do_says_what_to_install(monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("'cryptography' package is required for caching_sha2_password")

    monkeypatch.setattr(pymysql, "connect", refuse)
    with pytest.raises(SetupError, match="cannot log in") as refused:
        SqlDocumentStore("mysql://u:top-secret@127.0.0.1/d")
    assert "pymysql[rsa]" in refused.value.hint
    assert "top-secret" not in str(refused.value.to_dict())


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_accepts_and_says_nothing_is_unavailable_after_a_while(kind, monkeypatch):
    monkeypatch.setattr("frazil.documents.sql.engine.CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UnavailableError, match="cannot reach"):
        SqlDocumentStore(f"{kind}://u:pw@127.0.0.1:{silent.getsockname()[1]}/d")


@pytest.mark.deep
def test_a_slow_statement_is_waited_for(place, monkeypatch):
    monkeypatch.setattr("frazil.documents.sql.engine.CONNECT_SECONDS", 1)
    sleep = "SELECT SLEEP(1.5)" if place.kind == "mysql" else "SELECT pg_sleep(1.5)"
    with place.open() as store, store._engine.connect() as connection:
        connection.exec_driver_sql(sleep)


@pytest.mark.deep
def test_two_stores_on_one_server_do_not_see_each_other(services, tmp_path):
    one = place_of("postgresql", services, tmp_path)
    two = place_of("postgresql", services, tmp_path, "other")
    with one.open(now=Clock()) as left, two.open(now=Clock(START)) as right:
        left.put_metadata({"document_id": "d", "filename": "a"})
        with pytest.raises(NotFoundError):
            right.get_metadata("d")
        for n in range(3):
            left.put_metadata({"filename": f"{n}"})
        cursor = left.page(limit=1).next_cursor
        with pytest.raises(UsageError, match="cursor is invalid"):
            right.page(limit=1, cursor=cursor)
