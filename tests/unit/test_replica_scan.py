"""Listing and measuring replicated files: locally, and on a store that counts its requests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from frazil.errors import NotFoundError, UsageError
from frazil.replica import scan
from frazil.replica.scan import ReplicaFiles, ReplicatedFile, map_in_threads
from frazil.settings import NetworkSettings, S3Settings
from frazil.storage import ObjectInfo
from frazil.storage.uri import parse
from tests.replica_kit import files_of


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def test_local_files_are_listed_with_their_sizes_in_canonical_spelling(tmp_path: Path) -> None:
    write(tmp_path / "real", "metadata/v1.metadata.json", "data/day=1/a ü%20.parquet")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real/data/gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "real/data/again").symlink_to(tmp_path / "real/data")
    files = files_of(tmp_path / "link")
    root = f"file://{tmp_path}/real"
    assert files.root == root
    assert sorted(files.list(), key=lambda file: file.path) == [
        ReplicatedFile(f"{root}/data/day=1/a ü%20.parquet", 26),
        ReplicatedFile(f"{root}/metadata/v1.metadata.json", 25),
    ]
    assert list(files.list("data", recursive=False)) == []
    assert [*files.list(f"file:{tmp_path}/link/metadata")] == [*files.list("metadata")]
    assert list(files.list("nothing")) == []


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_a_local_file_is_measured_and_read_in_every_spelling(tmp_path: Path, spelling: str) -> None:
    write(tmp_path, "a", "folder/b")
    files = files_of(tmp_path)
    path = spelling.format(tmp_path / "a")
    assert files.size_of(path) == 1
    assert files.find_sizes([path, spelling.format(tmp_path / "none")]) == {path: 1}
    assert files.read(path) == b"a"
    assert files.size_of(spelling.format(tmp_path / "folder")) is None
    assert files.size_of(spelling.format(tmp_path / "a/b")) is None
    with pytest.raises(NotFoundError):
        files.read(spelling.format(tmp_path / "none"))


def test_a_hundred_thousand_local_files_would_be_listed_in_a_second(tmp_path: Path) -> None:
    for folder in range(10):
        (tmp_path / f"day={folder}").mkdir()
        for name in range(1000):
            os.close(os.open(tmp_path / f"day={folder}" / f"{name}.parquet", os.O_CREAT | os.O_WRONLY))
    files = files_of(tmp_path)
    began = time.process_time()
    paths = [file.path for file in files.list()]
    listed = time.process_time() - began
    assert len(paths) == 10_000
    assert listed < 0.1
    began = time.process_time()
    assert len(files.find_sizes(paths)) == 10_000
    assert time.process_time() - began < 0.2


class CountingStore:
    """A bucket of which only names exist."""

    def __init__(self, *keys: str) -> None:
        self.keys = sorted(keys)
        self.heads = 0
        self.listed = 0

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for key in self.keys:
            if key.startswith(f"{prefix}/" if prefix else ""):
                self.listed += 1
                yield ObjectInfo(key, len(key), "", datetime.now(UTC))

    def head(self, key: str) -> ObjectInfo:
        self.heads += 1
        if key not in self.keys:
            raise NotFoundError(f"{key} does not exist")
        return ObjectInfo(key, len(key), "", datetime.now(UTC))


class CountingStorage:
    def __init__(self, store: CountingStore) -> None:
        self.store = store

    def find(self, uri: str) -> tuple[CountingStore, str]:
        return self.store, parse(uri).key

    def measure(self, uri: str) -> int:
        return self.store.head(parse(uri).key).size


def on_bucket(*keys: str) -> tuple[ReplicaFiles, CountingStore]:
    files = ReplicaFiles("s3a://bucket/wh/t/", S3Settings(), NetworkSettings())
    store = CountingStore(*keys)
    files._stored = scan._StoredFiles(CountingStorage(store))  # type: ignore[arg-type]
    return files, store


def test_a_bucket_is_listed_below_a_folder_only() -> None:
    files, _ = on_bucket("wh/t/metadata/v1", "wh/t/metadata/sub/x", "wh/t2/metadata/v1")
    assert files.root == "s3://bucket/wh/t"
    assert [file.path for file in files.list("metadata", recursive=False)] == ["s3://bucket/wh/t/metadata/v1"]
    assert len(list(files.list())) == 2


def test_few_objects_are_measured_one_by_one_and_many_by_a_listing() -> None:
    keys = [f"wh/t/data/{number:04}" for number in range(1000)]
    files, store = on_bucket(*keys, *(f"wh/t/zzz/{number}" for number in range(1000)))
    wanted = [f"s3a://bucket/{key}" for key in keys]
    assert len(files.find_sizes(wanted[:10])) == 10
    assert (store.heads, store.listed) == (10, 0)
    found = files.find_sizes([*wanted, "s3a://bucket/wh/t/data/none"])
    assert found == {path: len("wh/t/data/0000") for path in wanted}
    assert store.heads == 11  # and the one that no listing had
    assert store.listed == 1000


def test_a_listing_that_costs_more_than_requests_is_given_up() -> None:
    others = [f"wh/t/data/a{number}" for number in range(20_000)]
    wanted = [f"wh/t/data/b{number}" for number in range(100)]
    files, store = on_bucket(*others, *wanted)
    assert len(files.find_sizes([f"s3://bucket/{key}" for key in wanted])) == 100
    assert store.heads == 100
    assert store.listed <= 6_001


def test_hdfs_needs_a_session() -> None:
    files = files_of("hdfs://name:8020/wh/")
    assert files.root == "hdfs://name:8020/wh"
    with pytest.raises(UsageError, match="needs Spark"):
        files.size_of("hdfs://name:8020/wh/x")


def test_results_of_threads_come_in_order_and_few_at_a_time() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    results = map_in_threads(lambda number: number * 2, items())
    assert next(results) == 0
    assert taken < 100
    assert list(results) == [number * 2 for number in range(1, 1000)]
