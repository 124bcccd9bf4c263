"""An older copy of the log is brought back while a sink is at work: its table never counts for messages it has not."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from frazil.errors import ConflictError, UnavailableError, UsageError
from frazil.log.batch import Batch
from frazil.log.log import Log
from frazil.log.protocol import Ack, Chunk, Span, TopicInfo
from frazil.log.remote.broker import Broker
from frazil.log.remote.client import Client
from frazil.observe.faultpoints import handled
from frazil.settings import Settings, load_settings
from frazil.tables.store import LazyStore
from frazil.topics import open_log
from frazil.topics.admin import verify
from frazil.topics.admin.adopt import Adopting
from frazil.topics.positions import TableAheadError
from frazil.topics.reading.reader import Bounds, open_reader
from frazil.topics.reading.subscription import Subscription
from frazil.topics.sinks.jobs import in_process
from frazil.topics.sinks.sink import Work, Written
from frazil.topics.source.plan import bounded_end, splits
from frazil.topics.storage import IcebergStorage
from tests.machine import machine_flags
from tests.sink_kit import SinkKit

TOPIC = "orders"


class Served:
    """A log with a broker that keeps its address, whatever happens to the log's folder."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._port = 0
        self._open()

    def _open(self) -> None:
        self.log: Log = open_log(self._settings)
        self._broker = Broker(self.log, "127.0.0.1", self._port).start()
        self._port = int(self._broker.address.rsplit(":", 1)[1])
        self.log.announce(flight=self._broker.address)
        self.address = self._broker.address

    def close(self) -> None:
        self._broker.stop()
        self.log.close()

    def restart(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.close()
        meanwhile()
        self._open()

    def keep_copy(self) -> None:
        self.restart(lambda: shutil.copytree(self._folder, self._folder.with_name("copy")) and None)

    def bring_copy_back(self) -> None:
        def exchange() -> None:
            shutil.rmtree(self._folder)
            shutil.copytree(self._folder.with_name("copy"), self._folder)
            while int(time.time()) <= epoch:  # who copies a folder back needs longer than a second
                time.sleep(0.05)

        epoch = self.log.info(TOPIC).epoch
        self.restart(exchange)


class Kit(SinkKit):
    """Publishes past the broker: a connection from before a restart may break when a batch is on its way."""

    def __init__(self, server: Served, settings: Settings, client: Client, tables: LazyStore) -> None:
        super().__init__(settings, server.log, client, tables)
        self._server = server

    def append(self, topic: str, batch: Batch) -> Ack:
        return self._server.log.append(topic, batch)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Served, SinkKit]]:
    """Two messages in log and table, of which there is a copy, and two more in the log alone."""
    flags = {**machine_flags(), "home": str(tmp_path), "log.min_free": "0"}
    settings = load_settings(flags=flags, environ={})
    server = Served(settings, tmp_path / "log")
    try:
        with Client(server.address) as client, LazyStore(settings) as tables:
            kit = Kit(server, settings, client, tables)
            kit.create(TOPIC)
            kit.publish(TOPIC, b"a", b"b")
            kit.engine(TOPIC).catch_up()
            server.keep_copy()
            kit.append(TOPIC, Batch.of_messages([b"lost-2", b"lost-3"]))
            yield server, kit
    finally:
        server.close()


def test_a_batch_that_was_read_from_the_log_before_is_not_committed(served: tuple[Served, SinkKit]) -> None:
    server, kit = served

    def run(work: Work, spans: Sequence[Span]) -> list[Written]:
        made = in_process(work, spans)
        server.bring_copy_back()
        kit.publish(TOPIC, b"c", b"d", b"e")
        return made

    with pytest.raises(UnavailableError, match="was reopened while a batch was read"):
        kit.engine(TOPIC, run).run_batch(at_once=True)
    kit.engine(TOPIC).catch_up()
    kit.check(TOPIC)


@pytest.mark.parametrize("then", ["the pipeline goes on", "another begins", "the broker is restarted"])
def test_a_batch_that_lands_afterwards_is_found_out_and_a_person_decides(
    served: tuple[Served, SinkKit], then: str
) -> None:
    server, kit = served
    engine = kit.engine(TOPIC)
    with handled(lambda step: _exchange(server, kit, b"c", b"d", b"e") if step == "sink.write.after" else None):
        engine.run_batch(at_once=True)
    assert [r["payload"] for r in kit.rows(TOPIC)] == [b"a", b"b", b"lost-2", b"lost-3"]
    if then == "the broker is restarted":
        server.restart()
    if then != "the pipeline goes on":
        engine = kit.engine(TOPIC)
    with pytest.raises(TableAheadError, match="the last messages before that are not those of the log") as found:
        engine.run_batch(at_once=True)
    with pytest.raises(TableAheadError):
        IcebergStorage(kit.client, TOPIC, kit.settings, kit.tables).retain_log(age_s=0, size=None, dry_run=False)
    assert (kit.client.info(TOPIC).sinks["archive"] or 0) <= 2, "the log keeps what no table has"
    assert f"frazil topic adopt {TOPIC}" in str(found.value.hint)
    with pytest.raises(UsageError, match="before offset 4 are not the log's messages"):
        Adopting(kit.client, kit.settings, TOPIC, kit.tables).plan()
    adopting = Adopting(kit.client, kit.settings, TOPIC, kit.tables, "keep")
    plan = adopting.plan()
    assert (plan.problem, plan.before, plan.after) == ("other_messages", 4, 4)
    adopting.do(plan)
    kit.engine(TOPIC).catch_up()
    assert [r["payload"] for r in kit.rows(TOPIC)] == [b"a", b"b", b"lost-2", b"lost-3", b"e"]


