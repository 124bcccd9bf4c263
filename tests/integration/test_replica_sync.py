"""Replicas of tables that other writers made: all engines read in each snapshot what they read at the primary."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frazil.replica.sync import ReplicaTable, SyncReport, run_sync
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.tables.relocation.engine import LocalEngine
from frazil.upkeep.context import UpkeepContext
from tests.relocation_driver import find_mentions
from tests.relocation_tables import Zoo, read_all, species
from tests.restore_kit import folder_of, listing

pytestmark = pytest.mark.spark
#: Position deletes and deletion vectors, in a table's own folder and outside.
FIRST = ("spark_v3", "placed_elsewhere")
DEEP = [name for name in species() if name not in FIRST]
SLOW = sorted(set(species(slow=True)) - set(species()))


@pytest.fixture(scope="module")
def care(zoo: Zoo, lane_settings: Settings) -> Iterator[UpkeepContext]:
    model = lane_settings.model
    alone = replace(lane_settings, model=model.model_copy(update={"catalog": model.catalogs["sql"], "catalogs": {}}))
    chosen = lane_settings.catalog("sql")
    with TableStore(zoo.catalog, chosen, model.network) as store:
        yield UpkeepContext(alone, chosen, store, lambda: zoo.spark, threading.Event())


@pytest.mark.parametrize("name", FIRST)
def test_a_replica_reads_as_the_primary(zoo: Zoo, care: UpkeepContext, name: str, tmp_path: Path) -> None:
    check_replica(zoo, care, name, tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("name", DEEP)
def test_further_replicas_read_as_the_primary(zoo: Zoo, care: UpkeepContext, name: str, tmp_path: Path) -> None:
    check_replica(zoo, care, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_further_kinds_of_deletes_are_replicated(zoo: Zoo, care: UpkeepContext, name: str, tmp_path: Path) -> None:
    check_replica(zoo, care, name, tmp_path)


def check_replica(zoo: Zoo, care: UpkeepContext, name: str, tmp_path: Path) -> None:
    """An older version is served first, as far as its files are still there, then the newest one."""
    table = zoo.table(name)
    originals = {engine: zoo.read_original(engine, name) for engine in table.engines}
    landed = {folder: tmp_path / "landed" / str(number) for number, folder in enumerate(table.folders)}
    for folder, place in landed.items():
        shutil.copytree(folder, place)
    newest = folder_of(table.metadata_location)
    source = next(folder for folder in landed if newest.is_relative_to(folder))
    place = landed[source] / newest.relative_to(source)
    root = place.parent.parent if place.parent.name == "metadata" else place.parent
    order = ReplicaTable(
        str(root),
        (zoo.namespace, f"{name}_replica"),
        str(tmp_path / "warehouse"),
        tuple((str(folder), str(place)) for folder, place in landed.items()),
    )
    hidden = place.rename(tmp_path / place.name)
    before = sync(care, order) if list(place.parent.glob("[!.]*.metadata.json")) else None
    hidden.rename(place)
    present = listing(tmp_path / "landed")
    report = sync(care, order)
    assert report.action in ("created", "updated")
    assert before is None or before.version != report.version
    assert listing(tmp_path / "landed") == present
    relocated = tmp_path / "warehouse" / zoo.namespace / f"{name}_replica" / "relocated"
    assert "empty" in table.features or find_mentions(relocated, str(zoo.home)) == []
    identifier = f"sql.{zoo.namespace}.{name}_replica"
    assert report.metadata_location is not None
    with zoo.moved_away(name):
        for engine, original in originals.items():
            assert read_all(engine, zoo.spark, identifier, report.metadata_location) == original, engine
    assert sync(care, order).action == "unchanged"


def sync(care: UpkeepContext, order: ReplicaTable) -> SyncReport:
    with LocalEngine() as engine:
        return run_sync(care, order, engine)
