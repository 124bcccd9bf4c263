"""Files of documents: added to a folder or a bucket and registered, and brought back whole or not at all."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from pathlib import Path

import pytest

from frazil.documents.files import AddOptions, add_file, fetch_file
from frazil.documents.sql.store import SqlDocumentStore
from frazil.documents.store import DocumentStore, Write
from frazil.errors import ConflictError, IntegrityError, NotFoundError, UnsupportedError, UsageError
from frazil.settings import load_settings
from frazil.settings.model import SettingsModel
from frazil.storage.s3_client import client_of
from frazil.storage.store import CHUNK
from tests.services.kit import Services


@pytest.fixture
def store(tmp_path: Path):
    with SqlDocumentStore(f"sqlite:///{tmp_path / 'documents.db'}") as opened:
        yield opened


@pytest.fixture
def settings(tmp_path: Path) -> SettingsModel:
    return load_settings(environ={}, flags={"home": str(tmp_path / "home")}).model


@pytest.fixture
def on_s3(services: Services, tmp_path: Path) -> SettingsModel:
    flags = {f"s3.{name}": value for name, value in services.seaweedfs.access.settings().items()}
    return load_settings(environ={}, flags={"home": str(tmp_path / "home"), **flags}).model


@pytest.fixture
def bucket(on_s3: SettingsModel) -> str:
    """A bucket with versions."""
    name = f"docs-{uuid.uuid4().hex[:12]}"
    client = client_of(on_s3.s3, on_s3.network)
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return written(tmp_path / "report.pdf", b"%PDF-1.7 the first")


def written(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def keys_in(settings: SettingsModel, bucket: str) -> list[str]:
    listed = client_of(settings.s3, settings.network).list_object_versions(Bucket=bucket)
    return [found["Key"] for found in listed.get("Versions", [])]


def test_a_file_added_to_a_folder_is_registered_and_comes_back(store, settings, report: Path, tmp_path: Path):
    added = add_file(
        store, settings, report, str(tmp_path / "archive"), AddOptions(tags={"year": "2026"}, attributes={"pages": 3})
    )
    document = store.get_metadata(added.document.document_id)
    assert added.outcome == "added"
    assert (tmp_path / "archive/report.pdf").read_bytes() == report.read_bytes()
    assert (document.filename, document.content_type, document.size_bytes) == ("report.pdf", "application/pdf", 18)
    assert document.checksum == f"sha256:{hashlib.sha256(report.read_bytes()).hexdigest()}"
    assert (document.provider, document.bucket) == ("local", str(tmp_path / "archive"))
    assert (document.object_key, document.storage_tier) == ("report.pdf", "standard")
    assert document.tags == {"year": "2026"} and document.attributes["pages"] == 3

    fetched = fetch_file(store, settings, document.document_id, tmp_path / "back.pdf")
    assert fetched.is_verified and fetched.path.read_bytes() == report.read_bytes()


def test_a_file_added_to_a_bucket_has_its_tier_and_its_version(store, on_s3, bucket: str, report: Path, tmp_path: Path):
    added = add_file(store, on_s3, report, f"s3://{bucket}/2026/q1/", AddOptions(tier="archive"))
    document = added.document
    assert added.uri == f"s3://{bucket}/2026/q1/report.pdf"
    assert (document.provider, document.bucket, document.object_key) == ("s3", bucket, "2026/q1/report.pdf")
    assert document.storage_tier == "archive" and document.version_id
    head = client_of(on_s3.s3, on_s3.network).head_object(Bucket=bucket, Key="2026/q1/report.pdf")
    assert (head["StorageClass"], head["VersionId"]) == ("GLACIER", document.version_id)
    assert head["ContentType"] == "application/pdf"
    # SeaweedFS has the class and reads the object nevertheless.
    assert fetch_file(store, on_s3, document.document_id, tmp_path / "back.pdf").is_verified


def test_a_large_file_is_sent_in_parts(store, on_s3, bucket: str, tmp_path: Path):
    video = written(tmp_path / "video.mp4", os.urandom(CHUNK) + b"\0" * CHUNK + b"end")
    document = add_file(store, on_s3, video, f"s3://{bucket}").document
    assert "-3" in client_of(on_s3.s3, on_s3.network).head_object(Bucket=bucket, Key="video.mp4")["ETag"]
    back = fetch_file(store, on_s3, document.document_id, tmp_path / "back.mp4")
    assert back.is_verified and back.path.read_bytes() == video.read_bytes()


def test_the_same_command_again_changes_nothing(store, on_s3, bucket: str, report: Path):
    first = add_file(store, on_s3, report, f"s3://{bucket}/a")
    again = add_file(store, on_s3, report, f"s3://{bucket}/a")
    assert (first.outcome, again.outcome) == ("added", "unchanged")
    assert again.document == first.document
    assert keys_in(on_s3, bucket) == ["a/report.pdf"]
    assert store.get_statistics()["total_documents"] == 1


class CrashError(Exception):
    pass


class CrashingStore:
    """A store in which the process dies before, or right after, a write."""

    def __init__(self, store: DocumentStore, *, after: bool) -> None:
        self._store, self._after = store, after

    def get_metadata(self, document_id: str):
        return self._store.get_metadata(document_id)

    def write(self, writes: list[Write]):
        if self._after:
            self._store.write(writes)
        raise CrashError


@pytest.mark.parametrize("after", [False, True], ids=["before it is registered", "before the answer"])
def test_a_command_that_died_is_repeated_without_a_duplicate(store, on_s3, bucket: str, report: Path, after: bool):
    with pytest.raises(CrashError):
        add_file(CrashingStore(store, after=after), on_s3, report, f"s3://{bucket}")
    assert keys_in(on_s3, bucket) == ["report.pdf"]
    again = add_file(store, on_s3, report, f"s3://{bucket}")
    assert again.outcome == ("unchanged" if after else "registered")
    assert keys_in(on_s3, bucket) == ["report.pdf"]
    assert [d.document_id for d in store.list_metadata()] == [again.document.document_id]
    assert again.document.revision == 1


def test_many_commands_at_once_make_one_object_and_one_document(store, on_s3, bucket: str, report: Path):
    outcomes: list[str] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(add_file(store, on_s3, report, f"s3://{bucket}").outcome))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 5
    assert keys_in(on_s3, bucket) == ["report.pdf"]
    (document,) = store.list_metadata()
    assert document.revision == 1


def test_another_file_of_the_same_name_is_refused_and_replaces_on_request(
    store, on_s3, bucket: str, report: Path, tmp_path: Path
):
    first = add_file(store, on_s3, report, f"s3://{bucket}", AddOptions(tags={"kept": "yes"})).document
    written(report, b"%PDF-1.7 the second, longer")
    with pytest.raises(ConflictError, match="another content"):
        add_file(store, on_s3, report, f"s3://{bucket}")
    assert store.get_metadata(first.document_id) == first

    replaced = add_file(store, on_s3, report, f"s3://{bucket}", AddOptions(replace=True))
    assert replaced.outcome == "replaced"
    assert replaced.document.document_id == first.document_id and replaced.document.revision == 2
    assert replaced.document.tags == {"kept": "yes"} and replaced.document.version_id != first.version_id
    now = fetch_file(store, on_s3, first.document_id, tmp_path / "now.pdf")
    before = fetch_file(store, on_s3, first.document_id, tmp_path / "before.pdf", as_of=first.updated_at)
    assert now.path.read_bytes() == b"%PDF-1.7 the second, longer"
    assert before.path.read_bytes() == b"%PDF-1.7 the first" and before.is_verified


def test_a_new_object_may_leave_the_archive(store, on_s3, bucket: str, report: Path):
    first = add_file(store, on_s3, report, f"s3://{bucket}", AddOptions(tier="deep_archive", tags={"a": "b"})).document
    options = AddOptions(tier="standard", replace=True)
    replaced = add_file(store, on_s3, report, f"s3://{bucket}", options).document
    assert (replaced.storage_tier, replaced.tags) == ("standard", {"a": "b"})
    assert [r.operation for r in store.history(first.document_id)] == ["put", "delete", "put"]


def test_a_deleted_document_comes_back_when_its_file_is_added_again(store, settings, report: Path, tmp_path: Path):
    first = add_file(store, settings, report, str(tmp_path / "archive")).document
    store.delete_metadata(first.document_id)
    again = add_file(store, settings, report, str(tmp_path / "archive"))
    assert (again.outcome, again.document.document_id, again.document.revision) == (
        "registered", first.document_id, 3,
    )  # fmt: skip


def test_what_cannot_be_added_leaves_nothing(store, settings, report: Path, tmp_path: Path):
    target = tmp_path / "archive"
    with pytest.raises(UnsupportedError, match="no storage tiers"):
        add_file(store, settings, report, str(target), AddOptions(tier="archive"))
    with pytest.raises(UsageError, match="storage tier 'cold'"):
        add_file(store, settings, report, str(target), AddOptions(tier="cold"))
    with pytest.raises(NotFoundError):
        add_file(store, settings, tmp_path / "missing.pdf", str(target))
    with pytest.raises(NotFoundError):
        add_file(store, settings, tmp_path, str(target))
    with pytest.raises(UsageError):
        add_file(store, settings, report, "ftp://somewhere/else")
    assert not target.exists()
    assert store.list_metadata() == []


def test_a_damaged_object_is_not_brought_back(store, settings, report: Path, tmp_path: Path):
    document = add_file(store, settings, report, str(tmp_path / "archive")).document
    (tmp_path / "archive/report.pdf").write_bytes(b"%PDF-1.7 the worst")
    with pytest.raises(IntegrityError, match="not what was registered"):
        fetch_file(store, settings, document.document_id, tmp_path / "back.pdf")
    assert sorted(path.name for path in tmp_path.glob("*.pdf")) == ["report.pdf"]
    assert not list(tmp_path.glob(".*"))


def test_a_file_that_exists_is_replaced_only_on_request(store, settings, report: Path, tmp_path: Path):
    document = add_file(store, settings, report, str(tmp_path / "archive")).document
    mine = written(tmp_path / "mine.pdf", b"mine")
    with pytest.raises(ConflictError, match="exists"):
        fetch_file(store, settings, document.document_id, mine)
    assert mine.read_bytes() == b"mine"
    fetch_file(store, settings, document.document_id, mine, replace=True)
    assert mine.read_bytes() == report.read_bytes()


@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", "..", r"..\..\escape", "a/b"])
def test_the_name_of_a_document_leads_out_of_no_folder(store, settings, report: Path, tmp_path: Path, name: str):
    document = add_file(store, settings, report, str(tmp_path / "archive")).document
    store.update_metadata(document.document_id, {"filename": name})
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    fetched = fetch_file(store, settings, document.document_id, out)
    assert fetched.path.resolve().parent == out
    assert [path.read_bytes() for path in out.iterdir()] == [report.read_bytes()]


def test_a_document_without_an_object_or_with_a_missing_one_says_so(store, settings, report: Path, tmp_path: Path):
    bare = store.put_metadata({"filename": "a.pdf"}).document_id
    with pytest.raises(UsageError, match="no object"):
        fetch_file(store, settings, bare, tmp_path / "out.pdf")
    document = add_file(store, settings, report, str(tmp_path / "archive")).document
    (tmp_path / "archive/report.pdf").unlink()
    with pytest.raises(NotFoundError, match="does not exist"):
        fetch_file(store, settings, document.document_id, tmp_path / "out.pdf")
    with pytest.raises(NotFoundError):
        fetch_file(store, settings, "unknown", tmp_path / "out.pdf")
    assert not (tmp_path / "out.pdf").exists()


def test_a_checksum_that_cannot_be_computed_is_told(store, settings, report: Path, tmp_path: Path):
    document = add_file(store, settings, report, str(tmp_path / "archive")).document
    store.update_metadata(document.document_id, {"checksum": "crc64nvme:AAAAAAAAAAA="})
    assert not fetch_file(store, settings, document.document_id, tmp_path / "out.pdf").is_verified
