"""Random schedules of a primary, its replication and syncs: a replica is always a committed version, never older."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.types import LongType

from frazil.errors import FrazilError
from frazil.observe.faultpoints import handled
from frazil.replica import publication, relocation
from frazil.replica.beacon import write_beacon
from tests.replica_sync_kit import Pair, describe, grow, open_pair, sync_in_process
from tests.upkeep_files import Crash, old_ids, replaced, rows

_STEPS = 40


class World:
    """One schedule. `committed` is what the primary was after each commit, by the name of its metadata file."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair, self.random, self.seed = pair, random.Random(seed), seed
        self.committed: dict[str, tuple[int, dict[str, Any]]] = {}
        self.served = -1
        self.remember()

    def remember(self) -> None:
        table = self.pair.table.refresh()
        name = table.metadata_location.rpartition("/")[2]
        self.committed.setdefault(name, (len(self.committed), describe(table)))

    def write(self) -> None:
        grow(self.pair.table.refresh())

    def delete(self) -> None:
        found = rows(self.pair.table)
        if found:
            self.pair.table.refresh().delete(EqualTo("id", self.random.choice(found)))

    def compact(self) -> None:
        if rows(self.pair.table):
            replaced(self.pair.table)

    def evolve(self) -> None:
        with self.pair.table.refresh().update_schema() as schema:
            schema.add_column(f"c{uuid.uuid4().hex[:6]}", LongType())

    def tag(self) -> None:
        snapshot = self.pair.table.refresh().current_snapshot()
        if snapshot is not None:
            self.pair.table.manage_snapshots().create_tag(snapshot.snapshot_id, uuid.uuid4().hex[:6]).commit()

    def expire(self) -> None:
        """Expires all snapshots that no tag holds, and deletes what nothing needs any more."""
        table = self.pair.table.refresh()
        held = {ref.snapshot_id for ref in table.metadata.refs.values()}
        ids = [found for found in old_ids(table) if found not in held]
        if not ids:
            return
        table.maintenance.expire_snapshots().by_ids(ids).commit()
        table.refresh()
        used = {Path(s.manifest_list).name for s in table.metadata.snapshots}
        for snapshot in table.metadata.snapshots:
            for manifest in snapshot.manifests(table.io):
                used.add(Path(manifest.manifest_path).name)
                used |= {Path(e.data_file.file_path).name for e in manifest.fetch_manifest_entry(table.io)}
        for path in self.pair.source.rglob("*"):
            if path.is_file() and not path.name.endswith(".json") and path.name not in used:
                path.unlink()

    def lose(self) -> None:
        """A commit that lost its race: its metadata is there, and was never current."""
        table = self.pair.table.refresh()
        catalog = self.pair.primary.store.catalog
        clone = catalog.register_table(f"ns.x{uuid.uuid4().hex[:8]}", table.metadata_location)
        grow(clone)
        catalog.drop_table(clone.name())
        if self.random.random() < 0.7:
            self.write()
            self.remember()
            self.write()

    def replicate(self) -> None:
        """Some files, in any order, one of them half."""
        new = self.pair.list_new()
        self.random.shuffle(new)
        if self.random.random() < 0.5:
            new.sort(key=lambda name: not name.endswith(".json"))
        chosen = new[: self.random.randint(0, len(new))]
        self.pair.copy(chosen)
        self.pair.copy(new[len(chosen) : len(chosen) + 1], part=True)

    def mirror(self) -> None:
        """All arrives; what the primary has deleted goes only then, or the served version would lose its files."""
        self.pair.copy()
        self.beacon()
        self.sync()
        if self.pair.replica.store.catalog.table_exists("ns.t"):
            name = self.pair.load().properties["frazil.replica.source-metadata"].rpartition("/")[2]
            if name == list(self.committed)[-1]:
                self.pair.mirror()

    def beacon(self) -> None:
        self.pair.landed.parent.mkdir(exist_ok=True)
        self.pair.landed.mkdir(exist_ok=True)
        write_beacon(self.pair.primary, ["ns.t"], str(self.pair.landed))

    def sync(self) -> None:
        self.try_to_sync()

    def crash(self) -> None:
        after = self.random.randint(1, 12)
        seen: list[str] = []

        def strike(step: str) -> None:
            seen.append(step)
            if len(seen) == after:
                raise Crash(step)

        with handled(strike), suppress(Crash):
            self.try_to_sync()

    def try_to_sync(self) -> None:
        try:
            self.pair.sync(witnessed_only=self.random.random() < 0.3)
        except FrazilError as error:
            is_early = "no Iceberg" in error.message or "cannot be read" in error.message
            assert is_early, (self.seed, error.message, error.cause)

    def check(self) -> None:
        """The replica is a committed version, or one that might be: its rows can be read, and it is never older."""
        if not self.pair.replica.store.catalog.table_exists("ns.t"):
            assert self.served == -1, self.seed
            return
        table = self.pair.load()
        name = table.properties["frazil.replica.source-metadata"].rpartition("/")[2]
        found = describe(table)
        if name in self.committed:
            order, expected = self.committed[name]
            assert found == expected, (self.seed, name)
            assert order >= self.served, (self.seed, name)
            self.served = order
        else:
            assert table.properties["frazil.replica.witnessed"] == "false", (self.seed, name)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with open_pair(tmp_path, commits=0) as made:
        yield made


def run(pair: Pair, seed: int) -> None:
    world = World(pair, seed)
    actions = (
        [world.write] * 3 + [world.delete, world.compact, world.evolve, world.tag, world.expire, world.lose]
        + [world.replicate] * 5 + [world.mirror, world.beacon] + [world.sync] * 5 + [world.crash] * 2
    )  # fmt: skip
    for _ in range(_STEPS):
        world.random.choice(actions)()
        world.remember()
        world.check()
    world.write()
    pair.copy()
    world.beacon()
    report = pair.sync()
    assert report.witnessed, seed
    assert pair.sync().action == "unchanged", seed
    pair.require_equal()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3))
def test_a_replica_is_always_a_committed_version(pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relocation, "CHECKPOINT_S", 0.0)
    monkeypatch.setattr(publication, "RETIRE_S", 0.0)
    run(pair, seed)


@pytest.mark.deep
@pytest.mark.long("many random schedules")
@pytest.mark.parametrize("seed", range(100, 110))
def test_further_schedules(pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relocation, "CHECKPOINT_S", 0.0)
    monkeypatch.setattr(publication, "RETIRE_S", 0.0)
    run(pair, seed)


@pytest.mark.deep
@pytest.mark.long("starts a process for each step of a sync")
def test_a_sync_that_is_killed_at_any_step_is_continued(pair: Pair) -> None:
    pair.copy()
    whole = sync_in_process(pair)
    assert whole is not None
    served = describe(pair.load())
    grow(pair.table)
    pair.copy()
    wanted = describe(pair.table)
    for step in dict.fromkeys(step for step in whole["steps"] if step.startswith(("replica.", "tables.publish"))):
        assert sync_in_process(pair, step) is None, step
        now = describe(pair.load())
        assert now in (served, wanted), step
        done = sync_in_process(pair)
        assert done is not None
        assert describe(pair.load()) == wanted, step
        served = wanted
        grow(pair.table)
        pair.copy()
        wanted = describe(pair.table)
