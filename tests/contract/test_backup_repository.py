"""A backup repository in a bucket of a real S3 server, and Object Lock."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from frazil.backup.completeness import check_marks
from frazil.backup.format import BackupRecord, BlobRef
from frazil.backup.prune import PruneReport, run_prune
from frazil.backup.repair import plan_repair, run_repair
from frazil.backup.repository import DataSource, Repository, data_key, lock_end, meta_key
from frazil.backup.retention import RetentionPolicy
from frazil.backup.verify import verify_repository
from frazil.errors import (
    ConflictError,
    IntegrityError,
    LockedError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import bulk
from frazil.storage.object_lock import check_object_lock
from tests.faulty_storage import Gateway, Meeting, gateway_to, request_kind
from tests.repository_kit import NETWORK, S3, back_up, missing_blobs, record_of, store_table, write_sources
from tests.services.kit import Services

MIB = 1024 * 1024
SERVERS = ["seaweedfs", pytest.param("minio", marks=pytest.mark.slow)]


@dataclass
class Server:
    s3: S3Settings
    client: Any

    def bucket(self, name: str, **options: Any) -> str:
        with suppress(self.client.exceptions.BucketAlreadyOwnedByYou, self.client.exceptions.BucketAlreadyExists):
            self.client.create_bucket(Bucket=name, **options)
        return f"s3://{name}/{secrets.token_hex(6)}"

    def open(self, root: str, **options: Any) -> Repository:
        return Repository.open(root, **{"s3": self.s3, "network": NETWORK, "create": True, **options})


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    access = getattr(request.getfixturevalue("services"), request.param).access
    return Server(S3Settings.model_validate(access.settings()), access.client())


@pytest.fixture
def repository(server: Server) -> Repository:
    return server.open(server.bucket("backups"))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Content is sent in parts from 9 MiB on."""
    monkeypatch.setattr(bulk, "WHOLE", 9 * MIB)


def sources(tmp_path: Path, *names: str) -> dict[str, Path]:
    return write_sources(tmp_path / "sources", {name: name.encode() * 100 for name in names})


def prune_now(repository: Repository, policy: RetentionPolicy | None, names: list[str] | None = None) -> PruneReport:
    """A prune for which everything is old enough. The server's clock goes by seconds."""
    time.sleep(1.1)
    return run_prune(repository, policy, prune_wait_s=0, names=names)


def keys(server: Server, root: str) -> list[str]:
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    found = server.client.list_objects_v2(Bucket=bucket, Prefix=prefix + "/").get("Contents", [])
    return sorted(item["Key"].removeprefix(prefix + "/") for item in found)


def test_a_backup_is_written_verified_and_pruned_in_a_bucket(
    repository: Repository, server: Server, tmp_path: Path
) -> None:
    first = back_up(repository, "one", sources(tmp_path, "a", "b"))
    back_up(repository, "two", sources(tmp_path, "b", "c"))
    assert repository.read_record("one") == first
    assert [r.name for r in repository.list_records()] == ["one", "two"]
    assert verify_repository(repository, level="checksums").backups == {"one": "sound", "two": "sound"}
    assert abs((repository.now() - datetime.now(UTC)).total_seconds()) < 60
    # Both phases at once, so to say: with a wait that is over at once.
    report = prune_now(repository, RetentionPolicy(keep_last=1))
    assert (report.dropped, report.marked.blobs) == (["one"], 6)
    assert prune_now(repository, None).deleted == report.marked
    prune_now(repository, None)
    assert verify_repository(repository, level="checksums").backups == {"two": "sound"}
    assert not [key for key in keys(server, repository.root) if key.startswith("prune/")]
    assert len(keys(server, repository.root)) == 2 + 7  # header, record; b, c and five of metadata


