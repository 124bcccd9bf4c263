"""A thousand messages a second into a table, and merges into another: the share of the time that upkeep takes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.measure import Result
from benchmarks.targets import verdict
from tests.soak_kit import RATE, Scale, soaking
from tests.soak_process import ACCOUNTS, TOPIC

SECONDS = 300.0
MOST = 0.15


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder, soaking(Path(folder), Scale(SECONDS)) as soak:
        soak.run()
        assert not soak.wrong, "\n".join(soak.wrong)
    topic = f"topics.{TOPIC}"
    share, merged = soak.share(topic), soak.share(ACCOUNTS)
    batches = (soak.said["batch_seconds"] - soak.before["batch_seconds"]) / SECONDS
    lag = soak.samples.tenth("lag seconds", 9, SECONDS)
    merges = soak.samples.tenth("merge seconds", 9, SECONDS)
    return [
        Result(
            f"upkeep of a topic's table at {RATE:,} messages/s", f"{share:.1%} of the time",
            f"batches {batches:.0%}, lag {lag:.1f} s", target=verdict(share <= MOST, f"≤ {MOST:.0%}"),
        ),
        Result(
            "upkeep of a table with a MERGE every 2 s", f"{merged:.1%} of the time", f"one merge {merges:.2f} s"
        ),
    ]  # fmt: skip
