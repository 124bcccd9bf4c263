"""The floor under the tables: PyArrow alone writes the same messages to zstd Parquet on every core, and scans them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from benchmarks.payloads import messages

CORES = os.cpu_count() or 1
SEGMENT = 65_536  # messages of 1 KB in a segment of 64 MiB

COLUMNS = pa.schema(
    [
        pa.field("request_id", pa.int64()),
        pa.field("producer_id", pa.int64()),
        pa.field("topic_name", pa.string(), nullable=False),
        pa.field("broker_addr", pa.string()),
        pa.field("segment_id", pa.int64(), nullable=False),
        pa.field("segment_offset", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("publish_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("producer_name", pa.string()),
        pa.field("subscription_name", pa.string()),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
    ]
)


def message_table(start: int, rows: int, size: int = 1024) -> pa.Table:
    """Messages as they are read from a topic: batches of 1,000 with one publish time each."""
    pool = messages(size)
    offsets = np.arange(start, start + rows, dtype=np.int64)
    segments = offsets // SEGMENT * SEGMENT
    now = 1_790_000_000_000_000
    columns: dict[str, Any] = {
        "request_id": offsets,
        "producer_id": np.ones(rows, np.int64),
        "topic_name": pa.repeat(pa.scalar("bench"), rows),
        "broker_addr": pa.repeat(pa.scalar("127.0.0.1:8815"), rows),
        "segment_id": segments,
        "segment_offset": offsets - segments,
        "payload": pa.array(pool, pa.binary()).take(pa.array(offsets % len(pool))),
        "publish_time": pa.array(now + offsets // 1000 * 500, pa.timestamp("us", tz="UTC")),
        "producer_name": pa.repeat(pa.scalar("bench"), rows),
        "subscription_name": pa.nulls(rows, pa.string()),
        "partition": np.zeros(rows, np.int32),
        "offset": offsets,
        "headers": pa.nulls(rows, COLUMNS.field("headers").type),
    }
    return pa.table([pa.array(columns[name]) if isinstance(columns[name], np.ndarray) else columns[name]
                     for name in COLUMNS.names], schema=COLUMNS)  # fmt: skip


_mine: dict[str, Any] = {}


def _prepare(barrier: Any, rows: int, number: Any) -> None:
    with number.get_lock():
        mine = number.value
        number.value += 1
    pa.set_cpu_count(1)  # one process per core; threads of each would only be in the way of the others
    _mine.update(table=message_table(mine * rows, rows), barrier=barrier)


def _write(path: str) -> tuple[float, float]:
    _mine["barrier"].wait()
    began = time.time()
    pa.parquet.write_table(_mine["table"], path, compression="zstd")
    return began, time.time()


@contextmanager
def parquet_writers(folder: Path, rows_each: int) -> Iterator[Callable[[], float]]:
    """A function that writes `rows_each` on every core at once and returns the seconds from first start to last end.

    The messages are in memory before the clock starts.
    """
    context = multiprocessing.get_context("spawn")
    shared = (context.Barrier(CORES), rows_each, context.Value("i", 0))
    with ProcessPoolExecutor(CORES, mp_context=context, initializer=_prepare, initargs=shared) as pool:

        def write() -> float:
            paths = [str(folder / f"floor-{number}.parquet") for number in range(CORES)]
            times = list(pool.map(_write, paths))
            return max(end for _, end in times) - min(start for start, _ in times)

        write()  # starts the processes, builds their messages
        yield write


def raw_scan(files: list[str], columns: list[str] | None = None) -> int:
    """Reads the columns of all files with PyArrow's own threads and read-ahead; returns the rows."""
    scanner = pa.dataset.dataset(files).scanner(columns=columns)
    return sum(batch.num_rows for batch in scanner.to_batches())