@pytest.mark.deep
def test_a_bucket_is_repaired_from_another_repository(repository: Repository, server: Server, tmp_path: Path) -> None:
    record = back_up(repository, "one", sources(tmp_path, "a", "b"))
    other = server.open(server.bucket("backups"))
    back_up(other, "other", sources(tmp_path, "a", "b"))
    state, blob = record.tables[0].state, BlobRef.of(b"a" * 100)
    repository.remove(data_key(BlobRef.of(b"b" * 100)))
    repository.store.put(data_key(blob), b"x" * blob.size)
    repository.store.put(meta_key(state), b"damaged")
    report = verify_repository(repository, level="checksums")
    lost = [finding.key for finding in report.findings]
    repairs = plan_repair(repository, lost, other, lambda table: S3)
    assert {repair.key for repair in repairs} == set(lost) >= {data_key(blob), meta_key(state)}
    run_repair(repository, repairs)
    # What the damaged state names is found now.
    again = [finding.key for finding in verify_repository(repository, level="checksums").findings]
    run_repair(repository, plan_repair(repository, again, other, lambda table: S3))
    assert verify_repository(repository, level="checksums").backups == {"one": "sound"}


def test_opening_twice_at_once_makes_one_repository(server: Server) -> None:
    root = server.bucket("backups")
    with ThreadPoolExecutor(6) as threads:
        assert len(set(threads.map(lambda _: server.open(root).id, range(6)))) == 1
    with pytest.raises(NotFoundError, match="no backup repository"):
        server.open(root + "-other", create=False)
    with pytest.raises(NotFoundError, match="bucket not found"):
        server.open("s3://no-such-bucket-here/x", create=False)


