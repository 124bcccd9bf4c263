"""Tags, notes, ratings, erasing and custom columns up to the log: what is published, and what is refused before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from frazil.api.app import create_app
from frazil.cli.run import run_command
from frazil.content.annotations.messages import VERSION
from frazil.content.fields import PROPERTY, Fields, FieldSpec
from frazil.content.fields.spec import BACKFILL_PROPERTY
from frazil.content.names import objects_name
from frazil.content.thumbnails import ThumbnailStore, thumbnail_key
from frazil.errors import NotFoundError
from frazil.log import Log
from frazil.settings import Settings, load_settings
from frazil.tables import evolve_schema
from frazil.topics import open_log
from frazil.topics.reading.reader import TopicReader
from tests.content_kit import Content, a_change, an_object

ISO = FieldSpec("iso", "INTEGER", "$.exif.ISOSpeedRatings")
LENS = FieldSpec("lens", "STRING", "$.exif.LensModel")
CONFIGURED = {"custom_metadata_fields": "iso", "field.iso.type": "INTEGER", "field.iso.jpath": ISO.jpath}


class Kit:
    """The commands in a home folder of their own, the tables, and what has come into the log."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.home, self._capfd = home, capfd
        self.content = Content.at(home)

    def __call__(self, *args: str, **schema: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        more = ["--set", f"home={self.home}", "--set", "log.min_free=0"]
        for name, value in schema.items():
            more += ["--set", f"content.schema.{name}={value}"]
        code = run_command("content", "content", [*args, *more])
        out, errors = self._capfd.readouterr()
        return code, out, errors

    def json(self, *args: str, **schema: str) -> Any:
        code, out, errors = self(*args, "--output", "json", **schema)
        assert code == 0, errors
        return json.loads(out)

    def refused(self, *args: str, code: int, **schema: str) -> str:
        """What is said; and nothing has come into the log."""
        before = self.told()
        got, _, errors = self(*args, **schema)
        assert got == code, errors
        assert self.told() == before
        assert "Try:" in errors
        return errors

    def told(self) -> list[dict[str, Any]]:
        settings = load_settings(flags={"home": str(self.home), "log.min_free": "0"}, environ={})
        with open_log(settings) as log:
            return messages_of(log, settings)

    def fields(self, *specs: FieldSpec, filling: list[str] | None = None) -> None:
        """The table as the sink leaves it."""
        made = Fields(specs)
        table = self.content.store.load(objects_name(self.content.settings))
        table = evolve_schema(self.content.store, table, made.columns())
        table.transaction().set_properties(
            {PROPERTY: made.to_property(), BACKFILL_PROPERTY: json.dumps(filling or [])}
        ).commit_transaction()


def messages_of(log: Log, settings: Settings) -> list[dict[str, Any]]:
    topic = settings.model.content.topic
    try:
        end = log.info(topic).end
    except NotFoundError:
        return []
    found: list[dict[str, Any]] = []
    for batch in TopicReader(log, topic).read(0, end=end):
        found += [json.loads(payload) for payload in batch.column("payload").to_pylist()]
    return found


@pytest.fixture
def kit(tmp_path, capfd) -> Iterator[Kit]:
    made = Kit(tmp_path / "home", capfd)
    made.content.add_objects(
        [
            an_object("a.jpg", user_tags=["old"], extraction_status="ok", metadata="{}"),
            an_object("b.jpg"),
            an_object("v", version_id="v2"),
            an_object("v", version_id="v1", is_latest=False),
            an_object("gone", is_deleted=True, is_latest=False),
            an_object("full", user_tags=[f"t{n}" for n in range(100)]),
        ]
    )
    yield made
    structlog.reset_defaults()


# -- tags and notes ----------------------------------------------------------------------------------------------------


def test_tags_of_several_objects_are_one_message(kit):
    done = kit.json("tag", "photos", "a.jpg", "b.jpg", "a.jpg", "--add", "holiday", "--remove", "old", "--no-wait")
    assert done == {
        "bucket": "photos", "objects": 2, "versions": 2, "topic": "content_events", "offset": 0, "visible": True,
    }  # fmt: skip
    (message,) = kit.told()
    assert (message["frazil"], message["version"], message["bucket"]) == ("edit", VERSION, "photos")
    assert message["edits"] == [
        {"key": key, "version_id": "", "add": ["holiday"], "remove": ["old"]} for key in ("a.jpg", "b.jpg")
    ]


def test_tags_can_be_replaced_and_cleared(kit):
    kit.json("tag", "photos", "a.jpg", "--replace", "x", "--replace", "y", "--no-wait")
    kit.json("tag", "photos", "a.jpg", "--clear", "--no-wait")
    assert [m["edits"][0]["set"] for m in kit.told()] == [["x", "y"], []]


def test_an_edit_is_durable_and_visible_without_spark(kit, monkeypatch):
    monkeypatch.setattr("frazil.spark.spark_session", lambda *_: pytest.fail("Spark was started"))
    kit.json("tag", "photos", "a.jpg", "--add", "holiday")
    kit.json("note", "photos", "a.jpg", "at the lake", "--rating", "5")
    (found,) = kit.json("search", "photos", "--tag", "holiday")["objects"]
    assert (found["key"], sorted(found["user_tags"]), found["rating"]) == ("a.jpg", ["holiday", "old"], 5)


def test_an_object_that_only_the_log_has_can_be_tagged(kit):
    event = {"eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "awsRegion": "x",
             "eventTime": "2026-01-31T12:00:00.000Z", "s3": {"bucket": {"name": "photos"},
             "object": {"key": "new.jpg", "size": 3, "eTag": "e", "sequencer": "0a"}}}  # fmt: skip
    source = kit.home / "event.json"
    source.write_text(json.dumps({"Records": [event]}))
    kit.json("ingest", str(source))
    kit.json("tag", "photos", "new.jpg", "--add", "late")
    (found,) = kit.json("search", "photos", "--tag", "late")["objects"]
    assert found["key"] == "new.jpg"


def test_without_a_version_the_latest_is_meant(kit):
    kit.json("tag", "photos", "v", "--add", "x", "--no-wait")
    kit.json("tag", "photos", "v", "--add", "x", "--version-id", "v1", "--no-wait")
    assert [m["edits"][0]["version_id"] for m in kit.told()] == ["v2", "v1"]


def test_a_note_and_a_rating(kit):
    kit.json("note", "photos", "a.jpg", "at the lake", "--rating", "5", "--no-wait")
    kit.json("note", "photos", "a.jpg", "--clear", "--no-rating", "--no-wait")
    kit.json("note", "photos", "a.jpg", "--rating", "2", "--no-wait")
    assert [{k: v for k, v in m["edits"][0].items() if k not in ("key", "version_id")} for m in kit.told()] == [
        {"note": "at the lake", "rating": 5},
        {"note": None, "rating": None},
        {"rating": 2},
    ]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["tag", "photos", "a.jpg", "nope", "gone", "--add", "x"], 10, "has no 'nope', 'gone'"),
        (["tag", "photos", "b.jgp", "--add", "x"], 10, "Try: b.jpg"),
        (["tag", "photo", "a.jpg", "--add", "x"], 10, "nothing is known of bucket 'photo'"),
        (["tag", "photos", "v", "--version-id", "v9", "--add", "x"], 10, "no such version of 'v'"),
        (["tag", "photos", "full", "--add", "x"], 2, "would have 101 tags"),
        (["tag", "photos", "a.jpg"], 2, "no change of tags was given"),
        (["tag", "photos", "a.jpg", "--add", " "], 2, "a tag is empty"),
        (["tag", "photos", "a.jpg", "--add", "x" * 129], 2, "has 129 characters"),
        (["tag", "photos", "a.jpg", "--add", "a\x1b[31m"], 2, "control character"),
        (["tag", "photos", "a.jpg", "--add", "x", "--remove", "x"], 2, "added and removed"),
        (["tag", "photos", "a.jpg", "--add", "x", "--clear"], 2, "--clear removes all tags"),
        (["tag", "photos", "", "--add", "x"], 2, "the key is empty"),
        (["note", "photos", "a.jpg"], 2, "no text and no rating were given"),
        (["note", "photos", "a.jpg", ""], 2, "the note is empty"),
        (["note", "photos", "a.jpg", "x" * 65537], 2, "the note has 65,537 bytes"),
        (["note", "photos", "a.jpg", "x", "--clear"], 2, "--clear removes the note"),
        (["note", "photos", "a.jpg", "--rating", "3", "--no-rating"], 2, "--no-rating removes the rating"),
        (["note", "photos", "nope", "x"], 10, "has no 'nope'"),
    ],
)
def test_what_cannot_be_changes_nothing(kit, args, code, says):
    assert says in kit.refused(*args, "--no-wait", code=code)


