"""Append with group commit: threads, coroutines and both at once, at every level."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from frazil.errors import FrazilError, UnavailableError, UsageError
from frazil.log import Ack, Batch, Level, Log
from frazil.log.files import LogShutError
from frazil.log.group import Entry
from frazil.observe.faultpoints import handled
from tests.faulty_disk import FaultyDisk
from tests.log_kit import crash, messages_of, new_log, open_log, settings, table_of

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with new_log(tmp_path / "log") as opened:
        yield opened


def check(log: Log, acks: dict[bytes, Ack]) -> None:
    """Every acknowledgement names one place, all places together have no gap, and each holds its message."""
    log.sync("orders")
    read = messages_of(log)
    assert sorted(a.offset for a in acks.values()) == list(range(len(acks)))
    assert read == {a.offset: payload for payload, a in acks.items()}


def publish_all(log: Log, names: list[str], count: int, level: Level | None = None) -> dict[bytes, Ack]:
    def work(name: str) -> dict[bytes, Ack]:
        payloads = [f"{name}-{i}".encode() for i in range(count)]
        return {p: log.publish("orders", p, level=level) for p in payloads}

    with ThreadPoolExecutor(len(names)) as pool:
        return {k: v for part in pool.map(work, names) for k, v in part.items()}


async def publish_all_async(log: Log, names: list[str], count: int, level: Level | None = None) -> dict[bytes, Ack]:
    async def work(name: str) -> dict[bytes, Ack]:
        payloads = [f"{name}-{i}".encode() for i in range(count)]
        return {p: await log.publish_async("orders", p, level=level) for p in payloads}

    parts = await asyncio.gather(*(work(name) for name in names))
    return {k: v for part in parts for k, v in part.items()}


@pytest.mark.parametrize("level", [Level.os, Level.disk])
def test_threads_get_offsets_that_are_theirs_alone_and_have_no_gap(log: Log, level: Level):
    acks = publish_all(log, [f"t{i}" for i in range(8)], 40, level)
    assert {a.level for a in acks.values()} == {level}
    check(log, acks)


@pytest.mark.parametrize("level", [Level.os, Level.disk])
def test_coroutines_get_offsets_that_are_theirs_alone_and_have_no_gap(log: Log, level: Level):
    acks = asyncio.run(publish_all_async(log, [f"c{i}" for i in range(32)], 20, level))
    check(log, acks)


def test_threads_and_two_event_loops_share_one_topic(log: Log):
    with ThreadPoolExecutor(3) as pool:
        loops = [
            pool.submit(lambda n=n: asyncio.run(publish_all_async(log, [f"{n}{i}" for i in range(8)], 30)))
            for n in ("a", "b")
        ]
        threads = pool.submit(publish_all, log, [f"t{i}" for i in range(4)], 30)
        acks = {k: v for part in (*loops, threads) for k, v in part.result().items()}
    check(log, acks)


def test_messages_of_one_publisher_keep_their_order(log: Log):
    acks = publish_all(log, ["a", "b", "c"], 50, Level.os)
    for name in "abc":
        offsets = [acks[f"{name}-{i}".encode()].offset for i in range(50)]
        assert offsets == sorted(offsets)


def test_what_one_coroutine_publishes_without_waiting_keeps_its_order_whatever_it_is(log: Log):
    async def work() -> list[Ack]:
        calls = [
            log.publish_async("orders", b"0"),
            log.publish_async("orders", b"1", request_id=7),
            log.publish_async("orders", b"2", level="os"),
            log.append_async("orders", Batch.of_messages([b"3", b"4"])),
            log.publish_async("orders", b"5"),
            log.publish_async("orders", b"6", headers={"a": "b"}),
            log.publish_async("orders", b"7", level="memory"),
            log.publish_async("orders", b"8"),
        ]
        log.publish("orders", b"9")
        return list(await asyncio.gather(*calls))

    log.prepare("orders")
    acks = asyncio.run(work())
    assert [(a.offset, a.count, a.level.value) for a in acks] == [
        (0, 1, "disk"), (1, 1, "disk"), (2, 1, "os"), (3, 2, "disk"), (5, 1, "disk"), (6, 1, "disk"),
        (-1, 1, "memory"), (8, 1, "disk"),
    ]  # fmt: skip
    assert messages_of(log) == {i: b"%d" % i for i in range(10)}
    assert table_of(log)["request_id"].to_pylist() == [None, 7] + [None] * 8


def test_coroutines_that_publish_in_one_turn_share_a_frame_up_to_a_size(tmp_path: Path):
    async def work(log: Log, size: int) -> list[Ack]:
        return list(await asyncio.gather(*(log.publish_async("orders", bytes(size)) for _ in range(50))))

    with new_log(tmp_path / "log", max_file_size=1 << 26) as log:
        log.prepare("orders")
        for size, frames in ((10, 1), (100_000, 5)):
            before = log._topic("orders").writer.counters._counts[2]
            asyncio.run(work(log, size))
            assert log._topic("orders").writer.counters._counts[2] - before == frames
        assert len(messages_of(log)) == 100


def test_where_much_waits_it_is_committed_in_pieces_and_each_gets_its_own_offsets(tmp_path: Path):
    async def work(log: Log) -> dict[bytes, Ack]:
        batches = {b"%d" % i: Batch.of_messages([b"%d" % i, bytes(300_000)]) for i in range(20)}
        acks = await asyncio.gather(*(log.append_async("orders", b) for b in batches.values()))
        return dict(zip(batches, acks, strict=True))

    syncs: list[str] = []
    with (
        new_log(tmp_path / "log", max_file_size=1 << 26) as log,
        handled(lambda step: syncs.append(step) if step == "log.sync.after" else None),
    ):
        log.publish("orders", b"first")
        syncs.clear()
        acks = asyncio.run(work(log))
        assert len(syncs) == 5
        read = messages_of(log)
        assert [a.offset for a in acks.values()] == list(range(1, 41, 2))
        assert {read[a.offset]: a.offset for a in acks.values()} == {p: a.offset for p, a in acks.items()}


def test_batches_and_single_messages_and_headers_mix(log: Log):
    log.publish("orders", b"one", request_id=1)
    assert log.append("orders", Batch.of_messages([b"two", b"three"], [2, None])).offset == 1
    log.publish("orders", b"four", headers={"k": "v"})
    own = pa.record_batch({"payload": pa.array([b"five"]), "price": pa.array([5])})
    log.append("orders", Batch.of_arrow(own))
    rows = table_of(log).to_pylist()
    assert [r["payload"] for r in rows] == [b"one", b"two", b"three", b"four", b"five"]
    assert [r["request_id"] for r in rows] == [1, 2, None, None, None]
    assert [r["headers"] for r in rows] == [None, None, None, [("k", "v")], None]
    assert [r["price"] for r in rows] == [None, None, None, None, 5]
    assert [r["segment_offset"] for r in rows] == [r["offset"] - r["segment_id"] for r in rows]


def test_publish_times_never_go_back(log: Log, monkeypatch: pytest.MonkeyPatch):
    clock = iter([5_000_000, 9_000_000, 1_000, 2_000, 12_000_000] + [12_000_001] * 50)
    last = [0]
    monkeypatch.setattr(time, "time_ns", lambda: last.__setitem__(0, next(clock, last[0])) or last[0])
    times = [log.publish("orders", b"x").time_us for _ in range(5)]
    assert times == sorted(times)
    read = [t.timestamp() for t in table_of(log)["publish_time"].to_pylist()]
    assert read == sorted(read)


# -- levels and sync modes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "level"), [("always", "disk"), ("periodic", "os"), ("none", "memory")])
def test_the_sync_mode_gives_the_level_that_an_acknowledgement_names(tmp_path: Path, mode: str, level: str):
    with new_log(tmp_path / "log", sync_mode=mode) as log:
        assert log.publish("orders", b"x").level == level
        assert asyncio.run(_one(log, b"y", None)).level == level
        assert log.append("orders", Batch.of_messages([b"z"])).level == level
        assert log.sync("orders") == 3
        assert list(messages_of(log).values()) == [b"x", b"y", b"z"]


@pytest.mark.parametrize("asked", ["memory", "os", "disk"])
@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
def test_a_publisher_may_ask_for_any_level_whatever_the_mode(tmp_path: Path, mode: str, asked: str):
    disk = FaultyDisk(tmp_path)
    with new_log(tmp_path / "log", disk=disk, sync_mode=mode) as log:
        log.publish("orders", b"first", level="disk")
        before = disk.syncs
        ack = log.publish("orders", b"x", level=asked)
        assert ack.level == asked
        assert disk.syncs - before == (1 if asked == "disk" else 0)
        assert log.info("orders").end == (2 if asked == "disk" else 1)
        assert ack.offset == (-1 if asked == "memory" else 1)


def test_only_what_is_synced_is_visible(tmp_path: Path):
    with new_log(tmp_path / "log", sync_mode="periodic") as log:
        log.publish("orders", b"a", level="disk")
        log.publish("orders", b"b", level="os")
        assert messages_of(log) == {0: b"a"}
        assert log.info("orders").written == 2
        log.sync("orders")
        assert messages_of(log) == {0: b"a", 1: b"b"}


def test_periodic_syncs_by_itself_and_none_writes_by_itself(tmp_path: Path):
    for mode in ("periodic", "none"):
        with new_log(tmp_path / mode, sync_mode=mode, sync_interval_ms=5) as log:
            log.publish("orders", b"x")
            if mode == "periodic":
                assert log.wait("orders", 0, 30) == 1
            else:
                until = time.monotonic() + 30
                while log.info("orders").written < 1 and time.monotonic() < until:
                    time.sleep(0.005)
                assert log.info("orders").written == 1


def test_closing_a_log_loses_nothing_that_waits_in_memory(tmp_path: Path):
    with new_log(tmp_path / "log", sync_mode="none") as log:
        for i in range(50):
            log.publish("orders", b"%d" % i)
    with open_log(tmp_path / "log") as log:
        assert list(messages_of(log).values()) == [b"%d" % i for i in range(50)]


# -- wait ----------------------------------------------------------------------------------------------------------


def until_a_reader_waits(log: Log) -> None:
    while not log._topic("orders")._waiting_readers:
        time.sleep(0.001)


def test_a_reader_that_waits_is_woken_by_the_message(log: Log):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.wait, "orders", 0, 3600)
        until_a_reader_waits(log)
        log.publish("orders", b"x")
        assert waiting.result() == 1
    assert log.wait("orders", 0, 0) == 1
    assert log.wait("orders", 1, 0.01) == 1


def test_a_reader_that_waits_is_woken_by_a_rotation_that_syncs(tmp_path: Path):
    with new_log(tmp_path / "log", sync_mode="periodic") as log:
        log.publish("orders", b"x" * 4000)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(log.wait, "orders", 0, 3600)
            until_a_reader_waits(log)
            log.publish("orders", b"y" * 4000)
            assert waiting.result() == 1


def test_a_reader_that_waits_is_let_go_when_the_log_closes(tmp_path: Path):
    log = new_log(tmp_path / "log")
    log.publish("orders", b"x")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.wait, "orders", 1, 3600)
        until_a_reader_waits(log)  # one that comes later is told that the log is closed
        log.close()
        assert waiting.result() == 1


# -- back-pressure -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [Level.memory, Level.os, Level.disk])
def test_a_full_buffer_makes_publishers_wait_and_never_stands_still(tmp_path: Path, level: Level):
    with new_log(tmp_path / "log", max_buffer=1024, max_file_size=1 << 20) as log:
        payloads = [b"%05d" % i * 100 for i in range(60)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda p: log.publish("orders", p, level=level), payloads))
        asyncio.run(_publish_each(log, payloads, level))
        log.sync("orders")
        assert sorted(messages_of(log).values()) == sorted(payloads * 2)


async def _publish_each(log: Log, payloads: list[bytes], level: Level) -> None:
    await asyncio.gather(*(log.publish_async("orders", p, level=level) for p in payloads))


def test_a_message_larger_than_the_buffer_goes_through(tmp_path: Path):
    with new_log(tmp_path / "log", max_buffer=1024) as log:
        assert [log.publish("orders", bytes(5000)).offset for _ in range(3)] == [0, 1, 2]


def test_at_the_size_limit_producers_are_refused_until_retention_has_made_room(tmp_path: Path):
    with new_log(tmp_path / "log", size_limit=20_000) as log:
        with pytest.raises(UnavailableError, match="limit of 20,000 bytes"):
            for _ in range(100):
                log.publish("orders", bytes(1000))
        end = log.info("orders").end
        log.retain("orders", size=8000)
        assert log.publish("orders", b"again").offset == end


def test_below_the_minimum_of_free_space_producers_are_refused(tmp_path: Path):
    disk = FaultyDisk(tmp_path)
    disk.free_space = 1000
    with new_log(tmp_path / "log", disk=disk, min_free=5000) as log:
        with pytest.raises(UnavailableError, match="only 1,000 bytes free"):
            log.publish("orders", b"x")
        disk.free_space = 10_000
        assert log.publish("orders", b"x").offset == 0


# -- bad input touches nobody else ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "request_id"),
    [
        ("text", None),
        (None, None),
        (bytearray(b"x"), None),
        (b"x", 2**63),
        (b"x", -(2**63)),
        (b"x", "one"),
        (b"x", 1.5),
    ],
)
def test_a_message_that_cannot_be_written_is_refused_and_the_log_goes_on(log: Log, payload: Any, request_id: Any):
    with pytest.raises(UsageError):
        log.publish("orders", payload, request_id=request_id)
    with pytest.raises(UsageError):
        asyncio.run(_one(log, payload, request_id))
    assert log.publish("orders", b"good").offset == 0


async def _one(log: Log, payload: Any, request_id: Any) -> Ack:
    return await log.publish_async("orders", payload, request_id=request_id)


def test_a_message_over_the_limit_is_refused_and_one_at_the_limit_is_taken(tmp_path: Path):
    with new_log(tmp_path / "log", max_message_size=100) as log:
        assert log.publish("orders", bytes(100)).offset == 0
        with pytest.raises(UsageError, match="101 bytes is over the limit of 100"):
            log.publish("orders", bytes(101))
        with pytest.raises(UsageError, match="over the limit"):
            log.append("orders", Batch.of_messages([b"", bytes(101)]))
        with pytest.raises(UsageError, match="over the limit"):
            log.publish("orders", bytes(101), headers={"a": "b"})
        assert log.info("orders").end == 1


def test_a_batch_with_a_column_of_another_type_is_refused_alone(log: Log):
    def batch(value: Any) -> Batch:
        return Batch.of_arrow(pa.record_batch({"payload": pa.array([b"x"]), "price": pa.array([value])}))

    log.append("orders", batch(1))
    with pytest.raises(UsageError, match="'price' of topic 'orders' has type int64"):
        log.append("orders", batch("one"))
    assert log.append("orders", batch(2)).offset == 1
    assert table_of(log)["price"].to_pylist() == [1, 2]


def test_a_column_widens_and_older_messages_are_read_with_it(log: Log):
    for kind in (pa.int32(), pa.int64()):
        columns = {"payload": pa.array([b"x"]), "n": pa.array([5], kind)}
        log.append("orders", Batch.of_arrow(pa.record_batch(columns)))
    assert log.info("orders").extra == pa.schema([("n", pa.int64())])
    assert table_of(log)["n"].to_pylist() == [5, 5]


# -- nobody waits for ever -----------------------------------------------------------------------------------------


def test_a_cancelled_coroutine_leaves_the_others_their_acknowledgements(log: Log):
    async def work() -> list[Any]:
        tasks = [asyncio.ensure_future(log.publish_async("orders", b"%d" % i)) for i in range(20)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(work())
    acks = [o for o in outcomes if isinstance(o, Ack)]
    assert len(acks) >= 18
    read = messages_of(log)
    assert all(read[a.offset] == b"%d" % outcomes.index(a) for a in acks)
    assert log.publish("orders", b"after").offset == len(read)


def test_an_event_loop_that_ends_in_the_middle_does_not_keep_the_lead(log: Log):
    async def leave() -> None:
        for i in range(10):
            asyncio.ensure_future(log.publish_async("orders", b"%d" % i))  # noqa: RUF006 - nobody waits for it
        await asyncio.sleep(0)

    for _ in range(20):
        asyncio.run(leave())
        log.publish("orders", b"a thread")


def test_a_loop_that_stands_still_does_not_keep_the_lead(log: Log):
    async def begin() -> asyncio.Future[Ack]:
        return asyncio.ensure_future(log.publish_async("orders", b"from the loop"))

    loop = asyncio.new_event_loop()
    log.publish("orders", b"first")
    future = loop.run_until_complete(begin())
    assert log.publish("orders", b"from a thread").offset in (1, 2)
    assert loop.run_until_complete(future).offset in (1, 2)
    loop.close()


def test_a_blocking_call_inside_a_coroutine_does_not_wait_for_its_own_loop(log: Log):
    async def work() -> None:
        log.publish("orders", b"first")
        task = asyncio.ensure_future(log.publish_async("orders", b"x"))
        await asyncio.sleep(0)
        other = log.publish_async("orders", b"y")
        log.register("orders", "billing")
        log.sync("orders")
        await asyncio.gather(task, other)

    asyncio.run(work())
    assert len(messages_of(log)) == 3


def test_a_blocking_call_behind_a_coroutine_does_not_wait_for_its_own_loop_while_a_thread_commits(tmp_path: Path):
    """A slow disk: the commit runs in a thread, and what comes next is the loop's, which stands still."""
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(FaultyDisk):
        def sync(self, fd: int) -> None:
            if begun.is_set():
                goes_on.wait(20)
            super().sync(fd)

    async def work(log: Log) -> list[Ack]:
        log._topic("orders").files.sync_seconds = 1.0
        begun.set()
        first = asyncio.ensure_future(log.publish_async("orders", b"x"))
        while log._topic("orders").files.written < 2:
            await asyncio.sleep(0.001)
        second = log.publish_async("orders", b"y")
        threading.Timer(0.1, goes_on.set).start()
        third = log.publish("orders", b"z")
        return [await first, await second, third]

    with new_log(tmp_path / "log", disk=Slow(tmp_path)) as log:
        log.publish("orders", b"before")
        assert [a.offset for a in asyncio.run(work(log))] == [1, 2, 3]


