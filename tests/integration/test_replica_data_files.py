"""Data-file mode with files that Spark writes, footers that its tasks read, and a bucket as the replicated folder."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from frazil.replica.data_files import DataFileTable, DataSyncReport, plan_data_sync, run_data_sync
from frazil.settings import Settings
from frazil.spark.hadoop import HadoopFiles
from frazil.storage import open_store
from frazil.tables.relocation.engine import LocalEngine, SparkEngine
from frazil.upkeep.context import UpkeepContext
from tests.rewrite_kit import Bench
from tests.services.kit import Services
from tests.upkeep_s3 import care_on


@pytest.fixture(scope="module")
def lane(lane_settings: Settings, spark: SparkSession) -> Bench:
    return Bench(lane_settings, lane_settings.catalog().name, spark)


@pytest.mark.long("Spark writes, registers, reads and compacts")
@pytest.mark.deep
@pytest.mark.spark
def test_what_spark_writes_spark_registers_reads_and_compacts(lane: Bench, tmp_path: Path) -> None:
    landed = tmp_path / "landed"
    frame = lane.spark.range(0, 60, 1, 3).selectExpr(
        "id", "concat('name ', id) AS name", "CAST(id % 3 AS INT) AS part", "CAST(id AS DECIMAL(12, 2)) AS price",
        "timestamp_seconds(1767225600 + id) AS at", "array(id, id + 1) AS list", "named_struct('x', id) AS s",
        "concat('a/', id % 2, ' ü') AS city",
    )  # fmt: skip
    frame.write.partitionBy("part", "city").parquet(str(landed))
    config = DataFileTable(str(landed), (lane.namespace, f"d_{uuid.uuid4().hex[:8]}"), str(tmp_path / "warehouse"))
    name = f"{lane.catalog}.{config.name}"

    def sync() -> DataSyncReport:
        engine = SparkEngine(lambda: lane.spark, threading.Event())
        return run_data_sync(lane.care, plan_data_sync(lane.care, config), engine)

    def check() -> None:
        columns = "id, name, part, price, list, s, city"
        lane.sql(f"REFRESH TABLE {name}")
        expected = lane.sql(f"SELECT {columns} FROM parquet.`{landed}` ORDER BY id, name")
        assert lane.sql(f"SELECT {columns} FROM {name} ORDER BY id, name") == expected
        # The zone of an INT96 is not known, so that the table shows its UTC time without one.
        times = lane.sql(f"SELECT unix_seconds(at) FROM parquet.`{landed}` ORDER BY 1")
        assert lane.sql(f"SELECT unix_seconds(CAST(at AS TIMESTAMP)) FROM {name} ORDER BY 1") == times
        found = lane.care.load(config.name).scan().to_arrow()
        assert sorted(found["id"].to_pylist()) == sorted(row[0] for row in expected)
        assert len(list(lane.care.load(config.name).scan(row_filter="part = 1 and city = 'a/1 ü'").plan_files())) <= 5

    assert sync().action == "created"
    check()
    # As footers are read where only the JVM can: on HDFS.
    some = next(landed.rglob("*.parquet"))
    read = HadoopFiles(lambda: lane.spark).read_range
    for start, length in ((0, 4), (5, 40), (some.stat().st_size - 8, 100), (some.stat().st_size, 1)):
        assert read(f"file://{some}", start, length) == some.read_bytes()[start : start + length]
    frame.selectExpr("*", "'new' AS more").where("id < 10").write.mode("append").partitionBy("part", "city").parquet(
        str(landed)
    )
    assert sync().columns_added == ("more",)
    check()
    before = lane.sql(f"SELECT count(*) FROM {name}.files")[0][0]
    options = f"table => '{config.name}', options => map('rewrite-all', 'true')"
    lane.sql(f"CALL {lane.catalog}.system.rewrite_data_files({options})")
    assert lane.sql(f"SELECT count(*) FROM {name}.files")[0][0] < before
    assert sync().action == "unchanged"
    frame.where("id < 5").write.mode("append").partitionBy("part", "city").parquet(str(landed))
    assert sync().action == "updated"
    check()


def sync_on(care: UpkeepContext, root: str) -> DataSyncReport:
    config = DataFileTable(root, ("ns", "t"), f"{care.catalog.warehouse}/replica", prune_missing=True)
    with LocalEngine() as engine:
        return run_data_sync(care, plan_data_sync(care, config), engine)


def test_a_bucket_becomes_a_table(services: Services, tmp_path: Path) -> None:
    with care_on(services, tmp_path / "home") as care:
        root = f"{care.catalog.warehouse}-landed"
        model = care.settings.model
        store = open_store(root, s3=care.catalog.s3 or model.s3, network=model.network)

        def put(key: str, start: int, rows: int, padding: int = 0) -> None:
            sink = pa.BufferOutputStream()
            columns = {"id": pa.array(range(start, start + rows), pa.int64())}
            columns |= {f"c{i}": pa.array([float(i)] * rows) for i in range(padding)}
            pq.write_table(pa.table(columns), sink)
            store.put(key, sink.getvalue().to_pybytes())

        put("day=2026-03-01/a b.parquet", 0, 10)
        put("day=2026-03-02/wide.parquet", 10, 10, padding=800)  # its footer is larger than the first read
        put("day=2026-03-02/_SUCCESS", 0, 1)
        report = sync_on(care, root)
        assert (report.action, report.files_new, report.rows) == ("created", 2, 20)
        store.delete("day=2026-03-01/a b.parquet")
        put("day=2026-03-03/c.parquet", 20, 10)
        report = sync_on(care, root)
        assert (report.files_new, len(report.removed), report.files) == (1, 1, 2)
        found = care.load("ns.t").scan(selected_fields=("id", "day")).to_arrow()
        assert sorted(found["id"].to_pylist()) == list(range(10, 30))
        assert {str(day) for day in found["day"].to_pylist()} == {"2026-03-02", "2026-03-03"}
        assert sync_on(care, root).action == "unchanged"
