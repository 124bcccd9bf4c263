"""Promises that a review of the log found unkept."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from frazil.api.service import Service
from frazil.errors import FrazilError, UnavailableError, UsageError
from frazil.log import Batch, Level, Log
from frazil.log import producers as producers_module
from frazil.log.commit_queue import CommitQueue
from frazil.log.files import LogShutError
from frazil.log.frame import Kind
from frazil.log.group import Entry, deliver_outcomes
from frazil.log.owner import read_owner
from frazil.log.producers import Producers, TakenBatch
from frazil.log.protocol import Ack, TopicInfo
from frazil.log.remote.broker import Broker
from frazil.log.remote.client import Client
from frazil.log.remote.producer import Producer
from frazil.log.waiters import LoopWaiter
from frazil.settings import load_settings
from tests.faulty_disk import FaultyDisk
from tests.log_kit import messages_of, new_log, open_log

_PAYLOAD = pa.field("payload", pa.binary(), nullable=False)

# -- acknowledged once ---------------------------------------------------------------------------------------------


def test_after_a_failed_sync_a_new_message_is_not_taken_for_the_one_that_may_be_in_the_log(tmp_path: Path):
    """The refused batch was written, so that recovery finds it. Its sequence must not be used for another one."""
    disk = FaultyDisk(tmp_path)
    log = new_log(tmp_path / "log", disk=disk)
    broker = Broker(log).start()
    port = int(broker.address.rsplit(":", 1)[1])
    producer = Producer(broker.address, "orders", patience_s=20)
    try:
        first = producer.publish(b"first")
        disk.fail("sync", match=".seg")
        with pytest.raises(FrazilError) as refused:
            producer.publish(b"unknown")
        assert isinstance(refused.value, LogShutError)
        broker.stop()
        log.close()
        with open_log(tmp_path / "log") as again, Broker(again, port=port):
            ack = producer.publish(b"second")
            assert not ack.duplicate
            assert messages_of(again) == {first.offset: b"first", 1: b"unknown", ack.offset: b"second"}
            producer.close()
    finally:
        broker.stop()


def test_a_message_that_lingers_is_sent_although_its_publisher_only_waits(tmp_path: Path):
    with new_log(tmp_path / "log") as log, Producer(log, "orders", linger_ms=20) as producer:
        acks: list[Ack] = []
        publisher = threading.Thread(target=lambda: acks.append(producer.publish(b"x")), daemon=True)
        publisher.start()
        publisher.join(30)
        assert [a.offset for a in acks] == [0]


# -- level memory --------------------------------------------------------------------------------------------------


def test_a_batch_that_is_out_of_sequence_is_refused_also_at_level_memory(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        me = log.register("orders")
        batch = Batch.of_messages([b"x"], producer_id=me.producer_id, producer_epoch=me.producer_epoch, sequence=5)
        with pytest.raises(producers_module.OutOfSequenceError):
            log.append("orders", batch, Level.memory)


def test_a_column_of_another_type_is_refused_also_at_level_memory(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        log.append("orders", Batch.of_arrow(pa.record_batch({"payload": [b"x"], "price": [1]})))
        with pytest.raises(UsageError, match="price"):
            log.append("orders", Batch.of_arrow(pa.record_batch({"payload": [b"x"], "price": ["1"]})), Level.memory)


async def _from_a_loop(log: Log, payload: bytes) -> Ack:
    return await log.publish_async("orders", payload, level="memory")


def test_messages_lost_at_level_memory_are_told_and_those_who_follow_wait(tmp_path: Path):
    disk = FaultyDisk(tmp_path)
    with new_log(tmp_path / "log", disk=disk) as log:
        log.publish("orders", b"first")
        disk.fail("write", errno.ENOSPC, times=6, match=".seg")
        log.publish("orders", b"lost", level="memory")
        with capture_logs() as told:
            log._topic("orders").flush()
        assert [(t["event"], t["count"]) for t in told] == [("messages acknowledged at level memory are lost", 1)]
        with pytest.raises(UnavailableError, match="cannot be written"):
            log.publish("orders", b"refused", level="memory")
        with pytest.raises(UnavailableError, match="cannot be written"):
            asyncio.run(_from_a_loop(log, b"refused too"))
        disk.repair()
        assert log.publish("orders", b"good", level="memory").offset == 1
        assert log.publish("orders", b"ahead", level="memory").offset == -1
        log.sync("orders")
        assert list(messages_of(log).values()) == [b"first", b"good", b"ahead"]


# -- threads, loops and the end ------------------------------------------------------------------------------------


def test_a_loop_that_is_closed_while_it_is_told_does_not_shut_the_log(monkeypatch: pytest.MonkeyPatch):
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Ack] = loop.create_future()
    loop.close()
    monkeypatch.setattr(loop, "is_closed", lambda: False)  # it is closed between the question and the call
    entry = Entry.of_message((b"x", None, future), Level.disk)
    entry.waiter = LoopWaiter(loop)
    deliver_outcomes([entry], "orders", None, None)
    monkeypatch.undo()


def test_closing_tells_when_its_own_sync_fails(tmp_path: Path):
    disk = FaultyDisk(tmp_path)
    log = new_log(tmp_path / "log", disk=disk)
    log.publish("orders", b"x", level="os")
    disk.fail("sync", match=".seg")
    with pytest.raises(LogShutError):
        log.close()
    with open_log(tmp_path / "log") as again:
        assert messages_of(again) == {0: b"x"}


def test_a_log_that_is_closed_twice_stays_locked_while_a_commit_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("frazil.log.topic.PATIENCE_S", 0.05)
    hangs, reached, goes_on = threading.Event(), threading.Event(), threading.Event()

    class Slow(FaultyDisk):
        def sync(self, fd: int) -> None:
            if hangs.is_set():
                reached.set()
                goes_on.wait(30)
            super().sync(fd)

    log = new_log(tmp_path / "log", disk=Slow(tmp_path), sync_interval_ms=60_000)  # the keeper does not hang
    log.publish("orders", b"first")
    hangs.set()
    publisher = threading.Thread(target=lambda: log.publish("orders", b"x"))
    publisher.start()
    assert reached.wait(30)
    with pytest.raises(UnavailableError, match="hangs"):
        log.close()
    log.close()
    assert read_owner(tmp_path / "log") is not None, "what hangs may still be written"
    goes_on.set()
    publisher.join()
    with open_log(tmp_path / "log") as again:
        assert messages_of(again) == {0: b"first", 1: b"x"}


def test_closing_does_not_take_the_files_from_a_commit_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("frazil.log.topic.PATIENCE_S", 0.05)
    monkeypatch.setattr("frazil.log.log.PATIENCE_S", 0.05)
    hangs, goes_on = threading.Event(), threading.Event()

    class Slow(FaultyDisk):
        def sync(self, fd: int) -> None:
            if hangs.is_set():
                goes_on.wait(30)
            super().sync(fd)

    log = new_log(tmp_path / "log", disk=Slow(tmp_path), sync_interval_ms=10)  # so that the keeper hangs too
    log.publish("orders", b"first")
    opened = log._topic("orders")
    hangs.set()
    publisher = threading.Thread(target=lambda: log.publish("orders", b"x"))
    publisher.start()
    while opened.files.written < 2:
        time.sleep(0.001)
    with pytest.raises(UnavailableError, match="hangs"):
        log.close()
    assert opened.files._fd >= 0
    assert read_owner(tmp_path / "log") is not None, "what hangs may still be written"
    goes_on.set()
    publisher.join()
    while read_owner(tmp_path / "log") is not None:
        time.sleep(0.001)
    with open_log(tmp_path / "log") as again:
        assert messages_of(again) == {0: b"first", 1: b"x"}


def test_a_lead_that_waits_for_a_thread_is_taken_by_one_that_comes(tmp_path: Path):
    """Where all threads of a loop are busy publishing, the loop's commit would wait for them, and they for it."""
    released = threading.Event()

    async def work(log: Log) -> list[Ack]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        log._topic("orders").files.sync_seconds = 1.0  # a slow disk, so that a thread has to commit

        def publish() -> Ack:
            released.wait(30)
            return log.publish("orders", b"of the thread")

        thread = loop.run_in_executor(None, publish)
        coroutine = log.publish_async("orders", b"of the loop")
        await asyncio.sleep(0.01)  # the turn ends
        released.set()
        return await asyncio.wait_for(asyncio.gather(coroutine, thread), 10)

    with new_log(tmp_path / "log") as log:
        log.publish("orders", b"before")
        assert [ack.offset for ack in asyncio.run(work(log))] == [1, 2]


