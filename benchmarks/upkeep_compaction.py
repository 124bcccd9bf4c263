"""Compaction of a topic's small files: ours against Spark's own `rewrite_data_files`, in turns on the same table."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.measure import Result
from benchmarks.payloads import messages
from benchmarks.targets import verdict
from frazil.catalogs import open_catalog
from frazil.log.columns import MESSAGE
from frazil.settings import Settings, load_settings
from frazil.spark import spark_session
from frazil.tables import Position, TableStore, commit_append, ensure_table
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows
from frazil.topics.layout import ARCHIVE, table_properties, table_schema
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.model import Step
from frazil.upkeep.rewrite import compact

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

SIZE = 1024
ROWS = 500_000
ROWS_PER_FILE = 1000
COMMITS = 10
ROUNDS = 9
NAME = "topics.bench"
#: As a policy would have them, but smaller, so that several files come out and all cores have one to write.
TARGET = 32 * 1024 * 1024
OPTIONS = {"target": TARGET, "below": TARGET * 3 // 4, "min_files": 10, "delete_ratio": 0.3}
_HZ = os.sysconf("SC_CLK_TCK")
_START_US = 1_790_000_000_000_000


@dataclass(frozen=True)
class Cost:
    """What one run took: seconds on the clock, and of all cores together."""

    wall: float
    cpu: float


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as name:
        settings = load_settings(flags={"home": name})
        chosen = settings.catalog()
        with TableStore(open_catalog(chosen), chosen) as store:
            table = small_files(store, settings)
            with spark_session(settings) as spark:
                care = UpkeepContext(settings, chosen, store, lambda: spark, threading.Event())
                return list(compaction(care, table, spark))


def compaction(care: UpkeepContext, table: Table, spark: SparkSession) -> Iterator[Result]:
    start = table.metadata.current_snapshot_id
    stored = sum(task.file.file_size_in_bytes for task in table.scan().plan_files())
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: compact.run(care, table, Step("compact", "measured", options=OPTIONS)),
        "binpack": lambda: bare(spark, "binpack"),
        "sort": lambda: bare(spark, "sort"),
    }
    costs: dict[str, list[Cost]] = {way: [] for way in ways}
    for turn in range(ROUNDS + 1):
        order = list(ways)[turn % len(ways) :] + list(ways)[: turn % len(ways)]  # nobody is always the first
        for way in order:
            cost = measured(spark, ways[way])
            files = [t.file.record_count for t in care.store.load(NAME).scan().plan_files()]
            if sum(files) != ROWS or len(files) > ROWS // ROWS_PER_FILE // 10:
                raise AssertionError(f"{way} left {len(files)} files with {sum(files)} rows")
            spark.sql(f"CALL frazil.system.rollback_to_snapshot('{NAME}', {start})")
            if turn:  # the first round warms the JVM
                costs[way].append(cost)
    payload, cores = ROWS * SIZE / 1e6, os.cpu_count() or 1
    found = {way: median(each) for way, each in costs.items()}
    for way in ("binpack", "sort"):
        ratios = [theirs.cpu / ours.cpu for theirs, ours in zip(costs[way], costs["ours"], strict=True)]
        ratio = statistics.median(ratios)
        yield Result(
            f"compaction of {ROWS // ROWS_PER_FILE} files, {payload:,.0f} MB of 1 KB messages "
            f"({stored / 1e6:,.0f} MB stored), {cores} cores",
            f"{payload / found['ours'].wall / cores:,.0f} MB/s per core "
            f"({payload / found['ours'].cpu:,.0f} MB per CPU second)",
            f"rewrite_data_files, {way}: {payload / found[way].wall / cores:,.0f} MB/s per core "
            f"({payload / found[way].cpu:,.0f} MB per CPU second)",
            f"{ratio:.3f} × by CPU ({ROUNDS} rounds: {min(ratios):.2f} to {max(ratios):.2f}, half of them "
            f"{middle(ratios)}), {found[way].wall / found['ours'].wall:.2f} × by time",
            verdict(ratio >= 1.0, "at least equal by CPU"),
        )


def bare(spark: SparkSession, strategy: str) -> None:
    options = {
        "target-file-size-bytes": TARGET,
        "min-file-size-bytes": OPTIONS["below"],
        "min-input-files": OPTIONS["min_files"],
    }
    listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    spark.sql(
        f"CALL frazil.system.rewrite_data_files(table => '{NAME}', strategy => '{strategy}', options => map({listed}))"
    ).collect()


def measured(spark: SparkSession, action: Callable[[], object]) -> Cost:
    jvm = spark.sparkContext._gateway.proc.pid
    began, before = time.perf_counter(), time.process_time() + cpu_of(jvm)
    action()
    return Cost(time.perf_counter() - began, time.process_time() + cpu_of(jvm) - before)


def cpu_of(pid: int) -> float:
    """Seconds that a process has had on all cores."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HZ


def median(costs: list[Cost]) -> Cost:
    return Cost(statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs))


def middle(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.2f} to {high:.2f}"


def small_files(store: TableStore, settings: Settings) -> Table:
    """A topic's table, written as the sink writes it: each file in order of offsets, of one day."""
    topics = settings.model.topics
    table = ensure_table(
        store,
        NAME,
        table_schema(pa.schema([])),
        partition=topics.partition,
        sort=topics.sort,
        properties=table_properties(settings),
    )
    expected = None
    for commit in range(COMMITS):
        files = []
        for i in range(ROWS // ROWS_PER_FILE // COMMITS):
            offset = (commit * (ROWS // ROWS_PER_FILE // COMMITS) + i) * ROWS_PER_FILE
            writer = TableWriter(WriteTarget.of(table), f"{offset:020d}")
            writer.add(convert_rows(rows(offset), writer.schema).rows)
            files += writer.finish()
        for file in files:
            file.spec_id = table.spec().spec_id
        end = (commit + 1) * (ROWS // COMMITS)
        reached = Position(ARCHIVE, "bench", {0: end}, "bench", 1, uuid.uuid4().hex)
        done = commit_append(store, table, files, expected=expected, reached=reached)
        table, expected = done.table, reached
    return table


def rows(offset: int) -> pa.Table:
    pool = messages(SIZE)
    count = ROWS_PER_FILE
    values = {
        "request_id": pa.array(range(offset, offset + count), pa.int64()),
        "producer_id": pa.array([7] * count, pa.int64()),
        "topic_name": pa.array(["bench"] * count),
        "broker_addr": pa.array(["127.0.0.1:9000"] * count),
        "segment_id": pa.array([0] * count, pa.int64()),
        "segment_offset": pa.array(range(offset, offset + count), pa.int64()),
        "payload": pa.array([pool[(offset + i) % len(pool)] for i in range(count)], pa.binary()),
        "publish_time": pa.array([_START_US + (offset + i) * 1000 for i in range(count)], pa.int64()),
        "producer_name": pa.array(["bench"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(offset, offset + count), pa.int64()),
    }
    arrays = [values[f.name].cast(f.type) if f.name in values else pa.nulls(count, f.type) for f in MESSAGE]
    return pa.table(arrays, schema=MESSAGE)
