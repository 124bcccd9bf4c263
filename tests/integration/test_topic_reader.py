"""A follower on a real log and a real table, while Spark compacts, expires and deletes."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.log import Batch, Log
from frazil.settings import Settings
from frazil.settings.model import LogSettings
from frazil.topics.floor import table_floor
from frazil.topics.layout import ARCHIVE
from frazil.topics.reading.table_plan import plan_table
from tests.topic_kit import TopicTable

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def log(tmp_path: Path, lane_settings: Settings) -> Iterator[Log]:
    with Log.open(tmp_path / "log", LogSettings(max_file_size=16_384), floor=table_floor(lane_settings)) as opened:
        yield opened


@pytest.fixture
def table(log: Log, lane_settings: Settings) -> TopicTable:
    topic = f"followed_{uuid.uuid4().hex[:8]}"
    log.create_topic(topic, storage="iceberg")
    log.configure(topic, {"sinks": [ARCHIVE]})
    return TopicTable(log, topic, lane_settings)


def publish(table: TopicTable, batches: int, size: int = 10) -> None:
    for _ in range(batches):
        table.log.append(table.topic, Batch.of_messages([b"x" * 200] * size))


def sink(table: TopicTable) -> None:
    table.sink()
    table.log.report(table.topic, ARCHIVE, table.position)
    table.log.retain(table.topic, age_s=0.0)


def offsets(tables) -> list[int]:
    return [offset for part in tables for offset in part.column("offset").to_pylist()]


def compact(spark, table: TopicTable, sort: str = "offset") -> None:
    spark.sql(
        f"CALL frazil.system.rewrite_data_files(table => '{table.name}', strategy => 'sort', sort_order => '{sort}', "
        "options => map('rewrite-all', 'true'))"
    )


def expire(spark, table: TopicTable) -> None:
    now = spark.sql("SELECT current_timestamp()").collect()[0][0]
    arguments = f"table => '{table.name}', older_than => TIMESTAMP '{now}', retain_last => 1"
    spark.sql(f"CALL frazil.system.expire_snapshots({arguments})")


class Follower(threading.Thread):
    """Reads from the beginning and goes on; slowly, so that files and segments vanish under it."""

    def __init__(self, table: TopicTable, upto: int) -> None:
        super().__init__(daemon=True)
        self.table, self.upto = table, upto
        self.seen: list[int] = []
        self.error: Exception | None = None
        self.stop = threading.Event()

    def run(self) -> None:
        try:
            for part in self.table.reader().read(0, follow=True, stop=self.stop, columns=["offset", "payload"]):
                self.seen += part.column("offset").to_pylist()
                if self.seen[-1] >= self.upto - 1:
                    return
                self.stop.wait(0.02)
        except Exception as error:  # noqa: BLE001 - the test shows it
            self.error = error


def test_a_follower_misses_and_doubles_nothing_while_spark_compacts_and_expires(spark, table):
    publish(table, 20)
    sink(table)
    # Iceberg 1.12 sorts by another order only where the table knows the order 0.
    spark.sql(f"ALTER TABLE frazil.{table.name} WRITE UNORDERED")
    follower = Follower(table, upto=1000)
    follower.start()
    for round_ in range(4):
        for _ in range(4):
            publish(table, 5)
            sink(table)
        compact(spark, table, sort="offset" if round_ % 2 else "payload DESC, offset DESC")
        expire(spark, table)
    follower.join(timeout=120)
    follower.stop.set()
    assert follower.error is None
    assert follower.seen == list(range(1000))
    assert table.log.info(table.topic).start > 0, "retention ran too"
    assert offsets(table.reader().read(0)) == list(range(1000))


def test_rows_that_spark_deleted_are_not_read_and_the_rest_is(spark, table):
    publish(table, 30)
    sink(table)
    spark.sql(f"ALTER TABLE frazil.{table.name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"DELETE FROM frazil.{table.name} WHERE `offset` % 7 = 3")
    plan = plan_table(table.load(), table.topic)
    assert any(f.task.delete_files for f in plan.files), "the delete left a delete file, not a rewritten data file"
    start = table.log.info(table.topic).start
    assert start > 100, "the log no longer has what is deleted below"
    left = [o for o in range(300) if o % 7 != 3]
    read = pa.concat_tables(table.reader().read(0))
    assert read.column("offset").to_pylist() == left
    assert set(read.column("payload").to_pylist()) == {b"x" * 200}


def test_files_of_spark_and_of_pyarrow_read_alike(spark, table):
    batch = pa.record_batch(
        {
            "payload": pa.array([b"a", b"b"], pa.binary()),
            "headers": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())),
            "tags": pa.array([["x", "y"], None]),
            "place": pa.array([{"city": "Uppsala", "size": 3}, None]),
        }
    )
    table.log.append(table.topic, Batch.of_arrow(batch))
    before = pa.concat_tables(table.reader().read(0))
    sink(table)
    after_sink = pa.concat_tables(table.reader().read(0))
    compact(spark, table)
    after_compaction = pa.concat_tables(table.reader().read(0))
    assert before.schema == after_sink.schema == after_compaction.schema
    assert before.to_pylist() == after_sink.to_pylist() == after_compaction.to_pylist()
