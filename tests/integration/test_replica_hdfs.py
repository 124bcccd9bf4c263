"""A replica whose storage was copied to HDFS, in both modes, with its metadata there or on local disk."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from frazil.errors import ConflictError, NotFoundError, UnsupportedError
from frazil.replica.data_files import DataFileTable
from frazil.replica.data_plan import plan_data_sync
from frazil.replica.data_sync import DataSyncReport, run_data_sync
from frazil.replica.failover import run_failover
from frazil.replica.verify import verify_replica
from frazil.settings import NetworkSettings, S3Settings, load_settings
from frazil.storage import ObjectStore, open_store
from frazil.tables.hadoop import provide_hadoop
from frazil.tables.relocation.engine import LocalEngine
from frazil.upkeep.context import UpkeepContext
from tests.lane import people
from tests.replica_sync_kit import Pair, grow, listing, open_pair, rows_at
from tests.services.kit import Services
from tests.upkeep_files import care_of_settings
from tests.upkeep_s3 import show

pytestmark = [pytest.mark.deep, pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture
def place(services: Services, spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A folder on HDFS."""
    with provide_hadoop(lambda: spark):
        yield f"{services.hdfs.url}/{tmp_path.name}"


@pytest.fixture
def care(spark: SparkSession, tmp_path: Path) -> Iterator[UpkeepContext]:
    settings = load_settings(flags={"home": str(tmp_path / "on-hdfs")}, environ={})
    session = spark.newSession()  # in which the catalog of each test has the same name
    found = replace(care_of_settings(settings), spark=lambda: session)
    show(session, found.catalog)
    with found.store:
        yield found


@pytest.mark.long("starts a mini cluster of HDFS")
@pytest.mark.parametrize("has_remote_metadata", [True, False], ids=["hdfs", "local"])
def test_a_copy_on_hdfs_becomes_a_replica(
    place: str, care: UpkeepContext, tmp_path: Path, has_remote_metadata: bool
) -> None:
    with open_pair(tmp_path) as pair:
        pair.replica.store.close()
        pair.replica = care
        warehouse = f"{place}/replica" if has_remote_metadata else pair.order.warehouse
        pair.order = replace(pair.order, replicated_path=f"{place}/landed", warehouse=warehouse)
        landed = open_at(f"{place}/landed")

        def check() -> None:
            pair.require_equal()  # read by PyIceberg
            rows = pair.table.scan().to_arrow().to_pylist()
            expected = sorted((row["id"], row["name"]) for row in rows)
            found = care.spark().sql(f"SELECT id, name FROM {care.catalog.name}.ns.t").collect()
            assert sorted(tuple(row) for row in found) == expected

        copy(pair, landed, metadata_only=True)
        first = pair.sync()
        assert first.version == 0  # without rows
        assert first.missing
        copy(pair, landed)
        assert pair.sync().action == "updated"
        check()
        assert pair.sync().action == "unchanged"
        pair.table.delete("id = 2")
        grow(pair.table)
        copy(pair, landed)
        present = {info.key for info in landed.list()}
        report = pair.sync()
        assert (report.action, report.missing) == ("updated", ())
        assert {info.key for info in landed.list()} == present
        check()
        assert verify_replica(care, "ns.t").is_sound
        with LocalEngine() as engine:
            run_failover(care, "ns.t", engine)
        table = pair.load()
        table.append(people(60))
        assert len(rows_at(table.refresh())) == len(rows_at(pair.table)) + 1


@pytest.mark.parametrize("has_remote_metadata", [True, False], ids=["hdfs", "local"])
def test_bare_parquet_files_on_hdfs_become_a_replica(
    place: str, care: UpkeepContext, tmp_path: Path, has_remote_metadata: bool
) -> None:
    landed = open_at(f"{place}/landed")
    warehouse = f"{place}/replica" if has_remote_metadata else str(tmp_path / "warehouse")
    table = DataFileTable(f"{place}/landed", ("ns", "t"), warehouse)
    landed.put("day=1/a.parquet", parquet(1, 2))
    landed.put("day=2/c.parquet._COPYING_", b"half")
    assert sync_files(care, table).action == "created"
    assert sync_files(care, table).action == "unchanged"
    landed.put("day=2/b.parquet", parquet(3))
    assert sync_files(care, table).action == "updated"
    expected = [(1, 1), (2, 1), (3, 2)]
    found = care.load("ns.t").scan().to_arrow()
    assert sorted(zip(found["id"].to_pylist(), found["day"].to_pylist(), strict=True)) == expected
    rows = care.spark().sql(f"SELECT id, day FROM {care.catalog.name}.ns.t").collect()
    assert sorted(tuple(row) for row in rows) == expected
    assert verify_replica(care, "ns.t").is_sound


@pytest.mark.long("commands in processes of their own, each with a JVM")
def test_the_commands_serve_a_table_of_hdfs_from_a_copy_on_hdfs(
    place: str, care: UpkeepContext, tmp_path: Path
) -> None:
    primary, copied = f"{place}/prod", f"{place}/dr"
    name = f"{care.catalog.name}.ns.orders"
    sql = care.spark().sql
    sql(f"CREATE NAMESPACE {care.catalog.name}.ns")
    sql(
        f"CREATE TABLE {name} (id BIGINT, name STRING) USING iceberg LOCATION '{primary}/ns/orders' "
        "TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
    )
    sql(f"INSERT INTO {name} SELECT /*+ REPARTITION(1) */ id, concat('order ', id) FROM range(5)")
    sql(f"DELETE FROM {name} WHERE id = 3")  # position deletes, which are rewritten for the replica
    mirror(primary, copied)
    command = ["sync", "ns.orders", "--replicated-path", copied, "--warehouse", f"{place}/warehouse"]
    assert run_command(tmp_path, *command) == "created"
    assert run_command(tmp_path, *command) == "unchanged"
    sql(f"INSERT INTO {name} VALUES (9, 'order 9')")
    mirror(primary, copied)
    assert run_command(tmp_path, *command) == "updated"
    with care_of_settings(load_settings(flags={"home": str(tmp_path / "home")}, environ={})).store as store:
        table = store.load("ns.orders")
        assert table.location() == f"{place}/warehouse/ns/orders"
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 4, 9]


def mirror(source: str, target: str) -> None:
    """Copies as DistCp does."""
    read, written = open_at(source), open_at(target)
    for info in read.list():
        written.put(info.key, read.get(info.key))


def run_command(folder: Path, *arguments: str) -> str:
    """Returns the action that `frazil replica` reports."""
    command = [
        sys.executable,
        "-m",
        "frazil",
        "replica",
        *arguments,
        "--set",
        f"home={folder}/home",
        "--output",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    action: str = json.loads(done.stdout)["action"]
    return action


def test_a_store_on_hdfs_keeps_what_stores_promise(place: str) -> None:
    store = open_at(place)
    store.put("a/b c/ü%20", b"0123456789")
    info = store.head("a/b c/ü%20")
    assert (info.key, info.size) == ("a/b c/ü%20", 10)
    assert list(store.list("a")) == [info]
    assert b"".join(store.get_stream("a/b c/ü%20", start=7)) == b"789"
    assert store.get_range("a/b c/ü%20", 8, 100) == b"89"
    store.put_if_absent("new", b"1")
    with pytest.raises(ConflictError):
        store.put_if_absent("new", b"2")
    with pytest.raises(UnsupportedError):
        store.put_if_match("new", b"2", store.head("new").etag)
    store.put("new", b"3")
    assert store.get("new") == b"3"
    store.delete("new", "new")
    with pytest.raises(NotFoundError):
        store.get("new")


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
