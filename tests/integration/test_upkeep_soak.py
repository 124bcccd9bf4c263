"""Constant publishing and merging with default policies: tables stay fast and small, and nobody misses a row.

The short one runs in `make test`; the long one takes SOAK_MINUTES, 10 by default, and 360 in `make soak`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frazil.upkeep.runs.history import History
from tests.soak_kit import RATE, YARDSTICK, Scale, Soak, soaking
from tests.soak_process import ACCOUNTS, TOPIC

MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
SHARE = 0.15
TABLES = (f"topics.{TOPIC}", ACCOUNTS)


def soak(folder: Path, seconds: float) -> Soak:
    """Runs it, and checks what must hold however long it was."""
    with soaking(folder, Scale(seconds)) as run:
        run.run()
        assert not run.wrong, "\n".join(run.wrong)
        rows = History(run.kit.store, run.kit.settings.model.upkeep.history).rows()
    assert run.published > 0.8 * seconds * RATE, "the log kept up"
    assert run.followed > run.published - 20 * RATE
    assert min(run.replays, run.topic_reads, run.merge_reads, run.checks) >= 3
    assert {row["table"] for row in rows} >= set(TABLES)
    assert not [row for row in rows if row["result"] == "failed"]
    return run


@pytest.mark.timeout(420)
def test_a_short_soak_of_publishing_and_merging_loses_nothing_and_stays_small(tmp_path: Path) -> None:
    run = soak(tmp_path / "home", 45.0)
    for table in TABLES:
        assert run.samples.last(f"{table} snapshots") <= 110
        assert run.samples.last(f"{table} files") + run.samples.last(f"{table} delete files") <= 60


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 900)
def test_a_long_soak_is_as_quick_and_small_at_its_end_as_at_its_beginning(tmp_path: Path) -> None:
    seconds = MINUTES * 60
    run = soak(tmp_path / "home", seconds)
    tenths = {name: [run.samples.tenth(name, i, seconds) for i in range(10)] for name in sorted(run.samples.found)}
    print(f"\nsoak of {MINUTES:g} minutes, medians of its tenths:")
    for name, found in tenths.items():
        print(f"  {name:30} {found[9] / found[1] if found[1] else 0:5.2f}×  {'  '.join(f'{v:.4g}' for v in found)}")
    for table in TABLES:
        print(f"  upkeep of {table}: {run.share(table):.1%} of the time, {run.said['conflicts'][table]:g} conflicts")
    # A machine that is busier at the end makes everything slower, also what is always the same.
    busier = max(1.0, tenths[YARDSTICK][9] / tenths[YARDSTICK][1])
    grown = []
    for name, found in tenths.items():
        if name in (YARDSTICK, "lag seconds"):
            continue
        most = 1.2 * found[1] * (busier if name.endswith("seconds") else 1.0)
        if found[9] > most + (1 if name.endswith(("files", "snapshots")) else 0):
            grown.append(f"{name}: {found[1]:.4g}, then {found[9]:.4g}")
    assert not grown
    assert run.share(TABLES[0]) <= SHARE
