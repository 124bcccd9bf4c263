"""Extraction on real Spark, tables, folders and buckets: what is chosen, read, told, and in the table at the end."""

from __future__ import annotations

import io
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import yaml
from PIL import Image
from pyspark.sql import SparkSession

from frazil.cli.run import run_command
from frazil.content.buckets import bucket_of
from frazil.content.columns import OBJECTS
from frazil.content.extraction.job import count_planned, extract, snapshot
from frazil.content.extraction.metrics import BYTES
from frazil.content.extraction.metrics import OBJECTS as OBJECTS_LOOKED_INTO
from frazil.content.extraction.selection import ExtractionRequest, count_selected, select_rows
from frazil.content.extraction.sources import BucketSource
from frazil.content.scan.bucket import open_bucket
from frazil.content.scan.engine import RunningEngine
from frazil.content.scan.folder import open_folder
from frazil.content.scan.session import ScanSession
from frazil.content.tables import ensure_objects
from frazil.content.thumbnails import ThumbnailStore, thumbnail_key
from frazil.errors import UsageError
from frazil.extract import Unsupported
from frazil.extract.engine.source import ObjectChanged, ObjectGone, ObjectRef, StorageError
from frazil.extract.registry import registry
from frazil.settings import Settings
from frazil.settings.model import NetworkSettings, S3Settings
from tests.content_kit import an_object, at
from tests.content_sink_kit import ContentKit, content_kit
from tests.services.kit import Services

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

HEADERS = ("type", "image", "exif")