def test_a_log_that_is_closed_inside_a_coroutine_answers_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("frazil.log.topic.PATIENCE_S", 3600)

    async def work() -> list[Any]:
        log = new_log(tmp_path / "log")
        log.publish("orders", b"first")
        waiting = [asyncio.ensure_future(log.publish_async("orders", b"%d" % i)) for i in range(5)]
        await asyncio.sleep(0)
        log.close()
        return await asyncio.gather(*waiting)

    acks = asyncio.run(work())
    with open_log(tmp_path / "log") as log:
        assert {messages_of(log)[a.offset] for a in acks} == {b"%d" % i for i in range(5)}


def test_a_log_that_another_thread_closes_in_the_middle_of_a_turn_answers_those_who_wait(tmp_path: Path):
    log = new_log(tmp_path / "log")

    async def work() -> list[Any]:
        waiting = [log.publish_async("orders", b"%d" % n) for n in range(3)]
        closing = threading.Thread(target=log.close)
        closing.start()
        closing.join()
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(work())] == [UnavailableError] * 3


def test_what_a_loop_has_gathered_is_refused_when_it_comes_behind_the_last_commit(tmp_path: Path):
    log = new_log(tmp_path / "log")
    opened = log._topic("orders")

    async def work() -> list[Any]:
        gathered = opened.publish_async(b"late")
        closing = threading.Thread(target=log.close)
        closing.start()
        closing.join()
        with pytest.raises(UnavailableError):
            await opened.append_async(Batch.of_messages([b"later"]))
        return await asyncio.gather(gathered, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(work())] == [UnavailableError]
    assert opened.files.failed is None, "nobody wrote to files that were closed"
    with open_log(tmp_path / "log") as again:
        assert messages_of(again) == {}


