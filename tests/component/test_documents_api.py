"""`/api/v1/documents` in this process, on a SQLite store: every route, and what is refused."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from frazil.api.app import create_app
from frazil.api.documents_models import DocumentRecord, DocumentRevision, DocumentStatistics
from frazil.documents.sql.store import SqlDocumentStore
from frazil.errors import UnavailableError
from frazil.log import Log
from frazil.settings import SettingsModel
from tests.api_kit import AppClient, Reply

DOCUMENTS = "/api/v1/documents"
PATCH = {"Content-Type": "application/merge-patch+json"}
NDJSON = {"Accept": "application/x-ndjson"}
ODD_IDS = ["a:b@c=d+e", "x:undelete", "statistics", "batch", "history", "A..b--", "9" * 255]


@contextmanager
def serving(folder: Path) -> Iterator[AppClient]:
    url = f"sqlite:///{folder / 'documents.db'}"
    with Log.open(folder / "log") as log:
        settings = SettingsModel(home=folder, cache=folder)
        made = AppClient(create_app(log, settings, open_documents=lambda: SqlDocumentStore(url)))
        yield made
        made.close()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[AppClient]:
    with serving(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppClient]:
    """An empty store for requests that are refused, and so leave it empty."""
    with serving(tmp_path_factory.mktemp("empty")) as made:
        yield made
        assert made.get(DOCUMENTS)["documents"] == []


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppClient]:
    """A store with ten documents, for requests that only read."""
    with serving(tmp_path_factory.mktemp("filled")) as made:
        fill(made)
        yield made


def create(client: AppClient, document_id: str | None = None, **fields: Any) -> Reply:
    body = {"filename": "a.pdf", **({} if document_id is None else {"document_id": document_id}), **fields}
    reply = client.ask("POST", DOCUMENTS, body=body)
    assert reply.status == 201, reply.body
    return reply


def refused(reply: Reply, status: int) -> dict[str, Any]:
    """Checks that an answer is a problem of RFC 9457."""
    problem: dict[str, Any] = reply.json
    assert reply.status == status == problem["status"], reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:frazil:error:{problem['error']}" or problem["type"] == "about:blank"
    assert problem["title"] and problem["detail"] and problem["instance"].startswith("/api/v1")
    assert {"cause", "hint", "retryable"} <= problem.keys()
    return problem


def ids(page: Any) -> list[str]:
    return [found["document_id"] for found in page["documents"]]


# -- create, read, change, delete


def test_a_created_document_is_found_where_location_says(client):
    made = create(client, filename="ü<b>'; DROP TABLE documents;--.pdf", tags={"project": "apollo"}, size_bytes=5)
    assert set(made.json) == set(DocumentRecord.model_fields)
    assert made.etag == '"1"' and made.headers["location"] == f"{DOCUMENTS}/{made.json['document_id']}"
    found = client.ask("GET", made.headers["location"])
    assert found.json == made.json and found.etag == '"1"' and found.headers["cache-control"] == "no-cache"
    head = client.ask("HEAD", made.headers["location"])
    assert (head.status, head.etag) == (200, '"1"')


@pytest.mark.parametrize("document_id", ODD_IDS)
def test_an_odd_id_is_an_id_on_every_path(client, document_id):
    location = create(client, document_id).headers["location"]
    encoded = DOCUMENTS + "/" + "".join(f"%{ord(char):02x}" for char in document_id)
    for path in (location, encoded):
        assert client.get(path)["document_id"] == document_id
        assert client.get(f"{path}/history")["document_id"] == document_id
        assert client.ask("PATCH", path, body={"size_bytes": 1}, headers=PATCH).status == 200
        assert client.ask("DELETE", path).status == 204
        assert client.ask("POST", f"{path}:undelete").json["document_id"] == document_id


def test_an_id_that_is_taken_is_a_conflict_and_changes_nothing(client):
    create(client, "a", size_bytes=1)
    again = client.ask("POST", DOCUMENTS, body={"document_id": "a", "filename": "b"})
    assert "PUT replaces" in refused(again, 409)["hint"]
    again = client.ask("POST", DOCUMENTS, body={"document_id": "a", "filename": "b"}, headers={"If-None-Match": "*"})
    assert refused(again, 412)["revision"] == 1
    assert client.get(f"{DOCUMENTS}/a")["size_bytes"] == 1


def test_put_creates_then_replaces_all_fields(client):
    made = client.ask("PUT", f"{DOCUMENTS}/a", body={"filename": "a", "size_bytes": 1, "tags": {"x": "1"}})
    assert (made.status, made.etag, made.headers["location"]) == (201, '"1"', f"{DOCUMENTS}/a")
    replaced = client.ask("PUT", f"{DOCUMENTS}/a", body={"filename": "b"})
    assert (replaced.status, replaced.etag) == (200, '"2"') and "location" not in replaced.headers
    assert (replaced.json["size_bytes"], replaced.json["tags"]) == (None, {})
    assert replaced.json["created_at"] == made.json["created_at"]


def test_a_record_that_was_read_can_be_put_back(client):
    create(client, "a", attributes={"deep": {"x": [1, None]}}, tags={"k": "v"})
    read = client.ask("GET", f"{DOCUMENTS}/a")
    back = client.ask("PUT", f"{DOCUMENTS}/a", body={**read.json, "filename": "new"}, headers={"If-Match": read.etag})
    assert back.status == 200
    assert {**back.json, "filename": "a.pdf", "revision": 1, "updated_at": read.json["updated_at"]} == read.json


def test_a_body_for_another_document_than_the_path_is_refused(client):
    refused(client.ask("PUT", f"{DOCUMENTS}/a", body={"document_id": "b", "filename": "x"}), 400)
    refused(client.ask("GET", f"{DOCUMENTS}/b"), 404)


@pytest.mark.parametrize("kind", ["application/merge-patch+json", "application/json; charset=utf-8"])
def test_a_patch_merges(client, kind):
    create(client, "a", tags={"x": "1", "y": "2"}, attributes={"scan": {"dpi": 300, "by": "me"}}, provider="aws")
    patch = {"tags": {"x": None, "z": "3"}, "attributes": {"scan": {"by": None}}, "provider": None}
    changed = client.ask("PATCH", f"{DOCUMENTS}/a", body=patch, headers={"Content-Type": kind}).json
    assert changed["tags"] == {"y": "2", "z": "3"}
    assert changed["attributes"] == {"scan": {"dpi": 300}}
    assert (changed["provider"], changed["filename"]) == (None, "a.pdf")


def test_a_deleted_document_is_gone_and_comes_back_with_its_past(client):
    create(client, "a", size_bytes=7)
    assert client.ask("DELETE", f"{DOCUMENTS}/a").status == 204
    for method in ("GET", "DELETE"):
        refused(client.ask(method, f"{DOCUMENTS}/a"), 404)
    assert "undelete" in refused(client.ask("PATCH", f"{DOCUMENTS}/a", body={"size_bytes": 1}), 404)["hint"]
    back = client.ask("POST", f"{DOCUMENTS}/a:undelete")
    assert (back.status, back.etag, back.json["size_bytes"]) == (200, '"3"', 7)
    refused(client.ask("POST", f"{DOCUMENTS}/a:undelete"), 409)
    refused(client.ask("POST", f"{DOCUMENTS}/nobody:undelete"), 404)
    past = client.get(f"{DOCUMENTS}/a/history")
    assert [r["operation"] for r in past["revisions"]] == ["put", "delete", "undelete"]
    assert set(past["revisions"][0]) == set(DocumentRevision.model_fields)


def test_a_forbidden_transition_is_a_conflict_that_lists_the_allowed_ones(client):
    create(client, "a", storage_tier="archive")
    told = refused(client.ask("PATCH", f"{DOCUMENTS}/a", body={"storage_tier": "standard"}), 409)
    assert "deep_archive" in told["hint"]
    told = refused(client.ask("PATCH", f"{DOCUMENTS}/a", body={"restore_status": "expired"}), 409)
    assert "requested, in_progress, restored" in told["hint"]


# -- conditions


def test_a_stale_revision_is_refused_and_changes_nothing(client):
    create(client, "a")
    path = f"{DOCUMENTS}/a"
    assert client.ask("PATCH", path, body={"size_bytes": 2}, headers={"If-Match": '"1"'}).etag == '"2"'
    for method, body in (("PATCH", {"size_bytes": 9}), ("PUT", {"filename": "z"}), ("DELETE", None)):
        for stale in ('"1"', 'W/"2"', '"0"', '"other"', '"1", "3"'):
            told = refused(client.ask(method, path, body=body, headers={"If-Match": stale}), 412)
            assert told["revision"] == 2
    assert client.ask("GET", path).etag == '"2"'


def test_any_of_several_revisions_may_match(client):
    create(client, "a")
    path = f"{DOCUMENTS}/a"
    assert client.ask("PATCH", path, body={"size_bytes": 2}, headers={"If-Match": '"7", "1"'}).status == 200
    assert client.ask("PUT", path, body={"filename": "b"}, headers={"If-Match": "*"}).status == 200
    assert client.ask("DELETE", path, headers={"If-Match": "*"}).status == 204


def test_a_document_that_must_exist_is_not_created(client):
    path = f"{DOCUMENTS}/a"
    for condition in ("*", '"1"', '"x"', '"1", "2"'):
        told = refused(client.ask("PUT", path, body={"filename": "b"}, headers={"If-Match": condition}), 412)
        assert told["revision"] is None
        refused(client.ask("PATCH", path, body={"size_bytes": 1}, headers={"If-Match": condition}), 404)
    refused(client.ask("GET", path), 404)


def test_a_document_that_must_not_exist_is_not_replaced(client):
    path, absent = f"{DOCUMENTS}/a", {"If-None-Match": "*"}
    assert client.ask("PUT", path, body={"filename": "a"}, headers=absent).status == 201
    refused(client.ask("PUT", path, body={"filename": "b"}, headers=absent), 412)
    client.ask("DELETE", path)
    assert client.ask("PUT", path, body={"filename": "c"}, headers=absent).etag == '"3"'


def test_a_revision_that_the_client_has_is_not_sent_again(client):
    create(client, "a")
    path = f"{DOCUMENTS}/a"
    for known in ('"1"', 'W/"1"', '"0", "1"', "*"):
        same = client.ask("GET", path, headers={"If-None-Match": known})
        assert (same.status, same.body, same.etag) == (304, b"", '"1"')
    client.ask("PATCH", path, body={"size_bytes": 1})
    assert client.ask("GET", path, headers={"If-None-Match": '"1"'}).status == 200
    refused(client.ask("GET", path, headers={"If-Match": '"1"'}), 412)


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("PUT", {"If-Match": "7"}),
        ("PUT", {"If-None-Match": '"7"'}),
        ("PUT", {"If-None-Match": "*", "If-Match": "*"}),
        ("PUT", {"If-Match": "*", "Idempotency-Key": "k"}),
        ("PATCH", {"If-None-Match": "*"}),
        ("PATCH", {"If-Match": '"1", "2"', "Idempotency-Key": "k"}),
        ("PATCH", {"Idempotency-Key": ""}),
        ("GET", {"If-None-Match": "1"}),
    ],
)
def test_a_condition_without_a_meaning_is_refused(client, method, headers):
    create(client, "a")
    body = None if method == "GET" else {"filename": "b"}
    refused(client.ask(method, f"{DOCUMENTS}/a", body=body, headers=headers), 400)
    assert client.ask("GET", f"{DOCUMENTS}/a").etag == '"1"'


def test_a_repeated_request_is_applied_once(client):
    key = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
    first = client.ask("POST", DOCUMENTS, body={"filename": "a"}, headers=key)
    path = first.headers["location"]
    change = {**key, "Idempotency-Key": "k2", "If-Match": '"1"'}
    changed = client.ask("PATCH", path, body={"size_bytes": 1}, headers=change)
    for _ in range(2):
        again = client.ask("POST", DOCUMENTS, body={"filename": "a"}, headers=key)
        assert (again.status, again.json) == (201, first.json)
        assert client.ask("PATCH", path, body={"size_bytes": 1}, headers=change).json == changed.json
    assert client.ask("GET", path).etag == '"2"'
    other = client.ask("POST", DOCUMENTS, body={"filename": "b"}, headers=key)
    assert "belongs to another request" in refused(other, 409)["detail"]


def test_of_many_clients_with_one_revision_one_wins(client):
    create(client, "a")

    async def race(revision: int) -> list[int]:
        replies = await asyncio.gather(
            *(
                client.send("PATCH", f"{DOCUMENTS}/a", body={"size_bytes": n}, headers={"If-Match": f'"{revision}"'})
                for n in range(16)
            )
        )
        return [reply.status for reply in replies]

    for revision in range(1, 6):
        statuses = client.run(race(revision))
        assert sorted(statuses) == [200] + [412] * 15
    assert client.ask("GET", f"{DOCUMENTS}/a").etag == '"6"'


# -- lists, the past, statistics, columns


def fill(client: AppClient) -> None:
    tiers = ("standard", "archive", "infrequent")
    writes = [
        {
            "operation": "put",
            "document_id": f"d{n}",
            "values": {
                "filename": f"report {n}.pdf", "size_bytes": n * 10, "storage_tier": tiers[n % 3], "provider": "aws",
                "created_at": f"2026-01-{n + 1:02}", "tags": {"n": str(n % 2)} | ({"big": ""} if n > 7 else {}),
                "bucket": "b", "object_key": f"k{n}", "content_type": "application/pdf",
            },
        }
        for n in range(10)
    ]  # fmt: skip
    assert client.ask("POST", f"{DOCUMENTS}:batch", body={"writes": writes}).status == 200


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, "9876543210"),
        ({"storage_tier": "archive"}, "741"),
        ({"provider": "aws", "bucket": "b", "content_type": "application/pdf", "object_key": "k3"}, "3"),
        ({"restore_status": "none", "min_size": 20, "max_size": 40, "sort": "size_bytes"}, "234"),
        ({"start_date": "2026-01-03", "end_date": "2026-01-05T01:00:00+01:00", "sort": "created_at"}, "23"),
        ({"start_date": 1767225600, "end_date": "1767312000000"}, "0"),
        ({"tag": ["n=1", "big"]}, "9"),
        ({"name_prefix": "report 1", "words": "REPORT"}, "1"),
        ({"sort": "-document_id", "limit": 2}, "98"),
        ({"sort": "filename", "limit": 3}, "012"),
        ({"provider": "gcp"}, ""),
    ],
    ids=str,
)
def test_filters_and_orders(filled, query, found):
    assert "".join(name.removeprefix("d") for name in ids(filled.get(DOCUMENTS, **query))) == found


def test_pages_follow_each_other_by_cursor(client):
    fill(client)
    seen, cursor = [], {}
    while True:
        page = client.get(DOCUMENTS, limit=3, tag="n=1", **cursor)
        seen += ids(page)
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
        client.ask("DELETE", f"{DOCUMENTS}/{seen[0]}")
    assert seen == ["d9", "d7", "d5", "d3", "d1"]
    forged = refused(client.ask("GET", DOCUMENTS, {"limit": 3, **cursor, "tag": "n=0"}), 400)
    assert "cursor" in forged["detail"]
    refused(client.ask("GET", DOCUMENTS, {"limit": 3, "cursor": "x" * 9000}), 400)


def test_only_the_fields_that_were_asked_for(filled):
    page = filled.get(DOCUMENTS, fields="document_id, size_bytes", limit=1)
    assert page["documents"] == [{"document_id": "d9", "size_bytes": 90}]
    one = filled.get(f"{DOCUMENTS}/d3", fields="filename,created_at")
    assert one == {"filename": "report 3.pdf", "created_at": "2026-01-04T00:00:00.000000Z"}
    told = refused(filled.ask("GET", DOCUMENTS, {"fields": "filename,colour"}), 400)
    assert "'colour' does not exist" in told["detail"] and "storage_tier" in told["hint"]
    refused(filled.ask("GET", DOCUMENTS, {"fields": " , "}), 400)


def test_all_documents_stream_as_lines(filled):
    lines = filled.ask("GET", DOCUMENTS, {"tag": "n=1"}, headers=NDJSON)
    assert lines.headers["content-type"] == "application/x-ndjson"
    found = [json.loads(line) for line in lines.body.splitlines()]
    assert [record["document_id"] for record in found] == ["d1", "d3", "d5", "d7", "d9"]
    assert set(found[0]) == set(DocumentRecord.model_fields)
    few = filled.ask("GET", DOCUMENTS, {"fields": "document_id", "provider": "aws"}, headers=NDJSON)
    assert len(few.body.splitlines()) == 10 and few.body.startswith(b'{"document_id":"d0"}\n')
    none = filled.ask("GET", DOCUMENTS, {"provider": "gcp"}, headers=NDJSON)
    assert (none.status, none.body) == (200, b"")
    for name, value in (("limit", 3), ("sort", "filename"), ("cursor", "x")):
        assert name in refused(filled.ask("GET", DOCUMENTS, {name: value}, headers=NDJSON), 400)["detail"]
    refused(filled.ask("GET", DOCUMENTS, {"fields": "colour"}, headers=NDJSON), 400)


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("application/x-ndjson, application/json;q=0.5", True),
        ("application/json, application/x-ndjson", True),
        ("application/json, application/x-ndjson;q=0.9", False),
        ("application/x-ndjson;q=0", False),
        ("application/x-ndjson;q=x", False),
        ("*/*", False),
        ("text/csv", False),
    ],
)
def test_lines_are_sent_to_whom_prefers_them(filled, accept, streams):
    found = filled.ask("GET", DOCUMENTS, headers={"Accept": accept})
    assert (found.headers["content-type"] == "application/x-ndjson") == streams


def test_the_past_is_answered_as_it_was(client):
    first = create(client, "a", size_bytes=1, storage_tier="archive").json["updated_at"]
    second = client.ask("PATCH", f"{DOCUMENTS}/a", body={"size_bytes": 2}).json["updated_at"]
    client.ask("DELETE", f"{DOCUMENTS}/a")
    create(client, "b")
    then = client.ask("GET", f"{DOCUMENTS}/a", {"as_of": first})
    assert (then.json["size_bytes"], then.etag) == (1, '"1"')
    assert client.ask("GET", f"{DOCUMENTS}/a", {"as_of": first}, headers={"If-None-Match": '"1"'}).status == 304
    assert client.get(f"{DOCUMENTS}/a", as_of=second)["size_bytes"] == 2
    refused(client.ask("GET", f"{DOCUMENTS}/a", {"as_of": "2020-01-01"}), 404)
    assert ids(client.get(DOCUMENTS, as_of=second)) == ["a"]
    assert ids(client.get(DOCUMENTS)) == ["b"]
    lines = client.ask("GET", DOCUMENTS, {"as_of": second}, headers=NDJSON)
    assert json.loads(lines.body)["size_bytes"] == 2
    assert client.get("/api/v1/document-statistics", as_of=second)["total_size_bytes"] == 2
    assert client.get("/api/v1/document-statistics", as_of=0)["total_documents"] == 0
    shifted = first.replace("Z", "+00:00")  # not encoded: the plus arrives as a space
    assert client.ask("GET", f"{DOCUMENTS}/a", f"as_of={shifted}").json["size_bytes"] == 1


def test_statistics_add_up(filled):
    found = filled.get("/api/v1/document-statistics")
    assert set(found) == set(DocumentStatistics.model_fields)
    assert (found["total_documents"], found["total_size_bytes"]) == (10, 450)
    assert found["by_tier"]["archive"] == 3 and found["by_provider"] == {"aws": 10}


def test_a_column_is_added_and_used(client):
    path, column = "/api/v1/document-columns", {"name": "department", "type": "string"}
    create(client, "old")
    refused(client.ask("PATCH", f"{DOCUMENTS}/old", body={"department": "law"}), 400)
    made = client.ask("POST", path, body=column)
    assert (made.status, made.json) == (201, column)
    assert client.ask("POST", path, body=column).status == 200
    assert client.get(path) == {"columns": [column]}
    assert client.ask("PATCH", f"{DOCUMENTS}/old", body={"department": "law"}).json["department"] == "law"
    create(client, "new")
    page = client.get(DOCUMENTS, fields="document_id,department", sort="document_id")
    assert page["documents"] == [
        {"document_id": "new", "department": None},
        {"document_id": "old", "department": "law"},
    ]
    refused(client.ask("POST", path, body={**column, "type": "long"}), 409)
    for wrong in ({"name": "filename", "type": "long"}, {"name": "x", "type": "decimal"}, {"name": "x"}, {"name": 5}):
        refused(client.ask("POST", path, body=wrong), 400)
    assert client.get(path) == {"columns": [column]}


# -- batches


def test_a_batch_is_applied_in_order(client):
    create(client, "a")
    writes = [
        {"operation": "put", "values": {"filename": "new"}},
        {"operation": "update", "document_id": "a", "values": {"size_bytes": 1}, "if_match": 1},
        {"operation": "update", "document_id": "a", "values": {"size_bytes": 2}, "if_match": 2},
        {"operation": "delete", "document_id": "a"},
        {"operation": "undelete", "document_id": "a", "values": {}, "if_match": None, "idempotency_key": None},
    ]
    done = client.ask("POST", f"{DOCUMENTS}:batch", body={"writes": writes})
    assert done.status == 200, done.body
    assert [r["operation"] for r in done.json["revisions"]] == ["put", "update", "update", "delete", "undelete"]
    assert client.ask("GET", f"{DOCUMENTS}/a").json["size_bytes"] == 2
    assert client.ask("GET", f"{DOCUMENTS}/a").etag == '"5"'


def test_a_batch_with_one_refused_write_changes_nothing(client):
    create(client, "a")
    good = {"operation": "put", "document_id": "b", "values": {"filename": "b"}}
    for status, bad in (
        (412, {"operation": "update", "document_id": "a", "values": {"size_bytes": 1}, "if_match": 7}),
        (404, {"operation": "delete", "document_id": "nobody"}),
        (400, {"operation": "put", "document_id": "c", "values": {}}),
        (400, {"operation": "delete", "document_id": "a", "values": {"size_bytes": 1}}),
        (409, {"operation": "undelete", "document_id": "a"}),
    ):
        told = refused(client.ask("POST", f"{DOCUMENTS}:batch", body={"writes": [good, bad]}), status)
        assert told["write"] == 2
    assert ids(client.get(DOCUMENTS)) == ["a"]


def test_a_repeated_batch_is_applied_once(client):
    writes = [{"operation": "put", "values": {"filename": str(n)}} for n in range(3)]
    key = {"Idempotency-Key": "batch-1"}
    first, again = (client.ask("POST", f"{DOCUMENTS}:batch", body={"writes": writes}, headers=key) for _ in range(2))
    assert first.json == again.json
    assert client.get("/api/v1/document-statistics")["total_documents"] == 3


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, "body.writes"),
        ({"writes": []}, "body.writes"),
        ({"writes": {}}, "body.writes"),
        ({"writes": [], "atomic": True}, "body.writes"),
        ({"writes": [5]}, "body.writes.0"),
        ({"writes": [{"operation": "upsert"}]}, "body.writes.0.operation"),
        ({"writes": [{"operation": "delete", "document_id": 5}]}, "body.writes.0.document_id"),
        ({"writes": [{"operation": "delete", "document_id": "a", "if_match": "1"}]}, "body.writes.0.if_match"),
        ({"writes": [{"operation": "delete", "document_id": "a", "if_match": -1}]}, "body.writes.0.if_match"),
        ({"writes": [{"operation": "put", "values": []}]}, "body.writes.0.values"),
        ({"writes": [{"operation": "put", "idempotency_key": ""}]}, "body.writes.0.idempotency_key"),
        ({"writes": [{"operation": "delete", "document_id": "a", "ifmatch": 1}]}, "body.writes.0.ifmatch"),
    ],
    ids=str,
)
def test_a_batch_of_another_form_is_refused_where_it_is_wrong(empty, body, where):
    assert where in refused(empty.ask("POST", f"{DOCUMENTS}:batch", body=body), 400)["detail"]


def test_several_mistakes_are_all_listed(empty):
    told = refused(empty.ask("POST", f"{DOCUMENTS}:batch", body={"writes": [{"operation": "x"}] * 30}), 400)
    assert len(told["errors"]) == 20
    assert told["errors"][3]["location"] == "body.writes.3.operation" and told["errors"][3]["detail"]


# -- what is refused


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"colour": "red"}, "'colour' does not exist"),
        ({"Limit": 1}, "'Limit' does not exist"),
        ({"limit": [1, 2]}, "'limit' is given 2 times"),
        ({"limit": 0}, "query.limit"),
        ({"limit": 1001}, "query.limit"),
        ({"limit": "7" * 5000}, "query.limit"),
        ({"storage_tier": "cold"}, "query.storage_tier"),
        ({"restore_status": ""}, "query.restore_status"),
        ({"provider": ""}, "query.provider"),
        ({"sort": "colour"}, "query.sort"),
        ({"sort": "--filename"}, "query.sort"),
        ({"min_size": -1}, "query.min_size"),
        ({"max_size": 2**63}, "query.max_size"),
        ({"start_date": "soon"}, "start_date"),
        ({"as_of": "soon"}, "as_of"),
        ({"as_of": "3000-01-01"}, "'as_of' lies in the future"),
        ({"tag": ""}, "tag has no name"),
        ({"tag": "=x"}, "tag has no name"),
        ({"tag": ["a=1", "a=2"]}, "two values"),
        ({"name_prefix": "\x00"}, "name_prefix"),
        ({"words": "x " * 100}, "words"),
    ],
    ids=str,
)
def test_a_wrong_query_is_refused_by_name(empty, query, named):
    assert named in refused(empty.ask("GET", DOCUMENTS, query), 400)["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{DOCUMENTS}/a/history"),
        ("GET", "/api/v1/document-columns"),
        ("GET", "/api/v1/document-statistics"),
        ("DELETE", f"{DOCUMENTS}/a"),
        ("POST", DOCUMENTS),
        ("POST", f"{DOCUMENTS}:batch"),
    ],
)
def test_no_path_ignores_a_parameter_that_it_does_not_have(client, method, path):
    create(client, "a")
    body = {"filename": "b", "writes": []} if method == "POST" else None
    assert "'force' does not exist" in refused(client.ask(method, path, {"force": "true"}, body=body), 400)["detail"]
    assert ids(client.get(DOCUMENTS)) == ["a"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "JSON"),
        (b"[]", "no JSON object"),
        (b'{"filename": "a", "filename": "b"}', "JSON"),
        (b'{"filename": "a", "size_bytes": NaN}', "JSON"),
        (b'{"filename": "a", "size_bytes": %s}' % (b"7" * 5000), "JSON"),
        (b'{"filename": "a", "attributes": %s}' % (b'{"a":' * 100 + b"1" + b"}" * 100), "JSON"),
        (b'{"filename": "\\ud800"}', "JSON"),
        (b'{"filename": "a\\u0000"}', "filename"),
        (b'{"filename": ""}', "filename"),
        (b'{"filename": null}', "filename"),
        (b"{}", "filename"),
        (b'{"filename": "a", "colour": "red"}', "colour"),
        (b'{"filename": "a", "size_bytes": 1.5}', "size_bytes"),
        (b'{"filename": "a", "size_bytes": "1"}', "size_bytes"),
        (b'{"filename": "a", "size_bytes": -1}', "size_bytes"),
        (b'{"filename": "a", "document_id": ""}', "document_id"),
        (b'{"filename": "a", "document_id": "a/b"}', "document_id"),
        (b'{"filename": "a", "document_id": 5}', "document_id"),
        (b'{"filename": "a", "tags": {"x": 5}}', "tags"),
        (b'{"filename": "a", "tags": [1]}', "tags"),
        (b'{"filename": "a", "attributes": 5}', "attributes"),
        (b'{"filename": "a", "created_at": "soon"}', "created_at"),
        (b'{"filename": "a", "created_at": "3000-01-01"}', "created_at"),
        (b'{"filename": "a", "storage_tier": "cold"}', "storage_tier"),
        (b'{"filename": "a", "restore_status": "restored"}', "restore"),
    ],
)
def test_a_wrong_body_is_refused_and_nothing_is_created(empty, body, told):
    for method, path in (("POST", DOCUMENTS), ("PUT", f"{DOCUMENTS}/a")):
        problem = empty.ask(method, path, body=body)
        assert problem.status in (400, 409) and told in problem.json["detail"], problem.body
        assert len(problem.body) < 2000
    assert empty.get(DOCUMENTS)["documents"] == []


def test_attributes_with_any_characters_come_back_as_they_are_or_are_refused(client):
    for number, text in enumerate(("\u0000", "\u2028", "'\"\\", "😀", "</script>")):
        reply = client.ask("POST", DOCUMENTS, body={"filename": "a", "attributes": {"t": text}})
        if reply.status == 201:
            found = client.get(reply.headers["location"])
            assert found["attributes"] == {"t": text}
        else:
            refused(reply, 400)
            assert number == 0


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("POST", DOCUMENTS, {"Content-Type": "text/plain"}, b"{}", 415),
        ("POST", DOCUMENTS, {"Content-Type": "application/merge-patch+json"}, b"{}", 415),
        ("PATCH", f"{DOCUMENTS}/a", {"Content-Type": "application/json-patch+json"}, b"[]", 415),
        ("POST", DOCUMENTS, {"Content-Type": "application/json; charset=utf-16"}, b"{}", 415),
        ("POST", DOCUMENTS, {"Content-Encoding": "gzip"}, b"{}", 415),
        ("POST", DOCUMENTS, {}, b'{"filename": "%s"}' % (b"x" * 2**20), 413),
        ("PUT", f"{DOCUMENTS}/a", {}, b'{"filename": "a", "tags": {"x": "%s"}}' % (b"x" * 10_000_000), 413),
        ("POST", f"{DOCUMENTS}:batch", {}, b" " * (16 * 2**20 + 1), 413),
        ("POST", DOCUMENTS, {"Origin": "http://evil.example"}, b'{"filename": "a"}', 403),
        ("GET", "/api/v1", {}, None, 404),
        ("GET", "/api/v1/", {}, None, 404),
        ("GET", "/api/v1/nothing", {}, None, 404),
        ("GET", f"{DOCUMENTS}/a/b", {}, None, 404),
        ("GET", f"{DOCUMENTS}/a%2Fhistory", {}, None, 404),
        ("GET", f"{DOCUMENTS}/" + "x" * 5000, {}, None, 404),
        ("GET", f"{DOCUMENTS}/%00", {}, None, 404),
        ("GET", f"{DOCUMENTS}/-a", {}, None, 404),
        ("GET", f"{DOCUMENTS}/-a/history", {}, None, 404),
        ("POST", f"{DOCUMENTS}/-a:undelete", {}, None, 400),
        ("PUT", f"{DOCUMENTS}/-a", {}, b'{"filename": "a"}', 400),
    ],
)
def test_what_http_refuses_is_a_problem_too(empty, method, path, headers, body, status):
    told = refused(empty.ask(method, path, body=body, headers=headers), status)
    assert len(told["instance"]) <= 1000 and len(told["detail"]) <= 1000
    assert empty.get(DOCUMENTS)["documents"] == []


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", DOCUMENTS, "GET, POST"),
        ("POST", f"{DOCUMENTS}/a", "DELETE, GET, HEAD, PATCH, PUT"),
        ("GET", f"{DOCUMENTS}:batch", "POST"),
        ("PUT", "/api/v1/document-statistics", "GET"),
        ("BREW", "/api/v1/document-columns", "GET, POST"),
    ],
)
def test_a_wrong_method_is_told_all_right_ones(empty, method, path, allowed):
    reply = empty.ask(method, path)
    told = refused(reply, 405)
    assert reply.headers["allow"] == allowed
    assert (told["type"], told["title"]) == ("about:blank", "Method Not Allowed")


def test_the_older_paths_keep_their_form_of_errors(empty):
    reply = empty.ask("GET", "/topics/nobody")
    assert reply.headers["content-type"] == "application/json" and "message" in reply.json and "type" not in reply.json
    assert "message" in empty.ask("GET", "/api/v2").json


def test_a_server_that_stops_takes_no_writes(client):
    create(client, "a")
    client.app.state.service.stop()
    for method, path in (("POST", DOCUMENTS), ("DELETE", f"{DOCUMENTS}/a"), ("POST", f"{DOCUMENTS}/a:undelete")):
        told = refused(client.ask(method, path, body={"filename": "b"} if path == DOCUMENTS else None), 503)
        assert (told["detail"], told["stored"]) == ("the server is stopping", "no")
    assert ids(client.get(DOCUMENTS)) == ["a"]


def test_the_examples_of_the_description_are_accepted(client):
    paths = client.get("/openapi.json")["paths"]
    for model in (DocumentRecord, DocumentRevision):
        (example,) = model.model_config["json_schema_extra"]["examples"]
        assert set(example) == set(model.model_fields)
    create(client, "a-6")
    create(client, "a-5")
    for size in (1, 2):
        client.ask("PATCH", f"{DOCUMENTS}/a-5", body={"size_bytes": size})
    sent = 0
    for path, operations in paths.items():
        for method, operation in operations.items():
            contents = operation.get("requestBody", {}).get("content", {})
            for kind, content in contents.items() if path.startswith("/api/v1/") else ():
                where = path.replace("{document_id}", "example")
                done = client.ask(method.upper(), where, body=content["example"], headers={"Content-Type": kind})
                assert done.status in (200, 201), (method, where, done.body)
                sent += 1
    assert sent == 6


# -- streams


def test_a_stream_that_fails_before_its_first_line_is_a_problem(client, monkeypatch):
    def fail(*_: Any, **__: Any) -> Iterator[Any]:
        raise UnavailableError("the database is away", hint="later")
        yield

    monkeypatch.setattr(SqlDocumentStore, "iterate", fail)
    assert refused(client.ask("GET", DOCUMENTS, headers=NDJSON), 503)["detail"] == "the database is away"


def test_a_stream_that_fails_in_the_middle_does_not_end_as_if_it_were_complete(client, monkeypatch):
    create(client, "a")
    closed = []

    def fail(store: SqlDocumentStore, *_: Any, **__: Any) -> Iterator[Any]:
        try:
            yield [store.get_metadata("a")]
            raise UnavailableError("the database is away", hint="later")
        finally:
            closed.append(1)

    monkeypatch.setattr(SqlDocumentStore, "iterate", fail)
    with pytest.raises(RuntimeError, match="already started"):
        client.ask("GET", DOCUMENTS, headers=NDJSON)
    assert client.last.status == 200 and not client.last.is_complete
    assert json.loads(client.last.body)["document_id"] == "a"
    assert closed == [1]


def test_streams_wait_for_a_turn_and_not_for_ever(client, monkeypatch):
    going_on, begun = threading.Event(), threading.Semaphore(0)

    def wait(*_: Any, **__: Any) -> Iterator[Any]:
        begun.release()
        going_on.wait(60)
        yield []

    monkeypatch.setattr(SqlDocumentStore, "iterate", wait)

    async def run() -> None:
        # The patience also limits the wait for the store's first opening, which takes longer.
        assert (await client.send("GET", DOCUMENTS)).status == 200
        monkeypatch.setattr("frazil.api.documents_access._PATIENCE_S", 0.05)
        streams = [asyncio.create_task(client.send("GET", DOCUMENTS, headers=NDJSON)) for _ in range(4)]
        for _ in streams:
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        refused(await client.send("GET", DOCUMENTS, headers=NDJSON), 503)
        assert (await client.send("GET", DOCUMENTS)).status == 200, "others do not wait for streams"
        going_on.set()
        assert {(await stream).status for stream in streams} == {200}
        assert (await client.send("GET", DOCUMENTS, headers=NDJSON)).status == 200

    client.run(run())


# -- a store that is away


class Flaky:
    """Opens a store when it is told to."""

    def __init__(self, url: str) -> None:
        self.url, self.tries, self.error = url, 0, UnavailableError("MariaDB does not answer", hint="start it")
        self.wait = threading.Event()
        self.wait.set()
        self.is_away: bool = True

    def open(self) -> SqlDocumentStore:
        self.tries += 1
        self.wait.wait(60)
        if self.is_away:
            raise self.error
        return SqlDocumentStore(self.url)


@pytest.fixture
def flaky(tmp_path: Path) -> Iterator[tuple[AppClient, Flaky]]:
    opener = Flaky(f"sqlite:///{tmp_path / 'documents.db'}")
    with Log.open(tmp_path / "log") as log:
        made = AppClient(create_app(log, SettingsModel(home=tmp_path, cache=tmp_path), open_documents=opener.open))
        yield made, opener
        made.close()


def test_a_store_that_is_away_stops_only_its_own_paths_and_is_tried_again(flaky, monkeypatch):
    client, opener = flaky
    assert client.get("/readyz") == {"status": "ready", "topics": 0}, "nobody has used documents yet"
    for _ in range(3):
        reply = client.ask("GET", DOCUMENTS)
        told = refused(reply, 503)
        assert (told["cause"], told["hint"]) == ("MariaDB does not answer", "start it")
        assert reply.headers["retry-after"] == "1" and told["retryable"]
    assert opener.tries == 1, "it is not asked for each request"
    assert refused(client.ask("POST", DOCUMENTS, body={"filename": "a"}), 503)["stored"] == "no"
    assert client.get("/topics") == {"topics": []}
    assert client.get("/readyz") == {"status": "ready", "topics": 0, "documents": "unavailable"}
    assert b"frazil_documents_available 0.0" in client.ask("GET", "/metrics").body
    opener.is_away = False
    monkeypatch.setattr("frazil.api.documents_access._PAUSE_S", 0.0)
    create(client, "a")
    assert client.get("/readyz")["documents"] == "ready"
    assert b"frazil_documents_available 1.0" in client.ask("GET", "/metrics").body


def test_while_the_store_opens_others_are_answered(flaky, monkeypatch):
    client, opener = flaky
    monkeypatch.setattr("frazil.api.documents_access._PATIENCE_S", 0.05)
    opener.is_away = False
    opener.wait.clear()

    async def run() -> None:
        first = asyncio.create_task(client.send("GET", DOCUMENTS))
        while not opener.tries:
            await asyncio.sleep(0.01)
        assert "is being opened" in (await client.send("GET", DOCUMENTS)).json["detail"]
        assert (await client.send("GET", "/topics")).status == 200
        assert (await client.send("GET", "/readyz")).json["documents"] in ("opening", "unavailable")
        opener.wait.set()
        assert (await first).status == 200

    client.run(run())
    assert opener.tries == 1
    assert client.get("/readyz")["documents"] == "ready"


def test_an_unexpected_failure_is_a_problem_without_its_details(client, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("password is hunter2")

    monkeypatch.setattr(SqlDocumentStore, "history", fail)
    with pytest.raises(RuntimeError):  # Starlette raises it again, for the server's log
        client.ask("GET", f"{DOCUMENTS}/a/history")
    told = refused(client.last, 500)
    assert "hunter2" not in str(told) and told["detail"] == "unexpected RuntimeError"


def test_a_history_is_read_page_by_page(client):
    create(client, "long")
    for number in range(6):
        assert client.ask("PATCH", f"{DOCUMENTS}/long", body={"size_bytes": number}, headers=PATCH).status == 200
    seen, after = [], 0
    while after is not None:
        page = client.ask("GET", f"{DOCUMENTS}/long/history", f"limit=3&after={after}").json
        assert len(page["revisions"]) <= 3
        seen += [revision["revision"] for revision in page["revisions"]]
        after = page["next"]
    assert seen == list(range(1, 8))
    assert client.ask("GET", f"{DOCUMENTS}/long/history", "after=7").json["revisions"] == []
    assert client.ask("GET", f"{DOCUMENTS}/unknown/history", "after=7").status == 404
    assert client.ask("GET", f"{DOCUMENTS}/long/history", "limit=1001").status == 400
