"""Runs the suites and writes their results, with the conditions, into RESULTS.md.

python -m benchmarks              all suites
python -m benchmarks foundation   one of them
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    backup,
    content,
    documents,
    foundation,
    inside,
    replica,
    tail,
    topics_commits,
    topics_log,
    topics_tables,
    upkeep,
)
from benchmarks.measure import Result

SUITES: dict[str, Callable[[], list[Result]]] = {
    "foundation": foundation.run,
    "log": topics_log.run,
    "tables": topics_tables.run,
    "commits": topics_commits.run,
    "upkeep": upkeep.run,
    "content": content.run,
    "inside": inside.run,
    "documents": documents.run,
    "tail": tail.run,
    "backup": backup.run,
    "replica": replica.run,
}
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> None:
    chosen = sys.argv[1:] or list(SUITES)
    for name in chosen:
        print(f"{name}:", flush=True)
        began, before = conditions(), processor_time()
        results = SUITES[name]()
        write(name, f"{began}, {taken_away(before, processor_time())}", results)


def write(name: str, under: str, results: list[Result]) -> None:
    """Replaces this suite's part of RESULTS.md; what is written by hand around it stays."""
    lines = [
        f"<!-- measured: {name} -->",
        under,
        "",
        "| what | measured | against | ratio | target |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {r.what} | {r.measured} | {r.against} | {r.ratio} | {r.target} |" for r in results]
    part = "\n".join([*lines, "<!-- end -->"])
    text = RESULTS.read_text()
    pattern = re.compile(rf"<!-- measured: {name} -->.*?<!-- end -->", re.DOTALL)
    RESULTS.write_text(pattern.sub(lambda _: part, text) if pattern.search(text) else f"{text.rstrip()}\n\n{part}\n")


def conditions() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    load = os.getloadavg()[0]
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {commit.stdout.strip() or 'unknown'}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}, load before {load:.1f}"
    )


def processor_time() -> list[int]:
    """Ticks of all processors by what they did, as the kernel counts them; empty where it does not tell."""
    stat = Path("/proc/stat")
    return [int(ticks) for ticks in stat.read_text().split("\n", 1)[0].split()[1:9]] if stat.exists() else []


def taken_away(before: list[int], after: list[int]) -> str:
    """On a virtual machine: how much of the time that we wanted others had, which no measurement can know of."""
    ticks = [b - a for a, b in zip(before, after, strict=True)]
    idle, stolen = (sum(ticks[3:5]), ticks[7]) if ticks else (0, 0)
    wanted = sum(ticks) - idle
    return f"{stolen / wanted:.0%} of the wanted processor time had other machines" if wanted else "steal unknown"


if __name__ == "__main__":
    main()