def test_what_comes_before_the_topic_is_ready_goes_in_order(tmp_path: Path):
    """Also what comes when it is ready, and the first still wait to be let in."""
    asked = threading.Event()

    def floor(*_: object) -> None:
        assert asked.wait(10)

    log = Log.open(tmp_path / "log", settings(), floor=floor)
    log.create_topic("orders")

    async def work() -> list[Ack]:
        waiting = [
            log.publish_async("orders", b"0"),
            log.append_async("orders", Batch.of_messages([b"1"])),
            log.publish_async("orders", b"2"),
        ]
        await asyncio.sleep(0)
        asked.set()
        while not log._topic("orders")._ready:
            time.sleep(0.001)  # the loop stands still: nobody is let in
        waiting.append(log.append_async("orders", Batch.of_messages([b"3"])))
        waiting.append(log.publish_async("orders", b"4"))
        return await asyncio.gather(*waiting)

    with log:
        assert [ack.offset for ack in asyncio.run(work())] == [0, 1, 2, 3, 4]


def test_coroutines_that_wait_for_room_keep_their_order(tmp_path: Path):
    with new_log(tmp_path / "log", max_buffer=1024) as log:
        log.publish("orders", b"first")
        line = log._topic("orders").queue

        async def work() -> list[Ack]:
            waiting = [log.publish_async("orders", b"0")]  # gathers
            line._buffered += 2000  # as if threads had filled it
            waiting.append(log.append_async("orders", Batch.of_messages([b"1"])))
            waiting.append(log.publish_async("orders", b"2"))
            await asyncio.sleep(0.01)
            given_up = asyncio.ensure_future(log.publish_async("orders", b"never"))
            given_up.cancel()
            line._buffered -= 2000
            waiting.append(log.publish_async("orders", b"3"))
            waiting.append(log.append_async("orders", Batch.of_messages([b"4"])))
            return await asyncio.gather(*waiting)

        assert [ack.offset for ack in asyncio.run(work())] == [1, 2, 3, 4, 5]
        assert list(messages_of(log).values()) == [b"first", b"0", b"1", b"2", b"3", b"4"]


