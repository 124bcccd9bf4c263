"""Constant publishing and merging with default policies: tables stay fast and small, and nobody misses a row.

The short one runs in `make test`; the long one takes SOAK_MINUTES, 10 by default, and 360 in `make soak`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frazil.upkeep.runs.history import History
from tests.soak_judge import excused, grown
from tests.soak_kit import Soak, soaking
from tests.soak_merge import ACCOUNTS
from tests.soak_scale import TABLES, Scale

MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
#: Seconds that the oldest message waits, at the 95th percentile.
LAG_S = 2.0
SHARE = 0.15


def soak(folder: Path, seconds: float) -> Soak:
    """Runs it, and checks what must hold however long it was."""
    with soaking(folder, Scale(seconds)) as run:
        run.run()
        assert not run.wrong, "\n".join(run.wrong)
        rows = History(run.kit.store, run.kit.settings.model.upkeep.history).rows()
    assert run.has_enough, f"{run.published} published, {run.followed} followed, {run.checks} checks"
    assert {row["table"] for row in rows} >= set(TABLES)
    failed = [row for row in rows if row["result"] == "failed"]
    assert not failed, [(row["table"], row["kind"], row["reason"]) for row in failed]
    return run


def print_race(run: Soak) -> None:
    for table in TABLES:
        print(f"  upkeep of {table}: {run.share(table):.1%} of the time, {run.said['done'][table]}")
    lost, won = run.said["conflicts"][ACCOUNTS], run.said.get("merge_conflicts", 0)
    print(f"  {run.merges} merges; upkeep lost against one {lost:g} times, one against upkeep {won} times")


@pytest.mark.deep
@pytest.mark.long("a soak of 45 s")
@pytest.mark.timeout(600)
def test_a_short_soak_of_publishing_and_merging_loses_nothing_and_stays_small(tmp_path: Path) -> None:
    run = soak(tmp_path / "home", 45.0)
    print_race(run)
    for table in TABLES:
        assert run.samples.last(f"{table} snapshots") <= 110
        assert run.samples.last(f"{table} files") + run.samples.last(f"{table} delete files") <= 60


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 900)
def test_a_long_soak_is_as_quick_and_small_at_its_end_as_at_its_beginning(tmp_path: Path) -> None:
    seconds = MINUTES * 60
    run = soak(tmp_path / "home", seconds)
    tenths = run.samples.tenths(seconds)
    print(f"\nsoak of {MINUTES:g} minutes, medians of its tenths:")
    for name, found in tenths.items():
        print(f"  {name:30} {found[9] / found[1] if found[1] else 0:5.2f}×  {'  '.join(f'{v:.4g}' for v in found)}")
    print_race(run)
    too_much = grown(tenths)
    assert not too_much, "\n".join(too_much)
    assert run.share(TABLES[0]) <= SHARE
    lags = sorted(run.samples.values("lag seconds"))
    assert lags[int(len(lags) * 0.95)] <= LAG_S * excused(tenths, "commit seconds")
    assert run.said["conflicts"][ACCOUNTS], "upkeep never lost against a MERGE"
    assert run.said.get("merge_conflicts"), "no MERGE ever lost against upkeep"
