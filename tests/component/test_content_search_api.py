"""`/content/search` and its like in this process: the same answers as on the command line, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from frazil.api.app import create_app
from frazil.api.search_models import (
    ContentCopies,
    ContentDuplicates,
    ContentFacet,
    ContentFacets,
    ContentFound,
    ContentHit,
    ContentMember,
)
from frazil.content.thumbnails import ThumbnailStore, thumbnail_key
from frazil.log import Log
from frazil.settings import load_settings
from tests.content_kit import Content, an_object

WEBP = b"RIFF\x1a\x00\x00\x00WEBPVP8L"


class Server:
    def __init__(self, content: Content, log: Log) -> None:
        self.content, self.log = content, log
        self.app = create_app(log, content.settings.model, tables_of=lambda: content.tables)

    async def send(
        self, path: str, headers: dict[str, str], query: dict[str, Any]
    ) -> tuple[int, dict[str, str], bytes]:
        """One request, as uvicorn would hand it over."""
        sent: list[dict[str, Any]] = []
        told = {"host": "127.0.0.1", **headers}
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": urlencode(query, doseq=True).encode(),
            "root_path": "", "headers": [(k.encode(), v.encode()) for k, v in told.items()],
            "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 50000), "state": {},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def note(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, note)
        back = {k.decode().lower(): v.decode() for k, v in sent[0]["headers"]}
        return sent[0]["status"], back, b"".join(m.get("body", b"") for m in sent[1:])

    def ask(
        self, where: str, headers: dict[str, str] | None = None, /, **query: Any
    ) -> tuple[int, dict[str, str], bytes]:
        return asyncio.run(self.send(where, headers or {}, query))

    def get(self, where: str, /, **query: Any) -> Any:
        status, _, body = self.ask(where, **query)
        assert status == 200, body
        return json.loads(body)

    def refused(self, where: str, /, **query: Any) -> tuple[int, str]:
        status, _, body = self.ask(where, **query)
        told = json.loads(body)
        assert status >= 400 and told["hint"], told
        return status, told["message"]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    content = Content.at(tmp_path_factory.mktemp("home"))
    content.add_objects(
        [
            an_object("cat.jpg", labels=["tabby cat"], camera="Canon", taken_at=datetime(2024, 5, 1), latitude=48.0,
                      longitude=2.0, user_tags=["best"], rating=5, perceptual_hash=7, content_hash="a", size=100,
                      extraction_status="ok", metadata='{"exif": {"ISO": 800}}'),
            an_object("copy.jpg", labels=["tabby cat"], perceptual_hash=5, content_hash="a", size=100, etag="e2"),
            an_object("secret.jpg", extraction_status="erased"),
            an_object("plain.txt", content_type="text/plain", size=3),
            an_object("gone.jpg", is_latest=False, is_deleted=True),
            an_object("v.jpg", bucket="versions", version_id="v1", is_latest=False, etag="old"),
            an_object("v.jpg", bucket="versions", version_id="v2", etag="new"),
        ]
    )  # fmt: skip
    with Log.open(tmp_path_factory.mktemp("log")) as log:
        made = Server(content, log)
        store = ThumbnailStore.of(content.settings)
        for key in ("cat.jpg", "secret.jpg", "gone.jpg"):
            store.put(thumbnail_key("photos", key, "", f"etag-{key}"), WEBP + key.encode())
        store.put(thumbnail_key("versions", "v.jpg", "v1", "old"), WEBP + b"old")
        yield made
        made.app.state.service.close()


def keys(page: Any) -> list[str]:
    return [row["key"] for row in page["objects"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"label": "cat"}, ["cat.jpg", "copy.jpg"]),
        ({"label": ["cat", "dog"]}, []),
        ({"label": ["cat", "dog"], "any_label": "true"}, ["cat.jpg", "copy.jpg"]),
        ({"camera": "canon", "taken": "2024", "rating": "5", "tag": "best", "status": "ok"}, ["cat.jpg"]),
        ({"near": "48,2.01", "radius": "2km"}, ["cat.jpg"]),
        ({"box": "47,1,49,3"}, ["cat.jpg"]),
        ({"exif": "ISO>=800", "field": "rating=5"}, ["cat.jpg"]),
        ({"text": "plain"}, ["plain.txt"]),
        ({"path": "c*.jpg", "type": "image/*"}, []),
        ({"type": "text/*"}, ["plain.txt"]),
        ({"min_size": 4, "max_size": 100, "path": "c*.jpg"}, ["cat.jpg", "copy.jpg"]),
        ({"similar": "copy.jpg"}, ["copy.jpg", "cat.jpg"]),
        ({"similar": "copy.jpg", "distance": 0}, ["copy.jpg"]),
        ({"label": "cat", "sort": "rating"}, ["cat.jpg", "copy.jpg"]),
    ],
    ids=str,
)
def test_what_a_search_finds(server, query, found):
    for _ in range(2):  # the second time out of memory
        assert keys(server.get("/content/search", bucket="photos", **query)) == found


def test_pages_and_fields(server):
    first = server.get("/content/search", bucket="photos", limit=1, near="0,0", similar="copy.jpg")
    assert set(first) == set(ContentFound.model_fields) - {"lag"}
    assert set(first["objects"][0]) == set(ContentHit.model_fields)
    assert first["after"] is None
    page = server.get("/content/search", bucket="photos", limit=3)
    rest = server.get("/content/search", bucket="photos", limit=3, after=page["after"])
    assert keys(page) + keys(rest) == ["cat.jpg", "copy.jpg", "plain.txt", "secret.jpg"]
    told = server.get("/content/search", label="cat", columns="camera, rating", limit=1)["objects"][0]
    assert set(told) == {"bucket", "key", "version_id", "camera", "rating"}


def test_facets_and_duplicates(server):
    found = server.get("/content/facets", bucket="photos", by="label")
    assert set(found) == set(ContentFacets.model_fields) - {"lag"}
    assert {g["value"]: g["objects"] for g in found["groups"]} == {"tabby cat": 2, None: 2}
    assert set(found["groups"][0]) == set(ContentFacet.model_fields)
    same = server.get("/content/duplicates", bucket="photos")
    assert set(same) == set(ContentDuplicates.model_fields) - {"lag"}
    assert set(same["groups"][0]) == set(ContentCopies.model_fields)
    assert set(same["groups"][0]["members"][0]) == set(ContentMember.model_fields)
    assert same["wasted_bytes"] == 100
    alike = server.get("/content/duplicates", bucket="photos", similar="true", distance=1)
    assert alike["groups"][0]["by"] == "similar"


@pytest.mark.parametrize(
    ("path", "query", "status", "says"),
    [
        ("search", {"taken": "May"}, 400, "no time"),
        ("search", {"near": "x"}, 400, "no place"),
        ("search", {"field": "rating=x"}, 400, "int32"),
        ("search", {"sort": "colour"}, 400, "sort"),
        ("search", {"sort": "distance"}, 400, "nothing to measure"),
        ("search", {"distance": 3}, 400, "needs a picture"),
        ("search", {"similar": "plain.txt", "distance": 65}, 400, "distance"),
        ("search", {"similar": "plain.txt"}, 404, "no perceptual hash"),
        ("search", {"similar": "/etc/passwd"}, 404, "no picture"),
        ("search", {"limit": 10_001}, 400, "limit"),
        ("search", {"columns": "frazil_order"}, 400, "no column"),
        ("search", {"bucket": "nope"}, 404, "nothing is known"),
        ("search", {"columns": "key,metadata", "limit": 1001}, 400, "at most 1,000"),
        ("search", {"field": "$.exif[?match(@, '(a*)*b')]"}, 400, "regular expression"),
        ("search", {"field": "$..a..b=1"}, 400, "more than once"),
        ("search", {"field": "labels[99999999999999999999].Name"}, 400, "no path"),
        ("search", {"after": "W1tbW1tb"}, 400, "end of a page"),
        ("search", {"label": [f"l{n}" for n in range(33)]}, 400, "at most 32 labels"),
        ("facets", {"by": "metadata"}, 400, "cannot be grouped"),
        ("facets", {}, 400, "by"),
        ("facets", {"by": "nope"}, 400, "cannot be grouped"),
        ("duplicates", {"distance": 3}, 400, "look alike"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(server, path, query, status, says):
    got, message = server.refused(f"/content/{path}", **query)
    assert got == status and says in message


def test_a_search_with_columns_of_any_size_and_one_at_the_end_of_time(server):
    told = server.get("/content/search", label="cat", columns="metadata", limit=1000)["objects"]
    assert [row["metadata"] for row in told] == ['{"exif": {"ISO": 800}}', None]
    assert keys(server.get("/content/search", taken="2024..9999-12-31")) == ["cat.jpg"]


def test_a_path_with_filters_has_so_many_seconds(server, monkeypatch):
    monkeypatch.setattr("frazil.api.search._PATIENCE_S", -1.0)
    assert server.refused("/content/search", field="$.exif[?@ > 5]") == (400, "the search takes too long")


def test_a_thumbnail(server):
    status, headers, body = server.ask("/content/thumbnail", bucket="photos", key="cat.jpg")
    assert status == 200 and body == WEBP + b"cat.jpg"
    assert headers["content-type"] == "image/webp" and headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "private, no-cache" and headers["cross-origin-resource-policy"] == "same-origin"
    for tag in (headers["etag"], f'"x", W/{headers["etag"]}', "*"):
        again = server.ask("/content/thumbnail", {"if-none-match": tag}, bucket="photos", key="cat.jpg")
        assert again[0] == 304 and again[2] == b"" and again[1]["etag"] == headers["etag"]
    assert server.ask("/content/thumbnail", {"if-none-match": '"x"'}, bucket="photos", key="cat.jpg")[0] == 200
    old = server.ask("/content/thumbnail", bucket="versions", key="v.jpg", version_id="v1")
    assert old[0] == 200 and old[2] == WEBP + b"old"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"bucket": "photos", "key": "plain.txt"}, "no thumbnail"),
        ({"bucket": "photos", "key": "secret.jpg"}, "no thumbnail"),
        ({"bucket": "photos", "key": "gone.jpg"}, "no thumbnail"),
        ({"bucket": "versions", "key": "v.jpg"}, "no thumbnail"),
        ({"bucket": "photos", "key": "../../etc/passwd"}, "nothing is known"),
        ({"bucket": "nope", "key": "cat.jpg"}, "nothing is known"),
    ],
    ids=str,
)
def test_where_there_is_no_thumbnail(server, query, says):
    status, message = server.refused("/content/thumbnail", **query)
    assert status == 404 and says in message


def test_no_thumbnail_of_a_bucket_that_may_not_be_read_is_shown(server):
    settings = load_settings(
        flags={"home": str(server.content.settings.model.home), "content.buckets": "versions"}, environ={}
    )
    limited = Server(Content(settings), server.log)
    try:
        assert limited.ask("/content/thumbnail", bucket="versions", key="v.jpg", version_id="v1")[0] == 200
        status, message = limited.refused("/content/thumbnail", bucket="photos", key="cat.jpg")
        assert status == 403 and "content.buckets" in message
    finally:
        limited.app.state.service.close()


@pytest.mark.parametrize("path", ["search", "facets", "duplicates", "thumbnail"])
def test_pages_of_other_sites_are_refused(server, path):
    query = {"bucket": "photos", "key": "cat.jpg", "by": "camera"}
    for headers in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"host": "evil.example"}):
        assert server.ask(f"/content/{path}", headers, **query)[0] == 403
    status, headers, _ = server.ask(f"/content/{path}", {"origin": "http://evil.example"}, **query)
    assert status == 403 and not [name for name in headers if name.startswith("access-control")]