def test_nobody_joins_those_that_were_let_in_while_others_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("frazil.log.commit_queue._ROOM_POLL_S", 3600)
    with new_log(tmp_path / "log", max_buffer=1024) as log:
        log.publish("orders", b"first")
        line = log._topic("orders").queue

        async def work() -> list[Ack]:
            loop = asyncio.get_running_loop()
            line._buffered += 2000  # as if threads had filled it
            waiting = [log.publish_async("orders", bytes([n]) * 400) for n in range(3)]
            line._buffered -= 1500
            line._admit_calls(loop)  # there is room for two
            waiting.append(log.publish_async("orders", b"late"))
            while not waiting[1].done() or line._buffered > 500:  # a thread that commits tells before it makes room
                await asyncio.sleep(0.001)
            line._buffered -= 500
            line._admit_calls(loop)
            return await asyncio.gather(*waiting)

        acks = asyncio.run(work())
        assert [ack.offset for ack in acks] == [1, 2, 3, 4]
        assert acks[0].time_us == acks[1].time_us, "let in together, they went together"


def test_coroutines_that_wait_for_room_are_told_when_the_log_is_closed(tmp_path: Path):
    log = new_log(tmp_path / "log", max_buffer=1024)
    log.publish("orders", b"first")
    line = log._topic("orders").queue

    async def work() -> list[Any]:
        line._buffered += 2000
        waiting = [log.publish_async("orders", b"%d" % n) for n in range(2)]
        closing = threading.Thread(target=log.close)
        closing.start()
        closing.join()
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(work())] == [UnavailableError] * 2