# -- erasing -----------------------------------------------------------------------------------------------------------


def test_erasing_is_about_all_versions_and_needs_yes(kit):
    assert "requires --yes" in kit.refused("erase", "photos", "v", code=2)
    done = kit.json("erase", "photos", "v", "gone", "--yes", "--no-wait")
    assert (done["objects"], done["versions"], done["done"]) == (2, 3, True)
    (message,) = kit.told()
    assert sorted(e["version_id"] for e in message["edits"]) == ["", "v1", "v2"]
    assert all(e["erase"] and e["etag"] for e in message["edits"])


def test_thumbnails_of_this_content_and_of_those_before_go(kit):
    kit.content.add_changes([a_change("a.jpg", "01", e_tag="former"), a_change("b.jpg", "01", e_tag="other")])
    store = ThumbnailStore.of(kit.content.settings)
    names = {e: thumbnail_key("photos", "a.jpg", "", e) for e in ("etag-a.jpg", "former")}
    names["other"] = thumbnail_key("photos", "b.jpg", "", "other")
    for name in names.values():
        store.put(name, b"webp")
    _, _, errors = kit("erase", "photos", "a.jpg", "--yes", "--no-wait")
    assert [e for e, name in names.items() if store.get(name)] == ["other"]
    assert "until they expire" in errors and "until the topic's retention" in errors


