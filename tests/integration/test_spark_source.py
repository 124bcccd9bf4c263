"""`spark.read.format("frazil")` and `readStream`, through a real broker."""

from __future__ import annotations

import pickle
import secrets
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan
from pyspark.sql.functions import spark_partition_id

from frazil.errors import UsageError
from frazil.log import Batch, Log
from frazil.log.remote.broker import Broker
from frazil.settings import Settings
from frazil.settings.model import LogSettings
from frazil.topics.committed_offsets import committed_offsets
from frazil.topics.layout import ARCHIVE
from frazil.topics.source.options import parse_options
from frazil.topics.source.source import FilteringReader, FrazilSource, SourceTopic, register
from tests.topic_kit import TopicTable

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def log(tmp_path: Path, lane_settings: Settings) -> Iterator[Log]:
    with Log.open(
        tmp_path / "log", LogSettings(max_file_size=16_384), floor=committed_offsets(lane_settings)
    ) as opened:
        yield opened


@pytest.fixture
def broker(log: Log) -> Iterator[Broker]:
    with Broker(log) as running:
        yield running


@pytest.fixture
def table(log: Log, broker: Broker, lane_settings: Settings) -> TopicTable:
    topic = f"sourced_{uuid.uuid4().hex[:8]}"
    log.create_topic(topic, storage="iceberg")
    log.configure(topic, {"sinks": [ARCHIVE]})
    return TopicTable(log, topic, lane_settings)


@pytest.fixture
def spark(spark, lane_settings: Settings):
    register(spark, lane_settings)
    return spark


def partitions(frame) -> int:
    """Partitions that have rows. Not by `frame.rdd`: that plans outside of any session, so without its settings."""
    return frame.select(spark_partition_id()).distinct().count()


