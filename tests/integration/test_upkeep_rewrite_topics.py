"""A topic's table under compaction: its files stay in order, every reader reads on, and the sink goes on."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sql

from frazil.catalogs.locations import local_path
from frazil.log import Batch, Log
from frazil.log.remote.broker import Broker
from frazil.settings import Settings
from frazil.settings.model import LogSettings
from frazil.tables.position import CARRIED
from frazil.topics.committed_offsets import committed_offsets
from frazil.topics.layout import ARCHIVE
from frazil.topics.source.source import register
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.model import Step
from frazil.upkeep.rewrite import compact, manifests, rewriting
from tests.rewrite_kit import COMPACT, striking
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
    topic = f"kept_{uuid.uuid4().hex[:8]}"
    log.create_topic(topic, storage="iceberg")
    log.configure(topic, {"sinks": [ARCHIVE]})
    return TopicTable(log, topic, lane_settings)


@pytest.fixture
def care(spark, table: TopicTable, lane_settings: Settings) -> UpkeepContext:
    return UpkeepContext(lane_settings, lane_settings.catalog(), table.store, lambda: spark, threading.Event())


def publish(table: TopicTable, commits: int) -> None:
    for _ in range(commits):
        batch = pa.record_batch(
            {
                "payload": pa.array([uuid.uuid4().bytes * 10 for _ in range(50)], pa.binary()),
                "headers": pa.array([[("k", "v")], None] * 25, pa.map_(pa.string(), pa.string())),
            }
        )
        table.log.append(table.topic, Batch.of_arrow(batch))
        table.sink()
    table.log.report(table.topic, ARCHIVE, table.position)
    table.log.retain(table.topic, age_s=0.0)


def merge(care: UpkeepContext, table: TopicTable, **options: object):
    return compact.run(care, table.load(), Step("compact", "a test", options={**COMPACT, **options}))


def offsets_by_file(table: TopicTable) -> list[list[int]]:
    paths = [local_path(task.file.file_path) for task in table.load().scan().plan_files()]
    return sorted(pq.read_table(path, columns=["offset"])["offset"].to_pylist() for path in paths)


def everything(table: TopicTable) -> pa.Table:
    return pa.concat_tables(table.reader().read(0))


def expire_all_but_current(table: TopicTable) -> None:
    loaded = table.load()
    old = [s.snapshot_id for s in loaded.snapshots() if s.snapshot_id != loaded.current_snapshot().snapshot_id]
    loaded.maintenance.expire_snapshots().by_ids(old).commit()


def test_files_are_joined_in_order_and_all_readers_read_the_same(spark, care, table, broker, lane_settings):
    register(spark, lane_settings)
    publish(table, 6)
    before = everything(table)
    outcome = merge(care, table)
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", 6, 1)
    assert offsets_by_file(table) == [list(range(300))]
    assert everything(table).to_pylist() == before.to_pylist()
    size = int(table.load().metadata.properties["write.parquet.row-group-size-bytes"])
    assert size <= 16 * 1024 * 1024, "a replay reads row groups ahead, several at once"
    files = [t.file for t in table.load().scan().plan_files()]
    assert [f.sort_order_id for f in files] == [table.load().sort_order().order_id]
    frame = spark.read.format("frazil").options(topic=table.topic, broker=broker.address).load()
    assert frame.agg(sql.count("*"), sql.sum("offset")).collect() == [(300, sum(range(300)))]


def test_beside_sinks_each_new_file_is_one_task_and_no_more_run_at_once_than_they_may(care, table, monkeypatch):
    publish(table, 12)
    size = sum(task.file.file_size_in_bytes for task in table.load().scan().plan_files())
    running, most, tasks, write = [], [], [], rewriting._write

    def watched(session, *args):
        running.append(1)
        most.append(len(running))
        tasks.append(session.read.format("iceberg").load(args[0]).rdd.getNumPartitions())
        write(session, *args)
        running.pop()

    monkeypatch.setattr(rewriting, "_write", watched)
    before = everything(table)
    outcome = merge(replace(care, tasks=1), table, target=size // 3, below=size // 4)
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", 12, 3)
    assert most == tasks == [1, 1, 1]
    found = offsets_by_file(table)
    assert [offset for file in found for offset in file] == list(range(600))
    assert [len(file) for file in found] == [200, 200, 200]
    assert everything(table).to_pylist() == before.to_pylist()


def test_beside_sinks_new_files_are_never_so_small_that_the_next_turn_takes_them_again(care, table):
    publish(table, 4)
    size = sum(task.file.file_size_in_bytes for task in table.load().scan().plan_files())
    target = int(size / 1.2)  # two files would be of 60 %
    one = replace(care, tasks=1)
    assert merge(one, table, target=target, below=target * 3 // 4).files_after == 1
    assert merge(one, table, target=target, below=target * 3 // 4).result == "nothing"
    assert offsets_by_file(table) == [list(range(200))]


def test_the_sink_goes_on_and_what_is_larger_stays(care, table):
    publish(table, 4)
    assert merge(care, table).result == "done"
    publish(table, 4)
    assert table.position == 400
    assert merge(care, table, min_files=4).result == "done"
    manifests.run(care, table.load(), Step("manifests", "a test", options={"small": 2}))
    publish(table, 1)
    assert everything(table)["offset"].to_pylist() == list(range(450))


def test_the_position_survives_the_expiry_of_all_that_set_it(care, table):
    publish(table, 3)
    assert merge(care, table).result == "done"
    expire_all_but_current(table)
    assert table.position == 150
    publish(table, 1)
    assert everything(table)["offset"].to_pylist() == list(range(200))


def test_a_carried_position_stands_in_where_the_property_is_lost_too(care, table):
    publish(table, 3)
    key = f"frazil.position.{ARCHIVE}.{table.topic}"
    assert merge(care, table).result == "done"
    assert f"{CARRIED}{ARCHIVE}.{table.topic}" in table.load().current_snapshot().summary.additional_properties
    expire_all_but_current(table)
    table.load().transaction().remove_properties(key).commit_transaction()
    assert table.position == 150
    publish(table, 1)
    assert everything(table)["offset"].to_pylist() == list(range(200))


def test_a_commit_of_the_sink_while_files_are_merged_is_not_taken_back(care, table):
    publish(table, 3)
    with striking("upkeep.compact.commit.before", lambda: publish(table, 1)):
        assert merge(care, table).result == "done"
    assert table.position == 200, "the position that the compaction carries is older, and must not count"
    publish(table, 1)
    assert everything(table)["offset"].to_pylist() == list(range(250))


def test_a_follower_reads_on_while_files_are_merged_and_expired(care, table):
    publish(table, 4)
    seen: list[int] = []
    reading = table.reader().read(0, follow=True, stop=threading.Event(), columns=["offset"])
    for part in reading:
        seen += part.column("offset").to_pylist()
        if seen[-1] >= 499:
            break
        merge(care, table)
        expire_all_but_current(table)
        publish(table, 3)
    assert seen == list(range(len(seen)))
    assert len(seen) >= 500
