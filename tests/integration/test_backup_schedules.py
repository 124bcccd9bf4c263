"""Random schedules of every writer: Spark's deletes and updates, Java's equality deletes, upkeep, prunes and crashes.

The oracle is a model of the rows in plain Python. Every listed backup restores to exactly these rows in each snapshot.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from frazil.backup import table_copy
from frazil.backup.create import create_backup
from frazil.backup.format import BackupRecord
from frazil.backup.prune import run_prune
from frazil.backup.repository import Repository
from frazil.backup.restorable import check_restorable
from frazil.backup.retention import RetentionPolicy
from frazil.backup.verify import verify_repository
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from tests.lane import people
from tests.repository_kit import WAIT, age
from tests.restore_kit import moved_away, restore
from tests.rewrite_kit import Bench, delete_equal
from tests.upkeep_files import Crash, folder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
_MERGE_ON_READ = {f"write__{kind}__mode": "merge-on-read" for kind in ("delete", "update", "merge")}
_KEPT = 2
Rows = list[tuple[int, str]]


@dataclass
class World:
    """A table, its repository, and what the table must hold.

    Attributes:
        rows: of the table now.
        truth: rows of each snapshot that was ever committed.
        did: every step so far, for the message of a failure.
    """

    bench: Bench
    table: str
    version: int
    root: Path
    chance: random.Random
    rows: Rows = field(default_factory=list)
    truth: dict[int, Rows] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    next_id: int = 0

    @property
    def name(self) -> str:
        return self.table.split(".", 1)[1]

    def open_repository(self) -> Repository:
        model = self.bench.settings.model
        return Repository.open(str(self.root), s3=model.s3, network=model.network, create=True)

    def snapshots(self) -> set[int]:
        return {s.snapshot_id for s in self.bench.load(self.table).metadata.snapshots}

    def note(self) -> None:
        """Notes what each new snapshot holds. No step commits snapshots that differ in their rows."""
        self.truth |= dict.fromkeys(self.snapshots() - self.truth.keys(), sorted(self.rows))

    def change(self) -> None:
        """One step of some writer."""
        steps = ["insert", "append", "delete", "update", "equality", "compact", "deletes", "manifests", "expire"]
        weights = [3, 0 if self.version == 3 else 2, 3, 2, 2, 1, 1, 1, 2]  # PyIceberg writes no manifests of version 3
        (chosen,) = self.chance.choices(steps, weights)
        self.did.append(chosen)
        getattr(self, f"_{chosen}")()
        self.note()

    def _new_ids(self) -> list[int]:
        first, self.next_id = self.next_id, self.next_id + self.chance.randrange(2, 7)
        ids = list(range(first, self.next_id))
        self.rows += [(number, f"person {number}") for number in ids]
        return ids

    def _insert(self) -> None:
        ids = self._new_ids()
        self.bench.insert(self.table, ids[0], rows=len(ids))

    def _append(self) -> None:
        self.bench.load(self.table).append(people(*self._new_ids()))

    def _some(self) -> list[tuple[int, str]]:
        return self.chance.sample(self.rows, min(len(self.rows), self.chance.randrange(1, 4)))

    def _delete(self) -> None:
        if gone := self._some():
            self.bench.sql(f"DELETE FROM {self.table} WHERE id IN ({', '.join(str(row[0]) for row in gone)})")
            self.rows = [row for row in self.rows if row not in gone]

    def _update(self) -> None:
        if changed := self._some():
            ids, name = {row[0] for row in changed}, f"renamed {len(self.did)}"
            self.bench.sql(f"UPDATE {self.table} SET name = '{name}' WHERE id IN ({', '.join(map(str, ids))})")
            self.rows = [(i, name if i in ids else old) for i, old in self.rows]

    def _equality(self) -> None:
        if gone := {name for _, name in self._some()}:
            self.bench.sql(f"DESCRIBE TABLE {self.table}")  # makes this session the active one of the thread
            delete_equal(self.bench, self.table, *gone)
            self.rows = [row for row in self.rows if row[1] not in gone]

    def _compact(self) -> None:
        self._call("rewrite_data_files", "options => map('rewrite-all', 'true')")

    def _deletes(self) -> None:
        self._call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")

    def _manifests(self) -> None:
        self._call("rewrite_manifests", "use_caching => false")

    def _expire(self) -> None:
        """Expires some snapshots, and deletes their files."""
        metadata = self.bench.load(self.table).metadata
        held = {ref.snapshot_id for ref in metadata.refs.values()}
        old = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in held]
        if old:
            ids = self.chance.sample(old, self.chance.randrange(1, len(old) + 1))
            self._call("expire_snapshots", f"snapshot_ids => array({', '.join(map(str, ids))})")

    def _call(self, procedure: str, arguments: str) -> None:
        catalog = self.bench.catalog
        self.bench.sql(f"CALL {catalog}.system.{procedure}(table => '{self.name}', {arguments})")

    def prune(self) -> list[str]:
        report = run_prune(self.open_repository(), RetentionPolicy(keep_last=_KEPT), prune_wait_s=WAIT)
        self.did.append(f"prune {report.dropped} {report.deleted.blobs}")
        return report.dropped


class Strike:
    """Changes the table or prunes in the middle of a backup, or crashes it.

    Attributes:
        loaded: snapshots of the table when the backup last loaded it.
    """

    def __init__(self, world: World) -> None:
        self.world, self.loaded = world, set[int]()
        chance = world.chance
        self.crash_at = chance.randrange(60) if chance.random() < 0.25 else None
        self.change_at = chance.choice(["backup.create.loaded", "backup.create.planned", "backup.create.pinned", ""])
        self.prunes = chance.random() < 0.3
        self.seen = 0

    def __call__(self, step: str) -> None:
        self.seen += 1
        if self.seen == self.crash_at:
            self.world.did.append(f"crash at {step}")
            raise Crash(step)
        if step == "backup.create.loaded":
            self.loaded = self.world.snapshots()
        if step == self.change_at:
            self.change_at = ""
            self.world.change()
        if step == "backup.create.state.stored" and self.prunes:
            self.prunes = False
            self.world.prune()


def run_schedule(bench: Bench, root: Path, seed: int, version: int, turns: int) -> World:
    """Runs a schedule, and checks all backups that are listed in the end."""
    table = bench.table(version=version, **_MERGE_ON_READ)
    world = World(bench, table, version, root, random.Random(seed))
    listed: dict[str, tuple[set[int], set[int]]] = {}
    world._insert()
    world.note()
    for number in range(turns):
        for _ in range(world.chance.randrange(1, 3)):
            world.change()
        name, strike = f"b{number}", Strike(world)
        repository = world.open_repository()
        with suppress(Crash), handled(strike):
            create_backup(bench.care, repository, [world.name], name=name, engine="local")
        if name in repository.list_names():
            world.did.append(name)
            listed[name] = (strike.loaded, strike.loaded & world.snapshots())
        if world.chance.random() < 0.6:
            age(root, WAIT)
            for dropped in world.prune():
                del listed[dropped]
    repository = world.open_repository()
    # What a prune within a backup has dropped is known from the repository alone.
    assert set(repository.list_names()) <= listed.keys(), world.did
    assert repository.list_names(), world.did
    assert verify_repository(repository, level="checksums").is_sound, world.did
    records = [record for record in repository.list_records() if isinstance(record, BackupRecord)]
    with moved_away_after_restores(world, repository, records) as restored:
        for record, copy in zip(records, restored, strict=True):
            found = read_rows(bench, copy)
            before, still_there = listed[record.name]
            assert still_there <= found.keys() <= before, (seed, record.name, world.did)
            assert found == {i: world.truth[i] for i in found}, (seed, record.name, world.did)
    return world


def moved_away_after_restores(world: World, repository: Repository, records: list[BackupRecord]) -> Any:
    """Restores all backups under other names; the original is away while they are read."""
    for number, record in enumerate(records):
        assert check_restorable(repository, record, record.tables[0]).problems == (), world.did
        restore(world.bench.care, repository, record, f"{world.name}_r{number}")
    return Away(world, [f"{world.table}_r{number}" for number in range(len(records))])


@dataclass
class Away:
    world: World
    restored: list[str]

    def __enter__(self) -> list[str]:
        self._moved = moved_away(folder(self.world.bench.load(self.world.table)))
        self._moved.__enter__()
        return self.restored

    def __exit__(self, *error: Any) -> None:
        self._moved.__exit__(*error)


def read_rows(bench: Bench, table: str) -> dict[int, Rows]:
    """The rows of every snapshot, read by Spark in one query."""
    ids = [s.snapshot_id for s in bench.load(table).metadata.snapshots]
    found: dict[int, Rows] = {number: [] for number in ids}
    queries = [f"SELECT {number} AS s, id, name FROM {table} VERSION AS OF {number}" for number in ids]
    for snapshot, row_id, name in bench.sql(" UNION ALL ".join(queries)):
        found[snapshot].append((row_id, name))
    return {number: sorted(rows) for number, rows in found.items()}


@pytest.fixture(scope="module")
def bench(lane_settings: Settings, spark: SparkSession) -> Bench:
    return Bench(lane_settings, "sql", spark)


DEEP = [(1, 2), (2, 3), (3, 2), (4, 3)]


@pytest.mark.deep
@pytest.mark.parametrize(("seed", "version"), DEEP)
def test_backups_beside_all_writers_restore_to_what_the_table_was(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, version: int
) -> None:
    monkeypatch.setattr(table_copy, "_NOTE_S", 0.0)
    world = run_schedule(bench, tmp_path / "repository", seed, version, turns=8)
    assert {"delete", "update", "equality", "expire"} <= set(world.did)  # else the seed shows little


@pytest.mark.slow
@pytest.mark.long("thirty backups of a table, each after some commits of Spark")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(100, 106))
def test_long_schedules_beside_all_writers(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, version: int
) -> None:
    monkeypatch.setattr(table_copy, "_NOTE_S", 0.0)
    run_schedule(bench, tmp_path / "repository", seed, version, turns=30)
