"""A follower on a real log and a real table, while Spark compacts, expires and deletes."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.log import Batch, Log
from frazil.log.remote.broker import Broker
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.settings.model import LogSettings
from frazil.tables.reading import retrying
from frazil.topics.committed_offsets import committed_offsets
from frazil.topics.layout import ARCHIVE
from frazil.topics.reading.reader import TopicReader
from frazil.topics.reading.topic_plan import plan_topic
from frazil.topics.sinks.jobs import on_spark
from frazil.topics.source.options import parse_options
from frazil.topics.source.plan import splits
from frazil.topics.source.source import SourceTopic, register
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import expire as expiry
from frazil.upkeep.expiry import reclaim
from frazil.upkeep.rewrite import compact as compaction
from frazil.upkeep.rewrite import partition
from tests.rewrite_kit import COMPACT
from tests.sink_kit import sink_kit_of
from tests.topic_kit import TopicTable
from tests.upkeep_files import step

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def log(tmp_path: Path, lane_settings: Settings) -> Iterator[Log]:
    with Log.open(
        tmp_path / "log", LogSettings(max_file_size=16_384), floor=committed_offsets(lane_settings)
    ) as opened:
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


@pytest.mark.deep
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
    plan = plan_topic(table.load(), table.topic)
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


# -- on S3 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_s3(lane_settings: Settings) -> Settings:
    """The REST catalog, with its files on SeaweedFS."""
    model = lane_settings.model
    return Settings(model.model_copy(update={"catalog": lane_settings.catalog("rest_on_s3")}))


def replace_all(care: UpkeepContext, table: TopicTable) -> None:
    """A compaction; then the files from before it are gone from the storage, with no grace."""
    assert compaction.run(care, table.load(), step("compact", **COMPACT)).result == "done"
    metadata = table.load().metadata
    old = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id != metadata.current_snapshot_id]
    assert expiry.run(care, table.load(), step("expire", snapshots=old)).result == "done"
    assert reclaim.run(care, table.load(), step("reclaim", grace_s=0.0)).files_removed > 0


def commit_each(table: TopicTable, batches: int) -> None:
    """A file of ten messages per batch; then the log forgets what it may."""
    for _ in range(batches):
        publish(table, 1)
        table.sink()
    sink(table)


@pytest.mark.long("Spark reads from S3 while files are replaced and reclaimed")
@pytest.mark.deep
def test_on_s3_a_replay_and_spark_read_on_when_files_are_replaced_and_reclaimed(spark, log, on_s3, monkeypatch):
    seen_gone = []
    check = retrying.MissingFileCheck.check
    monkeypatch.setattr(
        retrying.MissingFileCheck, "check", lambda *given: seen_gone.append(str(given[1])) or check(*given)
    )
    topic = f"on_s3_{uuid.uuid4().hex[:8]}"
    log.create_topic(topic, storage="iceberg")
    log.configure(topic, {"sinks": [ARCHIVE]})
    table = TopicTable(log, topic, on_s3)
    care = UpkeepContext(on_s3, on_s3.catalog(), table.store, lambda: spark, threading.Event())
    commit_each(table, 12)
    replay = table.reader().read(0, follow=True, columns=["offset", "payload"])
    seen = next(replay).column("offset").to_pylist()
    replace_all(care, table)
    commit_each(table, 3)
    for part in replay:
        seen += part.column("offset").to_pylist()
        if len(seen) >= 150:
            break
    assert seen == list(range(150))
    assert any(word in text for text in seen_gone for word in retrying._MISSING), seen_gone

    with Broker(log) as broker:
        given = {"topic": topic, "broker": broker.address}
        register(spark, on_s3)
        frame = spark.read.format("frazil").options(**given).load()
        assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(150))
        source = SourceTopic(on_s3, parse_options(given), broker.address)
        with source.reader() as reader:
            planned = splits(reader, 0, 150, partitions=3)
        replace_all(care, table)
        wanted = table.reader().schema(["offset", "payload"])
        assert offsets(batch for split in planned for batch in source.batches(split, wanted)) == list(range(150))


# -- partitions ----------------------------------------------------------------------------------------------------


def test_partitions_may_change_and_old_files_follow_between_write_and_commit_of_a_batch(spark, lane_settings, tmp_path):
    log = lane_settings.model.log.model_copy(update={"directory": tmp_path / "own", "min_free": 0})
    settings = Settings(lane_settings.model.model_copy(update={"log": log}))
    topic = f"divided_{uuid.uuid4().hex[:8]}"
    with sink_kit_of(settings, "sql") as kit:
        kit.create(topic)
        for n in range(3):
            kit.publish(topic, *(b"%d" % n for _ in range(10)))
            kit.engine(topic).catch_up()
        care = UpkeepContext(settings, settings.catalog("sql"), kit.store, lambda: spark, threading.Event())
        changes = []

        def change(at: str) -> None:
            if at == "sink.write.after" and not changes:
                changes.append(partition.apply(care, kit.table(topic), "bucket(4, offset)", rewrite=True))

        kit.publish(topic, *(b"meanwhile" for _ in range(10)))
        with handled(change):
            kit.engine(topic, run=on_spark(spark)).catch_up()
        (applied,) = changes
        assert applied.changed and applied.left == 0 and applied.outcomes
        kit.check(topic)
        kit.publish(topic, *(b"after" for _ in range(10)))
        kit.engine(topic, run=on_spark(spark)).catch_up()
        kit.check(topic)
        assert kit.table(topic).spec().spec_id == applied.spec_id
        reader = TopicReader(kit.client, topic, lambda: kit.table(topic))
        assert offsets(reader.read(0)) == list(range(50))
