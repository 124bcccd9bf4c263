"""Ten thousand commits with default upkeep: are publish, tail and commit as quick at the end as at the beginning?"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Result, seconds, shown
from benchmarks.payloads import messages
from benchmarks.targets import verdict
from frazil.log import Batch
from frazil.spark import spark_session
from frazil.topics.reading.reader import TopicReader
from frazil.topics.sinks.jobs import for_pipeline
from frazil.upkeep.runs.pipeline_upkeep import PipelineUpkeep, make_pipeline_upkeep
from tests.sink_kit import SinkKit, sink_kit

COMMITS = 10_000
EDGE = 200  # commits at either end whose median counts
STEPS = ("publish", "commit", "tail", "replay")
"""`tail` takes the last message from the log, `replay` from the table, which is looked at anew each time."""


def run() -> list[Result]:
    with (
        tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder,
        sink_kit(Path(folder)) as kit,
        spark_session(for_pipeline(kit.settings)) as spark,
        make_pipeline_upkeep(kit.settings, spark, clock=(clock := _Clock()).now) as caretaker,
    ):
        assert caretaker is not None
        kit.create("many")
        times = _rounds(kit, caretaker, clock)
    results = []
    for name in STEPS:
        first, last = (statistics.median(part) for part in (times[name][20:EDGE], times[name][-EDGE:]))
        results.append(
            Result(
                f"{name}, last of {COMMITS:,} commits", f"{last * 1000:.1f} ms", f"first {first * 1000:.1f} ms",
                f"{last / first:.2f}×", verdict(last <= 1.2 * first, "≤ 1.2×"),
            )
        )  # fmt: skip
    return results


class _Clock:
    """Time as a pipeline has it that commits once in a second, which is what upkeep's settings are made for."""

    commits = 0

    def now(self) -> float:
        return time.monotonic() + self.commits


def _rounds(kit: SinkKit, caretaker: PipelineUpkeep, clock: _Clock) -> dict[str, list[float]]:
    """Batches are written without Spark, whose jobs cost the same each time: what may grow is the table and the log.

    Upkeep takes its turns between commits as in a pipeline; its own time is not a commit's.
    """
    engine = kit.engine("many")
    reader = TopicReader(kit.client, "many", lambda: kit.table("many"))
    payload = messages(1024)[0]
    times: dict[str, list[float]] = {name: [] for name in STEPS}
    for number in range(COMMITS):
        times["publish"].append(seconds(lambda: kit.client.append("many", Batch.of_messages([payload]))))
        times["commit"].append(seconds(lambda: engine.run_batch(at_once=True)))
        times["tail"].append(seconds(lambda at=number: list(kit.client.chunks("many", at, at + 1))))
        if not EDGE <= number < COMMITS - EDGE:  # it takes longer than the rest
            times["replay"].append(seconds(lambda at=number: list(reader.read(at, end=at + 1))))
        clock.commits += 1
        if caretaker.run_turn(["topics.many"], lambda: 0.0):
            engine.invalidate()
        if number % 1000 == 999:
            print(f"  … {number + 1:,} commits, the last {shown(times['commit'][-1])}", flush=True)
    return times
