"""Creates that are killed or meet a full disk leave no backup behind, and the next one goes on from what was copied."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from frazil.backup import table_copy
from frazil.backup.create import create_backup
from frazil.catalogs import local_path
from frazil.errors import UnavailableError
from tests.backup_create_kit import FILES, Bench, Reached, blobs_in, expected, held, open_bench
from tests.lane import people
from tests.services import process
from tests.small_disk import small_disk
from tests.upkeep_files import Crash, crashing_at, make, replaced, rows

#: Where a create is killed, and how often it has reached the step by then.
KILLS = ((FILES, 4), ("backup.create.record.before", 1))
DEEP_KILLS = (
    ("backup.create.loaded", 1), ("backup.create.list.stored", 3), ("backup.create.planned", 1),
    ("backup.create.pinned", 1), ("backup.create.manifest.stored", 3), ("backup.create.file.before", 1), (FILES, 8),
    ("backup.create.progress.saved", 3), ("backup.create.state.stored", 1), ("backup.create.flushed", 1),
    ("backup.create.record.after", 1),
)  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with open_bench(tmp_path) as made:
        yield made


def create_elsewhere(bench: Bench, step: str, nth: int = 1) -> subprocess.CompletedProcess[str]:
    """A create in its own process, which is killed at a step."""
    order = {
        "flags": {"home": str(bench.care.settings.model.home)}, "root": bench.repository.root, "tables": ["ns.t"],
        "name": "nightly", "step": step, "nth": nth,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "tests.backup_create_kit", json.dumps(order)],
        env=process._plain_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("step", "nth"), [*KILLS, *(pytest.param(*kill, marks=pytest.mark.deep) for kill in DEEP_KILLS)]
)
def test_a_killed_create_leaves_no_backup_and_the_next_one_copies_the_rest(bench: Bench, step: str, nth: int) -> None:
    table = make(bench.care, commits=8)
    killed = create_elsewhere(bench, step, nth)
    assert killed.returncode == -9, (killed.stdout, killed.stderr)
    is_done = step == "backup.create.record.after"
    assert bench.records == (["nightly"] if is_done else [])
    copied = len(blobs_in(bench.repository))
    if step == FILES:
        assert copied >= nth - 1
    if is_done:
        assert held(bench.repository, bench.repository.read_record("nightly").tables[0]).files
    (found,) = bench.backup(name=None if is_done else "nightly").tables
    assert held(bench.repository, found) == expected(bench.care)
    assert found.refs == ("main",)
    assert len(blobs_in(bench.repository)) == 8
    assert rows(table) == list(range(1, 9))


def test_every_step_survives_a_crash(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps one after the other, in this process; a table that is backed up again and again, and grows."""
    monkeypatch.setattr(table_copy, "_NOTE_S", 0.0)
    make(bench.care, commits=2)
    struck: set[str] = set()
    for number in range(0, 400, 3):
        try:
            with crashing_at(number) as seen:
                make_backup(bench)
        except Crash:
            struck.add(seen[number])
            records = bench.repository.list_records()
            if seen[number] not in ("backup.after_record", "backup.create.record.after"):
                assert len(records) == 0
            else:
                break
        else:
            break
    assert len(struck) > 5
    (found,) = bench.backup().tables
    assert held(bench.repository, found) == expected(bench.care)


def make_backup(bench: Bench) -> None:
    create_backup(bench.care, bench.repository, ["ns.t"], engine="local")


def test_a_full_disk_fails_the_backup_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with small_disk("2m") as disk, open_bench(tmp_path, root=str(disk / "repository")) as bench:
        table = make(bench.care, commits=6)
        filler = disk / "filler"
        with filler.open("wb") as file:
            room = os.statvfs(disk)
            os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - 32 * 1024)
        with pytest.raises(UnavailableError, match=r"no space left|disk is full"):
            bench.backup(name="one")
        assert bench.records == []
        filler.unlink()
        (found,) = bench.backup(name="one").tables
        assert held(bench.repository, found) == expected(bench.care)
        assert set(table.refresh().metadata.refs) == {"main"}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(2, 12))])
def test_random_schedules_keep_every_listed_backup_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Writes, deletes, compaction, expiry and crashes between and during backups: each record is what the table was."""
    monkeypatch.setattr(table_copy, "_NOTE_S", 0.0)
    chance = random.Random(seed)
    make(bench.care, commits=2)
    truth: dict[str, Reached] = {}

    for number in range(14):
        change(bench, chance)
        strike = Strike(bench, chance)
        name = f"b{number}"
        with suppress(Crash):
            bench.backup(name=name, hook=strike)
        if name in bench.records:
            truth[name] = strike.was[-1]
    assert truth
    assert set(bench.records) == set(truth)
    for name, was in truth.items():
        (found,) = bench.repository.read_record(name).tables
        got = held(bench.repository, found)
        # What was expired in the course is left out, and nothing else.
        assert got.files.items() <= was.files.items()
        assert got.manifest_lists.items() <= was.manifest_lists.items()
        head = found.current_snapshot_id
        assert head is not None


class Strike:
    """Changes the table in the middle of a backup, or crashes it.

    Attributes:
        was: the table each time that the backup has loaded it.
    """

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self.bench, self.chance = bench, chance
        self.was: list[Reached] = []
        self.steps = chance.randrange(80) if chance.random() < 0.4 else 10_000

    def __call__(self, step: str, _: int) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise Crash(step)
        if step == "backup.create.loaded":
            self.was.append(expected(self.bench.care))
        elif step == "backup.create.planned" and self.chance.random() < 0.4:
            change(self.bench, self.chance)


def change(bench: Bench, chance: random.Random) -> None:
    table = bench.care.load("ns.t")
    match chance.choice(["append", "append", "delete", "compact", "expire"]):
        case "append":
            table.append(people(*chance.sample(range(10_000), 3)))
        case "delete":
            table.delete(f"id < {chance.randrange(10_000)}")
        case "compact":
            replaced(table)
        case "expire":
            expire(bench, chance)


def expire(bench: Bench, chance: random.Random) -> None:
    """Expires some snapshots, and deletes what only they had."""
    table = bench.care.load("ns.t")
    head = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in head]
    if not old:
        return
    before = expected(bench.care)
    table.maintenance.expire_snapshots().by_ids(chance.sample(old, chance.randrange(1, len(old) + 1))).commit()
    after = expected(bench.care)
    for kind in ("manifest_lists", "manifests", "files"):
        for uri in getattr(before, kind).keys() - getattr(after, kind).keys():
            Path(local_path(uri) or "/nowhere").unlink(missing_ok=True)
