"""The keyed-table sink on its own: a second sink on it, which knows nothing of Spark, is right under faults."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from frazil.errors import UnavailableError
from frazil.log.batch import Batch
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.tables import commit_append, find_position
from frazil.topics.sinks.engine import Engine
from frazil.topics.sinks.isolation import TRIES
from frazil.topics.sinks.jobs import BatchFailedError, on_spark
from frazil.topics.sinks.keyed_bounds import spark_filter
from frazil.topics.sinks.keyed_tasks import ParsedMessages
from tests import counter_sink
from tests.counter_sink import CounterSink
from tests.sink_kit import SinkKit, sink_kit_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

TOPIC = "amounts"
STEPS = (
    "counters.merge.plan",
    "sink.dead_letters.before",
    "sink.dead_letters.after",
    "counters.amounts.before",
    "counters.amounts.after",
    "sink.commit.before",
    "tables.commit.after",
    "sink.commit.after",
)

# Workers of Spark cannot import the tests.
cloudpickle.register_pickle_by_value(counter_sink)


class DiesError(BaseException):
    """The process 'dies' here: nothing below catches it."""


class Counted:
    """A topic of amounts, its tables, and the sums as they should be."""

    def __init__(self, kit: SinkKit, spark: SparkSession, partition: Sequence[str]) -> None:
        self.kit, self.spark = kit, spark
        self.sink = type(
            "OwnCounterSink", (CounterSink,), {"namespace": f"k{uuid.uuid4().hex[:10]}", "partition": partition}
        )
        self.amounts: list[tuple[str, int]] = []
        kit.create(TOPIC, storage="log")

    def publish(self, *amounts: tuple[str, int]) -> None:
        self.amounts += amounts
        self.kit.publish(TOPIC, *(json.dumps({"name": n, "amount": a}).encode() for n, a in amounts))

    def engine(self) -> Engine:
        """The sink as in a new process."""
        sink = self.sink(self.kit.store, self.kit.settings, self.kit.client.address, self.spark)
        return Engine(TOPIC, sink, self.kit.client, on_spark(self.spark), self.kit.settings.model.pipeline)

    def check(self) -> None:
        sums = Counter[str]()
        for name, amount in self.amounts:
            sums[name] += amount
        scan = self.kit.store.load(f"{self.sink.namespace}.counters").scan().to_arrow()
        assert sorted(scan.to_pylist(), key=lambda r: r["name"]) == [
            {"name": name, "total": total} for name, total in sorted(sums.items()) if total
        ]
        side = self.kit.store.load(f"{self.sink.namespace}.amounts").scan().to_arrow().sort_by("offset")
        assert list(zip(*(side[n].to_pylist() for n in ("name", "amount")), strict=True)) == self.amounts


@pytest.fixture
def kit(lane_settings: Settings, tmp_path: Path) -> Iterator[SinkKit]:
    model = lane_settings.model
    log = model.log.model_copy(update={"directory": tmp_path / "log", "min_free": 0})
    topics = model.topics.model_copy(update={"namespace": f"t{uuid.uuid4().hex[:10]}"})
    with sink_kit_of(Settings(model.model_copy(update={"log": log, "topics": topics})), "sql") as made:
        yield made


@pytest.mark.parametrize(
    "partition",
    [pytest.param(("truncate(1, name)",), id="partitioned"), pytest.param((), id="plain", marks=pytest.mark.deep)],
)
def test_rows_of_keys_are_merged_once_although_every_step_fails_once(kit, spark, partition):
    counted, chance = Counted(kit, spark, partition), random.Random(5)
    for step in STEPS:
        names = [f"{chance.choice('abcdef')}{chance.randrange(9)}" for _ in range(40)]
        counted.publish(*((name, chance.randrange(-3, 4)) for name in names))
        kit.client.append(TOPIC, Batch.of_messages([b"not json"]))

        def die(reached: str, at: str = step) -> None:
            if reached == at:
                raise DiesError

        with handled(die), pytest.raises(DiesError):
            counted.engine().catch_up()
    engine = counted.engine()
    engine.catch_up()
    assert engine.catch_up().commits == 0
    counted.check()
    assert len(kit.dead(TOPIC)) == len(STEPS)


def test_a_commit_of_others_since_the_rows_were_read_begins_the_batch_again(kit, spark):
    counted = Counted(kit, spark, ())
    counted.publish(("a", 1))
    engine = counted.engine()
    engine.catch_up()
    counted.publish(("a", 2), ("b", 3))
    turns = []

    def interfere(step: str) -> None:
        if step == "sink.commit.before" and not turns:
            turns.append(step)
            table = kit.store.load(f"{counted.sink.namespace}.counters")
            position = find_position(table, "counters", TOPIC)
            assert position is not None
            other = replace(position, batch_id=str(uuid.uuid4()))
            commit_append(kit.store, table, [], expected=position, reached=other)

    with handled(interfere):
        engine.catch_up()
    assert turns
    counted.check()


def test_topics_that_share_one_sink_do_not_take_each_others_snapshots(kit, spark):
    """While a batch of one topic waits for its commit, another topic commits one batch and reads for the next."""
    counted, other = Counted(kit, spark, ()), "other_amounts"
    kit.create(other, storage="log")
    counted.publish(("a", 1), ("b", 1))
    counted.engine().catch_up()
    sink = counted.sink(kit.store, kit.settings, kit.client.address, spark)
    engines = [Engine(t, sink, kit.client, on_spark(spark), kit.settings.model.pipeline) for t in (TOPIC, other)]
    counted.publish(("a", 2))
    turns: list[str] = []

    def publish_to_other(amount: int) -> None:
        kit.publish(other, json.dumps({"name": "a", "amount": amount}).encode())

    def interfere(step: str) -> None:
        if step == "counters.amounts.before" and not turns:
            turns.append(step)
            publish_to_other(10)
            engines[1].run_batch(at_once=True)
            publish_to_other(20)

            def die(reached: str) -> None:
                if reached == "sink.write.after":
                    raise DiesError

            with handled(die), pytest.raises(DiesError):
                engines[1].run_batch(at_once=True)

    with handled(interfere):
        engines[0].catch_up()
    engines[1].catch_up()
    counters = kit.store.load(f"{counted.sink.namespace}.counters").scan().to_arrow().to_pylist()
    assert sorted((row["name"], row["total"]) for row in counters) == [("a", 33), ("b", 1)]


def test_one_key_is_looked_for_by_equality_so_that_partitions_by_hash_are_skipped(spark):
    rows = spark.createDataFrame([("a", 1), ("b", 2), ("c", 3)], "name string, n int")
    one, some = {"": {"name": ("b", "b")}}, {"": {"name": ("a", "b")}}
    assert "BETWEEN" not in str(spark_filter(one)).upper() and ">=" not in str(spark_filter(one))
    assert [row.n for row in rows.where(spark_filter(one)).collect()] == [2]
    assert [row.n for row in rows.where(spark_filter(some)).collect()] == [1, 2]


def test_messages_that_no_code_foresees_become_dead_letters_and_the_others_are_counted(kit, spark):
    counted = Counted(kit, spark, ())
    counted.publish(("a", 1), ("b", 2))
    # A list makes the reader fail, and the number does not fit into the column.
    kit.client.append(TOPIC, Batch.of_messages([b"[1]", json.dumps({"name": "a", "amount": 2**70}).encode()]))
    counted.publish(("a", 3))
    engine = counted.engine()
    for _ in range(TRIES):
        with pytest.raises(BatchFailedError):
            engine.catch_up()
    engine.catch_up()
    counted.check()
    letters = kit.dead(TOPIC)
    assert sorted((letter["offset"], letter["reason"]) for letter in letters) == [(2, "unwritable"), (3, "unwritable")]
    assert {bytes(letter["payload"])[:3] for letter in letters} == {b"[1]", b'{"n'}
    counted.publish(("c", 4))
    engine.catch_up()
    counted.check()


def test_changes_that_are_lost_with_an_executor_and_cannot_be_read_again_fail_the_batch(kit, spark, tmp_path):
    counted = Counted(kit, spark, ())
    counted.publish(*((f"n{number}", number + 1) for number in range(20)))
    broken = tmp_path / "broken"

    def read(messages: pa.Table) -> ParsedMessages:
        if broken.exists():
            raise UnavailableError("the broker is away")
        return counter_sink.read_amounts(messages)

    def lose_executor(step: str) -> None:
        if step == "counters.merge.plan":
            broken.touch()
            spark.catalog.clearCache()  # what an executor kept is gone

    counted.sink.make_reader = lambda self, table, plan: read
    engine = counted.engine()
    with handled(lose_executor), pytest.raises(UnavailableError):
        engine.catch_up()
    broken.unlink()
    engine.catch_up()
    counted.check()