# -- custom columns ----------------------------------------------------------------------------------------------------


def test_fields_are_listed_with_what_rows_lack(kit):
    kit.fields(ISO, LENS, filling=["lens"])
    mark = ISO.mark("lenient")
    kit.content.add_objects(
        [
            an_object("1", extraction_status="ok", frazil_fields=[mark]),
            an_object("2", extraction_status="failed", frazil_fields=["iso:00000000"]),
            an_object("3", extraction_status="pending"),
        ]
    )
    more = {"custom_metadata_fields": "iso,new", "field.new.type": "DATE", "field.new.jpath": "$.x"}
    listed = kit.json("fields", **{**CONFIGURED, **more})
    assert [(f["name"], f["state"], f["lacking"], f["filling"]) for f in listed["fields"]] == [
        ("iso", "active", 2, False),
        ("new", "add", None, False),
        ("lens", "unconfigured", 3, True),
    ]
    assert kit.told() == []


def test_a_type_that_iceberg_cannot_change_is_refused_with_the_reason(kit):
    kit.fields(ISO)
    text = {**CONFIGURED, "field.iso.type": "STRING"}
    (listed,) = kit.json("fields", **text)["fields"]
    assert (listed["state"], listed["type"]) == ("refused", "STRING") and "the column is int" in listed["why"]
    assert "the column is int" in kit.refused("fields", "--apply", "--no-wait", code=2, **text)
    assert "the column is int" in kit.refused("backfill", "--field", "iso", "--no-wait", code=2, **text)


def test_apply_tells_the_pipeline_of_the_fields(kit):
    kit.fields(ISO, LENS)
    more = {"custom_metadata_fields": "iso,lens,d", "field.lens.type": "STRING", "field.lens.jpath": "$.xmp.Lens"}
    wanted = {**CONFIGURED, **more, "field.iso.type": "LONG", "field.d.type": "DATE", "field.d.jpath": "$.d"}
    plan = {"add": ["d"], "widen": ["iso"], "redefine": ["lens"], "drop": [], "include_raw_metadata": None}
    assert kit.json("fields", "--apply", "--dry-run", **wanted) == {**plan, "done": False}
    assert kit.told() == []
    assert kit.json("fields", "--apply", "--no-wait", **wanted) == {**plan, "done": True}
    (message,) = kit.told()
    assert (message["frazil"], message["drop"], message["backfill"]) == ("fields", [], [])
    assert [(f["name"], f["type"]) for f in message["fields"]] == [("iso", "LONG"), ("lens", "STRING"), ("d", "DATE")]


def test_where_nothing_differs_nothing_is_told(kit):
    kit.fields(ISO)
    assert kit.json("fields", "--apply", **CONFIGURED)["done"] is False
    assert kit.told() == []


def test_a_column_is_dropped_only_with_yes_and_when_no_setting_names_it(kit):
    kit.fields(ISO, LENS)
    assert "requires --yes" in kit.refused("fields", "--drop", "lens", code=2, **CONFIGURED)
    assert "still name 'iso'" in kit.refused("fields", "--drop", "iso", "--yes", code=2, **CONFIGURED)
    assert "built-in column" in kit.refused("fields", "--drop", "labels", "--yes", code=2, **CONFIGURED)
    assert "no custom column 'x'" in kit.refused("fields", "--drop", "x", "--yes", code=10, **CONFIGURED)
    assert kit.json("fields", "--drop", "lens", "--yes", "--no-wait", **CONFIGURED)["drop"] == ["lens"]
    (message,) = kit.told()
    assert (message["drop"], message["fields"]) == (["lens"], [])


def test_backfill_names_the_fields(kit):
    assert kit.json("backfill", "--field", "iso", "--no-wait", **CONFIGURED) == {
        "fields": ["iso"], "offset": 0, "done": False,
    }  # fmt: skip
    assert kit.json("backfill", "--all", "--no-wait", **CONFIGURED)["offset"] == 1
    for message in kit.told():
        assert Fields.parse(message) == Fields((ISO,)) and message["backfill"] == ["iso"]


