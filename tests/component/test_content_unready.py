"""Content commands that publish and wait for the table, where Spark cannot start: nothing happens, or it is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from frazil.cli.run import run_command
from frazil.content.fields import PROPERTY, Fields, FieldSpec
from frazil.content.names import objects_name
from frazil.content.scan import wait_visible
from frazil.content.thumbnails import ThumbnailStore, thumbnail_key
from frazil.errors import NotFoundError
from frazil.log.remote.broker import Broker
from frazil.settings import load_settings
from frazil.tables import evolve_schema
from frazil.topics import open_log
from tests.content_kit import Content, an_object

ISO = FieldSpec("iso", "INTEGER", "$.exif.ISOSpeedRatings")
SCHEMA = {"custom_metadata_fields": "iso", "field.iso.type": "INTEGER", "field.iso.jpath": ISO.jpath}


class Unready:
    """A machine without Java, and a table with two objects."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._home, self._capfd = folder / "home", capfd
        self.content = Content.at(self._home)
        self.content.add_objects([an_object("a.jpg", etag="e"), an_object("b.jpg")])
        self.no_java = folder / "no-java"
        self.no_java.mkdir()
        self.photos = folder / "photos"
        self.photos.mkdir()
        (self.photos / "new.txt").write_text("new")

    def __call__(self, *args: str, broker: str | None = None) -> tuple[int, str, dict[str, Any]]:
        """Exit code, standard output, and the error."""
        self._capfd.readouterr()
        more = {"home": self._home, "log.min_free": 0, "spark.java_home": self.no_java}
        more |= {f"content.schema.{name}": value for name, value in SCHEMA.items()}
        more |= {"log.broker": broker} if broker else {}
        options = [word for name, value in more.items() for word in ("--set", f"{name}={value}")]
        words = [word.format(photos=self.photos) for word in args]
        code = run_command("content", "content", [*words, "--output", "json", *options])
        out, errors = self._capfd.readouterr()
        return code, out, {} if code == 0 else json.loads(errors.strip().splitlines()[-1])

    @property
    def settings(self) -> Any:
        return load_settings(flags={"home": str(self._home), "log.min_free": "0"}, environ={})

    def published(self) -> int:
        with open_log(self.settings) as log:
            try:
                return log.info(self.settings.model.content.topic).end
            except NotFoundError:
                return 0

    def add_column(self) -> None:
        table = self.content.store.load(objects_name(self.content.settings))
        made = Fields((ISO, FieldSpec("old", "STRING", "$.old")))
        table = evolve_schema(self.content.store, table, made.columns())
        table.transaction().set_properties({PROPERTY: made.to_property()}).commit_transaction()


@pytest.fixture
def unready(tmp_path, capfd, monkeypatch) -> Iterator[Unready]:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)  # a session of another file, if any
    yield Unready(tmp_path, capfd)
    structlog.reset_defaults()


PUBLISHING = [
    ("tag", "photos", "a.jpg", "--add", "x", "--wait"),
    ("note", "photos", "a.jpg", "a text", "--wait"),
    ("erase", "photos", "a.jpg", "--yes"),
    ("fields", "--apply"),
    ("backfill", "--field", "iso"),
    ("scan", "{photos}"),
]


@pytest.mark.parametrize("args", PUBLISHING, ids=lambda args: args[0])
def test_without_java_nothing_is_published(unready, args):
    code, out, error = unready(*args)
    assert (code, error["error"]) == (1, "SetupError")
    assert "spark.java_home" in error["message"] and "nothing was published" in error["message"] and error["hint"]
    assert unready.published() == 0
    assert args[0] == "fields" or out == ""


def test_without_java_no_column_is_dropped(unready):
    unready.add_column()
    code, _, error = unready("fields", "--drop", "old", "--yes")
    assert code == 1 and "nothing was published" in error["message"]
    assert unready.published() == 0


def test_without_java_an_erasure_keeps_the_thumbnails(unready):
    thumbnails, name = ThumbnailStore.of(unready.settings), thumbnail_key("photos", "a.jpg", "", "e")
    thumbnails.put(name, b"a thumbnail")
    assert unready("erase", "photos", "a.jpg", "--yes")[0] == 1
    assert thumbnails.get(name) == b"a thumbnail"


@pytest.mark.parametrize("args", PUBLISHING, ids=lambda args: args[0])
def test_what_nobody_waits_for_needs_no_java(unready, args):
    code, out, error = unready(*args, "--no-wait")
    assert code == 0, error
    assert unready.published() == 1 and json.loads(out)


def test_behind_a_broker_without_a_pipeline_the_error_says_what_is_durable(unready, monkeypatch):
    monkeypatch.setitem(wait_visible.wait_until_visible.__kwdefaults__, "patience_s", 0.1)
    with open_log(unready.settings) as log, Broker(log) as broker:
        code, out, error = unready("tag", "photos", "a.jpg", "--add", "x", "--wait", broker=broker.address)
        assert log.info("content_events").end == 1
    assert (code, out, error["error"]) == (3, "", "PartialError")
    assert "durable" in error["message"] and "below offset 1 are in the log" in error["message"]
    assert (error["topic"], error["end"], error["durable"]) == ("content_events", 1, True)
    assert "spark.java_home" in error["cause"] and error["hint"].endswith("; then frazil pipeline")