def publish(table: TopicTable, count: int) -> None:
    for _ in range(count // 10):
        table.log.append(table.topic, Batch.of_messages([secrets.token_bytes(300) for _ in range(10)]))


def sink(table: TopicTable) -> None:
    """Commits in files of 100 messages, and lets the log forget what it may."""
    info = table.log.info(table.topic)
    for upto in range(table.position + 100, info.end + 1, 100):
        table.sink(upto)
    table.log.report(table.topic, ARCHIVE, table.position)
    table.log.retain(table.topic, age_s=0.0)


def options(table: TopicTable, broker: Broker, **more: object) -> dict[str, str]:
    return {"topic": table.topic, "broker": broker.address, **{k: str(v) for k, v in more.items()}}


def offsets(frame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def planned(table: TopicTable, broker: Broker, *filters, **more: object) -> list:
    """The splits as the driver would plan them."""
    topic = SourceTopic(table.settings, parse_options(options(table, broker, **more)), broker.address)
    reader = FilteringReader(topic, table.reader().schema())
    assert list(reader.pushFilters(list(filters))) == list(filters)
    return [part.split for part in pickle.loads(pickle.dumps(reader.partitions()))]


def test_a_batch_has_table_and_log_each_message_once(spark, table, broker):
    publish(table, 300)
    sink(table)
    publish(table, 50)
    frame = spark.read.format("frazil").options(**options(table, broker)).load()
    assert offsets(frame) == list(range(350))
    row = frame.where("offset = 7").collect()[0]
    payload = next(table.reader().read(7, columns=["payload"]))["payload"][0].as_py()
    assert (row.topic_name, bytes(row.payload), row.partition) == (table.topic, payload, 0)
    assert table.log.info(table.topic).start > 0, "a part was in the table alone"


@pytest.mark.parametrize("source", ["union", "log"])
def test_a_batch_takes_a_range_of_offsets(spark, table, broker, source):
    publish(table, 300)
    if source == "union":
        sink(table)
        publish(table, 50)
    more = options(table, broker, startingOffset=95, endingOffset=285, source=source)
    assert offsets(spark.read.format("frazil").options(**more).load()) == list(range(95, 285))


def test_a_batch_takes_a_range_of_times(spark, table, broker):
    publish(table, 100)
    middle = datetime.now(UTC)
    publish(table, 100)
    sink(table)
    publish(table, 100)
    end = datetime.now(UTC)
    publish(table, 100)
    more = options(table, broker, startingTime=middle.isoformat(), endingTime=end.isoformat())
    assert offsets(spark.read.format("frazil").options(**more).load()) == list(range(100, 300))


def test_filters_decide_which_files_and_ranges_are_read(spark, table, broker):
    publish(table, 500)
    sink(table)
    publish(table, 50)
    everything = planned(table, broker, partitions=5)
    assert sum(len(s.plan.files) for s in everything if s.plan) >= 5
    by_offset = planned(table, broker, GreaterThanOrEqual(("offset",), 120), LessThan(("offset",), 180))
    assert [(s.start, s.end) for s in by_offset] == [(120, 180)]
    assert [len(s.plan.files) for s in by_offset] == [1]
    in_log = planned(table, broker, In(("offset",), (510, 512)))
    assert [(s.start, s.end, s.plan) for s in in_log] == [(510, 513, None)]
    assert planned(table, broker, EqualTo(("partition",), 1)) == []
    assert planned(table, broker, EqualTo(("partition",), 0)) != []
    reading = spark.read.format("frazil").options(**options(table, broker, pushdown=True))
    assert partitions(reading.load()) == 2, "the files, which are small, and the log"
    assert partitions(reading.load().where("offset >= 120 AND offset < 180")) == 1
    assert offsets(reading.load().where("offset >= 120 AND offset < 180")) == list(range(120, 180))
    assert reading.load().where("partition = 1").count() == 0


def test_queries_of_one_frame_do_not_share_their_filters(spark, table, broker):
    """Spark keeps with the frame what a filter that was pushed down has left: other queries would miss rows."""
    publish(table, 200)
    sink(table)
    frame = spark.read.format("frazil").options(**options(table, broker)).load()
    low, high = frame.where("offset < 10"), frame.where("offset >= 190")
    assert offsets(low) == list(range(10))
    assert offsets(frame) == list(range(200))
    assert offsets(low.union(high)) == [*range(10), *range(190, 200)]
    assert low.join(frame, "offset").count() == 10


def test_filters_on_time_leave_files_out(spark, table, broker):
    publish(table, 100)
    sink(table)
    middle = datetime.now(UTC)
    publish(table, 100)
    sink(table)
    later = planned(table, broker, GreaterThanOrEqual(("publish_time",), middle))
    assert sum(len(s.plan.files) for s in later if s.plan) == 1
    earlier = planned(table, broker, LessThan(("publish_time",), middle))
    assert sum(len(s.plan.files) for s in earlier if s.plan) == 1
    reading = spark.read.format("frazil").options(**options(table, broker, pushdown=True))
    assert offsets(reading.load().where(sql.col("publish_time") >= sql.lit(middle))) == list(range(100, 200))
    assert offsets(reading.load().where(sql.col("publish_time") < sql.lit(middle))) == list(range(100))


def test_large_files_are_cut_and_small_ones_share_a_task(table, broker):
    publish(table, 400)
    table.sink()
    cut = planned(table, broker, partitions=4)
    assert len(cut) == 4
    assert [len(s.plan.files) for s in cut] == [1] * 4
    assert (cut[0].start, cut[-1].end) == (0, 400)
    assert len(planned(table, broker)) == 1


def test_splits_survive_the_files_they_were_planned_on(table, broker):
    publish(table, 300)
    sink(table)
    topic = SourceTopic(table.settings, parse_options(options(table, broker, partitions=3)), broker.address)
    wanted = table.reader().schema(["offset", "payload"])
    parts = planned(table, broker, partitions=3)
    table.rewrite()
    table.expire()
    read = [batch for split in parts for batch in topic.batches(split, wanted)]
    assert pa.Table.from_batches(read)["offset"].to_pylist() == list(range(300))


def test_a_schema_chooses_columns_and_extra_columns_are_there(spark, table, broker):
    batch = pa.record_batch({"payload": pa.array([b"a"], pa.binary()), "price": pa.array([1.5])})
    table.log.append(table.topic, Batch.of_arrow(batch))
    reading = spark.read.format("frazil").options(**options(table, broker))
    assert [tuple(r) for r in reading.load().select("price").collect()] == [(1.5,)]
    chosen = reading.schema("price DOUBLE, `offset` LONG").load()
    assert [tuple(r) for r in chosen.collect()] == [(1.5, 0)]
    with pytest.raises(PySparkException, match="has no column 'prize' of type double"):
        reading.schema("prize DOUBLE").load().collect()


def test_an_empty_topic_is_an_empty_frame(spark, table, broker):
    assert spark.read.format("frazil").options(**options(table, broker)).load().count() == 0


def test_a_range_that_is_gone_says_from_where_on_it_can_be_read(spark, table, broker):
    publish(table, 300)
    sink(table)
    start = table.log.info(table.topic).start
    more = options(table, broker, source="log", startingOffset=0)
    with pytest.raises(PySparkException, match=f"begins at {start}|from offset {start} on|can no longer be read"):
        spark.read.format("frazil").options(**more).load().collect()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "needs a topic"),
        ({"topic": "t", "startingOfset": "1"}, "no option 'startingofset'"),
        ({"topic": "t", "startingOffset": "soon"}, "is not a number of 0 or more"),
        ({"topic": "t", "startingTime": "noon"}, "is not a time"),
        ({"topic": "t", "startingTime": "2026-01-01", "startingOffset": "1"}, "both given"),
        ({"topic": "t", "source": "table"}, "is not a source"),
        ({"topic": "t", "maxBytesPerTrigger": "0"}, "is not a number of 1 or more"),
    ],
)
def test_wrong_options_are_named(given, told):
    with pytest.raises(UsageError, match=told):
        parse_options(given)