@pytest.mark.parametrize(
    ("args", "schema", "code", "says"),
    [
        (["--field", "nope"], CONFIGURED, 10, "unknown custom column 'nope'"),
        ([], CONFIGURED, 2, "no columns to compute"),
        (["--field", "iso", "--all"], CONFIGURED, 2, "no columns to compute"),
        (["--all"], {}, 10, "no custom columns are configured"),
        (["--field", "iso"], {**CONFIGURED, "include_raw_metadata": "false"}, 2, "metadata was not kept"),
        (["--field", "iso"], {**CONFIGURED, "field.iso.jpath": "exif.ISO"}, 2, "--set content.schema.field.iso.jpath"),
        (["--field", "iso"], {**CONFIGURED, "field.iso.type": "TIME"}, 2, "Spark cannot open"),
    ],
)
def test_a_backfill_that_cannot_be_is_refused(kit, args, schema, code, says):
    assert says in kit.refused("backfill", *args, "--no-wait", code=code, **schema)


# -- HTTP --------------------------------------------------------------------------------------------------------------


class Http:
    def __init__(self, kit: Kit, log: Log, **content: Any) -> None:
        model = kit.content.settings.model
        self.settings = Settings(model.model_copy(update={"content": model.content.model_copy(update=content)}))
        self.log = log
        self.app = create_app(log, self.settings.model, tables_of=lambda: kit.content.tables)

    def post(self, body: Any, *headers: tuple[bytes, bytes]) -> tuple[int, Any]:
        return asyncio.run(self._post(body if isinstance(body, bytes) else json.dumps(body).encode(), headers))

    async def _post(self, body: bytes, headers: Any) -> tuple[int, Any]:
        sent: list[dict[str, Any]] = []
        kinds = [] if any(name == b"content-type" for name, _ in headers) else [(b"content-type", b"application/json")]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/content/edits", "raw_path": b"/content/edits", "query_string": b"", "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), *kinds, *headers], "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 50000), "state": {},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def note(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, note)
        return sent[0]["status"], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))


@pytest.fixture
def http(kit, tmp_path) -> Iterator[Http]:
    with Log.open(tmp_path / "served") as log:
        made = Http(kit, log)
        yield made
        made.app.state.service.close()


def test_edits_over_http_are_taken_when_they_are_on_disk(http):
    edits = [
        {"key": "a.jpg", "add": ["x"], "note": None, "rating": 4},
        {"key": "v", "version_id": "v1", "set": []},
        {"key": "gone", "erase": True},
    ]
    status, taken = http.post({"bucket": "photos", "edits": edits})
    assert (status, taken) == (
        202,
        {"topic": "content_events", "offset": 0, "count": 1, "versions": 3, "level": "disk", "visible": True},
    )
    (message,) = messages_of(http.log, http.settings)
    assert message["edits"] == [
        {"key": "a.jpg", "version_id": "", "add": ["x"], "note": None, "rating": 4},
        {"key": "v", "version_id": "v1", "set": []},
        {"key": "gone", "version_id": "", "erase": True, "etag": "etag-gone"},
    ]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"bucket": "photos", "edits": [{"key": "a.jpg", "add": ["x"]}, {"key": "nope", "add": ["x"]}]}, 404, "'nope'"),
        ({"bucket": "photos", "edits": []}, 400, "edits"),
        ({"bucket": "photos", "edits": [{"key": "a.jpg"}]}, 400, "nothing is said of 'a.jpg'"),
        ({"bucket": "photos", "edits": [{"key": "a.jpg", "rating": 6}]}, 400, "rating"),
        ({"bucket": "photos", "edits": [{"key": "a.jpg", "tags": ["x"]}]}, 400, "tags"),
        (
            {"bucket": "photos", "edits": [{"key": "a.jpg", "add": ["x"], "erase": True}]},
            400,
            "an erasure cannot have tags, note or rating",
        ),
        (b"{", 400, "the body"),
    ],
)
def test_http_refuses_before_anything_is_taken(http, body, status, says):
    got, answer = http.post(body)
    assert got == status and says in answer["message"] and answer["hint"]
    assert answer["stored"] == "no"
    assert messages_of(http.log, http.settings) == []


def test_only_json_is_understood(http):
    status, _ = http.post({}, (b"content-type", b"text/plain"))
    assert status == 415


def test_the_token_of_the_settings_is_asked_for(kit, tmp_path):
    from pydantic import SecretStr

    body = {"bucket": "photos", "edits": [{"key": "a.jpg", "add": ["x"]}]}
    with Log.open(tmp_path / "served") as log:
        http = Http(kit, log, token=SecretStr("open sesame"))
        assert http.post(body)[0] == 401
        assert http.post(body, (b"authorization", b"Bearer open sesame"))[0] == 202
        http.app.state.service.close()