def test_a_log_that_the_table_has_overtaken_goes_on_behind_it_when_it_is_opened_again(
    served: tuple[Served, SinkKit],
) -> None:
    server, kit = served
    kit.append(TOPIC, Batch.of_messages([b"lost-4"]))
    with handled(lambda step: _exchange(server, kit) if step == "sink.write.after" else None):
        kit.engine(TOPIC).run_batch(at_once=True)
    with pytest.raises(TableAheadError, match="is at offset 5, but the log ends at 2") as found:
        kit.engine(TOPIC).run_batch(at_once=True)
    assert "restart frazil serve" in str(found.value.hint)
    with pytest.raises(ConflictError, match="ends at 2, and its table is at 5"):
        Adopting(kit.client, kit.settings, TOPIC, kit.tables).plan()
    server.restart()
    kit.publish(TOPIC, b"c")
    kit.engine(TOPIC).catch_up()
    assert [(r["offset"], r["payload"]) for r in kit.rows(TOPIC)][-2:] == [(4, b"lost-4"), (5, b"c")]


@pytest.mark.parametrize("first", ["table", "log"])
def test_what_only_the_table_has_in_the_middle_of_the_log_is_read_from_there(
    served: tuple[Served, SinkKit], first: Literal["table", "log"]
) -> None:
    server, kit = served
    kit.publish(TOPIC, b"four")
    engine = kit.engine(TOPIC)
    engine.catch_up()
    server.bring_copy_back()
    assert engine.run_batch(at_once=True).rows == 0, "a pipeline that goes on finds nothing wrong"
    expected = [b"a", b"b", b"lost-2", b"lost-3", b"four"]
    assert _read(kit, first) == expected, "nothing was published since"
    kit.publish(TOPIC, b"five", b"six")
    assert _read(kit, first) == [*expected, b"five", b"six"]
    assert _read(kit, first, 3, end=6) == [b"lost-3", b"four", b"five"]
    assert _read(kit, first, 1, end=4) == [b"b", b"lost-2", b"lost-3"]
    engine.catch_up()
    assert _read(kit, first) == [*expected, b"five", b"six"] == [r["payload"] for r in kit.rows(TOPIC)]


def test_who_follows_the_log_gets_what_only_the_table_has(served: tuple[Served, SinkKit]) -> None:
    server, kit = served
    stop = threading.Event()
    with open_reader(kit.client, kit.settings, TOPIC, first="log") as reader:
        tables = reader.read(1, follow=True, stop=stop, columns=["payload"])
        assert next(tables)["payload"].to_pylist() == [b"b", b"lost-2", b"lost-3"]
        kit.publish(TOPIC, b"four")
        kit.engine(TOPIC).catch_up()
        server.bring_copy_back()
        kit.publish(TOPIC, b"five")
        read: list[bytes] = []
        while b"five" not in read:
            read += next(tables)["payload"].to_pylist()
        assert read == [b"four", b"five"]
        stop.set()


def test_a_reader_that_is_stopped_before_a_gap_does_not_pass_it(served: tuple[Served, SinkKit]) -> None:
    server, kit = served
    kit.engine(TOPIC).catch_up()
    server.bring_copy_back()
    kit.publish(TOPIC, b"four")
    stop = threading.Event()
    real = kit.client.chunks

    def stopped_meanwhile(*given: Any) -> Iterator[Chunk]:
        for chunk in real(*given):
            stop.set()
            yield chunk

    with open_reader(kit.client, kit.settings, TOPIC, first="log") as reader:
        subscription = Subscription(reader, "billing")
        kit.client.chunks = stopped_meanwhile  # type: ignore[method-assign]
        read = [p for table in subscription.read(stop=stop) for p in table["payload"].to_pylist()]
        kit.client.chunks = real  # type: ignore[method-assign]
        assert read == [b"a", b"b"] and subscription.commit() == 2
        assert [p for table in subscription.read() for p in table["payload"].to_pylist()] == [
            b"lost-2", b"lost-3", b"four",
        ]  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("calls", range(1, 6))
def test_whenever_a_reader_is_stopped_it_has_read_without_a_gap(served: tuple[Served, SinkKit], calls: int) -> None:
    server, kit = served
    kit.engine(TOPIC).catch_up()
    server.bring_copy_back()
    kit.publish(TOPIC, b"four")
    stop, left = threading.Event(), iter(range(calls - 1, -1, -1))
    with open_reader(kit.client, kit.settings, TOPIC, first="log") as reader:
        real = reader.info

        def info() -> TopicInfo:
            if next(left, None) == 0:
                stop.set()
            return real()

        reader.info = info  # type: ignore[method-assign]
        read = [p for table in reader.read(2, stop=stop) for p in table["payload"].to_pylist()]
    assert read == [b"lost-2", b"lost-3", b"four"][: len(read)]


