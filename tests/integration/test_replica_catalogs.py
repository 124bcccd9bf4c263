"""A replica in every kind of catalog, on local disk and on S3: created, brought up to date, guarded, failed over."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from frazil.catalogs import flavor_of
from frazil.errors import ConflictError, UnsupportedError
from frazil.replica.failover import run_failover
from frazil.replica.sync import ReplicaTable, SyncReport, run_sync
from frazil.settings import Settings
from frazil.storage import open_store
from frazil.tables.relocation.engine import LocalEngine
from frazil.upkeep.context import UpkeepContext
from tests.integration.test_backup_catalogs import care_for
from tests.lane import people
from tests.replica_sync_kit import Pair, describe, grow, open_pair
from tests.restore_kit import listing, rows_at
from tests.services.kit import Services

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]


def replicate(pair: Pair, care: UpkeepContext, place: str) -> None:
    """Copies the primary's files, metadata first."""
    store = open_store(place, s3=care.catalog.s3 or care.settings.model.s3, network=care.settings.model.network)
    there = {info.key for info in store.list()}
    for name in sorted(listing(pair.source), key=lambda name: not name.endswith(".json")):
        if name not in there:
            store.put(name, (pair.source / name).read_bytes())


def sync(care: UpkeepContext, order: ReplicaTable, **options: bool) -> SyncReport:
    with LocalEngine() as engine:
        return run_sync(care, order, engine, **options)


@pytest.mark.parametrize("kind", ["sql", "rest", "hive", "rest_on_s3", "glue", "s3tables", "nessie"])
def test_a_replica_in_each_kind_of_catalog(
    lane_settings: Settings, services: Services, tmp_path: Path, kind: str
) -> None:
    with open_pair(tmp_path) as pair, care_for(lane_settings, kind) as care:
        namespace = f"r_{uuid.uuid4().hex[:8]}"
        catalog = care.store.catalog
        catalog.create_namespace(namespace)
        flavor = flavor_of(care.catalog, dict(catalog.properties))
        probe = catalog.create_table((namespace, "probe"), schema=people().schema)
        base = services.seaweedfs.make_bucket("landed") if flavor == "s3tables" else probe.location().rpartition("/")[0]
        place = f"{base}/landed_{namespace}"
        order = ReplicaTable(place, (namespace, "t"), f"{base}/replicas_{namespace}", current_only=flavor == "nessie")
        replicate(pair, care, place)
        if flavor == "nessie":
            with pytest.raises(UnsupportedError, match="Nessie"):
                sync(care, replace(order, current_only=False))
        assert sync(care, order).action == "created"
        check(pair, care, order)
        assert sync(care, order).action == "unchanged"
        grow(pair.table)
        pair.table.delete("id = 2")
        replicate(pair, care, place)
        assert sync(care, order).action == "updated"
        check(pair, care, order)
        assert sync(care, order).action == "unchanged"
        written = care.store.load((namespace, "t"))
        assert written.properties["gc.enabled"] == "false"
        written.append(people(50))
        with pytest.raises(ConflictError, match="another writer committed"):
            sync(care, order)
        assert sync(care, order, discard_replica_writes=True).action == "updated"
        check(pair, care, order)
        grow(pair.table)
        replicate(pair, care, place)
        with LocalEngine() as engine:
            report = run_failover(care, f"{namespace}.t", engine)
        assert report.snapshot_id == pair.table.refresh().metadata.current_snapshot_id
        table = care.store.load((namespace, "t"))
        table.append(people(60))
        assert len(rows_at(table.refresh())) == len(rows_at(pair.table)) + 1


def check(pair: Pair, care: UpkeepContext, order: ReplicaTable) -> None:
    expected = describe(pair.table)
    with pair.without_primary():
        table = care.store.load(order.identifier)
        current = table.metadata.current_snapshot_id
        assert current == expected["current"][0]
        rows = {s.snapshot_id: rows_at(table, s.snapshot_id) for s in table.metadata.snapshots}
    if order.current_only:
        assert rows == {current: expected["rows"][current]}
        return
    assert rows == expected["rows"]
    assert {name: ref.snapshot_id for name, ref in table.metadata.refs.items()} == {
        name: ref["snapshot-id"] for name, ref in expected["refs"].items()
    }