def test_of_two_records_with_one_name_one_is_written(repository: Repository, tmp_path: Path) -> None:
    table = store_table(repository, sources(tmp_path, "a"))
    barrier = threading.Barrier(4)

    def write(number: int) -> str:
        record = replace(record_of(repository, "one", table), id=f"id-{number}")
        barrier.wait()
        try:
            return repository.write_record(record, prune_wait_s=3600).id
        except ConflictError:
            return ""

    with ThreadPoolExecutor(4) as threads:
        winners = [one for one in threads.map(write, range(4)) if one]
    assert [repository.read_record("one").id] == winners


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "size", [0, 9 * MIB + 1, *(pytest.param(size, marks=pytest.mark.deep) for size in (1, 8 * MIB, 26 * MIB))]
)
def test_files_of_any_size_come_and_go(repository: Repository, server: Server, tmp_path: Path, size: int) -> None:
    content = os.urandom(min(size, MIB)) * max(1, size // MIB) if size else b""
    source = write_sources(tmp_path, {"x": content})["x"]
    blob = repository.put_data(DataSource(str(source), len(content), S3, NETWORK))
    assert blob == BlobRef.of(content)
    assert repository.put_data(DataSource(str(source), None, S3, NETWORK)) == blob
    assert b"".join(repository.open_data(blob)) == content
    repository.copy_data_to(blob, str(tmp_path / "restored"), s3=S3, network=NETWORK)
    assert (tmp_path / "restored").read_bytes() == content
    # From the bucket into another repository there, and out into the bucket again.
    target = server.bucket("backups") + "/restored"
    repository.copy_data_to(blob, target, s3=server.s3, network=NETWORK)
    other = server.open(server.bucket("backups"))
    assert other.put_data(DataSource(target, len(content), server.s3, NETWORK)) == blob
    assert b"".join(other.open_data(blob)) == content


@pytest.mark.usefixtures("small_parts")
def test_a_large_file_that_changes_while_it_is_copied_is_refused(
    repository: Repository, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_sources(tmp_path, {"x": b"a" * (20 * MIB)})["x"]

    def holds(*_: object) -> bool:
        source.write_bytes(b"b" * (20 * MIB))
        return False

    monkeypatch.setattr(type(repository.bulk), "holds", holds)
    with pytest.raises(IntegrityError):
        repository.put_data(DataSource(str(source), None, S3, NETWORK))
    assert [key for key in keys(server, repository.root) if key.startswith("data/")] == []


def test_a_cut_object_is_replaced_by_the_next_copy(repository: Repository, server: Server, tmp_path: Path) -> None:
    source = DataSource(str(sources(tmp_path, "a")["a"]), 100, S3, NETWORK)
    blob = repository.put_data(source)
    repository.store.put(f"data/{blob.shard}/{blob}", b"cut")
    assert not repository.has_data(blob)
    assert repository.put_data(source) == blob
    assert repository.has_data(blob)


def test_content_that_the_server_vouches_for_is_copied_by_it(
    repository: Repository, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server states checksums of copies too; else it comes through this process."""
    root = server.bucket("lake")
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    content = os.urandom(100_000)
    server.client.put_object(Bucket=bucket, Key=f"{prefix}/x", Body=content, ChecksumAlgorithm="SHA256")
    source = DataSource(f"{root}/x", len(content), server.s3, NETWORK)
    if repository._has_verified_copies:
        monkeypatch.setattr(repository.bulk, "write_hashed", None)
    assert repository.put_data(source) == BlobRef.of(content)
    assert verify_repository(repository, level="checksums").is_sound
    assert not [key for key in keys(server, repository.root) if key.startswith("progress/")]


@pytest.mark.deep
def test_aws_copies_content_that_it_vouches_for(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """On moto, which states checksums of copies as AWS does: no byte passes through this process."""
    access = services.glue.access
    aws = Server(S3Settings.model_validate(access.settings()), access.client())
    lake, repository = aws.bucket("lake"), aws.open(aws.bucket("backups"))
    bucket, _, prefix = lake.removeprefix("s3://").partition("/")
    content = os.urandom(100_000)
    aws.client.put_object(Bucket=bucket, Key=f"{prefix}/x", Body=content, ChecksumAlgorithm="SHA256")
    assert repository._has_verified_copies
    monkeypatch.setattr(repository.bulk, "write_hashed", None)
    monkeypatch.setattr(bulk, "write_file", None)
    blob = repository.put_data(DataSource(f"{lake}/x", len(content), aws.s3, NETWORK))
    assert blob == BlobRef.of(content)
    repository.copy_data_to(blob, f"{lake}/restored", s3=aws.s3, network=NETWORK)
    assert aws.client.get_object(Bucket=bucket, Key=f"{prefix}/restored")["Body"].read() == content


# Faults


@dataclass
class Lossy(Gateway):
    """Loses every third reply to a write after it was done, and cuts every fifth read."""

    def meets(self, method: str, path: str) -> Meeting | None:
        kind = request_kind(method, path)
        self.seen[kind] += 1
        if kind == "PUT" and self.seen[kind] % 3 == 0:
            return "lost"
        return "cut" if kind in ("GET", "HEAD", "LIST") and self.seen[kind] % 5 == 0 else None


def test_lost_replies_and_cut_connections_change_nothing(server: Server, tmp_path: Path) -> None:
    assert server.s3.endpoint is not None
    root = server.bucket("backups")
    server.open(root)
    with gateway_to(server.s3.endpoint, Lossy()) as gateway:
        s3 = server.s3.model_copy(update={"endpoint": gateway.url})
        patient = NetworkSettings(connect_timeout=30, retry_attempts=6, retry_timeout=60, breaker_failures=1000)
        repository = Repository.open(root, s3=s3, network=patient)
        records = [back_up(repository, f"b{n}", sources(tmp_path, f"a{n}", "shared")) for n in range(3)]
    direct = server.open(root)
    assert direct.list_records() == records
    assert verify_repository(direct, level="checksums").is_sound


@pytest.fixture
def gateway(server: Server) -> Iterator[Gateway]:
    assert server.s3.endpoint is not None
    with gateway_to(server.s3.endpoint) as gateway:
        yield gateway


def test_a_server_that_throttles_delays_a_backup_and_nothing_else(
    server: Server, gateway: Gateway, tmp_path: Path
) -> None:
    root = server.bucket("backups")
    server.open(root)
    gateway.every = {"PUT": 4, "GET": 5, "HEAD": 3, "LIST": 3, "DELETE": 3}
    s3 = server.s3.model_copy(update={"endpoint": gateway.url})
    patient = NetworkSettings(connect_timeout=30, retry_attempts=6, retry_timeout=60, breaker_failures=1000)
    repository = Repository.open(root, s3=s3, network=patient)
    record = back_up(repository, "one", sources(tmp_path, *"abcdefgh"))
    assert verify_repository(repository, level="checksums").is_sound
    assert prune_now(repository, RetentionPolicy(keep_last=1)).deleted.blobs == 0
    gateway.every = {}
    assert missing_blobs(repository, record) == []
    assert sum(gateway.refused.values()) > 10


def test_a_server_that_fails_leaves_no_record(server: Server, gateway: Gateway, tmp_path: Path) -> None:
    root = server.bucket("backups")
    server.open(root)
    s3 = server.s3.model_copy(update={"endpoint": gateway.url})
    hasty = NetworkSettings(connect_timeout=30, retry_attempts=2, retry_timeout=0.5, breaker_failures=1000)
    repository = Repository.open(root, s3=s3, network=hasty)
    gateway.every = {"PUT": 1}
    with pytest.raises(UnavailableError):
        back_up(repository, "one", sources(tmp_path, "a"))
    assert keys(server, root) == ["repository.json"]


# Object Lock


def test_a_bucket_says_whether_it_can_lock(server: Server) -> None:
    plain = server.bucket("cannot-lock").split("/")[2]
    locking = server.bucket("can-lock", ObjectLockEnabledForBucket=True).split("/")[2]
    found = check_object_lock(locking, server.s3, NETWORK)
    assert (found.is_enabled, found.versioning, found.problem) == (True, "Enabled", None)
    assert check_object_lock(plain, server.s3, NETWORK).problem is not None
    with pytest.raises(NotFoundError):
        check_object_lock("no-such-bucket-here", server.s3, NETWORK)
    with pytest.raises(UnsupportedError, match=r"backup\.lock_days"):
        server.open(f"s3://{plain}/x", lock_days=3)
    with pytest.raises(UnsupportedError, match=r"backup\.lock_days"):
        server.open("/tmp/never-made", lock_days=3)


def locking(server: Server, root: str, seconds: float) -> Repository:
    """A repository whose retention ends in some seconds instead of days."""
    repository = server.open(root, lock_days=1)
    until = (repository.now() + timedelta(seconds=seconds)).replace(microsecond=0)
    return Repository(replace(repository.access, lock_until=until))


def retention(server: Server, root: str, key: str) -> datetime | None:
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    found = server.client.head_object(Bucket=bucket, Key=f"{prefix}/{key}")
    until: datetime | None = found.get("ObjectLockRetainUntilDate")
    return until


@pytest.mark.deep
@pytest.mark.usefixtures("small_parts")
@pytest.mark.long("waits until retention is over")
def test_what_is_locked_stays_until_its_time_is_over(server: Server, tmp_path: Path) -> None:
    root = server.bucket("can-lock", ObjectLockEnabledForBucket=True)
    begun = time.monotonic()
    first = locking(server, root, 18)
    files = sources(tmp_path, "a", "b") | write_sources(tmp_path, {"large": os.urandom(10 * MIB)})
    back_up(first, "one", files)
    assert first.lock_until is not None
    for key in keys(server, root):
        if key != "repository.json":
            assert retention(server, root, key) == first.lock_until, key
    # A second backup shares a, b and the large file: their retention is prolonged, the rest keeps its own.
    second = locking(server, root, 28)
    record = back_up(second, "two", {"a": files["a"], "large": files["large"]}, uuid="table-2")
    for _, blob in [(0, BlobRef.of(b"a" * 100)), (0, record.tables[0].state)]:
        key = next(key for key in keys(server, root) if blob.sha256 in key)
        assert retention(server, root, key) == second.lock_until
    b = next(key for key in keys(server, root) if BlobRef.of(b"b" * 100).sha256 in key)
    assert retention(server, root, b) == first.lock_until
    # Nothing goes while it is locked, and no delete marker hides anything.
    before = keys(server, root)
    with pytest.raises(LockedError, match="is locked until"):
        second.erase(BlobRef.of(b"a" * 100), "why")
    assert second.remove("backups/one.json") == first.lock_until
    unneeded = first.put_meta(b"no backup needs this")
    assert prune_now(second, None).marked.blobs == 1
    report = prune_now(second, None)
    assert (report.deleted.blobs, report.left.blobs) == (0, 1)
    assert second.has_meta(unneeded)
    assert set(before) < set(keys(server, root))
    time.sleep(max(0.0, 20 - (time.monotonic() - begun)))
    # The first retention is over: its backup goes, and what it shared with the second stays.
    assert second.remove("backups/one.json") is None
    marked = prune_now(second, None).marked
    assert marked.blobs > 0
    assert prune_now(second, None).deleted == marked
    assert verify_repository(second, level="checksums").backups == {"two": "sound"}
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    versions = server.client.list_object_versions(Bucket=bucket, Prefix=f"{prefix}/")
    live = {item["Key"] for item in versions["Versions"]}
    assert f"{prefix}/{b}" not in live
    assert not [item for item in versions.get("DeleteMarkers", []) if "/prune/" not in item["Key"]]


def test_versions_are_removed_with_their_object(server: Server, tmp_path: Path) -> None:
    root = server.bucket("versioned")
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    server.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    repository = server.open(root)
    back_up(repository, "one", sources(tmp_path, "a"))
    back_up(repository, "two", sources(tmp_path, "b"), uuid="t2")
    for number in range(3):
        repository.save_progress("t", "x", {"/a": BlobRef.of(bytes([number]))})
    repository.clear_progress("t")
    repository.remove("backups/one.json")
    for _ in range(3):
        prune_now(repository, None)
    assert verify_repository(repository, level="checksums").backups == {"two": "sound"}
    versions = server.client.list_object_versions(Bucket=bucket, Prefix=f"{prefix}/")
    assert versions.get("DeleteMarkers", []) == []
    assert sorted(item["Key"].removeprefix(prefix + "/") for item in versions["Versions"]) == keys(server, root)
    # What was deleted and is needed again is simply written again.
    back_up(repository, "again", sources(tmp_path, "a"))
    assert verify_repository(repository, level="checksums").is_sound


def test_a_marker_that_hides_a_needed_blob_is_found_and_healed(server: Server, tmp_path: Path) -> None:
    root = server.bucket("versioned")
    server.client.put_bucket_versioning(Bucket=root.split("/")[2], VersioningConfiguration={"Status": "Enabled"})
    repository = server.open(root)
    files = sources(tmp_path, "a")
    back_up(repository, "one", files)
    blob = BlobRef.of(b"a" * 100)
    repository.store.delete(f"data/{blob.shard}/{blob}")
    assert [f.problem for f in verify_repository(repository).findings] == ["missing"]
    back_up(repository, "two", files)
    assert verify_repository(repository, level="checksums").is_sound


@pytest.mark.parametrize(("days", "most"), [(1, 2), (7, 9), (30, 40), (365, 487)])
def test_backups_share_the_end_of_their_retention(days: int, most: int) -> None:
    start = datetime(2026, 11, 19, 12, tzinfo=UTC)
    ends = [lock_end(start + timedelta(hours=hours), days) for hours in range(0, days * 24, 7)]
    for hours, end in zip(range(0, days * 24, 7), ends, strict=True):
        kept = end - (start + timedelta(hours=hours))
        assert timedelta(days=days) <= kept <= timedelta(days=most)
    assert len(set(ends)) <= 5
    assert ends == sorted(ends)


def test_a_create_beside_a_prune_in_a_bucket(repository: Repository, tmp_path: Path) -> None:
    files = sources(tmp_path, "a")
    back_up(repository, "one", files)
    repository.remove("backups/one.json")
    prune_now(repository, None)
    started = repository.now() - timedelta(seconds=2)
    table = store_table(repository, files)
    assert check_marks(repository, [table], started, prune_wait_s=3600) == []
    prune_now(repository, None)
    written = repository.write_record(record_of(repository, "two", table, started=started), prune_wait_s=3600)
    assert isinstance(written, BackupRecord)
    assert missing_blobs(repository, written) == []
