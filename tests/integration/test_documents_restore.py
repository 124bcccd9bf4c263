"""Restores of archived documents on S3 as moto plays it, and documents that follow the events of their objects."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from frazil.cli.run import run_command
from frazil.content.topic import ensure_topic
from frazil.documents.files import AddOptions, add_file, fetch_file
from frazil.documents.model import Document
from frazil.documents.restores import request_restore
from frazil.documents.sql.store import SqlDocumentStore
from frazil.errors import ConflictError, NotFoundError, UnavailableError, UnsupportedError, UsageError
from frazil.followers import SUBSCRIPTION, ObjectFollower
from frazil.log import Log
from frazil.log.batch import Batch
from frazil.settings import Settings, load_settings
from frazil.settings.model import SettingsModel
from frazil.storage.s3_client import client_of
from tests.e2e.conftest import Shell
from tests.e2e.servers import JSON, serving
from tests.services.glue import Glue, start_glue
from tests.services.kit import Services

TOPIC = "content_events"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlDocumentStore]:
    with SqlDocumentStore(f"sqlite:///{tmp_path / 'documents.db'}") as opened:
        yield opened


def settings_for(server: Any, folder: Path, **more: str) -> Settings:
    flags = {f"s3.{name}": value for name, value in server.access.settings().items()}
    return load_settings(environ={}, flags={"home": str(folder / "home"), "log.min_free": "0", **flags, **more})


@pytest.fixture
def settings(services: Services, tmp_path: Path) -> SettingsModel:
    return settings_for(services.glue, tmp_path).model


def new_bucket(settings: SettingsModel) -> str:
    name = f"docs-{uuid.uuid4().hex[:12]}"
    client = client_of(settings.s3, settings.network)
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


def added(store, settings, folder: Path, tier="archive", content=b"%PDF-1.7 content", bucket=None) -> Document:
    file = folder / "report.pdf"
    file.write_bytes(content)
    target = f"s3://{bucket or new_bucket(settings)}/2026"
    return add_file(store, settings, file, target, AddOptions(tier=tier, tags={"kept": "yes"})).document


# -- requests


@pytest.mark.parametrize("tier", ["archive", pytest.param("deep_archive", marks=pytest.mark.deep)])
def test_an_archived_document_is_restored_and_keeps_its_tier(store, settings, tmp_path: Path, tier: str):
    document = added(store, settings, tmp_path, tier)
    with pytest.raises(ConflictError, match="must be restored") as told:
        fetch_file(store, settings, document.document_id, tmp_path / "back.pdf")
    assert f"frazil docs restore-request {document.document_id} --days 7" in (told.value.hint or "")
    assert not (tmp_path / "back.pdf").exists()

    requested = request_restore(store, settings, document.document_id, days=7, tier="Bulk")
    assert (requested.outcome, requested.document.restore_status) == ("requested", "requested")
    assert requested.document.restore_requested_at is not None
    assert abs(requested.document.restore_requested_at - datetime.now(UTC)) < timedelta(minutes=1)

    fetched = fetch_file(store, settings, document.document_id, tmp_path / "back.pdf")
    assert fetched.is_verified and fetched.path.read_bytes() == b"%PDF-1.7 content"
    found = store.get_metadata(document.document_id)
    assert (found.restore_status, found.storage_tier, found.tags) == ("restored", tier, {"kept": "yes"})
    assert found.restore_expiry is not None
    assert timedelta(days=6) < found.restore_expiry - datetime.now(UTC) < timedelta(days=8)
    assert [r.document.restore_status for r in store.history(document.document_id)] == [
        "none", "requested", "restored",
    ]  # fmt: skip


def test_a_restored_copy_is_kept_longer_on_request(store, settings, tmp_path: Path):
    document = added(store, settings, tmp_path)
    request_restore(store, settings, document.document_id, days=2)
    fetch_file(store, settings, document.document_id, tmp_path / "back.pdf")
    before = store.get_metadata(document.document_id).restore_expiry
    extended = request_restore(store, settings, document.document_id, days=30)
    assert extended.outcome == "extended" and extended.document.restore_status == "restored"
    assert extended.document.restore_expiry - before > timedelta(days=27)


def test_what_cannot_be_restored_is_refused_and_changes_nothing(store, settings, tmp_path: Path):
    standard = added(store, settings, tmp_path, "standard")
    deep = added(store, settings, tmp_path, "deep_archive")
    for expected, call in (
        (ConflictError, lambda: request_restore(store, settings, standard.document_id)),
        (UsageError, lambda: request_restore(store, settings, deep.document_id, tier="Expedited")),
        (UsageError, lambda: request_restore(store, settings, deep.document_id, tier="Fast")),
        (UsageError, lambda: request_restore(store, settings, deep.document_id, days=0)),
        (NotFoundError, lambda: request_restore(store, settings, "unknown")),
    ):
        with pytest.raises(expected):
            call()
    assert {store.get_metadata(d.document_id).revision for d in (standard, deep)} == {1}
    client = client_of(settings.s3, settings.network)
    client.delete_object(Bucket=deep.bucket, Key=deep.object_key, VersionId=deep.version_id)
    with pytest.raises(NotFoundError):
        request_restore(store, settings, deep.document_id)
    assert store.get_metadata(deep.document_id).restore_status == "none"


def test_a_server_without_an_archive_says_so_and_the_state_stays(store, services: Services, tmp_path: Path):
    settings = settings_for(services.seaweedfs, tmp_path).model
    document = added(store, settings, tmp_path)
    with pytest.raises(UnsupportedError, match="does not support restores"):
        request_restore(store, settings, document.document_id)
    assert store.get_metadata(document.document_id).revision == 1


class DyingStore(SqlDocumentStore):
    def update_metadata(self, *_args, **_kwargs):
        raise UnavailableError("the process died")


def test_a_request_that_was_not_recorded_is_recorded_by_the_next_one(store, settings, tmp_path: Path):
    document = added(store, settings, tmp_path)
    with DyingStore(f"sqlite:///{tmp_path / 'documents.db'}") as dying, pytest.raises(UnavailableError):
        request_restore(dying, settings, document.document_id)
    assert store.get_metadata(document.document_id).restore_status == "none"
    again = request_restore(store, settings, document.document_id)
    assert again.document.restore_status == "restored"  # S3 had done it by then


@pytest.fixture(scope="module")
def slow(services: Services) -> Glue:
    """A server whose restores are under way for some requests."""
    server = services.own(start_glue)
    transition = {"model_name": "s3::keyrestore", "transition": {"progression": "manual", "times": 10}}
    request = urllib.request.Request(
        f"{server.url}/moto-api/state-manager/set-transition", json.dumps(transition).encode(), JSON, method="POST"
    )
    urllib.request.urlopen(request, timeout=10).close()
    return server


def test_a_restore_under_way_is_told_and_recorded(store, slow: Glue, tmp_path: Path):
    settings = settings_for(slow, tmp_path).model
    document = added(store, settings, tmp_path)
    for _ in range(10):  # moto counts these too before the first state, and takes no state for a finished restore
        client_of(settings.s3, settings.network).head_object(Bucket=document.bucket, Key=document.object_key)
    requested_at = request_restore(store, settings, document.document_id).document.restore_requested_at
    with pytest.raises(ConflictError, match="under way"):
        fetch_file(store, settings, document.document_id, tmp_path / "back.pdf")
    found = store.get_metadata(document.document_id)
    assert (found.restore_status, found.restore_requested_at) == ("in_progress", requested_at)
    for _ in range(20):
        try:
            fetch_file(store, settings, document.document_id, tmp_path / "back.pdf")
            break
        except ConflictError:
            continue
    assert store.get_metadata(document.document_id).restore_status == "restored"


# -- events


class Followed:
    """A log with events of a bucket, and the follower that changes documents by them."""

    def __init__(self, folder: Path, server: Any, store: Any, **follow: str) -> None:
        plain = settings_for(server, folder)
        self.bucket = new_bucket(plain.model)
        prefix = f"documents.follow_buckets.{self.bucket}"
        given = {f"{prefix}.{name}": value for name, value in (follow or {"create": "true", "delete": "true"}).items()}
        self.settings = settings_for(server, folder, **given)
        self.store, self._folder = store, folder
        self._sequence = 0
        with self.log() as log:
            ensure_topic(log, TOPIC)

    def log(self) -> Log:
        return Log.open(self._folder / "log", self.settings.model.log)

    @property
    def client(self) -> Any:
        return client_of(self.settings.model.s3, self.settings.model.network)

    def event(
        self, name: str, key: str, *, version: str | None = None, bucket: str | None = None, **more: Any
    ) -> bytes:
        self._sequence += 1
        thing: dict[str, Any] = {"key": key, "size": 1, "eTag": "e"}
        if name.startswith(("ObjectCreated", "ObjectRemoved")):
            thing["sequencer"] = f"{self._sequence:016X}"
        if version:
            thing["versionId"] = version
        record = {
            "eventVersion": "2.3", "eventSource": "aws:s3", "eventTime": datetime.now(UTC).isoformat(),
            "eventName": name, "s3": {"bucket": {"name": bucket or self.bucket}, "object": thing}, **more,
        }  # fmt: skip
        return json.dumps({"Records": [record]}).encode()

    def publish(self, *events: bytes) -> None:
        with self.log() as log:
            log.append(TOPIC, Batch.of_messages(list(events)))

    def catch_up(self, store: Any = None) -> int:
        with self.log() as log:
            return ObjectFollower(log, self.settings, lambda: store or self.store).catch_up()

    def position(self) -> int | None:
        with self.log() as log:
            return log.info(TOPIC).subscriptions.get(SUBSCRIPTION)


def completed(days: int = 7) -> dict[str, Any]:
    expiry = (datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0).isoformat().replace("+00:00", "Z")
    told = {"lifecycleRestorationExpiryTime": expiry, "lifecycleRestoreStorageClass": "GLACIER"}
    return {"glacierEventData": {"restoreEventData": told}}


def test_documents_follow_their_objects_from_upload_to_removal(store, services: Services, tmp_path: Path):
    followed = Followed(tmp_path, services.glue, store)
    key, client = "in/scan+1 ö.pdf", followed.client
    version = client.put_object(Bucket=followed.bucket, Key=key, Body=b"abc", ContentType="application/pdf")[
        "VersionId"
    ]
    followed.publish(followed.event("ObjectCreated:Put", "in/scan%2B1+%C3%B6.pdf", version=version))
    assert followed.catch_up() == 1
    (made,) = store.list_metadata(bucket=followed.bucket)
    assert (made.filename, made.object_key, made.version_id) == ("scan+1 ö.pdf", key, version)
    assert (made.provider, made.size_bytes, made.content_type) == ("aws", 3, "application/pdf")
    assert fetch_file(store, followed.settings.model, made.document_id, tmp_path / "back.pdf").size == 3

    escaped = "in/scan%2B1+%C3%B6.pdf"
    states = []
    for name, more in (
        (
            "LifecycleTransition",
            {"lifecycleEventData": {"transitionEventData": {"destinationStorageClass": "GLACIER"}}},
        ),
        ("ObjectRestore:Post", {}),
        ("ObjectRestore:Completed", completed()),
    ):
        followed.publish(followed.event(name, escaped, version=version, **more))
        followed.catch_up()
        found = store.get_metadata(made.document_id)
        states.append((found.storage_tier, found.restore_status))
    assert states == [("archive", "none"), ("archive", "in_progress"), ("archive", "restored")]

    marker = client.delete_object(Bucket=followed.bucket, Key=key)["VersionId"]
    followed.publish(followed.event("ObjectRemoved:DeleteMarkerCreated", escaped, version=marker))
    followed.catch_up()
    assert store.list_metadata() == []
    assert store.history(made.document_id)[-1].operation == "delete"


def test_only_followed_buckets_and_what_their_settings_allow_change_documents(store, services, tmp_path: Path):
    followed = Followed(tmp_path, services.glue, store, provider="aws")
    document = added(store, followed.settings.model, tmp_path, bucket=followed.bucket)
    before = store.get_metadata(document.document_id).revision
    followed.publish(
        followed.event("ObjectCreated:Put", "new.pdf"),
        followed.event("ObjectRemoved:Delete", document.object_key, version=document.version_id),
        followed.event("ObjectRestore:Post", document.object_key, bucket="another-bucket"),
        b"no event at all",
    )
    assert followed.catch_up() == 0
    assert [d.document_id for d in store.list_metadata()] == [document.document_id]
    assert store.get_metadata(document.document_id).revision == before


def test_a_restore_that_was_requested_is_followed_to_its_end(store, services: Services, tmp_path: Path):
    """Also of a document that was registered under an id of its own."""
    followed = Followed(tmp_path, services.glue, store)
    document = added(store, followed.settings.model, tmp_path, bucket=followed.bucket)
    store.delete_metadata(document.document_id)
    values = {name: value for name, value in document.items() if value is not None}
    own = store.put_metadata({**values, "document_id": "abc123"})
    request_restore(store, followed.settings.model, own.document_id)
    followed.publish(
        followed.event("s3:ObjectRestore:Post", document.object_key, version=document.version_id),
        followed.event("s3:ObjectRestore:Completed", document.object_key, version=document.version_id, **completed()),
    )
    followed.catch_up()
    found = store.get_metadata("abc123")
    assert (found.restore_status, found.storage_tier) == ("restored", "archive")
    assert [r.document.restore_status for r in store.history("abc123")] == [
        "none", "requested", "in_progress", "restored",
    ]  # fmt: skip
    assert len(store.list_metadata()) == 1


class CrashingStore:
    """Dies after some writes have reached the store, before anybody hears of it."""

    def __init__(self, store: SqlDocumentStore, writes: int) -> None:
        self._store, self._left = store, writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, writes: Any) -> Any:
        done = self._store.write(writes)
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return done


@pytest.mark.parametrize("writes", [2, *(pytest.param(n, marks=pytest.mark.deep) for n in (1, 3))])
def test_a_crash_before_the_position_is_stored_doubles_nothing(store, services, tmp_path: Path, writes: int):
    followed = Followed(tmp_path, services.glue, store)
    for key in ("a", "b"):
        followed.client.put_object(Bucket=followed.bucket, Key=key, Body=b"x")
    archived = {"lifecycleEventData": {"transitionEventData": {"destinationStorageClass": "GLACIER"}}}
    followed.publish(
        *(followed.event("ObjectCreated:Put", key) for key in ("a", "b")),
        *(followed.event("LifecycleTransition", key, **archived) for key in ("a", "b")),
        *(followed.event("ObjectRestore:Completed", key, **completed()) for key in ("a", "b")),
    )
    with pytest.raises(KeyboardInterrupt):
        followed.catch_up(CrashingStore(store, writes))
    assert followed.position() is None
    followed.catch_up()
    assert followed.position() == 6
    documents = store.list_metadata()
    assert [(d.storage_tier, d.restore_status, d.revision) for d in documents] == [("archive", "restored", 3)] * 2
    assert followed.catch_up() == 0


def test_an_event_that_no_document_can_hold_stops_none_of_the_others(store, services, tmp_path: Path):
    followed = Followed(tmp_path, services.glue, store)
    keys = ["good 1", "bad\u0007name", "good 2"]
    for key in keys:
        followed.client.put_object(Bucket=followed.bucket, Key=key, Body=b"x")
    followed.publish(
        *(followed.event("ObjectCreated:Put", key.replace("\u0007", "%07").replace(" ", "+")) for key in keys)
    )
    followed.catch_up()
    assert sorted(d.filename for d in store.list_metadata()) == ["good 1", "good 2"]
    assert followed.position() == 3


def test_the_follower_waits_for_a_store_that_is_away(store, services: Services, tmp_path: Path):
    followed = Followed(tmp_path, services.glue, store)
    followed.client.put_object(Bucket=followed.bucket, Key="a", Body=b"x")
    tries: list[int] = []

    def store_of() -> SqlDocumentStore:
        tries.append(1)
        if len(tries) < 3:
            raise UnavailableError("the database is away")
        return store

    stop = threading.Event()
    with followed.log() as log:
        thread = threading.Thread(target=ObjectFollower(log, followed.settings, store_of).run, args=(stop,))
        thread.start()
        log.append(TOPIC, Batch.of_messages([followed.event("ObjectCreated:Put", "a")]))
        wait_for(lambda: store.list_metadata() != [])
        stop.set()
        thread.join(10)
        assert not thread.is_alive()
    assert len(tries) == 3


def test_an_upload_into_a_followed_bucket_makes_one_document_whoever_is_first(store, services, tmp_path: Path):
    followed = Followed(tmp_path, services.glue, store)
    key, client = "2026/report.pdf", followed.client
    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.7 content")
    version = client.put_object(Bucket=followed.bucket, Key=key, Body=b"%PDF-1.7 content")["VersionId"]
    followed.publish(followed.event("ObjectCreated:Put", key, version=version))
    followed.catch_up()
    # As `docs add --provider aws` would find it that was interrupted before it registered the document.
    options = AddOptions(provider="aws", tags={"a": "b"})
    again = add_file(store, followed.settings.model, tmp_path / "report.pdf", f"s3://{followed.bucket}/2026", options)
    assert again.outcome == "registered" and again.document.checksum.startswith("sha256:")
    followed.publish(followed.event("ObjectCreated:Put", key, version=version))
    followed.catch_up()
    (document,) = store.list_metadata()
    assert document.checksum.startswith("sha256:") and document.tags == {"a": "b"}


def wait_for(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


@pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.deep), "iceberg"])
def test_a_server_follows_the_events_that_it_is_sent(services: Services, tmp_path: Path, database: str):
    model = settings_for(services.glue, tmp_path).model
    bucket = new_bucket(model)
    for name in ("home", "work"):
        (tmp_path / name).mkdir(exist_ok=True)
    url = f"sqlite:///{tmp_path}/documents.db" if database == "sqlite" else "iceberg"
    environment = {f"FRAZIL_S3__{name.upper()}": value for name, value in services.glue.access.settings().items()}
    (tmp_path / "work/frazil.yaml").write_text(
        f"database: {{url: '{url}'}}\ndocuments: {{follow_buckets: {{{bucket}: {{create: true}}}}}}\n"
    )
    client_of(model.s3, model.network).put_object(Bucket=bucket, Key="a.pdf", Body=b"abc", StorageClass="GLACIER")
    path = f"/api/v1/documents?bucket={bucket}"
    with serving(Shell(tmp_path / "work", tmp_path / "home", environment)) as server:
        event = {"eventVersion": "2.3", "eventSource": "aws:s3", "eventTime": "2026-03-01T12:00:00Z"}
        thing = {"bucket": {"name": bucket}, "object": {"key": "a.pdf", "eTag": "e", "sequencer": "01"}}
        for more in ({"eventName": "ObjectCreated:Put"}, {"eventName": "ObjectRestore:Completed", **completed()}):
            body = json.dumps({"Records": [{**event, "s3": thing, **more}]}).encode()
            assert server.ask("POST", "/events/s3", body, JSON).status == 200
        wait_for(lambda: [d["restore_status"] for d in server.ask("GET", path).json["documents"]] == ["restored"])
        (document,) = server.ask("GET", path).json["documents"]
    assert (document["storage_tier"], document["filename"]) == ("archive", "a.pdf")


def test_the_command_asks_for_several_and_tells_of_each(services: Services, store, tmp_path: Path, capsys, monkeypatch):
    settings = settings_for(services.glue, tmp_path).model
    document = added(store, settings, tmp_path)
    for name, value in services.glue.access.settings().items():
        monkeypatch.setenv(f"FRAZIL_S3__{name.upper()}", value)
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'documents.db'}")
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    code = run_command(
        "docs", "docs", ["restore-request", document.document_id, "unknown", "--tier", "Bulk", "-o", "json"]
    )
    out, err = capsys.readouterr()
    assert code == 3 and json.loads(out)[0]["restore_status"] == "requested"
    assert "document 'unknown' does not exist" in err
    code = run_command("docs", "docs", ["fetch", document.document_id, "--out", str(tmp_path / "back.pdf")])
    out, _ = capsys.readouterr()
    assert code == 0 and "checksum verified" in out
