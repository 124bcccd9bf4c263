"""What the table of a topic could not take is read from its dead letters: every reader gives every message."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from frazil.log.protocol import OffsetGoneError
from frazil.log.remote.producer import Producer
from frazil.tables import remove_files
from frazil.tables.reading.ordered_plan import PlannedFile
from frazil.tables.store import LazyStore
from frazil.topics.admin.migrate import Migrating
from frazil.topics.dead_letters.query import show_dead_letter
from frazil.topics.dead_letters.replay import replay_dead_letters
from frazil.topics.layout import dead_letters_name
from frazil.topics.reading.dead_letter_files import DeadLetterSource
from frazil.topics.reading.reader import TopicReader, open_reader
from frazil.topics.source.filters import Range
from frazil.topics.source.options import parse_options
from frazil.topics.source.plan import splits
from frazil.topics.source.source import SourceTopic
from tests.sink_kit import SinkKit, put_dead_letters, sink_kit
from tests.topic_kit import TopicTable, files_read

TOPIC = "orders"
ALL = ["offset", "payload", "publish_time", "amount", "note", "headers", "topic_name", "segment_id", "segment_offset"]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as made:
        made.create(TOPIC)
        yield made


def publish(kit: SinkKit, *amounts: float | None) -> None:
    """Messages whose amount, if they have one, does not fit the table."""
    first = len(kit.acknowledged.get(TOPIC, ()))
    payloads = [b"%d " % (first + n) + b"x" * 400 for n in range(len(amounts))]
    headers = pa.array([[("n", str(first + n))] for n in range(len(amounts))], pa.map_(pa.string(), pa.string()))
    notes = [f"note {first + n}" for n in range(len(amounts))]
    kit.publish(TOPIC, *payloads, amount=pa.array(amounts, pa.float64()), note=pa.array(notes), headers=headers)


def spoil(kit: SinkKit) -> None:
    """From now on an amount does not fit."""
    publish(kit, None)
    kit.engine(TOPIC).catch_up()
    kit.change_type(TOPIC, "amount")


def read(kit: SinkKit, first: Literal["table", "log"], *args: Any, **options: Any) -> list[dict[str, Any]]:
    with open_reader(kit.client, kit.settings, TOPIC, first=first) as reader:
        return [row for table in reader.read(*args, **options) for row in table.to_pylist()]


def dead(kit: SinkKit) -> list[int]:
    return [row["offset"] for row in kit.dead(TOPIC)]


@pytest.mark.parametrize("trimmed", [False, True])
def test_table_first_and_log_first_give_the_same_messages(kit: SinkKit, trimmed: bool) -> None:
    spoil(kit)
    for _ in range(4):
        publish(kit, 1.5, None, 2.5, None)
        kit.engine(TOPIC).catch_up()
    publish(kit, 3.5, None)  # only in the log
    from_log = read(kit, "log", 0, columns=ALL)
    assert [row["offset"] for row in from_log] == list(range(19))
    assert [row["amount"] for row in from_log[:4]] == [None, 1.5, None, 2.5]
    if trimmed:
        assert kit.client.retain(TOPIC, age_s=0.0).start > max(dead(kit)[:4])
    assert dead(kit) == [1, 3, 5, 7, 9, 11, 13, 15]
    for first in ("table", "log"):
        assert read(kit, first, 0, columns=ALL) == from_log
        assert read(kit, first, 3, end=8, columns=ALL) == from_log[3:8]
        assert [row["offset"] for row in read(kit, first)] == list(range(19))


WHO = ["offset", "request_id", "producer_id", "producer_name", "amount"]


def publish_as(kit: SinkKit, name: str, *amounts: float | None) -> None:
    """Messages of a producer with a name, each with a number of its own."""
    batch = pa.record_batch(
        {
            "payload": pa.array([b"x"] * len(amounts), pa.binary()),
            "request_id": pa.array([100 + n for n in range(len(amounts))], pa.int64()),
            "amount": pa.array(amounts, pa.float64()),
        }
    )
    with Producer(kit.client, TOPIC, name=name) as producer:
        producer.publish_batch(batch)


def test_they_keep_the_numbers_and_the_producer_of_their_messages(kit: SinkKit) -> None:
    spoil(kit)
    publish_as(kit, "till", 1.5, None, 2.5)
    kit.engine(TOPIC).catch_up()
    assert dead(kit) == [1, 3]
    expected = read(kit, "log", 1, columns=WHO)
    assert [(row["request_id"], row["producer_name"]) for row in expected] == [(n, "till") for n in (100, 101, 102)]
    assert read(kit, "table", 1, columns=WHO) == expected
    shown = show_dead_letter(kit.store, kit.settings, TOPIC, 3)
    assert (shown.request_id, shown.producer_name) == (102, "till") and shown.producer_id == expected[2]["producer_id"]
    assert replay_dead_letters(kit.store, kit.settings, kit.client, TOPIC).sent == 2
    assert [row["request_id"] for row in read(kit, "log", 4, columns=WHO)] == [100, 102], (
        "sent again with their numbers"
    )


def test_dead_letters_of_an_older_version_are_read_and_get_the_new_columns(kit: SinkKit) -> None:
    spoil(kit)
    publish_as(kit, "till", 1.5)
    kit.engine(TOPIC).catch_up()
    with kit.store.load(dead_letters_name(kit.settings)).update_schema() as older:
        for name in ("request_id", "producer_id", "producer_name"):
            older.delete_column(name)
    found = read(kit, "table", 1, columns=WHO)
    assert [(row["offset"], row["request_id"], row["amount"]) for row in found] == [(1, None, 1.5)]
    assert show_dead_letter(kit.store, kit.settings, TOPIC, 1).producer_name is None
    publish_as(kit, "till", 2.5)
    kit.engine(TOPIC).catch_up()
    assert [row["producer_name"] for row in read(kit, "table", 1, columns=WHO)] == [None, "till"]


def test_spark_s_tasks_read_them_too(kit: SinkKit) -> None:
    spoil(kit)
    for _ in range(4):
        publish(kit, 1.5, None, 2.5, None)
        kit.engine(TOPIC).catch_up()
    expected = read(kit, "log", 0, columns=ALL)
    kit.client.retain(TOPIC, age_s=0.0)
    source = SourceTopic(kit.settings, parse_options({"topic": TOPIC}), kit.client.address)
    with source.reader() as reader:
        wanted = pa.schema([reader.schema().field(name) for name in ALL])
        found = splits(reader, 0, 17, partitions=3)
        young = splits(reader, 0, 17, time_us=Range(low=2**62))
    assert len(found) > 1
    assert [row for s in found for b in source.batches(s, wanted) for row in b.to_pylist()] == expected
    assert young == []


def test_a_topic_that_begins_with_dead_letters_is_read_from_its_beginning(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"only a column", amount=pa.array([None], pa.float64()))
    kit.engine(TOPIC).catch_up()
    remove_files(kit.store, kit.table(TOPIC), [t.file.file_path for t in kit.table(TOPIC).scan().plan_files()])
    kit.change_type(TOPIC, "amount")
    publish(kit, *[1.5] * 8)
    kit.engine(TOPIC).catch_up()
    assert dead(kit) == list(range(1, 9)), "all that the topic has are dead letters"
    kit.client.retain(TOPIC, age_s=0.0)
    publish(kit, *[None] * 8)
    kit.engine(TOPIC).catch_up()
    assert kit.client.retain(TOPIC, age_s=0.0).start > 8
    for first in ("table", "log"):
        assert [row["offset"] for row in read(kit, first, 1)] == list(range(1, 17))
        assert [row["offset"] for row in read(kit, first)] == list(range(1, 17))
        assert read(kit, first, since=datetime.fromtimestamp(0, UTC))[0]["offset"] == 1
        with pytest.raises(OffsetGoneError) as gone:
            read(kit, first, 0)
        assert gone.value.start == 1


def test_what_retention_has_removed_between_dead_letters_is_gone_all_the_same(kit: SinkKit) -> None:
    spoil(kit)
    publish(kit, 1.5, None, None, 2.5)
    kit.engine(TOPIC).catch_up()
    paths = [t.file.file_path for t in kit.table(TOPIC).scan().plan_files()]
    publish(kit, *[None] * 8)
    kit.engine(TOPIC).catch_up()
    remove_files(kit.store, kit.table(TOPIC), paths)
    kit.client.retain(TOPIC, age_s=0.0)
    for offset in (0, 1, 2, 3):
        with pytest.raises(OffsetGoneError) as gone:
            read(kit, "table", offset)
        assert gone.value.start == 4, "a dead letter, and all that follows it is there"
    assert [row["offset"] for row in read(kit, "table", 4)] == list(range(4, 13))


def test_letters_of_other_topics_sinks_and_logs_do_not_count(kit: SinkKit) -> None:
    publish(kit, *[None] * 8)
    kit.engine(TOPIC).catch_up()
    removed = [t.file.file_path for t in kit.table(TOPIC).scan().plan_files()]
    log_id = kit.client.info(TOPIC).log_id
    put_dead_letters(kit, TOPIC, 0, 8, log_id=log_id, sink="documents")
    put_dead_letters(kit, TOPIC, 0, 8, log_id="another")
    put_dead_letters(kit, "payments", 0, 8, log_id=log_id)
    remove_files(kit.store, kit.table(TOPIC), removed)
    with open_reader(kit.client, kit.settings, TOPIC) as reader:
        plan = reader.plan(reader.info())
        assert plan is not None and plan.files == ()


def test_a_read_goes_on_where_compaction_of_the_dead_letters_takes_their_files_away(kit: SinkKit) -> None:
    spoil(kit)
    publish(kit, 1.5, None, 2.5)
    kit.engine(TOPIC).catch_up()
    letters = TopicTable(kit.client, TOPIC, kit.settings)
    letters.name = dead_letters_name(kit.settings)

    def offsets(reader: TopicReader) -> list[int]:
        return [row["offset"] for table in reader.read(0) for row in table.to_pylist()]

    with open_reader(kit.client, kit.settings, TOPIC) as reader:
        assert offsets(reader) == [0, 1, 2, 3]
        letters.rewrite()
        letters.expire()
        assert offsets(reader) == [0, 1, 2, 3]


def test_dead_letters_of_a_table_that_has_not_changed_are_not_planned_again(kit: SinkKit) -> None:
    spoil(kit)
    publish(kit, 1.5, None, 2.5)
    kit.engine(TOPIC).catch_up()
    with open_reader(kit.client, kit.settings, TOPIC) as reader:
        for expected in ((2, True), (0, False)):
            with files_read() as opened:
                assert [o for table in reader.read(0) for o in table["offset"].to_pylist()] == [0, 1, 2, 3]
            assert (opened["lists"], opened["manifests"] > 0) == expected
        assert opened["metadata"] <= 2, "of the topic's table only, where a read begins and where it is planned"


def test_a_file_of_dead_letters_is_looked_into_once_however_often_the_table_moves(
    kit: SinkKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_into: list[str] = []
    look = DeadLetterSource.read_rows

    def noting(self: DeadLetterSource, file: PlannedFile, start: int, end: int, names: list[str]) -> pa.Table:
        looked_into.append(file.path)
        return look(self, file, start, end, names)

    monkeypatch.setattr(DeadLetterSource, "read_rows", noting)
    spoil(kit)
    with open_reader(kit.client, kit.settings, TOPIC) as reader:
        for count in range(1, 5):
            publish(kit, 1.5, None)
            kit.engine(TOPIC).catch_up()
            plan = reader.plan(reader.info())
            assert plan is not None
            assert len([file for file in plan.files if file.source is not None]) == count
        assert len(looked_into) == len(set(looked_into)) == 4
        monkeypatch.undo()
        assert [row["offset"] for table in reader.read(0) for row in table.to_pylist()] == list(range(9))


def test_a_topic_goes_back_into_its_log_with_what_the_table_could_not_take(kit: SinkKit) -> None:
    spoil(kit)
    publish(kit, *[1.5, None] * 6)
    kit.engine(TOPIC).catch_up()
    names = ["offset", "payload", "amount", "note", "headers"]
    expected = read(kit, "log", 0, columns=names)
    publish(kit, None)
    kit.engine(TOPIC).catch_up()
    assert kit.client.retain(TOPIC, age_s=0.0).start > 0
    with LazyStore(kit.settings) as store:
        Migrating(kit.client, kit.settings, TOPIC, store).to_log()
    found = [row for table in TopicReader(kit.client, TOPIC).read(0, columns=names) for row in table.to_pylist()]
    assert found[:13] == expected


def test_the_lowest_offset_of_a_topic_may_be_a_dead_letter(kit: SinkKit) -> None:
    """What begins with dead letters is read from them, and copied back into the log from there."""
    spoil(kit)
    publish(kit, 1.5)
    publish(kit, 2.5, None)
    publish(kit, *[None] * 20)
    kit.engine(TOPIC).catch_up()
    kit.log.retain(TOPIC, size=0)
    table = kit.table(TOPIC)
    remove_files(kit.store, table, [t.file.file_path for t in table.scan(row_filter="offset = 0").plan_files()])
    with open_reader(kit.client, kit.settings, TOPIC, first="table") as reader:
        assert reader.bounds().start == 1
    assert [row["offset"] for row in read(kit, "table", 1)] == list(range(1, 24))
