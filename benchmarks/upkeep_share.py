"""A thousand messages a second into a table, and merges into another: the share of the time that upkeep takes.

Everything is as by default, as long as several small files became larger ones, and several of these larger ones still.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.measure import Result
from benchmarks.targets import verdict
from tests.soak_kit import Soak, soaking
from tests.soak_merge import ACCOUNTS
from tests.soak_scale import RATE, TABLES, Scale

SECONDS = 480.0
MOST = 0.15


def run() -> list[Result]:
    scale = Scale(SECONDS, by_default=True)
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder, soaking(Path(folder), scale) as soak:
        soak.run()
        assert not soak.wrong, "\n".join(soak.wrong)
    return results(soak)


def results(soak: Soak) -> list[Result]:
    topic = TABLES[0]
    share, merged = soak.share(topic), soak.share(ACCOUNTS)
    batches = soak.said["batch_seconds"] / SECONDS
    lag, files = soak.samples.tenth("lag seconds", 9, SECONDS), soak.samples.last(f"{topic} files")
    merges = soak.samples.tenth("merge seconds", 9, SECONDS)
    compactions = {table: soak.said["done"][table].get("compact", 0) for table in TABLES}
    return [
        Result(
            f"upkeep of a topic's table at {RATE:,} messages/s for {SECONDS:g} s, default settings",
            f"{share:.1%} of the time",
            f"{compactions[topic]} compactions, {files:g} files in the end; batches {batches:.0%}, lag {lag:.1f} s",
            target=verdict(share <= MOST, f"≤ {MOST:.0%}"),
        ),
        Result(
            "upkeep of a table with a MERGE every 2 s beside it, default settings",
            f"{merged:.1%} of the time",
            f"{compactions[ACCOUNTS]} compactions, {soak.said['conflicts'][ACCOUNTS]:g} more lost against merges; "
            f"{soak.merges} merges, one {merges:.2f} s, {soak.said.get('merge_conflicts', 0)} had to be run anew",
        ),
    ]
