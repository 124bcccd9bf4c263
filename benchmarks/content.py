"""Events into a table of many objects: against a bare MERGE, as the table grows, and until a change is visible."""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.lake import memory, served
from benchmarks.measure import Result, seconds
from benchmarks.targets import verdict
from frazil.catalogs import open_catalog
from frazil.content.buckets import bucket_of
from frazil.content.columns import OBJECTS, ORDER, TIME
from frazil.content.names import CONTENT, objects_name
from frazil.content.scan.engine import RunningEngine
from frazil.content.scan.folder import open_folder
from frazil.content.scan.session import ScanSession
from frazil.content.tables import ensure_objects
from frazil.content.topic import ensure_events_topic
from frazil.log.remote.client import Client
from frazil.log.remote.producer import Producer
from frazil.settings import Settings, load_settings
from frazil.spark import spark_session
from frazil.tables import TableStore, find_position
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows
from frazil.topics.sinks.jobs import for_pipeline
from frazil.topics.sinks.pipeline import Pipeline

BATCH = 20_000
ROUNDS = 5
SCANNED = 1_000_000
SIZES = (100_000, 1_000_000, 10_000_000)
_CHUNK = 500_000
_BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_MERGE = (
    "MERGE INTO frazil.bench.bare t USING changes s ON t.bucket = s.bucket AND t.key = s.key "
    "AND t.version_id = s.version_id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)


@dataclass
class Content:
    settings: Settings
    client: Client
    spark: SparkSession
    store: TableStore
    pipeline: Pipeline
    sequence: int = 0

    @property
    def topic(self) -> str:
        return self.settings.model.content.topic

    def publish(self, keys: list[str]) -> None:
        """An event for each key, newer than all before."""
        with Producer(self.client, self.topic) as producer:
            for start in range(0, len(keys), 1000):
                producer.send_batch([self.event(key) for key in keys[start : start + 1000]])

    def event(self, key: str) -> bytes:
        self.sequence += 1
        record = {
            "eventVersion": "2.1", "eventSource": "aws:s3", "awsRegion": "us-east-1",
            "eventTime": "2026-06-01T12:00:00.000Z", "eventName": "ObjectCreated:Put",
            "userIdentity": {"principalId": "AWS:AIDAEXAMPLE"},
            "requestParameters": {"sourceIPAddress": "10.0.0.1"},
            "responseElements": {"x-amz-request-id": "C3D13FE58DE4C810", "x-amz-id-2": "FMyUVURIY8/IgAtTv8xRjskZQpcI"},
            "s3": {
                "s3SchemaVersion": "1.0", "configurationId": "all",
                "bucket": {"name": "bench", "arn": "arn:aws:s3:::bench"},
                "object": {
                    "key": key, "size": 1024, "eTag": f"{self.sequence:032x}", "sequencer": f"1{self.sequence:015X}",
                },
            },
        }  # fmt: skip
        return json.dumps({"Records": [record]}).encode()

    def take(self) -> float:
        """Seconds in which the pipeline takes what is in the log."""
        return seconds(lambda: self.pipeline.drain(600))

    def files(self) -> int:
        return sum(1 for _ in self.store.load(objects_name(self.settings)).scan().plan_files())

    def reached(self) -> int:
        position = find_position(self.store.load(objects_name(self.settings)), CONTENT, self.topic)
        return position.offsets[0] if position is not None else 0


@contextmanager
def content(home: Path, flags: Mapping[str, str] | None = None) -> Iterator[Content]:
    home.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        _, address = running.enter_context(served(home))
        own = {"home": str(home), "spark.driver_memory": "3g", **(flags or {})}
        settings = for_pipeline(load_settings(flags=own, environ={}))
        chosen, network = settings.catalog(), settings.model.network
        store = TableStore(open_catalog(chosen, network), chosen, network)
        running.callback(store.close)
        client = running.enter_context(Client(address))
        ensure_events_topic(client, settings)
        spark = running.enter_context(spark_session(settings))
        pipeline = running.enter_context(Pipeline(settings, client, spark, address))
        yield Content(settings, client, spark, store, pipeline)


def key_of(number: int) -> str:
    """Keys begin with a date, as logs and photos do: their order is that of their creation."""
    day = _BEGIN + datetime.timedelta(minutes=number // 10)
    return f"{day:%Y/%m/%d/%H/%M}/object-{number:012d}.jpg"


def rows_of(first: int, count: int) -> pa.Table:
    """Objects as the sink has them after one event each."""
    numbers = range(first, first + count)
    text = pa.array([f"{n:015X}" for n in numbers])
    times = pa.array(np.full(count, 1_767_225_600_000_000), pa.int64()).cast(TIME)
    order = {f.name: pa.nulls(count, f.type) for f in ORDER}
    order |= {"created": pa.array([f"0{n:015X}/0123456789abcdef" for n in numbers]), "created_time": times}
    made: dict[str, Any] = {
        "bucket": pa.repeat("bench", count), "key": pa.array([key_of(n) for n in numbers]),
        "version_id": pa.repeat("", count), "sequencer": text, "sequence": text,
        "etag": pa.array([f"{n * 2654435761 % 2**128:032x}" for n in numbers]), "size": pa.array(numbers, pa.int64()),
        "storage_class": pa.repeat("STANDARD", count), "last_modified": times, "changed_at": times,
        "is_latest": pa.repeat(True, count), "is_deleted": pa.repeat(False, count),
        "is_delete_marker": pa.repeat(False, count), "dialect": pa.repeat("aws", count),
        "event_name": pa.repeat("ObjectCreated:Put", count),
        "frazil_order": pa.StructArray.from_arrays([order[f.name] for f in ORDER], fields=list(ORDER)),
    }  # fmt: skip
    return pa.table([made.get(f.name, pa.nulls(count, f.type)) for f in OBJECTS], schema=OBJECTS)


def fill(at: Content, first: int, last: int, *names: str) -> None:
    """Puts objects into tables, as a compaction would leave them."""
    for start in range(first, last, _CHUNK):
        rows = rows_of(start, min(_CHUNK, last - start))
        for name in names:
            table = at.store.load(name)
            writer = TableWriter(WriteTarget.of(table), "fill")
            writer.add(convert_rows(rows, writer.schema).rows)
            with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
                for file in writer.finish():
                    update.append_data_file(file)


def run() -> list[Result]:
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder, content(Path(folder) / "home") as at:
        objects = objects_name(at.settings)
        ensure_objects(at.store, at.settings)
        _bare(at)
        chance = random.Random(1)
        at.publish([key_of(0)])
        at.take()
        filled = 0
        rates: dict[str, dict[int, tuple[float, int]]] = {"random": {}, "new": {}}
        following = 2 * SIZES[-1]
        for size in SIZES:
            fill(at, filled, size, objects, *(["bench.bare"] if size <= 1_000_000 else []))
            filled = size
            if size == 1_000_000:
                found += _against_merge(at, size, chance)
                found += _visible(at)
            rates["random"][size] = _rounds(at, partial(_some, chance, size)), at.files()

            def fresh() -> list[str]:
                nonlocal following
                following += BATCH
                return [key_of(following - n) for n in range(BATCH)]

            rates["new"][size] = _rounds(at, fresh), at.files()
        found += _scan(at, Path(folder) / "files")
    smallest = SIZES[0]
    for size in SIZES:
        for what, target in (("new", 1.5), ("random", None)):
            taken, files = rates[what][size]
            ratio = taken / rates[what][smallest][0]
            words = "new keys that begin with a date" if what == "new" else "overwrites at random"
            found.append(
                Result(
                    f"{BATCH:,} events, {words}, into {size:,} objects", f"{BATCH / taken:,.0f} events/s",
                    f"{smallest:,} objects; {files} files", f"{ratio:.2f}× the time",
                    verdict(ratio <= target, f"≤ {target}×") if target else "",
                )
            )  # fmt: skip
    return found


def _some(chance: random.Random, size: int) -> list[str]:
    return [key_of(chance.randrange(size)) for _ in range(BATCH)]


def _rounds(at: Content, keys: Callable[[], list[str]]) -> float:
    taken = []
    for _ in range(ROUNDS):
        at.publish(keys())
        taken.append(at.take())
    return statistics.median(taken)


def _bare(at: Content) -> None:
    """The same table without anything of ours but its layout."""
    at.store.catalog.create_namespace_if_not_exists("bench")
    table = at.store.load(objects_name(at.settings))
    at.store.catalog.create_table(
        "bench.bare", table.schema(), partition_spec=table.spec(), sort_order=table.sort_order(),
        properties=dict(table.properties),
    )  # fmt: skip


def _against_merge(at: Content, size: int, chance: random.Random) -> list[Result]:
    """The same overwrites by the sink, and by Spark's MERGE of rows that are ready."""
    ours, bare = [], []
    for number in range(ROUNDS + 1):
        picked = chance.sample(range(size), BATCH)
        changed = rows_of(0, BATCH).set_column(1, OBJECTS.field("key"), pa.array([key_of(n) for n in picked]))
        at.spark.createDataFrame(changed).write.mode("overwrite").parquet(str(at.settings.model.home / "changes"))
        at.spark.read.parquet(str(at.settings.model.home / "changes")).createOrReplaceTempView("changes")
        at.publish([key_of(n) for n in picked])
        taken = at.take(), seconds(lambda: at.spark.sql(_MERGE))
        if number:  # the first warms both up
            ours.append(taken[0])
            bare.append(taken[1])
    mine, theirs = statistics.median(ours), statistics.median(bare)
    at.publish([key_of(chance.randrange(size)) for _ in range(5 * BATCH)])
    whole = at.take()
    return [
        Result(
            f"{BATCH:,} overwrites at random in {size:,} objects, with journal and order",
            f"{BATCH / mine:,.0f} events/s", f"bare MERGE {BATCH / theirs:,.0f} rows/s",
            f"{theirs / mine:.2f}×", verdict(theirs / mine >= 0.8, "≥ 0.8×"),
        ),
        Result(
            f"{5 * BATCH:,} events that wait, into {size:,} objects", f"{5 * BATCH / whole:,.0f} events/s",
            target=verdict(5 * BATCH / whole >= 5000, "≥ 5,000 events/s"),
        ),
    ]  # fmt: skip


def _scan(at: Content, folder: Path) -> list[Result]:
    """A folder of many files, into the log and until every row is visible."""
    for number in range(SCANNED):
        if number % 1000 == 0:
            part = folder / f"{number // 1000:04d}"
            part.mkdir(parents=True)
        (part / f"{number:07d}.jpg").touch()
    work = ScanSession(at.settings, at.client, RunningEngine(at.spark, at.client.address))
    there = open_folder(bucket_of(str(folder)), at.settings)
    began = time.perf_counter()
    scanned = work.scan(there)
    listed = time.perf_counter() - began
    work.wait_until_visible(scanned.tally.end)
    whole = time.perf_counter() - began
    assert scanned.tally.objects == SCANNED
    highest = memory(os.getpid())[1]
    shutil.rmtree(folder)
    return [
        Result(
            f"scan of a folder with {SCANNED:,} files", f"{SCANNED / listed:,.0f} files/s into the log",
            f"visible after {whole:.0f} s: {SCANNED / whole:,.0f}/s", f"{highest:.0f} MiB in the driver's Python",
        )
    ]  # fmt: skip


def _visible(at: Content) -> list[Result]:
    """One change at a time while the pipeline runs: until a reader of the table sees it."""
    stop, taken = threading.Event(), []
    thread = threading.Thread(target=at.pipeline.run, args=(stop,))
    thread.start()
    try:
        for number in range(40):
            began = time.perf_counter()
            at.publish([key_of(number)])
            end = at.client.info(at.topic).end
            while at.reached() < end:
                time.sleep(0.02)
            taken.append(time.perf_counter() - began)
            time.sleep(0.1)
    finally:
        stop.set()
        thread.join()
    p50, p95 = np.percentile(taken, [50, 95])
    shown = f"p50 {p50:.1f} s, p95 {p95:.1f} s"
    return [Result("put → row visible, 1,000,000 objects", shown, target=verdict(bool(p95 <= 10), "p95 ≤ 10 s"))]
