"""The embedded catalog under two writers at once: Spark and PyIceberg, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from frazil.catalogs import open_catalog
from frazil.settings import load_settings
from tests.lane import people

pytestmark = pytest.mark.timeout(900)
TABLE = "race.people"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home with a space"


@pytest.fixture
def catalog(home: Path) -> Catalog:
    opened = open_catalog(load_settings(flags={"home": str(home)}, environ={}).catalog())
    opened.create_namespace("race")
    opened.create_table(TABLE, schema=people().schema)
    return opened


def start_writer(engine: str, home: Path, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.writers", engine, str(home), TABLE, str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ids_in(catalog: Catalog) -> list[int]:
    return sorted(catalog.load_table(TABLE).scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("count", [15, pytest.param(200, marks=pytest.mark.soak)])
def test_commits_from_both_sides_and_none_is_lost(home, catalog, count):
    writers = [start_writer("spark", home, 1000, count), start_writer("pyiceberg", home, 0, count)]
    for writer in writers:
        _, errors = writer.communicate(timeout=800)
        assert writer.returncode == 0, errors[-2000:]
    table = catalog.load_table(TABLE)
    assert ids_in(catalog) == [*range(count), *range(1000, 1000 + count)]
    assert len(table.metadata.snapshots) == 2 * count
    ancestors = 0
    snapshot = table.current_snapshot()
    while snapshot is not None:
        ancestors += 1
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
    assert ancestors == 2 * count, "every commit stands on the one before it"


@pytest.mark.parametrize("engine", ["pyiceberg", pytest.param("spark", marks=pytest.mark.slow)])
def test_a_writer_killed_in_the_middle_loses_nothing_that_it_acknowledged(home, catalog, engine):
    """kill -9 of one writer while the other goes on: what was acknowledged stays, and none is doubled."""
    victim = start_writer(engine, home, 0, 10_000)
    other = start_writer("pyiceberg", home, 100_000, 25)
    acknowledged = [int(victim.stdout.readline()) for _ in range(15)]
    victim.send_signal(signal.SIGKILL)
    # Not by `communicate`, which forgets what was read ahead of the last line.
    rest = victim.stdout.read()
    victim.communicate()
    acknowledged += [int(line) for line in rest.rpartition("\n")[0].split() if line.isdigit()]
    _, errors = other.communicate(timeout=300)
    assert other.returncode == 0, errors[-2000:]
    ids = ids_in(catalog)
    assert len(ids) == len(set(ids)), "a row was doubled"
    assert set(acknowledged) <= set(ids), "an acknowledged row was lost"
    assert set(range(100_000, 100_025)) <= set(ids)
    unknown = {i for i in ids if i < 100_000} - set(acknowledged)
    assert unknown <= {max(acknowledged) + 1}, "only the commit that was under way may have landed unacknowledged"


@pytest.mark.deep
def test_eight_processes_may_make_the_embedded_catalog_at_once(tmp_path):
    script = (
        "import sys; from frazil.catalogs import open_catalog; from frazil.settings import load_settings; "
        "c = open_catalog(load_settings(flags={'home': sys.argv[1]}, environ={}).catalog()); c.list_namespaces()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "new")]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
