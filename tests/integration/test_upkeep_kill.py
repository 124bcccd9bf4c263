"""Upkeep killed with -9 at its steps: nothing referred to is lost, no row comes or goes, and the next run ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.settings import load_settings
from frazil.upkeep.expiry import lists
from frazil.upkeep.expiry.places import Places
from frazil.upkeep.expiry.verify import verify
from frazil.upkeep.plans.health import examine
from tests.machine import machine_environment, machine_flags
from tests.services import process
from tests.upkeep_files import care_of_settings, make

TABLE = "ns.worn"
_COMMITS = 12
#: After a commit that matters; the soak test takes all steps there are.
STEPS = ("upkeep.expire.commit.after",)


def flags_of(home: Path) -> dict[str, str]:
    return {
        "home": str(home),
        "spark.master": "local[2]",
        "upkeep.policy.min_input_files": "4",
        "upkeep.policy.max_snapshots": "1",
        "upkeep.policy.file_grace_s": "0",
        "upkeep.policy.manifests": "4",
        "upkeep.policy.statistics": "true",
        **machine_flags(),
    }


def run(home: Path, step: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.upkeep_victim", json.dumps(flags_of(home)), TABLE, step],
        env={**process._plain_environment(), **machine_environment()},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def rows_of(home: Path) -> list[tuple[object, ...]]:
    care = care_of_settings(load_settings(flags=flags_of(home), environ={}))
    with care.store:
        table = care.load(TABLE)
        assert verify(care, table).sound
        return sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def worn_out(home: Path) -> list[tuple[object, ...]]:
    care = care_of_settings(load_settings(flags=flags_of(home), environ={}))
    with care.store:
        make(care, TABLE, commits=_COMMITS)
    return rows_of(home)


def killed_then_ended(home: Path, step: str) -> None:
    before = worn_out(home)
    killed = run(home, step)
    assert killed.returncode == -9, killed.stderr
    assert rows_of(home) == before
    # Where the expiry was killed, the next run learns that it has landed, and only the one after that deletes.
    for _ in range(2):
        ended = run(home)
        assert ended.returncode == 0, ended.stderr
        assert rows_of(home) == before
        if not waiting(home):
            break
    assert waiting(home) == []
    care = care_of_settings(load_settings(flags=flags_of(home), environ={}))
    with care.store:
        health = examine(care, TABLE)
    assert (health.files["count"], health.snapshots["count"]) == (1, 1)


def waiting(home: Path) -> list[lists.ExpiredList]:
    """What is still to be deleted. A list without its commit is dropped after an hour."""
    care = care_of_settings(load_settings(flags=flags_of(home), environ={}))
    with care.store:
        table = care.load(TABLE)
        return [expired for expired in lists.waiting(Places(care, table), table) if expired.committed]


@pytest.mark.parametrize("step", STEPS)
def test_upkeep_that_is_killed_loses_nothing_and_is_ended_by_the_next_run(tmp_path: Path, step: str) -> None:
    killed_then_ended(tmp_path / "home", step)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_upkeep_that_is_killed_at_any_step_loses_nothing_and_is_ended_by_the_next_run(tmp_path: Path) -> None:
    worn_out(tmp_path / "whole")
    whole = run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    steps = json.loads(whole.stdout)
    assert len(steps) > 20
    for number, step in enumerate(steps):
        killed_then_ended(tmp_path / str(number), step)