def test_ctrl_c_while_a_leader_takes_what_waits_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = new_log(tmp_path / "log")
    log.publish("orders", b"first")
    real = CommitQueue._take_entries

    def interrupted(self: CommitQueue, *args: Any) -> None:
        real(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(CommitQueue, "_take_entries", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.publish("orders", b"x")
    monkeypatch.undo()
    with ThreadPoolExecutor(1) as threads, pytest.raises(LogShutError):
        threads.submit(log.publish, "orders", b"y").result(10)
    with suppress(FrazilError):
        log.close()
    with open_log(tmp_path / "log") as again:
        assert messages_of(again) == {0: b"first"}


def test_ctrl_c_before_a_leader_begins_gives_the_lead_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with new_log(tmp_path / "log") as log:
        log.publish("orders", b"first")
        real = CommitQueue._enqueue

        def interrupted(self: CommitQueue, entry: Entry) -> bool:
            assert real(self, entry)
            entry.waiter.leads = True  # type: ignore[union-attr]  # as it is told a moment later
            raise KeyboardInterrupt

        monkeypatch.setattr(CommitQueue, "_enqueue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.publish("orders", b"x")
        monkeypatch.undo()
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(log.publish, "orders", b"y").result(10).offset == 2
        assert messages_of(log) == {0: b"first", 1: b"x", 2: b"y"}


def test_what_the_keeper_cannot_do_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rounds = threading.Semaphore(0)

    def broken(self: object) -> None:
        rounds.release()
        raise RuntimeError("no way")

    monkeypatch.setattr("frazil.log.topic.TopicLog.flush", broken)
    with capture_logs() as told, new_log(tmp_path / "log", sync_interval_ms=1):
        for _ in range(5):
            assert rounds.acquire(timeout=30)
    events = [t for t in told if t["event"] == "housekeeping of a topic failed"]
    assert [(t["topic"], t["kind"]) for t in events] == [("orders", "RuntimeError")]


def test_retention_of_a_deleted_topic_does_not_touch_the_next_of_its_name(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        for _ in range(3):
            log.publish("orders", bytes(3000))
        old = log._topic("orders")
        old.segments_lock = turns = Turns()  # type: ignore[assignment]
        with turns.lock:
            late = threading.Thread(target=lambda: _quietly(log))
            late.start()
            assert turns.asked.wait(60)
            with log._lock:  # what `delete_topic` does, while retention waits for its turn
                log._open.pop("orders").close()
                log._files.pop("orders")
                (tmp_path / "log" / "topics" / "orders").rename(tmp_path / "gone")
            log.create_topic("orders")
            for _ in range(3):
                log.publish("orders", bytes(3000))
        late.join()
        assert len(messages_of(log)) == 3


class Turns:
    """A lock that tells when somebody waits for it."""

    def __init__(self) -> None:
        self.lock, self.asked = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        self.asked.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def _quietly(log: Log) -> None:
    try:
        log.retain("orders", size=0)
    except FrazilError:
        return


def test_what_a_crash_left_of_a_deleted_topic_is_removed_at_the_next_open(tmp_path: Path):
    new_log(tmp_path / "log").close()
    left = tmp_path / "log" / "topics" / ".deleted-old-0123"
    left.mkdir()
    (left / "topic.json").write_text("{}")
    open_log(tmp_path / "log").close()
    assert not left.exists()


# -- sizes ---------------------------------------------------------------------------------------------------------


def test_a_group_for_an_empty_segment_is_cut_at_its_size_like_any_other(tmp_path: Path):
    async def publish(log: Log) -> None:
        log.prepare("orders")
        await asyncio.gather(*(log.append_async("orders", Batch.of_messages([bytes(1500)])) for _ in range(20)))

    with new_log(tmp_path / "log") as log:
        asyncio.run(publish(log))
        segments, _ = log._topic("orders").visible()
        assert max(s.size for s in segments) <= log.settings.max_file_size
        assert len(messages_of(log)) == 20


def test_a_segment_without_messages_does_not_grow_for_ever_by_positions_of_subscriptions(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        for offset in range(200):
            log.commit("orders", "billing", offset)
        segments, _ = log._topic("orders").visible()
        assert max(s.size for s in segments) <= 2 * log.settings.max_file_size
        ack = log.publish("orders", b"x")
    with open_log(tmp_path / "log") as again:
        assert again.info("orders").subscriptions == {"billing": 199}
        assert messages_of(again) == {ack.offset: b"x"}


def test_batches_remembered_are_bounded_over_all_producers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producers_module, "MAX_REMEMBERED", 100)
    known = Producers()
    ids = []
    for number in range(20):
        producer = known.make_registered(f"p{number}", number)
        known.put(producer)
        ids.append(producer.id)
    for sequence in range(40):
        for producer_id in ids:
            known.take(producer_id, TakenBatch(sequence, sequence, 1, sequence))
    kept = [len(known.get(i).recent) for i in ids]  # type: ignore[union-attr]
    assert sum(kept) <= 100 and min(kept) >= 1
    again = Batch.of_messages([b"x"], producer_id=ids[0], sequence=3)
    assert known.find_duplicate(again, "orders") == TakenBatch(3, -1, 1, 39), "still recognised"


def test_what_is_kept_of_the_epoch_before_counts_as_remembered_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producers_module, "MAX_REMEMBERED", 100)
    known = Producers()
    for number in range(20):
        known.put(known.make_registered(f"p{number}", number))
        producer_id = known.make_registered(f"p{number}", number).id
        for sequence in range(10):
            known.take(producer_id, TakenBatch(sequence, sequence, 1, sequence))
        known.put(known.make_registered(f"p{number}", number))
        kept = [producers_module.Producer.from_json(row).before for row in known.to_json()]
        assert sum(len(before.recent) for before in kept) <= 100
        assert all((before.epoch, before.last, before.recent[-1].sequence) == (0, 9, 9) for before in kept)


def test_the_largest_state_is_small_beside_a_segment():
    known = Producers()
    now = time.time_ns() // 1000
    for number in range(producers_module.MAX_PRODUCERS):
        producer = known.make_registered(f"producer-with-a-name-{number}", now)
        known.put(producer)
        for sequence in range(producers_module.REMEMBERED):
            known.take(producer.id, TakenBatch(10**9 + sequence, 10**12, 1000, now))
    assert len(json.dumps(known.to_json())) < 4 * 1024 * 1024


# -- what comes from outside -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sinks", [["archive"], "archive", [5], None, ["a b"]])
def test_sinks_that_cannot_be_are_refused_and_not_dropped(tmp_path: Path, sinks: object):
    with new_log(tmp_path / "log") as log, pytest.raises(UsageError):
        log.configure("orders", {"sinks": sinks})


@pytest.mark.parametrize("limit", [{"age_s": -1.0}, {"size": -1}, {"age_s": math.nan}])
def test_retention_by_less_than_nothing_is_refused(tmp_path: Path, limit: dict[str, float]):
    with new_log(tmp_path / "log") as log, pytest.raises(UsageError):
        log.retain("orders", **limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [math.nan, -1.0, 0.0])
def test_a_wait_for_no_time_at_all_comes_back(tmp_path: Path, timeout: float):
    with new_log(tmp_path / "log") as log, Broker(log) as broker, Client(broker.address) as client:
        assert client._call("wait", topic="orders", offset=0, timeout=timeout) == 0


def test_subscriptions_and_columns_of_a_topic_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("frazil.log.topic.MAX_SUBSCRIPTIONS", 2)
    monkeypatch.setattr("frazil.log.columns.MAX_EXTRA", 2)
    with new_log(tmp_path / "log") as log:
        log.commit("orders", "a", 0)
        log.commit("orders", "b", 0)
        log.commit("orders", "a", 1)
        with pytest.raises(UsageError, match="subscriptions"):
            log.commit("orders", "c", 0)
        log.append("orders", Batch.of_arrow(pa.record_batch({"payload": [b"x"], "a": [1], "b": [1]})))
        with pytest.raises(UsageError, match="columns"):
            log.append("orders", Batch.of_arrow(pa.record_batch({"payload": [b"x"], "c": [1]})))


def test_a_batch_that_grows_when_it_is_read_is_refused(tmp_path: Path):
    rows = pa.record_batch([pa.array([bytes(100_000)], pa.binary())], schema=pa.schema([_PAYLOAD]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    body = bytes(sink.getvalue())
    with new_log(tmp_path / "log") as log, pytest.raises(UsageError, match="compressed"):
        log.append("orders", Batch(Kind.arrow, 1, body, zlib.crc32(body)))


def test_a_topic_that_must_be_opened_first_does_not_hold_the_http_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with new_log(tmp_path / "log") as log:
        log.publish("orders", b"x")
    real, asked_by = Log.info, []

    def info(self: Log, topic: str) -> TopicInfo:
        asked_by.append(threading.get_ident())
        return real(self, topic)

    monkeypatch.setattr(Log, "info", info)

    async def work(service: Service) -> None:
        await service.info("orders")
        await service.info("orders")

    with open_log(tmp_path / "log") as log:
        service = Service(log, load_settings(flags={"home": str(tmp_path)}, environ={}).model)
        asyncio.run(work(service))
        service.close()
    assert asked_by[0] != threading.get_ident() == asked_by[1], "recovery in a thread; what is open, at once"
