"""Long loops; `make soak` runs them, and RESULTS.md keeps their last outcome."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.catalogs import open_catalog
from frazil.settings import load_settings
from tests.lane import people

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
TABLE = "soak.people"
ROUNDS = 20


def test_twenty_rounds_of_kill_9_on_the_embedded_catalog_lose_and_double_nothing(tmp_path: Path):
    """Each round starts a writer of either engine and kills it after some commits; what was acknowledged must stay."""
    home = tmp_path / "home"
    catalog = open_catalog(load_settings(flags={"home": str(home)}, environ={}).catalog())
    catalog.create_namespace("soak")
    catalog.create_table(TABLE, schema=people().schema)
    chance = random.Random(20261115)
    acknowledged: set[int] = set()
    under_way: set[int] = set()
    for number in range(ROUNDS):
        engine = chance.choice(["pyiceberg", "spark"])
        first = number * 100_000
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.writers", engine, str(home), TABLE, str(first), "100000"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        seen = [int(writer.stdout.readline()) for _ in range(chance.randint(1, 20))]
        writer.send_signal(signal.SIGKILL)
        # Not by `communicate`, which forgets what was read ahead of the last line.
        rest = writer.stdout.read()
        writer.communicate()
        seen += [int(line) for line in rest.rpartition("\n")[0].split()]
        acknowledged |= set(seen)
        under_way.add(max(seen) + 1)
        ids = catalog.load_table(TABLE).scan().to_arrow()["id"].to_pylist()
        assert len(ids) == len(set(ids)), f"round {number}: a row was doubled"
        assert acknowledged <= set(ids), f"round {number}: an acknowledged row was lost"
        assert set(ids) - acknowledged <= under_way, f"round {number}: a row appeared that nobody wrote"
