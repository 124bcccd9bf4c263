"""`/content` in this process: the same answers as on the command line, and what is refused."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from frazil.api.app import create_app
from frazil.api.content_models import ContentChange, ContentDetail, ContentGroup, ContentLargest, ContentObject
from frazil.content.tables import ContentTables
from frazil.log import Log
from tests.content_kit import Content, a_change, an_object, at

ODD = "a+b %2F\n\x1bü&key=1"


class Server:
    def __init__(self, content: Content, log: Log) -> None:
        self.content = content
        self.wait = threading.Event()
        self.wait.set()
        self.app = create_app(log, content.settings.model, tables_of=self.tables)

    def tables(self) -> ContentTables:
        self.wait.wait(120)
        return self.content.tables

    async def send(self, path: str, **query: Any) -> tuple[int, Any]:
        """One request, as uvicorn would hand it over."""
        sent: list[dict[str, Any]] = []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": urlencode(query, doseq=True).encode(),
            "root_path": "", "headers": [(b"host", b"127.0.0.1")], "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 50000), "state": {},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def note(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, note)
        return sent[0]["status"], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))

    def get(self, path: str, **query: Any) -> Any:
        status, body = asyncio.run(self.send(path, **query))
        assert status == 200, body
        return body

    def refused(self, path: str, **query: Any) -> tuple[int, str]:
        status, body = asyncio.run(self.send(path, **query))
        assert status >= 400 and body["hint"], body
        return status, body["message"]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    content = Content.at(tmp_path_factory.mktemp("home"))
    content.add_objects(
        [
            *(an_object(f"2026/{n}", size=n, tags=[("n", str(n % 2))], last_modified=at(n)) for n in range(5)),
            an_object(ODD, bucket="file:///my photos", size=3, content_type="image/png", check_after=at(1)),
            an_object("gone", is_latest=False, is_deleted=True),
            an_object("v", bucket="old", version_id="v1", is_latest=False, storage_class="GLACIER"),
            an_object("v", bucket="old", version_id="m", is_delete_marker=True),
        ]
    )
    content.add_changes([a_change("2026/1", f"0{n}") for n in range(3)])
    with Log.open(tmp_path_factory.mktemp("log")) as log:
        made = Server(content, log)
        yield made
        made.app.state.service.close()


def keys(page: Any) -> list[str]:
    return [row["key"] for row in page["objects"]]


def test_pages_of_objects(server):
    first = server.get("/content/objects", bucket="photos", limit=2)
    assert keys(first) == ["2026/0", "2026/1"]
    second = server.get("/content/objects", bucket="photos", limit=3, after=first["after"])
    assert keys(second) == ["2026/2", "2026/3", "2026/4"]
    assert second["after"] is None
    assert set(first["objects"][0]) == set(ContentObject.model_fields)
    assert first["objects"][0]["last_modified"] == "2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"prefix": "2026/", "min_size": 3}, ["2026/3", "2026/4"]),
        ({"bucket": "photos", "max_size": 0}, ["2026/0"]),
        ({"bucket": "photos", "since": "2026-01-31T12:00:03", "until": "2026-01-31T14:00:04+02:00"}, ["2026/3"]),
        ({"tag": ["n=1", "n"], "sort": "size"}, ["2026/3", "2026/1"]),
        ({"bucket": "photos", "sort": "modified", "limit": 1}, ["2026/4"]),
        ({"bucket": "file:///my photos", "type": "image/*"}, [ODD]),
        ({"key": ODD}, [ODD]),
        ({"bucket": "photos", "deleted": "only"}, ["gone"]),
        ({"bucket": "old"}, []),
        ({"bucket": "old", "versions": "true", "class": "glacier"}, ["v"]),
        ({"bucket": "old", "markers": "true", "versions": "true"}, ["v", "v"]),
    ],
    ids=str,
)
def test_filters(server, query, found):
    assert keys(server.get("/content/objects", **query)) == found


def test_one_object(server):
    found = server.get("/content/object", bucket="file:///my photos", key=ODD)
    assert set(found) == set(ContentDetail.model_fields) - {"lag"}
    assert (found["key"], found["size"], found["check_after"]) == (ODD, 3, "2026-01-31T12:00:01Z")
    assert server.get("/content/object", bucket="old", key="v", version_id="v1")["storage_class"] == "GLACIER"


def test_a_history(server):
    found = server.get("/content/history", bucket="photos", key="2026/1", limit=2)
    assert [row["sequence_number"] for row in found["changes"]] == ["01", "02"]
    assert found["more"] is True
    assert set(found["changes"][0]) == set(ContentChange.model_fields)
    assert server.get("/content/history", bucket="photos", key="2026/1", since="2027-01-01")["changes"] == []


def test_sums(server):
    found = server.get("/content/stats", bucket="photos", by="prefix")
    assert found["total"]["objects"] == 5 and found["more"] is False
    assert {g["prefix"]: g["objects"] for g in found["groups"]} == {"2026/": 5, "": 0}
    described = {field.alias or name for name, field in ContentGroup.model_fields.items()}
    for by in ("bucket", "prefix", "class", "day", "type"):
        assert by in described
        assert set(server.get("/content/stats", by=by)["groups"][0]) <= described
    assert set(found["total"]["largest"]) == set(ContentLargest.model_fields)
    assert server.get("/content/stats", bucket="photos")["groups"] == []


@pytest.mark.parametrize("path", ["/content/object", "/content/history"])
def test_an_unknown_key_does_not_make_the_server_compare_all_keys_of_the_bucket(server, path):
    status, body = asyncio.run(server.send(path, bucket="photos", key="2026/l"))  # "2026/1" is near
    assert (status, body["hint"]) == (404, "frazil content list photos --prefix 2026/")


def test_what_is_wrong_is_refused(server):
    assert server.refused("/content/objects", bucket="fotos") == (404, "nothing is known of bucket 'fotos'")
    assert server.refused("/content/object", bucket="photos", key="x")[0] == 404
    assert server.refused("/content/object", bucket="photos")[0] == 400
    assert server.refused("/content/objects", since="soon") == (400, "'soon' is no time")
    for query in (
        {"limit": 0},
        {"limit": 10_001},
        {"after": "x"},
        {"sort": "colour"},
        {"deleted": "yes"},
        {"tag": "="},
    ):
        assert server.refused("/content/objects", **query)[0] == 400
    assert server.refused("/content/stats", by="colour")[0] == 400


def test_without_tables_it_says_how_to_get_some(tmp_path):
    with Log.open(tmp_path / "log") as log:
        empty = Server(Content.at(tmp_path / "home"), log)
        status, message = empty.refused("/content/objects")
        assert status == 404 and "content.objects" in message
        bare = create_app(log, empty.content.settings.model)
        empty.app.state.service.close()
        empty.app = bare
        assert empty.refused("/content/objects")[0] == 503
        bare.state.service.close()


def test_slow_looks_do_not_hold_up_others(server):
    async def run() -> None:
        server.wait.clear()
        slow = [asyncio.create_task(server.send("/content/objects", bucket="photos")) for _ in range(8)]
        while server.app.state.content._turns._value:
            await asyncio.sleep(0.01)
        status, _ = await asyncio.wait_for(server.send("/topics"), 60)
        assert status == 200
        assert not any(task.done() for task in slow)
        server.wait.set()
        assert {status for status, _ in await asyncio.gather(*slow)} == {200}

    try:
        asyncio.run(run())
    finally:
        server.wait.set()
