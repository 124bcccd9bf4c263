"""Constant publishing and merging with default policies: tables stay fast and small, and nobody misses a row.

The short one runs in `make test`; the long one takes SOAK_MINUTES, 10 by default, and 360 in `make soak`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frazil.upkeep.runs.history import History
from tests.soak_kit import RATE, Scale, Soak, soaking
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
    run = soak(tmp_path / "home", 75.0)
    for table in TABLES:
        assert run.samples.last(f"{table} snapshots") <= 110
        assert run.samples.last(f"{table} files") + run.samples.last(f"{table} delete files") <= 60


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 900)
def test_a_long_soak_is_as_quick_and_small_at_its_end_as_at_its_beginning(tmp_path: Path) -> None:
    seconds = MINUTES * 60
    run = soak(tmp_path / "home", seconds)
    grown = []
    print(f"\nsoak of {MINUTES:g} minutes, medians of the second and the last tenth:")
    for name in sorted(run.samples.found):
        second, last = (run.samples.tenth(name, number, seconds) for number in (1, 9))
        print(f"  {name:40} {second:14.3f} {last:14.3f} {last / second if second else 0:6.2f}")
        # One more or less, and a tenth of a second of noise, are no growth.
        slack = 0.1 if "seconds" in name else 2
        if not name.startswith("lag") and last > 1.2 * second + slack * ("bytes" not in name):
            grown.append(f"{name}: {second:.3f}, then {last:.3f}")
    for table in TABLES:
        print(f"  upkeep of {table}: {run.share(table):.1%} of the time, {run.said['conflicts'][table]:g} conflicts")
    assert not grown
    assert run.share(TABLES[0]) <= SHARE