def test_two_loops_do_not_disturb_the_order_of_each_other(log: Log):
    log.publish("orders", b"first")
    gathered, other = threading.Event(), threading.Event()

    async def first() -> list[Ack]:
        waiting = [log.publish_async("orders", b"1")]
        gathered.set()
        assert other.wait(10)  # the other loop gathers too, in the middle of this turn
        waiting.append(log.append_async("orders", Batch.of_messages([b"2"])))
        return await asyncio.gather(*waiting)

    async def second() -> None:
        assert gathered.wait(10)
        waiting = log.publish_async("orders", b"x")
        other.set()
        await waiting

    with ThreadPoolExecutor(2) as pool:
        told = pool.submit(asyncio.run, first())
        pool.submit(asyncio.run, second()).result()
        one, two = (ack.offset for ack in told.result())
    assert one < two


def test_a_message_that_went_ahead_too_late_is_answered_all_the_same(log: Log):
    """Between the look at the level `memory` and the place in line, a loss may have made the log wary."""
    log.publish("orders", b"first")
    line = log._topic("orders").queue

    async def work() -> Ack:
        line._is_cautious = True
        return await line.submit_async(Entry.of_message((b"x", None, None), Level.memory))

    assert asyncio.run(asyncio.wait_for(work(), 10)).offset == 1


