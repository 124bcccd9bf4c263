"""`/api/v1/documents` of a running `frazil serve`, over SQLite and over Iceberg, by real HTTP."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from frazil.documents.decide import new_document_id
from frazil.documents.iceberg.client import INTERNAL_PATH
from frazil.documents.iceberg.store import open_iceberg_store
from frazil.documents.lifecycle import RevisionMismatchError
from frazil.documents.model import Document, Revision
from frazil.log.trust import KEY_METADATA, make_proof, read_key
from frazil.settings import load_settings
from tests.documents_kit import place_of
from tests.e2e.conftest import Shell
from tests.e2e.servers import JSON, Answer, Server, serving

DOCUMENTS = "/api/v1/documents"
CLIENTS = 16


def shell_at(base: Path, url: str) -> Shell:
    for name in ("home", "work"):
        (base / name).mkdir()
    return Shell(base / "work", base / "home", {"DATABASE_URL": url})


KINDS = ["sqlite", "iceberg", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("mysql", "postgresql"))]


@pytest.fixture(scope="module", params=KINDS)
def server(request, services, tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param)
    url = place_of(request.param, services, folder, "http").url
    with serving(shell_at(folder, "iceberg" if url is None else url)) as running:
        yield running


def send(server: Server, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.ask(method, path, None if body is None else json.dumps(body).encode(), {**JSON, **named})


def test_a_document_from_its_creation_to_its_return(server):
    made = send(server, "POST", DOCUMENTS, {"filename": "ü.pdf", "storage_tier": "archive", "size_bytes": 5})
    assert made.status == 201, made.body
    path = made.headers["location"]
    assert server.ask("GET", path).json == made.json
    change = {"restore_status": "restored", "restore_expiry": 4_000_000_000_000}
    changed = send(server, "PATCH", path, change, If_Match=made.headers["etag"])
    assert (changed.status, changed.headers["etag"], changed.json["storage_tier"]) == (200, '"2"', "archive")
    stale = send(server, "PATCH", path, {"size_bytes": 9}, If_Match=made.headers["etag"])
    assert (stale.status, stale.json["revision"], stale.headers["content-type"]) == (412, 2, "application/problem+json")
    assert server.ask("GET", path, headers={"If-None-Match": '"2"'}).status == 304
    assert server.ask("DELETE", path).status == 204
    assert server.ask("GET", path).status == 404
    then = changed.json["updated_at"]
    assert server.get(f"{path}?as_of={then}") == changed.json
    assert server.get(f"{DOCUMENTS}?as_of={then}&restore_status=restored")["documents"] == [changed.json]
    assert server.get(f"/api/v1/document-statistics?as_of={then}")["by_restore_status"]["restored"] == 1
    assert send(server, "POST", f"{path}:undelete").headers["etag"] == '"4"'
    past = server.get(f"{path}/history")["revisions"]
    assert [revision["operation"] for revision in past] == ["put", "update", "delete", "undelete"]
    moments = [revision["valid_from"] for revision in past]
    assert moments == sorted(moments) and len(set(moments)) == 4


def test_pages_streams_and_columns(server):
    column = {"name": "pages", "type": "long"}
    assert send(server, "POST", "/api/v1/document-columns", column).status == 201
    writes = [
        {"operation": "put", "values": {"filename": f"{n:03}", "provider": "listed", "pages": n}} for n in range(120)
    ]
    assert send(server, "POST", f"{DOCUMENTS}:batch", {"writes": writes}).status == 200
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = server.get(f"{DOCUMENTS}?provider=listed&sort=-filename&limit=50{cursor}")
        seen += [document["filename"] for document in page["documents"]]
        cursor = f"&cursor={page['next_cursor']}" if page["next_cursor"] else None
    assert seen == [f"{n:03}" for n in reversed(range(120))]
    lines = server.ask("GET", f"{DOCUMENTS}?provider=listed&fields=pages", headers={"Accept": "application/x-ndjson"})
    assert sorted(json.loads(line)["pages"] for line in lines.body.splitlines()) == list(range(120))
    assert lines.headers["transfer-encoding"] == "chunked"


def test_of_16_clients_one_wins_each_revision_and_the_revisions_have_no_gap(server):
    path = send(server, "POST", DOCUMENTS, {"filename": "race", "tags": {}}).headers["location"]
    rounds, barrier = 12, threading.Barrier(CLIENTS)

    def run(number: int) -> list[tuple[int, int]]:
        outcomes = []
        for turn in range(1, rounds + 1):
            barrier.wait(60)
            answer = send(server, "PATCH", path, {"tags": {"winner": f"{number}"}}, If_Match=f'"{turn}"')
            outcomes.append((turn, answer.status))
            barrier.wait(60)
        return outcomes

    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(run, range(CLIENTS)))
    for turn in range(rounds):
        assert sorted(outcomes[turn][1] for outcomes in found) == [200] + [412] * (CLIENTS - 1)
    past = server.get(f"{path}/history")["revisions"]
    assert [revision["revision"] for revision in past] == list(range(1, rounds + 2))
    won = {turn: str(n) for n, outcomes in enumerate(found) for turn, status in outcomes if status == 200}
    assert [revision["tags"]["winner"] for revision in past[1:]] == [won[turn] for turn in range(1, rounds + 1)]


def test_a_repeated_request_is_applied_once_by_clients_at_the_same_time(server):
    def run(_: int) -> Answer:
        return send(server, "POST", DOCUMENTS, {"filename": "once"}, Idempotency_Key="one-and-the-same")

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(run, range(CLIENTS)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.json["document_id"] for answer in answers}) == 1


def test_a_client_that_leaves_a_stream_leaves_its_turn(server):
    writes = [
        {"operation": "put", "values": {"filename": str(n), "attributes": {"t": "x" * 5000}}} for n in range(1500)
    ]
    assert send(server, "POST", f"{DOCUMENTS}:batch", {"writes": writes}).status == 200
    for _ in range(6):  # more than turns
        connection = server.connection()
        connection.request("GET", DOCUMENTS, headers={"Accept": "application/x-ndjson"})
        assert connection.getresponse().read(10)
        connection.close()
    assert server.ask("GET", f"{DOCUMENTS}?provider=none", headers={"Accept": "application/x-ndjson"}).status == 200
    assert server.metric("frazil_documents_exports") <= 4


def test_no_stranger_gets_past_the_key_of_the_log(server):
    asked = {"action": "add_column", "name": "stolen", "column_type": "long"}
    for headers in ({}, {KEY_METADATA: ""}, {KEY_METADATA: "0" * 64}, {KEY_METADATA: "ü"}):
        refused = server.ask("POST", INTERNAL_PATH, json.dumps(asked).encode(), {**JSON, **headers})
        assert refused.status == 403 and refused.json["error"] == "NotAllowedError"
    columns = server.get("/api/v1/document-columns")["columns"]
    assert "stolen" not in [column["name"] for column in columns]
    assert not any("internal" in path for path in server.get("/openapi.json")["paths"])


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path):
    shell = shell_at(tmp_path, "iceberg")
    acknowledged: dict[str, int] = {}
    with serving(shell) as server:

        def write(number: int) -> None:
            made = send(server, "POST", DOCUMENTS, {"document_id": f"d{number}", "filename": "a"})
            while made.status in (200, 201):
                acknowledged[f"d{number}"] = int(made.headers["etag"].strip('"'))
                made = send(server, "PATCH", f"{DOCUMENTS}/d{number}", {"size_bytes": acknowledged[f"d{number}"]})

        def try_write(number: int) -> None:
            with suppress(OSError, HTTPException):  # the server is gone
                write(number)

        with ThreadPoolExecutor(8) as pool:
            working = [pool.submit(try_write, number) for number in range(8)]
            while sum(acknowledged.values()) < 100:
                assert not all(work.done() for work in working)
            server.send(signal.SIGKILL)
            server.wait()
            for work in working:
                work.result()
    with serving(shell) as server:
        for document_id, revision in acknowledged.items():
            past = server.get(f"{DOCUMENTS}/{document_id}/history")["revisions"]
            assert [found["revision"] for found in past] == list(range(1, len(past) + 1))
            assert revision <= len(past) <= revision + 1, "the last one may have been made durable without an answer"


def test_another_process_with_the_key_loads_in_bulk_through_the_server(tmp_path):
    shell = shell_at(tmp_path, "iceberg")
    with serving(shell) as server:
        home = Path(server.served["log"]).parent
        environ = {**shell.environment(), "FRAZIL_HOME": str(home), "FRAZIL_CACHE": str(tmp_path)}
        settings = load_settings(environ=environ, folder=shell.folder)
        assert settings.model.home == home
        now = datetime.now(UTC)
        document = Document(new_document_id(now), "bulk.pdf", created_at=now, updated_at=now, revision=1)
        with open_iceberg_store(settings) as store:
            assert store.load_revisions([[Revision(document, "put", now)]]) == 1
            assert store.put_metadata({"document_id": "b", "filename": "by its server"}).revision == 1
            assert store.get_metadata("b").filename == "by its server"
            with pytest.raises(RevisionMismatchError):
                store.update_metadata("b", {"size_bytes": 1}, if_match=7)
            assert store.add_column("pages", "long").name == "pages"
        assert server.get(f"{DOCUMENTS}/{document.document_id}")["filename"] == "bulk.pdf"
        key = read_key(Path(server.served["log"]))
        assert key is not None
        proven = {**JSON, KEY_METADATA: make_proof(key)}
        assert server.ask("POST", INTERNAL_PATH, b'{"action": "refresh"}', proven).status == 200
        assert server.ask("POST", INTERNAL_PATH, b'{"action": "rob"}', proven).status == 400


@pytest.mark.deep
def test_a_database_that_never_answers_does_not_hold_up_the_end(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        shell = shell_at(tmp_path, f"mysql://frazil@127.0.0.1:{silent.getsockname()[1]}/documents")
        with serving(shell, "--set", "topics.storage=log") as server:
            assert server.get("/readyz")["documents"] == "opening"
            server.send(signal.SIGTERM)
            assert server.wait(60) == 0


def test_a_server_starts_although_its_database_is_away(tmp_path):
    shell = shell_at(tmp_path, "postgresql://frazil:secret@127.0.0.1:9/documents")
    with serving(shell, "--set", "topics.storage=log") as server:
        told = server.ask("GET", DOCUMENTS)
        assert told.status == 503 and told.headers["content-type"] == "application/problem+json"
        assert told.json["cause"] and told.headers["retry-after"]
        assert b"secret" not in told.body and "secret" not in server.errors
        server.create("orders")
        assert server.publish("orders", "a")["offset"] == 0
        assert server.get("/readyz")["documents"] == "unavailable"
