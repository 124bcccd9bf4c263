"""What Frazil promises of files in a bucket or folder: a local folder, SeaweedFS, and S3 as moto plays it."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from io import BytesIO
from pathlib import Path

import pytest

from frazil.errors import ConflictError, IntegrityError, NotFoundError, UnsupportedError
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import parse
from frazil.storage.files import ArchivedError, FileDigests, FileStore, open_files
from frazil.storage.local import LocalStore
from frazil.storage.s3_client import client_of
from frazil.storage.store import CHUNK
from tests.services.kit import Services

NETWORK = NetworkSettings(retry_attempts=2, retry_timeout=2.0)
#: More than two parts, the last one short.
LARGE = bytes(range(256)) * (2 * CHUNK // 256) + b"the rest"
SIZES = [pytest.param(b"small", id="small"), pytest.param(LARGE, id="in parts", marks=pytest.mark.deep)]


def s3_settings(services: Services, server: str) -> S3Settings:
    return S3Settings(**(services.glue if server == "moto" else services.seaweedfs).access.settings())


@pytest.fixture(params=["folder", "seaweedfs", pytest.param("moto", marks=pytest.mark.deep)])
def server(request) -> str:
    return request.param


@pytest.fixture
def files(server: str, request, tmp_path: Path) -> FileStore:
    if server == "folder":
        return open_files(parse(str(tmp_path / "folder")), s3=S3Settings(), network=NETWORK)
    return bucket(request.getfixturevalue("services"), server)


def bucket(services: Services, server: str, *, versioned: bool = False) -> FileStore:
    s3, name = s3_settings(services, server), f"files-{uuid.uuid4().hex[:12]}"
    client = client_of(s3, NETWORK)
    client.create_bucket(Bucket=name)
    if versioned:
        client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return open_files(parse(f"s3://{name}"), s3=s3, network=NETWORK)


def made(folder: Path, content: bytes) -> tuple[Path, FileDigests]:
    file = folder / f"{uuid.uuid4()}.bin"
    file.write_bytes(content)
    return file, FileDigests.of(file)


def upload(files: FileStore, key: str, folder: Path, content: bytes, storage_class="STANDARD", replace=False):
    file, digests = made(folder, content)
    return files.upload(
        key, file, digests, storage_class=storage_class, content_type="application/x-test", replace=replace
    )


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "in parts"])
def test_a_file_comes_back_as_it_was(files: FileStore, tmp_path: Path, content: bytes):
    found = upload(files, "a folder/ö+%.bin", tmp_path, content)
    assert found.size == len(content)
    assert b"".join(files.read("a folder/ö+%.bin", found)) == content
    assert files.find("a folder/ö+%.bin") == found


def test_an_object_is_replaced_only_on_request(files: FileStore, tmp_path: Path):
    first = upload(files, "a", tmp_path, b"first")
    with pytest.raises(ConflictError):
        upload(files, "a", tmp_path, b"second")
    assert files.find("a") == first
    second = upload(files, "a", tmp_path, b"second", replace=True)
    assert b"".join(files.read("a", second)) == b"second"


def test_the_content_of_an_object_is_compared_without_trust_in_its_size(files: FileStore, tmp_path: Path):
    for content, other in ((b"one", b"two"), (LARGE, LARGE[:-1] + b"T")):
        found = upload(files, f"of {len(content)}", tmp_path, content)
        assert files.holds(f"of {len(content)}", found, made(tmp_path, content)[1]) is True
        assert files.holds(f"of {len(content)}", found, made(tmp_path, other)[1]) is False


def test_a_file_that_changes_meanwhile_is_not_stored(files: FileStore, tmp_path: Path):
    for content in (b"before", LARGE):
        file, digests = made(tmp_path, content)
        file.write_bytes(content[:-1] + b"!")
        with pytest.raises(IntegrityError):
            files.upload("changed", file, digests, storage_class="STANDARD", content_type="a/b", replace=False)
        assert files.find("changed") is None


def test_an_object_that_was_replaced_is_not_read_under_its_old_description(files: FileStore, tmp_path: Path):
    before = upload(files, "a", tmp_path, b"before")
    upload(files, "a", tmp_path, b"afterwards", replace=True)
    with pytest.raises(ConflictError):
        b"".join(files.read("a", before))


def test_nothing_is_found_in_an_empty_place(files: FileStore):
    assert files.find("nothing") is None


def test_a_folder_has_no_storage_classes_and_no_archive(tmp_path: Path):
    files = open_files(parse(str(tmp_path / "folder")), s3=S3Settings(), network=NETWORK)
    with pytest.raises(UnsupportedError, match="no storage classes"):
        upload(files, "a", tmp_path, b"x", storage_class="GLACIER")
    assert files.find("a") is None
    with pytest.raises(UnsupportedError):
        files.restore("a", "", 7, "Standard")


def test_a_missing_bucket_is_told_apart_from_a_missing_object(services: Services):
    files = open_files(parse("s3://there-is-no-such-bucket"), s3=s3_settings(services, "seaweedfs"), network=NETWORK)
    with pytest.raises(NotFoundError, match="bucket not found"):
        files.find("a")


def test_every_version_can_be_read(services: Services, tmp_path: Path):
    files = bucket(services, "seaweedfs", versioned=True)
    first = upload(files, "a", tmp_path, b"first")
    second = upload(files, "a", tmp_path, b"second", replace=True)
    assert first.version_id and second.version_id and first.version_id != second.version_id
    assert files.find("a") == second
    assert files.find("a", first.version_id) == first
    assert b"".join(files.read("a", first)) == b"first"


@pytest.mark.parametrize(
    ("storage_class", "content"),
    [
        pytest.param("GLACIER", b"small", id="archive"),
        pytest.param("STANDARD_IA", b"small", id="infrequent", marks=pytest.mark.deep),
        pytest.param("DEEP_ARCHIVE", LARGE, id="deep archive in parts", marks=pytest.mark.deep),
    ],
)
def test_an_object_has_the_storage_class_and_the_content_type_that_were_asked_for(
    services: Services, tmp_path: Path, storage_class: str, content: bytes
):
    found = upload(bucket(services, "seaweedfs"), "a", tmp_path, content, storage_class)
    assert (found.storage_class, found.content_type) == (storage_class, "application/x-test")


@pytest.mark.parametrize("content", SIZES)
def test_an_archived_object_is_compared_without_being_read(services: Services, tmp_path: Path, content: bytes):
    files = bucket(services, "moto")
    found = upload(files, "a", tmp_path, content, "GLACIER")
    with pytest.raises(ArchivedError):
        b"".join(files.read("a", found))
    assert files.holds("a", found, made(tmp_path, content)[1]) is True
    assert files.holds("a", found, made(tmp_path, content[:-1] + b"?")[1]) is None


def test_an_archived_object_is_read_once_it_is_restored(services: Services, tmp_path: Path):
    files = bucket(services, "moto")
    archived = upload(files, "a", tmp_path, b"content", "DEEP_ARCHIVE")
    assert (archived.is_readable, archived.restored) == (False, None)
    assert files.restore("a", "", 3, "Bulk") == "accepted"
    found = files.find("a")
    assert found is not None and found.is_readable
    assert found.restored is not None and found.restored.expiry is not None
    assert (found.restored.expiry - found.last_modified).days in (2, 3)
    assert b"".join(files.read("a", found)) == b"content"
    assert files.restore("a", "", 9, "Standard") == "extended"


def test_only_archived_objects_are_restored(services: Services, tmp_path: Path):
    files = bucket(services, "moto")
    upload(files, "a", tmp_path, b"content")
    with pytest.raises(ConflictError, match="not in an archive"):
        files.restore("a", "", 3, "Standard")
    with pytest.raises(NotFoundError):
        files.restore("nothing", "", 3, "Standard")


def test_a_server_without_an_archive_says_so(services: Services, tmp_path: Path):
    files = bucket(services, "seaweedfs")
    upload(files, "a", tmp_path, b"content", "GLACIER")
    with pytest.raises(UnsupportedError, match="does not support restores"):
        files.restore("a", "", 3, "Standard")


@pytest.mark.parametrize("server", ["seaweedfs", "moto"])
@pytest.mark.parametrize("content", SIZES)
def test_bytes_that_were_altered_on_the_way_are_noticed_and_leave_nothing(
    services: Services, tmp_path: Path, server: str, content: bytes
):
    """SeaweedFS refuses them by their checksum; moto believes everything, so that the object itself is compared."""
    files = bucket(services, server)
    client = client_of(s3_settings(services, server), NETWORK)

    def alter(params, **_more):
        body = params["body"].read() if hasattr(params["body"], "read") else bytes(params["body"])
        params["body"] = BytesIO(body[:-1] + b"#")

    operation = "PutObject" if content == b"small" else "UploadPart"
    client.meta.events.register(f"before-call.s3.{operation}", alter, unique_id="alter")
    try:
        with pytest.raises(IntegrityError):
            upload(files, "a", tmp_path, content)
    finally:
        client.meta.events.unregister(f"before-call.s3.{operation}", alter, unique_id="alter")
    assert files.find("a") is None


def test_of_many_uploads_at_once_one_wins(files: FileStore, tmp_path: Path):
    contents = [f"content {number}".encode() for number in range(6)]
    outcomes: list[bytes | None] = []

    def race(content: bytes) -> None:
        try:
            upload(files, "a", tmp_path, content)
            outcomes.append(content)
        except ConflictError:
            outcomes.append(None)

    threads = [threading.Thread(target=race, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [outcome for outcome in outcomes if outcome is not None]
    found = files.find("a")
    assert found is not None and b"".join(files.read("a", found)) == winner


def test_two_that_both_find_nothing_do_not_both_write_to_a_folder(tmp_path: Path, monkeypatch):
    files = open_files(parse(str(tmp_path / "folder")), s3=S3Settings(), network=NETWORK)
    put = LocalStore._temporary

    def while_another_is_faster(self, key: str, *more):
        monkeypatch.setattr(LocalStore, "_temporary", put)
        upload(files, key, tmp_path, b"of the other")
        return put(self, key, *more)

    monkeypatch.setattr(LocalStore, "_temporary", while_another_is_faster)
    with pytest.raises(ConflictError):
        upload(files, "a", tmp_path, b"ours")
    assert (tmp_path / "folder" / "a").read_bytes() == b"of the other"


def test_a_folder_without_hard_links_takes_files_too(tmp_path: Path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    files = open_files(parse(str(tmp_path / "folder")), s3=S3Settings(), network=NETWORK)
    assert upload(files, "a", tmp_path, b"content").size == 7
    with pytest.raises(ConflictError):
        upload(files, "a", tmp_path, b"other")


@pytest.mark.parametrize("server", ["folder", "seaweedfs", pytest.param("moto", marks=pytest.mark.deep)])
@pytest.mark.parametrize("replace", [False, True])
def test_an_upload_that_others_replace_before_it_is_verified_does_not_take_theirs_away(
    files: FileStore, tmp_path: Path, monkeypatch, replace: bool
):
    find = type(files).find

    def after_another_one(self, key: str, *more):
        monkeypatch.setattr(type(files), "find", find)
        if not replace and find(self, key) is None:  # it is looked for before the upload too
            monkeypatch.setattr(type(files), "find", after_another_one)
            return None
        upload(files, key, tmp_path, b"of the other", replace=True)
        return find(self, key, *more)

    monkeypatch.setattr(type(files), "find", after_another_one)
    with pytest.raises(ConflictError, match="replaced"):
        upload(files, "a", tmp_path, b"ours", replace=replace)
    found = files.find("a")
    assert found is not None and b"".join(files.read("a", found)) == b"of the other"