def test_a_log_that_is_closed_or_shut_acknowledges_nothing(tmp_path: Path):
    disk = FaultyDisk(tmp_path)
    log = new_log(tmp_path / "log", disk=disk)
    log.publish("orders", b"first")
    opened = log._topic("orders")
    one = (Batch.of_messages([b"x"]), Level.os)

    async def from_a_loop() -> Ack:
        return await opened.publish_async(b"x", None, Level.os)

    disk.fail("sync", match=".seg")
    with pytest.raises(LogShutError):
        log.publish("orders", b"lost")
    for batches in ([one], [one, one]):
        with pytest.raises(LogShutError):
            log.append_many("orders", batches)
    with pytest.raises(LogShutError):
        asyncio.run(from_a_loop())
    log.close()
    again = open_log(tmp_path / "log")
    opened = again._topic("orders")
    again.close()
    for batches in ([one], [one, one]):
        with pytest.raises(UnavailableError, match="closed"):
            opened.append_many(batches)


def test_closing_while_others_publish_gives_each_an_acknowledgement_or_an_error(tmp_path: Path):
    for round_number in range(5):
        log = new_log(tmp_path / f"log{round_number}")
        acks: dict[bytes, Ack] = {}
        errors: list[BaseException] = []

        def work(name: str, log: Log = log, acks: dict = acks, errors: list = errors) -> None:
            for i in range(1_000_000):  # until it is closed
                payload = f"{name}-{i}".encode()
                try:
                    acks[payload] = log.publish("orders", payload)
                except FrazilError as error:
                    errors.append(error)
                    return

        async def work_async(name: str, log: Log = log, acks: dict = acks, errors: list = errors) -> None:
            for i in range(1_000_000):
                payload = f"{name}-{i}".encode()
                try:
                    acks[payload] = await log.publish_async("orders", payload)
                except FrazilError as error:
                    errors.append(error)
                    return

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
        threads.append(threading.Thread(target=lambda: asyncio.run(work_async("c"))))
        for thread in threads:
            thread.start()
        while len(acks) < 40:
            time.sleep(0.001)
        log.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert len(errors) == 5
        with open_log(tmp_path / f"log{round_number}") as again:
            read = messages_of(again)
            assert {a.offset: p for p, a in acks.items()} == read


