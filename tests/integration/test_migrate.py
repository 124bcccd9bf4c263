"""Topics move between their two storages while producers write and readers read; nothing is lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from frazil.log import OffsetGoneError
from frazil.log.log import Log
from frazil.log.maintenance.verify import verify_log
from frazil.log.remote.client import Client
from frazil.observe.faultpoints import handled
from frazil.topics.admin.migrate import Migrating
from frazil.topics.admin.verify import verify_topic
from frazil.topics.positions import ForeignLogError
from frazil.topics.reading.reader import TopicReader
from frazil.topics.storage import open_storage
from tests.sink_kit import SinkKit, sink_kit

TOPIC = "orders"


@pytest.fixture
def kit(tmp_path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as found:
        yield found


def migrating(kit: SinkKit, access: Any = None, topic: str = TOPIC) -> Migrating:
    return Migrating(access or kit.log, kit.settings, topic, kit.tables, patience_s=0.5)


def read(
    kit: SinkKit, columns: tuple[str, ...] = ("offset", "payload", "publish_time"), topic: str = TOPIC
) -> list[Any]:
    tables = list(open_storage(kit.log, kit.settings, topic, kit.tables).read(columns=columns))
    return [tuple(row.values()) for t in tables for row in t.to_pylist()]


def fill(kit: SinkKit, count: int = 60, topic: str = TOPIC) -> None:
    for number in range(count):
        kit.publish(topic, f"message {number} {'x' * 200}".encode(), b"second")


def shorten(kit: SinkKit, topic: str = TOPIC) -> int:
    """Freezes all into the table, and removes what retention may remove from the log."""
    kit.engine(topic).catch_up()
    return kit.log.retain(topic, age_s=0.0).start


def test_a_log_becomes_a_log_and_a_table(kit):
    kit.create(TOPIC, "log")
    fill(kit)
    before = read(kit)
    done = migrating(kit).to_iceberg()
    assert (done.changes, done.start, done.end) == (True, 0, 120)
    assert kit.log.info(TOPIC).storage == "iceberg"
    kit.check(TOPIC)
    assert read(kit) == before


def test_a_table_is_copied_back_into_the_log_with_offsets_times_and_columns(kit):
    kit.create(TOPIC)
    fill(kit, 20)
    me = kit.client.register(TOPIC, "billing")
    from frazil.log import Batch

    named = pa.record_batch(
        {
            "payload": pa.array([b"a", b"b"], pa.binary()),
            "request_id": pa.array([7, None], pa.int64()),
            "headers": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())),
            "amount": pa.array([1.5, None]),
        }
    )
    producer = {"producer_id": me.producer_id, "producer_epoch": me.producer_epoch, "sequence": 0}
    kit.client.append(TOPIC, Batch.of_arrow(named, **producer))
    fill(kit)
    names = ("offset", "payload", "publish_time", "request_id", "producer_id", "producer_name", "headers", "amount")
    start = shorten(kit)
    before = read(kit, names)
    assert start > 42 and before[0][0] == 0
    done = migrating(kit).to_log()
    info = kit.log.info(TOPIC)
    assert (done.start, done.end) == (0, start) and (info.storage, info.start) == ("log", 0)
    assert read(kit, names) == before
    assert kit.log.retain(TOPIC).segments == 0, "a log alone keeps all"
    report = verify_log(kit.log.directory, TOPIC)
    assert report.findings == [] and report.ranges == [(0, len(before))]


def test_what_was_copied_back_survives_a_restart(tmp_path):
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        kit.create(TOPIC)
        fill(kit)
        shorten(kit)
        before = read(kit)
        migrating(kit).to_log()
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        assert read(kit) == before
        assert kit.log.publish(TOPIC, b"next").offset == len(before)


def test_there_and_back_and_there_again(kit):
    kit.create(TOPIC)
    fill(kit)
    shorten(kit)
    migrating(kit).to_log()
    fill(kit, 10)
    migrating(kit).to_iceberg()
    kit.check(TOPIC)
    shorten(kit)
    migrating(kit).to_log()
    assert [row[:2] for row in read(kit)] == sorted(kit.acknowledged[TOPIC].items())


def test_offsets_that_no_message_has_stay_free(kit):
    """Rows that somebody deleted from the table, in the middle and right before the log's start."""
    kit.create(TOPIC)
    fill(kit)
    start = shorten(kit)
    table = kit.table(TOPIC)
    table.delete(f"offset in (5, 6, 40, {start - 1})")
    before = read(kit)
    migrating(kit).to_log()
    assert read(kit) == before and before[5][0] == 7
    assert verify_log(kit.log.directory, TOPIC).sound


def test_producers_write_and_readers_read_meanwhile(kit):
    kit.create(TOPIC, "log")
    fill(kit, 30)
    stop = threading.Event()
    seen: list[int] = []

    def produce() -> None:
        with Client(kit.client.address) as own:
            from frazil.log import Batch

            while not stop.is_set():
                ack = own.append(TOPIC, Batch.of_messages([b"while it moves" * 20]))
                kit.acknowledged[TOPIC][ack.offset] = b"while it moves" * 20

    def follow() -> None:
        reader = TopicReader(kit.log, TOPIC, lambda: kit.store.load(f"topics.{TOPIC}"))
        for table in reader.read(0, follow=True, stop=stop, columns=["offset"]):
            seen.extend(table.column("offset").to_pylist())

    threads = [threading.Thread(target=produce), threading.Thread(target=follow)]
    for thread in threads:
        thread.start()
    try:
        migrating(kit).to_iceberg()
        shorten(kit)
        migrating(kit).to_log()
        migrating(kit).to_iceberg()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert seen == list(range(len(seen)))
    kit.engine(TOPIC).catch_up()
    kit.check(TOPIC)