def test_sizes_may_have_a_unit():
    assert parse_options({"topic": "t", "maxBytesPerTrigger": "64m"}).max_bytes == 64 * 1024 * 1024
    assert FrazilSource.name() == "frazil"


class Stream:
    """A query into an Iceberg table, which can be started again on its checkpoint."""

    def __init__(self, spark, folder: Path, given: dict[str, str]) -> None:
        self.spark, self.checkpoint, self.options = spark, str(folder / "checkpoint"), given
        self.target = f"frazil.streamed.t_{uuid.uuid4().hex[:8]}"
        spark.sql("CREATE NAMESPACE IF NOT EXISTS frazil.streamed")
        spark.sql(f"CREATE TABLE {self.target} (`offset` BIGINT, payload BINARY) USING iceberg")

    def run(self, until: int | None = None) -> list[int]:
        """Runs until the target has so many rows, or once over what is there."""
        frame = self.spark.readStream.format("frazil").options(**self.options).load().select("offset", "payload")
        writing = frame.writeStream.option("checkpointLocation", self.checkpoint)
        if until is None:
            query = writing.trigger(availableNow=True).toTable(self.target)
            query.awaitTermination()
        else:
            query = writing.trigger(processingTime="0 seconds").toTable(self.target)
            while query.isActive and self.spark.table(self.target).count() < until:
                query.processAllAvailable()
            query.stop()
        assert query.exception() is None
        self.batches = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
        return [row.offset for row in self.spark.sql(f"SELECT `offset` FROM {self.target} ORDER BY 1").collect()]


def test_a_stream_goes_on_at_its_checkpoint_across_table_and_log(spark, table, broker, tmp_path):
    publish(table, 200)
    sink(table)
    publish(table, 50)
    stream = Stream(spark, tmp_path, options(table, broker))
    assert stream.run() == list(range(250))
    publish(table, 150)
    sink(table)
    assert stream.run() == list(range(400))
    assert stream.run() == list(range(400)), "nothing new, nothing twice"


@pytest.mark.slow
def test_a_stream_takes_about_as_many_bytes_per_batch_as_it_is_told_also_after_a_restart(
    spark, table, broker, tmp_path
):
    publish(table, 200)
    sink(table)
    stream = Stream(spark, tmp_path, options(table, broker, maxBytesPerTrigger="16k"))
    assert stream.run(until=200) == list(range(200))
    assert len(stream.batches) > 1
    publish(table, 200)
    assert stream.run(until=400) == list(range(400))
    assert len(stream.batches) > 1, "a restarted stream knows where it was"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("first", "expected"),
    [("42", 42), *(pytest.param(*given, marks=pytest.mark.slow) for given in (("earliest", 0), ("latest", 100)))],
)
def test_a_stream_begins_where_it_is_told(spark, table, broker, tmp_path, first, expected):
    publish(table, 100)
    stream = Stream(spark, tmp_path, options(table, broker, startingOffset=first))
    frame = spark.readStream.format("frazil").options(**stream.options).load().select("offset", "payload")
    query = frame.writeStream.option("checkpointLocation", stream.checkpoint).toTable(stream.target)
    query.processAllAvailable()
    publish(table, 20)
    query.processAllAvailable()
    query.stop()
    rows = [row.offset for row in spark.sql(f"SELECT `offset` FROM {stream.target} ORDER BY 1").collect()]
    assert rows == list(range(expected, 120))