@pytest.fixture
def kit(lane_settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[ContentKit]:
    with content_kit(lane_settings, spark, tmp_path / "kit") as made:
        yield made


@pytest.fixture
def s3_kit(
    lane_settings: Settings, spark: SparkSession, services: Services, tmp_path: Path
) -> Iterator[tuple[ContentKit, Any, str]]:
    access = services.seaweedfs.access
    bucket = f"b{uuid.uuid4().hex[:12]}"
    client = access.client()
    client.create_bucket(Bucket=bucket)
    s3 = S3Settings(**access.settings())  # type: ignore[arg-type]
    with content_kit(lane_settings, spark, tmp_path / "kit", s3=s3, skew_s=0.0) as made:
        yield made, client, bucket


def work_of(kit: ContentKit) -> ScanSession:
    return ScanSession(kit.settings, kit.kit.log, RunningEngine(kit.spark, kit.kit.client.address), kit.catalog)


def jpeg(width: int = 64, height: int = 48, model: str = "EOS R5", size: int = 0) -> bytes:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Canon", model
    file = io.BytesIO()
    Image.new("RGB", (width, height), (20, 90, 160)).save(file, "JPEG", exif=exif)
    data = file.getvalue()
    return data + os.urandom(max(0, size - len(data)))


def scanned(work: ScanSession, place: Any) -> None:
    work.wait_until_visible(work.scan(place, everything=True).tally.end)


def looked(work: ScanSession, **asked: Any) -> Any:
    done = extract(work, ExtractionRequest(**asked))
    if done.end:
        work.wait_until_visible(done.end)
    return done


def metadata(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["metadata"])
    return found


def states(row: dict[str, Any]) -> dict[str, str]:
    return {name: state["status"] for name, state in row["extraction"]}


# -- folders -----------------------------------------------------------------------------------------------------------


@pytest.mark.long("runs several commands, each with a Spark session of its own")
def test_a_folder_is_looked_into_once_and_later_only_what_is_new(kit: ContentKit, tmp_path: Path):
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for number in range(5):
        (folder / f"deep/{number}.jpg").write_bytes(jpeg(60 + number))
    (folder / "note.txt").write_text("The sea was calm, and the boats lay still in the harbour of the old town.")
    (folder / "broken.jpg").write_bytes(jpeg()[:100])
    work = work_of(kit)
    scanned(work, open_folder(bucket_of(str(folder)), kit.settings))
    before = OBJECTS_LOOKED_INTO.labels("ok")._value.get(), BYTES._value.get()
    seen: list[tuple[int, int]] = []
    done = extract(
        work, ExtractionRequest(bucket=f"file://{folder}"), progress=lambda now, all_: seen.append((now, all_))
    )
    work.wait_until_visible(done.end)
    assert done.objects == done.chosen == 7 and sum(done.by_status.values()) == 7
    assert done.bytes_read > 0 and done.seconds > 0 and done.notes == ()
    assert seen[0] == (0, 7) and seen[-1] == (7, 7)
    row = kit.row("deep/3.jpg")
    assert (row["extraction_status"], row["detected_type"], row["image_width"]) == ("ok", "image/jpeg", 63)
    assert row["camera"] == "Canon EOS R5" and metadata(row)["exif"]["Model"] == "EOS R5"
    assert kit.row("note.txt")["detected_type"] == "text/plain"
    assert OBJECTS_LOOKED_INTO.labels("ok")._value.get() - before[0] == done.by_status["ok"]
    assert BYTES._value.get() - before[1] == done.bytes_read
    thumbnail = ThumbnailStore.of(kit.settings).get(thumbnail_key(row["bucket"], row["key"], "", row["etag"]))
    assert thumbnail is not None and Image.open(io.BytesIO(thumbnail)).format == "WEBP"

    now = snapshot(work)
    again = looked(work)
    assert (again.objects, again.end) == (0, 0) and snapshot(work) == now, "nothing is missing"
    (folder / "new.jpg").write_bytes(jpeg(99))
    scanned(work, open_folder(bucket_of(str(folder)), kit.settings))
    assert looked(work).objects == 1 and kit.row("new.jpg")["image_width"] == 99


@pytest.mark.deep
def test_files_that_changed_or_went_between_listing_and_reading_say_so_and_can_be_tried_again(
    kit: ContentKit, tmp_path: Path
):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("stays", "goes", "changes", "link"):
        (folder / name).write_bytes(jpeg())
    work, place = work_of(kit), open_folder(bucket_of(str(folder)), kit.settings)
    scanned(work, place)
    (folder / "goes").unlink()
    (folder / "changes").write_bytes(jpeg(99))
    (folder / "link").unlink()
    (folder / "link").symlink_to("/etc/hostname")
    done = looked(work, only=HEADERS)
    assert done.by_status == {"ok": 1, "gone": 2, "changed": 1}
    assert set(states(kit.row("goes")).values()) == {"gone"} and kit.row("changes")["image_width"] is None
    assert set(states(kit.row("link")).values()) == {"gone"} and "hostname" not in str(kit.row("link")["metadata"])
    assert looked(work, only=HEADERS).objects == 0, "they have an answer"

    scanned(work, place)
    assert looked(work, only=HEADERS).by_status["ok"] == 1
    assert kit.row("changes")["image_width"] == 99


# -- buckets -----------------------------------------------------------------------------------------------------------


def test_headers_of_a_bucket_cost_few_bytes(s3_kit: tuple[ContentKit, Any, str]):
    kit, client, bucket = s3_kit
    size = 1_000_000
    for number in range(20):
        client.put_object(Bucket=bucket, Key=f"{number}.jpg", Body=jpeg(60 + number, size=size))
    work = work_of(kit)
    scanned(work, open_bucket(bucket, kit.settings, None))
    done = looked(work, bucket=bucket, only=HEADERS)
    assert done.by_status == {"ok": 20} and done.bytes_read <= 0.05 * 20 * size
    assert sorted(row["image_width"] for row in kit.objects()) == list(range(60, 80))
    assert all(row["content_hash"] is None for row in kit.objects()), "only those that were named"
    more = looked(work, bucket=bucket, only=("hash",))
    assert more.objects == 20 and more.bytes_read == 20 * size
    row = kit.row("3.jpg")
    assert row["content_hash"] and row["image_width"] == 63, "what others found stays"


def test_objects_of_a_bucket_that_were_overwritten_or_deleted_are_not_mistaken(s3_kit: tuple[ContentKit, Any, str]):
    kit, client, bucket = s3_kit
    for key in ("stays", "goes", "changes", "odd//key", "new\nline"):
        client.put_object(Bucket=bucket, Key=key, Body=jpeg())
    work = work_of(kit)
    scanned(work, open_bucket(bucket, kit.settings, None))
    client.delete_object(Bucket=bucket, Key="goes")
    client.put_object(Bucket=bucket, Key="changes", Body=jpeg(99))
    done = looked(work, only=HEADERS)
    found = {row["key"]: row for row in kit.objects()}
    assert set(states(found["goes"]).values()) == {"gone"}
    assert set(states(found["changes"]).values()) == {"changed"}
    assert done.by_status["ok"] == len(found) - 2
    assert all(row["image_width"] == 64 for key, row in found.items() if key not in ("goes", "changes"))


@pytest.mark.deep
def test_each_version_is_looked_into_and_the_latest_alone_if_asked(s3_kit: tuple[ContentKit, Any, str]):
    kit, client, bucket = s3_kit
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    versions = [client.put_object(Bucket=bucket, Key="a", Body=jpeg(60 + n))["VersionId"] for n in range(3)]
    work = work_of(kit)
    scanned(work, open_bucket(bucket, kit.settings, None))
    assert looked(work, only=HEADERS, latest=True).objects == 1
    assert looked(work, only=HEADERS).objects == 2
    assert [kit.row("a", version)["image_width"] for version in versions] == [60, 61, 62]


class _Sick(BaseHTTPRequestHandler):
    """Answers as a server of S3 that is busy, or does not allow, or knows no conditions."""

    answers: ClassVar[list[tuple[int, bytes]]] = []
    asked: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.asked.append({**dict(self.headers), "path": self.path})
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(status)
        self.send_header("ETag", '"e1"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        if status == 206:
            self.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - the name is the base's


def _said(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>as it says</Message></Error>".encode()


@pytest.fixture
def sick() -> Iterator[tuple[type[_Sick], S3Settings]]:
    handler = type("Sick", (_Sick,), {"answers": [], "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    yield handler, S3Settings(endpoint=endpoint, access_key="a", secret_key="b")  # type: ignore[arg-type]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("key", ["plain", "odd//key"], ids=["obstore", "boto3"])
@pytest.mark.parametrize(
    ("status", "code", "error", "words"),
    [
        (503, "SlowDown", StorageError, "storage: the server is overloaded or failing"),
        (500, "InternalError", StorageError, "storage: the server is overloaded or failing"),
        (403, "AccessDenied", StorageError, "storage: not allowed"),
        (403, "SignatureDoesNotMatch", StorageError, "storage: the credentials were rejected"),
        (404, "NoSuchBucket", StorageError, "storage: bucket not found"),
        (404, "NoSuchKey", ObjectGone, "object does not exist"),
        (412, "PreconditionFailed", ObjectChanged, "has changed"),
        (416, "InvalidRange", ObjectChanged, "shorter"),
        (403, "InvalidObjectState", Unsupported, "archive"),
    ],
)
def test_what_a_store_answers_becomes_a_status_with_its_reason(
    sick: tuple[type[_Sick], S3Settings], key: str, status: int, code: str, error: type[Exception], words: str
):
    handler, s3 = sick
    handler.answers = [(status, _said(code))]
    network = NetworkSettings(retry_attempts=2, retry_timeout=60.0)
    with pytest.raises(error, match=words):
        BucketSource(ObjectRef("b", key, "v1", etag="e1"), s3, network).fetch(0, 100)
    assert len(handler.asked) == (2 if status >= 500 else 1), "what can be tried again is"
    asked = {name.lower(): value for name, value in handler.asked[0].items()}
    assert asked["if-match"] == '"e1"' and asked["range"] == "bytes=0-99" and "versionId=v1" in asked["path"]


@pytest.mark.parametrize("key", ["plain", "odd//key"], ids=["obstore", "boto3"])
def test_a_store_that_is_busy_for_a_while_is_asked_again(sick: tuple[type[_Sick], S3Settings], key: str):
    handler, s3 = sick
    handler.answers = [(503, _said("SlowDown")), (503, _said("SlowDown")), (206, b"content")]
    source = BucketSource(ObjectRef("b", key, etag="e1"), s3, NetworkSettings(retry_attempts=4, retry_timeout=60.0))
    assert source.fetch(0, 7) == b"content"
    assert "versionId" not in handler.asked[0]["path"]


def test_a_store_that_ignores_conditions_is_seen_through(sick: tuple[type[_Sick], S3Settings]):
    handler, s3 = sick
    handler.answers = [(206, b"content")]
    with pytest.raises(ObjectChanged):
        BucketSource(ObjectRef("b", "k", etag="another"), s3, NetworkSettings()).fetch(0, 7)
    old = BucketSource(ObjectRef("b", "k", is_latest=False, etag="e1"), s3, NetworkSettings())
    assert old.fetch(0, 7) == b"content" and "versionId=null" in handler.asked[-1]["path"]


def test_storage_that_was_away_is_taken_up_by_failed(s3_kit: tuple[ContentKit, Any, str]):
    kit, client, bucket = s3_kit
    client.put_object(Bucket=bucket, Key="a.jpg", Body=jpeg())
    work = work_of(kit)
    scanned(work, open_bucket(bucket, kit.settings, None))
    wrong = kit.settings.model.s3.model_copy(update={"endpoint": "http://127.0.0.1:9"})
    network = NetworkSettings(retry_attempts=1, connect_timeout=1.0)
    away = replace(work, settings=Settings(kit.settings.model.model_copy(update={"s3": wrong, "network": network})))
    assert looked(away, only=HEADERS).by_status == {"failed": 1}
    state = dict(kit.row("a.jpg")["extraction"])["type"]
    assert state["status"] == "failed" and state["reason"].startswith("storage: no response from the server")
    assert looked(work, only=HEADERS).objects == 0
    assert looked(work, only=HEADERS, mode="failed").by_status == {"ok": 1}
    assert kit.row("a.jpg")["extraction_status"] == "ok"


# -- what is chosen ----------------------------------------------------------------------------------------------------


def state(version: str = "1", status: str = "ok") -> dict[str, Any]:
    return {"version": version, "status": status, "reason": None, "at": at(0)}


def chosen(kit: ContentKit, asked: ExtractionRequest, names: tuple[str, ...], **versions: str) -> dict[str, list[str]]:
    table = work_of(kit).objects_table()
    assert table is not None
    extractors = [replace(e, version=versions.get(e.name, "1")) for e in registry().choose(names)]
    rows = select_rows(kit.spark, table, asked, extractors).collect()
    return {row.key + row.version_id: list(row.wanted) for row in rows}


def test_rows_are_chosen_by_what_each_extractor_has_come_to(kit: ContentKit):
    done = {"type": state(), "image": state(), "exif": state()}
    picture = {"extraction_status": "ok", "detected_type": "image/jpeg"}
    rows = [
        an_object("pending", extraction_status="pending"),
        an_object("never", extraction_status=None),
        an_object("done", **picture, extraction=list(done.items())),
        an_object("partly", **picture, extraction=[("type", state()), ("image", state())]),
        an_object("text", extraction_status="ok", detected_type="text/plain", extraction=[("type", state())]),
        an_object("broken", **picture, extraction=list({**done, "exif": state(status="failed")}.items())),
        an_object("gone", **picture, extraction=list({**done, "image": state(status="gone")}.items())),
        an_object("rare", **picture, extraction=list({**done, "image": state(status="unsupported")}.items())),
        an_object("no type", extraction_status="failed", extraction=[("type", state(status="gone"))]),
        an_object("erased", extraction_status="erased"),
        an_object("passwd", bucket="file:///etc", extraction_status="pending"),
        an_object("deleted", extraction_status=None, is_deleted=True),
        an_object("marker", extraction_status=None, is_delete_marker=True),
        an_object("old", version_id="-v", is_latest=False, extraction_status="pending"),
        an_object("else/where", bucket="other", extraction_status="pending"),
    ]
    table = ensure_objects(kit.kit.store, kit.settings)
    table.append(pa.Table.from_pylist(rows, schema=OBJECTS))
    everyone = ["type", "image", "exif"]
    fresh = {"pending": everyone, "never": everyone, "old-v": everyone, "else/where": everyone}
    names = ("type", "image", "exif")
    assert chosen(kit, ExtractionRequest(), names) == {**fresh, "partly": ["exif"]}
    assert chosen(kit, ExtractionRequest(bucket="photos", prefix="p", latest=True), names) == {
        "pending": everyone, "partly": ["exif"],
    }  # fmt: skip
    assert chosen(kit, ExtractionRequest(mode="failed"), names) == {
        "broken": ["exif"], "gone": ["image"], "no type": everyone,
    }  # fmt: skip
    stale = ("done", "broken", "gone", "rare")
    assert chosen(kit, ExtractionRequest(mode="stale"), names, exif="2") == {key: ["exif"] for key in stale}
    assert chosen(kit, ExtractionRequest(), ("image",)) == {key: ["image"] for key in fresh}
    again = chosen(kit, ExtractionRequest(mode="all"), ("image",))
    assert set(again) == {*fresh, "done", "partly", "broken", "gone", "rare", "no type"}, (
        "no text, and nothing that is erased"
    )
    assert len(chosen(kit, ExtractionRequest(limit=2), names)) == 2
    table_name = work_of(kit).objects_table()
    assert table_name is not None
    counted = count_selected(select_rows(kit.spark, table_name, ExtractionRequest(), registry().choose(names)))
    assert (counted.objects, counted.bytes, counted.by_extractor) == (5, 50, {"exif": 5, "image": 4, "type": 4})


def test_types_are_taken_by_spark_as_extractors_take_them(kit: ContentKit):
    kinds = ["image/jpeg", "image/x-canon-cr2", "text/plain", "application/pdf", "audio/mpeg", "video/mp4",
             "application/zip", "application/octet-stream", "inode/x-empty"]  # fmt: skip
    rows = [an_object(kind, extraction_status="ok", detected_type=kind, extraction=[]) for kind in kinds]
    ensure_objects(kit.kit.store, kit.settings).append(pa.Table.from_pylist(rows, schema=OBJECTS))
    known = [r.extractor for r in registry().found.values()]
    table = work_of(kit).objects_table()
    assert table is not None
    for row in select_rows(kit.spark, table, ExtractionRequest(), known).collect():
        assert list(row.wanted) == [e.name for e in known if e.takes(row.key)], row.key


def test_without_a_table_there_is_nothing_to_do(kit: ContentKit):
    work = work_of(kit)
    assert (extract(work).objects, count_planned(work, ExtractionRequest()).objects, snapshot(work)) == (0, 0, None)
    with pytest.raises(UsageError, match="no extractor 'nobody'"):
        extract(work, ExtractionRequest(only=("nobody",)))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def frazil(
    lane_settings: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process, on the session that is there."""

    @contextmanager
    def shared(_settings: Settings) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("frazil.spark.spark_session", shared)
    catalog = lane_settings.catalog("sql")
    name = f"c{uuid.uuid4().hex[:10]}"
    settings = {
        "home": str(tmp_path / "home"),
        "catalogs": {"sql": {"kind": "sql", "uri": catalog.uri, "warehouse": catalog.warehouse}},
        "log": {"min_free": 0},
        "content": {"namespace": name, "topic": f"{name}_events", "extract": {"extractors": ",".join(HEADERS)}},
    }
    (tmp_path / "frazil.yaml").write_text(yaml.safe_dump(settings))

    def run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        options = ["--config", str(tmp_path / "frazil.yaml")]
        code = run_command("content", "content", [*args, *options, *(() if "-h" in args else ("--catalog", "sql"))])
        return code, *capsys.readouterr()

    return run


def test_extract_as_a_command(frazil: Callable[..., tuple[int, str, str]], tmp_path: Path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(jpeg())
    (folder / "gone.jpg").write_bytes(jpeg())
    assert frazil("scan", str(folder), "--no-extract")[0] == 0
    (folder / "gone.jpg").unlink()
    code, out, err = frazil("extract", str(folder), "--dry-run", "-o", "json")
    assert code == 0, err
    assert json.loads(out)["objects"] == 4 and json.loads(out)["by_extractor"] == dict.fromkeys(HEADERS, 4)

    code, out, err = frazil("extract", str(folder), "--only", "type", "--only", "image,exif", "-o", "json")
    assert code == 0, err
    told = json.loads(out)
    assert set(told) == {
        "bucket", "prefix", "mode", "objects", "by_status", "by_extractor", "reasons", "bytes_read", "thumbnails",
        "restarts", "seconds", "objects_per_s", "visible_s", "slowest", "failed",
    }  # fmt: skip
    assert (told["objects"], told["by_status"], told["mode"]) == (4, {"ok": 3, "gone": 1}, "missing")
    assert told["by_extractor"] == {name: {"ok": 3, "gone": 1} for name in HEADERS}
    assert told["failed"][0]["key"] == "gone.jpg" and told["failed"][0]["status"] == "gone"
    assert told["reasons"][0]["reason"] == "the file does not exist any more" and told["visible_s"] >= told["seconds"]

    code, out, err = frazil("extract", str(folder))
    assert code == 0 and "0 objects extracted (nothing to do)" in out, err
    code, out, err = frazil("extract", "--failed", "--no-wait")
    assert code == 0 and "1 objects extracted (1 gone)" in out and "first failures:\n  gone.jpg" in out, err
    code, out, err = frazil("extract", "--all", "--limit", "2", "-o", "json")
    assert code == 0 and json.loads(out)["objects"] == 2, err
    assert frazil("extract", "--stale", "-o", "json")[0] == 0


def test_bad_input_of_the_command_changes_nothing(frazil: Callable[..., tuple[int, str, str]], tmp_path: Path):
    for args, words in (
        (("--only", "exf"), "did you mean exif"),
        (("--failed", "--stale"), "exclude each other"),
        (("--follow", "--dry-run"), "--follow"),
        (("--follow", "--all"), "--follow"),
        (("--limit", "0"), "greater than or equal to 1"),
        (("s3://b/inside",), "inside a bucket"),
        (("--set", "content.extract.timeout_s=0"), "content.extract.timeout_s"),
    ):
        code, out, err = frazil("extract", *args)
        assert (code, out) == (2, "") and words in err, (args, err)
    assert not (tmp_path / "home/log").exists()
