"""Whatever columns producers send, Spark can read the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from frazil.column_rules import MAX_DEPTH
from frazil.errors import UsageError
from frazil.log.batch import Batch
from frazil.settings import Settings
from tests.odd_columns import append_unchecked, odd_batch
from tests.sink_kit import SinkKit, sink_kit_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]
CATALOG = "sql"


@pytest.fixture
def kit(lane_settings: Settings, tmp_path: Path) -> Iterator[SinkKit]:
    log = lane_settings.model.log.model_copy(update={"directory": tmp_path / "log", "min_free": 0})
    with sink_kit_of(Settings(lane_settings.model.model_copy(update={"log": log})), CATALOG) as made:
        yield made


def read_all(kit: SinkKit, spark: SparkSession, topic: str) -> int:
    """Reads every value of every row in the JVM, and returns the number of rows."""
    table = f"{CATALOG}.{kit.settings.model.topics.namespace}.{topic}"
    spark.table(table).write.format("noop").mode("overwrite").save()
    return spark.table(table).count()


def fill(kit: SinkKit, seeds: range, topic: str, *, unchecked: bool) -> int:
    """Sends odd batches, those of an older log too; the number of messages."""
    kit.create(topic)
    sent = 0
    for seed in seeds:
        batch = odd_batch(Random(seed), f"m-{seed}")
        try:
            if unchecked:
                append_unchecked(kit, topic, batch)
            else:
                kit.append(topic, Batch.of_arrow(batch))
        except UsageError:
            continue
        sent += 1
    kit.publish(topic, b"good")
    kit.engine(topic).catch_up()
    assert sent
    return int(kit.log.info(topic).written)


@pytest.mark.parametrize(
    ("unchecked", "seeds"),
    [
        (False, range(150)),
        (True, range(150)),
        pytest.param(False, range(1000, 2000), marks=pytest.mark.deep),
        pytest.param(True, range(1000, 2000), marks=pytest.mark.deep),
    ],
)
def test_spark_reads_the_table_of_a_topic_with_odd_columns(
    kit: SinkKit, spark: SparkSession, unchecked: bool, seeds: range
):
    topic = f"odd_{unchecked}_{len(seeds)}".lower()
    written = fill(kit, seeds, topic, unchecked=unchecked)
    rows = kit.table(topic).scan().to_arrow().num_rows
    assert read_all(kit, spark, topic) == rows
    dead = len(kit.dead(topic)) if unchecked else 0
    assert rows + dead == written


def test_spark_reads_columns_nested_as_deep_as_the_log_accepts(kit: SinkKit, spark: SparkSession):
    kit.create("deep")
    structs = lists = pa.array([1])
    for _ in range(MAX_DEPTH):
        structs = pa.StructArray.from_arrays([structs], ["a.b"])
        lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), lists)
    kit.publish("deep", b"x", structs=structs, lists=lists)
    kit.engine("deep").catch_up()
    assert read_all(kit, spark, "deep") == 1