@pytest.mark.parametrize("fault", [RuntimeError("a fault"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["log.commit.before", "log.write.before", "log.write.after", "log.sync.before"])
def test_a_leader_that_breaks_off_leaves_nobody_waiting(tmp_path: Path, step: str, fault: BaseException):
    log = new_log(tmp_path / "log")
    acks = {b"before": log.publish("orders", b"before")}
    outcomes: list[Any] = []

    def work(name: str) -> None:
        try:
            for i in range(1000):
                payload = f"{name}-{i}".encode()
                acks[payload] = log.publish("orders", payload)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a witness notes what it is told
            outcomes.append(error)

    async def work_async() -> None:
        try:
            for i in range(1000):
                payload = f"c-{i}".encode()
                acks[payload] = await log.publish_async("orders", payload)
        except Exception as error:  # noqa: BLE001 - a witness notes what it is told
            outcomes.append(error)

    def run_loop() -> None:
        with contextlib.suppress(KeyboardInterrupt):  # it was the loop that led
            asyncio.run(work_async())
        if len(outcomes) < 4:
            outcomes.append(None)

    with handled(_after(step, 60, fault)):
        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(3)]
        threads.append(threading.Thread(target=run_loop))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert len(outcomes) >= 4
    with pytest.raises(LogShutError):
        log.publish("orders", b"after")
    assert set(messages_of(log).values()) >= set(acks), "what was synced can still be read"
    log.close()
    with open_log(tmp_path / "log") as again:
        read = messages_of(again)
        assert all(read[a.offset] == p for p, a in acks.items())
        assert again.publish("orders", b"after").offset == len(read)


def _after(step: str, count: int, fault: BaseException) -> Callable[[str], None]:
    seen = [0]

    def handler(reached: str) -> None:
        if reached == step:
            seen[0] += 1
            if seen[0] == count:
                raise fault

    return handler


def test_an_interrupt_after_the_own_acknowledgement_is_not_swallowed(tmp_path: Path):
    log = new_log(tmp_path / "log")
    log.publish("orders", b"first")
    with handled(_after("log.commit.after", 1, KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
        log.publish("orders", b"x")
    log.close()


def test_ctrl_c_in_a_thread_that_waits_does_not_take_the_lead_with_it(tmp_path: Path):
    log = new_log(tmp_path / "log")
    log.publish("orders", b"first")
    main, line = threading.main_thread().ident, log._topic("orders").queue
    inside, go_on = threading.Event(), threading.Event()

    def hold(step: str) -> None:
        if step == "log.sync.before" and threading.get_ident() != main and not inside.is_set():
            inside.set()
            go_on.wait(50)

    def interrupt() -> None:
        while not line._pending:  # the main thread stands in line
            time.sleep(0.001)
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)

    with handled(hold):
        leader = threading.Thread(target=log.publish, args=("orders", b"leader"))
        leader.start()
        assert inside.wait(20)
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            log.publish("orders", b"main")
        go_on.set()
        leader.join(20)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(log.publish, "orders", b"after").result(20)
    log.close()


def test_many_writers_under_a_crash_keep_every_acknowledged_message(tmp_path: Path):
    log = new_log(tmp_path / "log")
    acks = publish_all(log, [f"t{i}" for i in range(4)], 25)
    log.publish("orders", b"in memory", level="memory")
    crash(log)
    with open_log(tmp_path / "log") as again:
        assert messages_of(again) == {a.offset: p for p, a in acks.items()}