def test_who_reads_while_the_copy_is_brought_back_misses_nothing_that_the_table_has(
    served: tuple[Served, SinkKit],
) -> None:
    server, kit = served
    kit.engine(TOPIC).catch_up()
    real, exchanged = kit.client.chunks, []

    def meanwhile(*given: Any) -> Iterator[Chunk]:
        if not exchanged:
            exchanged.append(True)
            _exchange(server, kit, b"four")
        return real(*given)

    with open_reader(kit.client, kit.settings, TOPIC, first="log") as reader:
        kit.client.chunks = meanwhile  # type: ignore[method-assign]
        read = [p for table in reader.read(0, end=5, follow=True) for p in table["payload"].to_pylist()]
    assert read == [b"a", b"b", b"lost-2", b"lost-3", b"four"]


def test_a_gap_is_told_of_also_while_the_first_message_behind_it_is_written(served: tuple[Served, SinkKit]) -> None:
    server, kit = served
    kit.engine(TOPIC).catch_up()
    server.bring_copy_back()
    kit.client.sync(TOPIC)
    opened = server.log._topic(TOPIC)
    real = opened.visible

    def then_a_message() -> Any:
        found = real()
        opened.visible = real  # type: ignore[method-assign]
        server.log.append(TOPIC, Batch.of_messages([b"four"]))
        return found

    opened.visible = then_a_message  # type: ignore[method-assign]
    assert opened.gaps() == [(2, 4)] == opened.gaps()


def test_a_table_that_goes_on_while_it_is_verified_is_not_ahead_of_its_log(
    served: tuple[Served, SinkKit], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, kit = served

    def find_table(*given: Any) -> Any:
        monkeypatch.undo()
        kit.publish(TOPIC, b"four")
        kit.engine(TOPIC).catch_up()
        return verify.find_table(*given)

    monkeypatch.setattr("frazil.topics.admin.verify.find_table", find_table)
    assert verify.verify_topic(kit.client, kit.settings, TOPIC, kit.tables).findings == []


def test_a_column_that_the_copy_did_not_know_stays_once_it_was_read(served: tuple[Served, SinkKit]) -> None:
    server, kit = served
    kit.publish(TOPIC, b"four", colour=pa.array(["red"]))
    kit.engine(TOPIC).catch_up()
    server.bring_copy_back()
    kit.publish(TOPIC, b"five")
    with open_reader(kit.client, kit.settings, TOPIC, first="log") as reader:
        found = [(table["offset"].to_pylist(), "colour" in table.column_names) for table in reader.read(0)]
    assert found == [([0, 1], False), ([2, 3, 4], True), ([5], True)]


def test_spark_reads_a_gap_of_the_log_from_the_table(served: tuple[Served, SinkKit]) -> None:
    server, kit = served
    kit.engine(TOPIC).catch_up()
    server.bring_copy_back()
    kit.client.sync(TOPIC)
    with open_reader(kit.client, kit.settings, TOPIC, first="log") as reader:
        assert bounded_end(reader, 2, 1000) == 4
        (split,) = splits(reader, 2, 4)
        assert (split.start, split.end) == (2, 4) and split.plan is not None
        (split,) = splits(reader, 0, 2)
        assert split.plan is None, "where the log has all, nobody asks the catalog"
    IcebergStorage(kit.client, TOPIC, kit.settings, kit.tables).retain_table(age_s=None, size=1, dry_run=False)
    with open_reader(kit.client, kit.settings, TOPIC, first="log") as reader:
        assert reader.bounds() == Bounds(0, 4), "the log begins before the table now"
        assert [(split.start, split.end) for split in splits(reader, 0, 4)] == [(0, 2), (2, 4)]


def test_a_rewind_says_which_rows_the_log_cannot_write_again(served: tuple[Served, SinkKit]) -> None:
    server, kit = served
    before = kit.table(TOPIC).current_snapshot()
    kit.engine(TOPIC).catch_up()
    server.bring_copy_back()
    kit.publish(TOPIC, b"four")
    kit.engine(TOPIC).catch_up()
    assert before is not None
    kit.table(TOPIC).manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    plan = Adopting(kit.client, kit.settings, TOPIC, kit.tables, "rewind").plan()
    assert plan.message.endswith("the rows are written again, but not those at 2 to 4, where the log has nothing")


def _read(kit: SinkKit, first: Literal["table", "log"], start: int = 0, **options: int) -> list[bytes]:
    with open_reader(kit.client, kit.settings, TOPIC, first=first) as reader:
        return [p for table in reader.read(start, columns=["payload"], **options) for p in table["payload"].to_pylist()]


def _exchange(server: Served, kit: SinkKit, *payloads: bytes) -> None:
    server.bring_copy_back()
    kit.client.sync(TOPIC)
    if payloads:
        kit.publish(TOPIC, *payloads)
