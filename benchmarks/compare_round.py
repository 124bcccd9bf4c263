"""One round of a short suite in one tree: prints seconds by measurement as JSON. See compare.py.

Runs against the benchmark modules of the tree that it measures, so it uses only names that former commits have too.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

Measured = Iterator[tuple[str, float]]


def measure_log(folder: Path) -> Measured:
    from benchmarks.frazil_log import embedded_log
    from benchmarks.load import Scene, rounds

    with embedded_log(folder) as (singles, batches):
        for publishers in (1, 16):
            for name, load in rounds(singles, Scene(256, publishers), times=7, seconds=0.4).items():
                yield f"{name}, 256 B, {publishers} publishers, acknowledgement p50", load.p50 / 1e6
        for name, load in rounds(batches, Scene(256, 16, 1000), times=5, seconds=0.4).items():
            yield f"{name}, batches of 1,000, per message", 1 / load.rate


def measure_tables(folder: Path) -> Measured:
    from benchmarks.lake import BATCH, lake
    from benchmarks.measure import seconds
    from benchmarks.payloads import messages
    from frazil.log.remote.producer import Producer

    with lake(folder / "lake") as there:
        there.client.create_topic("large", storage="iceberg")
        with there.only("large") as pipeline:
            there.fill("large", 10 * BATCH)
            pipeline.drain()
            taken = []
            for _ in range(4):
                there.fill("large", 100 * BATCH)
                taken.append(seconds(pipeline.drain))
        yield "100,000 messages of 1 KB from the log into the table", statistics.median(taken)
        reader = there.reader("large")
        read = [seconds(lambda: sum(table.num_rows for table in reader.read(0))) for _ in range(4)]
        yield "replay of 410,000 messages", statistics.median(read)
        there.client.create_topic("small", storage="iceberg")
        with there.only("small") as pipeline, Producer(there.client, "small") as producer:
            taken = []
            for _ in range(20):
                producer.publish(messages(1024)[0])
                taken.append(seconds(pipeline.drain))
        yield "one message into the table", statistics.median(taken[5:])


def measure_content(folder: Path) -> Measured:
    from benchmarks.content import content, fill, key_of
    from frazil.content.names import objects_name
    from frazil.content.tables import ensure_objects

    size, batch, chance = 200_000, 20_000, random.Random(1)
    with content(folder / "home") as at:
        ensure_objects(at.store, at.settings)
        at.publish([key_of(0)])
        at.take()
        fill(at, 0, size, objects_name(at.settings))
        overwrites, fresh = [], []
        for number in range(5):
            at.publish([key_of(chance.randrange(size)) for _ in range(batch)])
            overwrites.append(at.take())
            first = size + number * batch
            at.publish([key_of(n) for n in range(first, first + batch)])
            fresh.append(at.take())
    yield "20,000 overwrites at random in 200,000 objects", statistics.median(overwrites[1:])
    yield "20,000 new objects", statistics.median(fresh[1:])


def measure_upkeep(folder: Path) -> Measured:
    from benchmarks import upkeep_compaction, upkeep_planning

    upkeep_planning.FILES, upkeep_planning.ROUNDS = 20_000, 5
    for result in upkeep_planning.planning(folder):
        if result.what.startswith("plan"):
            yield result.what, _seconds_in(result.measured)
    upkeep_compaction.ROWS, upkeep_compaction.ROUNDS = 200_000, 3
    payload = upkeep_compaction.ROWS * upkeep_compaction.SIZE / 1e6
    results = upkeep_compaction.run()
    rate = re.search(r"\(([\d,]+) MB per CPU second", results[0].measured)
    assert rate is not None
    yield "compaction of 200 files, CPU seconds", payload / float(rate[1].replace(",", ""))


def _seconds_in(text: str) -> float:
    found = re.match(r"([\d.,]+) (µs|ms|s)\b", text)
    assert found is not None, text
    return float(found[1].replace(",", "")) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]


SUITES: dict[str, Callable[[Path], Measured]] = {
    "log": measure_log,
    "tables": measure_tables,
    "content": measure_content,
    "upkeep": measure_upkeep,
}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as name:
        found = dict(SUITES[sys.argv[1]](Path(name)))
    print(json.dumps(found))