def test_a_log_that_has_lost_its_beginning_is_refused_unless_that_is_wanted(kit):
    kit.create(TOPIC, "log")
    fill(kit)
    start = kit.log.retain(TOPIC, age_s=0.0).start
    assert start > 0
    with pytest.raises(OffsetGoneError, match=f"begins at offset {start}") as refused:
        migrating(kit).to_iceberg()
    assert "--from-start-of-log" in (refused.value.hint or "")
    assert kit.log.info(TOPIC).storage == "log", "nothing was changed"
    migrating(kit).to_iceberg(from_start_of_log=True)
    assert [r["offset"] for r in kit.rows(TOPIC)] == list(range(start, 120))


def test_a_table_of_another_log_is_refused(kit):
    kit.create(TOPIC)
    fill(kit, 5)
    kit.engine(TOPIC).catch_up()
    kit.log.delete_topic(TOPIC)
    kit.create(TOPIC, "log")
    fill(kit, 5)
    with pytest.raises(ForeignLogError) as refused:
        migrating(kit).to_iceberg()
    assert "frazil topic adopt orders" in (refused.value.hint or "")


class Crash(BaseException):
    pass


STEPS = (
    "log.import.segment.before",
    "log.import.segment.after",
    "migrate.install.before",
    "log.import.install.before",
    "log.import.install.after",
    "log.import.done.before",
    "migrate.install.after",
    "migrate.configure.before",
    "migrate.configure.after",
)


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.deep)])
@pytest.mark.parametrize("step", STEPS)
def test_a_migration_to_the_log_that_breaks_off_goes_on(tmp_path, step, nth):
    """A new process each time, as after kill -9: it knows only what lies on disk."""
    flags = {"log.max_file_size": "4096"}
    with sink_kit(tmp_path, **flags) as kit:
        kit.create(TOPIC)
        fill(kit, 40)
        shorten(kit)
        before = read(kit)
        count = 0

        def crash(name: str) -> None:
            nonlocal count
            count += name == step
            if name == step and count == nth:
                raise Crash

        with handled(crash), pytest.raises(Crash):
            migrating(kit).to_log()
            raise Crash
    with sink_kit(tmp_path, **flags) as kit:
        assert read(kit) == before, "whole at every moment"
        migrating(kit).to_log()
        assert kit.log.info(TOPIC).start == 0 and read(kit) == before
        assert not (kit.log.directory / "topics" / TOPIC / ".import").exists()
        assert verify_log(kit.log.directory, TOPIC).sound


def test_a_migration_to_the_log_can_be_given_up(kit):
    kit.create(TOPIC)
    fill(kit)
    shorten(kit)
    before = read(kit)

    def crash(name: str) -> None:
        if name == "migrate.install.before":
            raise Crash

    with handled(crash), pytest.raises(Crash):
        migrating(kit).to_log()
    migrating(kit).to_iceberg()
    info = kit.log.info(TOPIC)
    assert (info.storage, info.retention_age_s) == ("iceberg", None) and read(kit) == before
    assert not (kit.log.directory / "topics" / TOPIC / ".import").exists()


def test_a_remote_broker_is_not_asked_to_take_files_back(kit, tmp_path):
    from frazil.errors import UnsupportedError
    from frazil.settings import load_settings

    kit.create(TOPIC)
    fill(kit)
    shorten(kit)
    elsewhere = load_settings(flags={"home": str(tmp_path), "log.directory": str(tmp_path / "other")}, environ={})
    with pytest.raises(UnsupportedError, match="does not lie on this machine"):
        Migrating(kit.client, elsewhere, TOPIC, kit.tables).to_log()


def test_verify_finds_log_and_table_in_agreement_after_both_ways(kit):
    kit.create(TOPIC)
    fill(kit)
    shorten(kit)
    migrating(kit).to_log()
    migrating(kit).to_iceberg()
    assert verify_topic(kit.log, kit.settings, TOPIC, kit.tables).findings == []


def test_a_topic_whose_last_row_before_the_log_was_erased_goes_both_ways_over_a_restart(tmp_path):
    small = {"log.max_file_size": "4096"}
    with sink_kit(tmp_path, **small) as kit:
        kit.create(TOPIC)
        fill(kit, 30)
        kit.engine(TOPIC).catch_up()
        fill(kit, 20)
        start = kit.log.retain(TOPIC, age_s=0.0).start
        assert 0 < start <= 60
        kit.table(TOPIC).delete(f"offset = {start - 1}")
        before = read(kit)
        migrating(kit).to_log()
    with sink_kit(tmp_path, **small) as kit:
        assert kit.log.epoch_below(TOPIC, start) == 0, "of a message that came back from the table"
        migrating(kit).to_iceberg()
        assert read(kit) == before
        kit.engine(TOPIC).catch_up()
        assert read(kit) == before


def test_a_log_without_anything_to_copy_only_changes_its_storage(kit):
    kit.create(TOPIC)
    fill(kit, 3)
    assert migrating(kit).to_log().start == 0
    assert isinstance(kit.log, Log) and kit.log.info(TOPIC).storage == "log"
    assert not migrating(kit).to_log().changes
