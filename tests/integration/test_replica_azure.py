"""A replica whose storage was copied to Azure, in both modes, with its metadata in Azure or on local disk."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.replica.data_files import DataFileTable
from frazil.replica.data_plan import plan_data_sync
from frazil.replica.data_sync import DataSyncReport, run_data_sync
from frazil.replica.failover import run_failover
from frazil.replica.verify import verify_replica
from frazil.settings import NetworkSettings, S3Settings
from frazil.storage import ObjectStore, open_store
from frazil.tables.relocation.engine import LocalEngine
from frazil.upkeep.context import UpkeepContext
from tests.lane import people
from tests.replica_sync_kit import Pair, grow, listing, open_pair, rows_at
from tests.services.kit import Services
from tests.upkeep_files import care_of

pytestmark = [pytest.mark.deep, pytest.mark.timeout(300)]


@pytest.fixture
def place(services: Services, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in a container."""
    for name, value in services.azurite.environment.items():
        monkeypatch.setenv(name, value)
    return f"{services.azurite.make_container()}/copies"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with open_pair(tmp_path) as found:
        yield found


@pytest.mark.parametrize("has_remote_metadata", [True, False], ids=["azure", "local"])
def test_a_copy_in_azure_becomes_a_replica(pair: Pair, place: str, has_remote_metadata: bool) -> None:
    warehouse = f"{place}/replica" if has_remote_metadata else pair.order.warehouse
    pair.order = replace(pair.order, replicated_path=f"{place}/landed", warehouse=warehouse)
    landed = open_at(f"{place}/landed")
    copy(pair, landed, metadata_only=True)
    first = pair.sync()
    assert first.version == 0  # without rows
    assert first.missing
    copy(pair, landed)
    assert pair.sync().action == "updated"
    pair.require_equal()
    assert pair.sync().action == "unchanged"
    pair.table.delete("id = 2")
    grow(pair.table)
    copy(pair, landed)
    present = {info.key for info in landed.list()}
    report = pair.sync()
    assert (report.action, report.missing) == ("updated", ())
    assert {info.key for info in landed.list()} == present
    pair.require_equal()
    assert verify_replica(pair.replica, "ns.t").is_sound
    with LocalEngine() as engine:
        run_failover(pair.replica, "ns.t", engine)
    table = pair.load()
    table.append(people(60))
    assert len(rows_at(table.refresh())) == len(rows_at(pair.table)) + 1


def test_bare_parquet_files_in_azure_become_a_replica(place: str, tmp_path: Path) -> None:
    care, landed = care_of(tmp_path / "replica"), open_at(f"{place}/landed")
    table = DataFileTable(f"{place}/landed", ("ns", "t"), f"{place}/replica")
    with care.store:
        landed.put("day=1/a.parquet", parquet(1, 2))
        assert sync_files(care, table).action == "created"
        assert sync_files(care, table).action == "unchanged"
        landed.put("day=2/b.parquet", parquet(3))
        assert sync_files(care, table).action == "updated"
        found = care.load("ns.t").scan().to_arrow()
        assert sorted(zip(found["id"].to_pylist(), found["day"].to_pylist(), strict=True)) == [(1, 1), (2, 1), (3, 2)]
        assert verify_replica(care, "ns.t").is_sound


def open_at(place: str) -> ObjectStore:
    return open_store(place, s3=S3Settings(), network=NetworkSettings())


def copy(pair: Pair, landed: ObjectStore, *, metadata_only: bool = False) -> None:
    there = {info.key for info in landed.list()}
    for name in listing(pair.source):
        if name not in there and (name.endswith(".json") or not metadata_only):
            landed.put(name, (pair.source / name).read_bytes())


def sync_files(care: UpkeepContext, table: DataFileTable) -> DataSyncReport:
    with LocalEngine() as engine:
        return run_data_sync(care, plan_data_sync(care, table), engine)


def parquet(*ids: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), sink)
    return sink.getvalue()
