"""MinIO tells its changes over HTTP, broker and pipeline are killed meanwhile: at the end the table is the bucket."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.table import Table

from frazil.catalogs import open_catalog
from frazil.settings import load_settings
from tests.e2e.conftest import Shell
from tests.e2e.servers import Running
from tests.services.kit import Services
from tests.services.minio import MinIO, start_minio
from tests.services.process import free_port

pytestmark = pytest.mark.timeout(900)

WRITERS = 8
BUCKETS = ("plain", "versioned")


class Flow:
    """A broker at a fixed address and a pipeline, each of which can be killed and comes back."""

    def __init__(self, shell: Shell, http_port: int) -> None:
        self._shell, self._port, self._flight_port = shell, http_port, free_port()
        self._broker = self._start_broker()
        self._pipeline = self._start_pipeline()

    def _start_broker(self) -> Running:
        ports = ("--set", f"serve.http_port={self._port}", "--set", f"serve.flight_port={self._flight_port}")
        broker = Running(self._shell, "serve", *ports)
        broker.ready()
        return broker

    def _start_pipeline(self) -> Running:
        pipeline = Running(self._shell, "pipeline", "--set", "pipeline.max_lag_ms=300", *self._broker_option)
        pipeline.ready(120)
        return pipeline

    @property
    def _broker_option(self) -> tuple[str, str]:
        """Without it a pipeline that finds no broker would open the log itself."""
        return "--set", f"log.broker=grpc://127.0.0.1:{self._flight_port}"

    def kill_broker(self) -> None:
        self._broker.send(signal.SIGKILL)
        self._broker.wait()
        time.sleep(1.0)
        self._broker = self._start_broker()

    def kill_pipeline(self) -> None:
        _kill_group(self._pipeline)
        self._pipeline = self._start_pipeline()

    def end(self) -> None:
        """Ends the pipeline, takes what is left, and ends the broker."""
        self._pipeline.send(signal.SIGTERM)
        self._pipeline.wait(90)
        done = self._shell.run("pipeline", "--drain", *self._broker_option, timeout=300)
        assert done.returncode == 0, done.stderr
        self.close()

    def close(self) -> None:
        self._broker.end()
        with suppress(ProcessLookupError):
            _kill_group(self._pipeline)


def _kill_group(running: Running) -> None:
    subprocess.run(["pkill", "-9", "-s", str(running.process.pid)], check=False)
    running.process.kill()
    running.wait()


@pytest.fixture
def minio(services: Services, http_port: int) -> MinIO:
    return services.own(lambda folder: start_minio(folder, webhook=f"http://127.0.0.1:{http_port}/events/s3"))


@pytest.fixture
def http_port() -> int:
    return free_port()


@pytest.fixture
def flow(shell: Shell, minio: MinIO, http_port: int) -> Iterator[Flow]:
    shell.write("frazil.yaml", yaml.safe_dump({"home": "./lake", "s3": minio.access.settings()}))
    made = Flow(shell, http_port)
    yield made
    made.close()


def write(minio: MinIO, bucket: str, number: int, operations: int, done: Callable[[], None]) -> None:
    """One writer: keys that others write too, so that order matters."""
    chance, client = random.Random(number), minio.access.client()
    for step in range(operations):
        key = f"dir {chance.randrange(4)}/a+b%ü {chance.randrange(40)}"
        choice = chance.random()
        if choice < 0.7:
            client.put_object(Bucket=bucket, Key=key, Body=b"x" * chance.randrange(200), Metadata={"by": str(number)})
        elif choice < 0.82:
            client.delete_object(Bucket=bucket, Key=key)
        elif choice < 0.92:
            keys = [{"Key": f"dir {chance.randrange(4)}/a+b%ü {chance.randrange(40)}"} for _ in range(6)]
            client.delete_objects(Bucket=bucket, Delete={"Objects": keys})
        else:
            _delete_a_version(client, bucket, key, chance)
        if step % 10 == 9:
            done()


def _delete_a_version(client: Any, bucket: str, key: str, chance: random.Random) -> None:
    found = client.list_object_versions(Bucket=bucket, Prefix=key)
    versions = [v for v in [*found.get("Versions", ()), *found.get("DeleteMarkers", ())] if v["Key"] == key]
    if versions:
        version = chance.choice(versions)
        client.delete_object(Bucket=bucket, Key=key, VersionId=version["VersionId"])


def in_bucket(minio: MinIO, bucket: str) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Key and version → etag, size, is latest, is a marker."""
    found: dict[tuple[str, str], tuple[Any, ...]] = {}
    for page in minio.access.client().get_paginator("list_object_versions").paginate(Bucket=bucket):
        for v in page.get("Versions", ()):
            place = v["Key"], "" if v["VersionId"] == "null" else v["VersionId"]
            found[place] = v["ETag"].strip('"'), v["Size"], v["IsLatest"], False
        for m in page.get("DeleteMarkers", ()):
            place = m["Key"], "" if m["VersionId"] == "null" else m["VersionId"]
            found[place] = None, None, m["IsLatest"], True
    return found


def in_table(table: Table, bucket: str) -> dict[tuple[str, str], tuple[Any, ...]]:
    rows = table.scan(row_filter=f"bucket = '{bucket}' and is_deleted = false").to_arrow().to_pylist()
    places = [(r["key"], r["version_id"]) for r in rows]
    assert len(places) == len(set(places)), "a version is there twice"
    return {
        place: (r["etag"], r["size"], r["is_latest"], r["is_delete_marker"])
        for place, r in zip(places, rows, strict=True)
    }


def undelivered(folder: Path) -> int:
    """Events that MinIO still has on its disk."""
    return sum(1 for file in folder.rglob("*") if file.is_file())


def _wait_for_less(folder: Path, count: int) -> int:
    deadline = time.monotonic() + 60
    while (left := undelivered(folder)) >= count and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


@pytest.mark.parametrize(
    "operations", [pytest.param(100, marks=pytest.mark.slow), pytest.param(1250, marks=pytest.mark.soak)]
)
def test_after_10_000_changes_and_crashes_the_table_equals_the_bucket(shell, minio, flow, operations):
    """8 writers on two buckets; in the soak each has 1,250 operations."""
    client = minio.access.client()
    for bucket in BUCKETS:
        client.create_bucket(Bucket=bucket)
        minio.notify(bucket)
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    total, count, lock = WRITERS * operations // 10, 0, threading.Lock()
    crashes = {total // 4: flow.kill_broker, total // 2: flow.kill_pipeline, 3 * total // 4: flow.kill_broker}
    due: list[Callable[[], None]] = []

    def done() -> None:
        nonlocal count
        with lock:
            count += 1
            if count in crashes:
                due.append(crashes.pop(count))

    writers = [
        threading.Thread(target=write, args=(minio, BUCKETS[n % 2], n, operations, done)) for n in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    while any(w.is_alive() for w in writers) or due:
        if due:
            due.pop(0)()
        time.sleep(0.05)
    queue = Path(minio.process.log).parent / "events"
    before, left = undelivered(queue) + 1, undelivered(queue)
    while left and left < before:  # it sends one after the other
        before, left = left, _wait_for_less(queue, left)
    assert not left, "MinIO keeps events"
    flow.end()
    settings = load_settings(config=shell.folder / "frazil.yaml", environ={})
    table = open_catalog(settings.catalog()).load_table("content.objects")
    for bucket in BUCKETS:
        assert in_table(table, bucket) == in_bucket(minio, bucket)
