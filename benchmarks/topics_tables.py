"""The tables: how fast the log freezes into Iceberg and is read back, held against PyArrow alone on as many cores."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lake import BATCH, Lake, lake, memory, served
from benchmarks.measure import Result, in_turns, seconds, shown
from benchmarks.parquet_floor import CORES, parquet_writers, raw_scan
from benchmarks.payloads import messages
from benchmarks.targets import verdict
from frazil.log.remote.client import Client
from frazil.log.remote.producer import Producer

MESSAGE = 1024
ROWS_EACH = 131_000  # about 128 MiB of payload per core
ROUNDS = 3
BACKLOG = 10 * 1024**3


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as name:
        folder = Path(name)
        with lake(folder / "lake") as there:
            results = [*freezing(there, folder), *tiny_batches(there), *visibility(there), *replay(there)]
        return [*results, *broker_memory(folder)]


def freezing(there: Lake, folder: Path) -> Iterator[Result]:
    """Log to Iceberg, and PyArrow alone, in turns: as many bytes, as many cores.

    Tasks on the broker's machine read the log's files; those elsewhere ask the broker, which is measured too.
    """
    for topic in ("frozen", "asked"):
        there.client.create_topic(topic, storage="iceberg")
    rows = ROWS_EACH * CORES
    near: list[float] = []
    asked: list[float] = []
    floor: list[float] = []
    with (
        parquet_writers(folder, ROWS_EACH) as write,
        there.only("frozen") as reading,
        there.only("asked", read_segments="never") as asking,
    ):
        ways = (("frozen", reading, near), ("asked", asking, asked))
        for topic, pipeline, _ in ways:
            there.fill(topic, 10 * BATCH)
            pipeline.drain()  # starts Spark's Python workers, makes the table
        for _ in range(ROUNDS):
            for topic, pipeline, taken in ways:
                there.fill(topic, rows)
                taken.append(seconds(pipeline.drain))
            floor.append(write())
    payload, bare = rows * MESSAGE / 1e6, statistics.median(floor)
    for where, rounds in (("the log's files", near), ("the broker, through Flight", asked)):
        taken_s = statistics.median(rounds)
        per_core = payload / taken_s / CORES
        yield Result(
            f"log → Iceberg, 1 KB JSON messages, {CORES} cores, from {where}",
            f"{payload / taken_s:,.0f} MB/s ({per_core:,.0f} per core)",
            f"PyArrow alone, zstd Parquet, {payload / bare:,.0f} MB/s",
            f"{bare / taken_s:.0%}",
            f"{verdict(bare / taken_s >= 0.6, '≥ 60 %')}, {verdict(per_core >= 100, '≥ 100 MB/s per core')}",
        )


def tiny_batches(there: Lake) -> Iterator[Result]:
    there.client.create_topic("tiny", storage="iceberg")
    taken = []
    with Producer(there.client, "tiny") as producer:
        for _ in range(15):
            producer.publish(messages(MESSAGE)[0])
            taken.append(seconds(there.pipeline.drain))
    warm = statistics.median(taken[5:])
    yield Result("one message into the table, warm", shown(warm), "", "", verdict(warm <= 0.2, "≤ 200 ms"))


def visibility(there: Lake, *, lasting: float = 240.0, each_second: int = 1000) -> Iterator[Result]:
    """A steady stream, with upkeep from its first compaction on; somebody else notes when each offset is there."""
    there.client.create_topic("steady", storage="iceberg")
    stop, seen = threading.Event(), threading.Event()
    pipeline = threading.Thread(target=there.pipeline.run, args=(stop,))
    pipeline.start()
    published: list[float] = []
    reached: list[tuple[float, int]] = []

    def look() -> None:
        while not seen.wait(0.02):
            reached.append((time.time(), there.reached("steady")))

    with Producer(there.client, "steady") as producer:
        producer.publish(messages(MESSAGE)[0])
        while not there.client.info("steady").sinks.get("archive"):
            time.sleep(0.05)
        looker = threading.Thread(target=look)
        looker.start()
        first, began, pool = 1, time.time(), messages(MESSAGE)
        for number in range(int(lasting * each_second)):
            time.sleep(max(0.0, began + number / each_second - time.time()))
            producer.send(pool[number % len(pool)])
            published.append(time.time())
    while reached[-1][1] < first + len(published):
        time.sleep(0.05)
    seen.set()
    stop.set()
    looker.join()
    pipeline.join()
    lags = sorted(_lags(published, reached, first))
    p50, p95 = lags[len(lags) // 2], lags[int(len(lags) * 0.95)]
    what = f"publish → visible in the table, {each_second:,} messages/s for {lasting:.0f} s, default upkeep"
    yield Result(what, f"p50 {shown(p50)}, p95 {shown(p95)}", "", "", verdict(p95 <= 2, "p95 ≤ 2 s"))


def _lags(published: list[float], reached: list[tuple[float, int]], first: int) -> Iterator[float]:
    looks = iter(reached)
    at, end = next(looks)
    for offset, when in enumerate(published, first):
        while end <= offset:
            at, end = next(looks)
        yield at - when


def replay(there: Lake) -> Iterator[Result]:
    """All columns of the big topic, through the union reader and by a raw scan of the same files."""
    files, reader = there.files("frozen"), there.reader("frozen")
    names = reader.schema().names
    rows = raw_scan(files, names)
    ours, bare = in_turns(ROUNDS, lambda: sum(t.num_rows for t in reader.read(0)), lambda: raw_scan(files, names))
    payload = rows * MESSAGE / 1e6
    yield Result(
        f"replay of {payload:,.0f} MB, all columns", f"{payload / ours:,.0f} MB/s",
        f"PyArrow scan of the same files {payload / bare:,.0f} MB/s", f"{bare / ours:.0%}",
        verdict(bare / ours >= 0.7, "≥ 70 %"),
    )  # fmt: skip


def broker_memory(folder: Path) -> Iterator[Result]:
    """`frazil serve` alone: idle, then with a backlog that no sink takes, then while it is read from the start."""
    with served(folder / "memory") as (broker, address), Client(address) as client:
        idle, _ = memory(broker.pid)
        yield Result("memory of `frazil serve`, idle", f"{idle:.0f} MiB", "", "", verdict(idle <= 200, "≤ 200 MiB"))
        client.create_topic("backlog", storage="log")
        tenth = BACKLOG // 10 // (MESSAGE * BATCH)
        batches = [messages(MESSAGE)[i * BATCH : (i + 1) * BATCH] for i in range(10)]
        highest = []
        with Producer(client, "backlog") as producer:
            for _ in range(10):
                for number in range(tenth):
                    producer.send_batch(batches[number % 10])
                producer.flush()
                highest.append(memory(broker.pid)[1])
        for _ in client.chunks("backlog", 0):
            pass
        grown = memory(broker.pid)[1]
        yield Result(
            "memory of `frazil serve`, highest, backlog of 10 GiB", f"{grown:.0f} MiB",
            f"after the first GiB {highest[0]:.0f} MiB", f"{grown / highest[0]:.2f}×",
            verdict(grown <= 1.2 * highest[0] + 64, "bounded"),
        )  # fmt: skip
