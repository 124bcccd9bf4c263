"""The producer against a real log in this process, over ways that break."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.errors import ConflictError, FrazilError, UnavailableError, UsageError
from frazil.log.batch import Batch
from frazil.log.frame import unpack_header
from frazil.log.log import Log
from frazil.log.messages import decode_chunk
from frazil.log.protocol import Level
from frazil.log.remote.broker import Broker
from frazil.log.remote.pending_batch import PendingBatch
from frazil.log.remote.producer import Producer
from frazil.log.remote.send_buffer import SendBuffer
from frazil.log.remote.sender import LocalLink, Sender
from frazil.log.remote.stream import LostError
from frazil.settings.model import LogSettings

LIMIT = 100
FAST = LogSettings(sync_mode="periodic", sync_interval_ms=1000, max_message_size=LIMIT)


@pytest.fixture
def log(tmp_path: Path):
    with Log.open(tmp_path / "log", FAST) as log:
        log.create_topic("orders")
        yield log


def rows(log: Log, topic: str = "orders") -> list[dict]:
    log.sync(topic)
    view = log.info(topic).view
    return [row for chunk in log.chunks(topic, 0) for row in decode_chunk(chunk, view).to_pylist()]


def payloads(log: Log) -> list[bytes]:
    return [row["payload"] for row in rows(log)]


def batches(log: Log) -> list[int]:
    """How many messages each batch has that came to the log: one frame is one batch."""
    log.sync("orders")
    counts = []
    for chunk in log.chunks("orders", 0):
        at = 0
        while at < chunk.data.size:
            header = unpack_header(chunk.data, at)
            counts.append(header.count)
            at += header.frame_size
    return [count for count in counts if count]


# -- without faults ----------------------------------------------------------------------------------------------------


def test_each_way_to_publish_gives_offsets_in_order(log):
    with Producer(log, "orders", name="billing-1") as producer:
        acks = [producer.publish(b"0"), producer.publish(b"1", request_id=7, headers={"a": "b"})]
        futures = [producer.send(b"2"), producer.send(b"3")]
        batch = producer.publish_batch([b"4", b"5"], [None, 8])
        arrow = producer.publish_batch(pa.record_batch({"payload": [b"6"], "amount": [1.5]}))
    assert [a.offset for a in acks] == [0, 1]
    assert [f.result().offset for f in futures] == [2, 3]
    assert (batch.offset, batch.count, arrow.offset, arrow.level) == (4, 2, 6, Level.os)
    found = rows(log)
    assert [r["payload"] for r in found] == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
    assert [r["request_id"] for r in found] == [None, 7, None, None, None, 8, None]
    assert found[1]["headers"] == [("a", "b")]
    assert found[6]["amount"] == 1.5
    assert {r["producer_name"] for r in found} == {"billing-1"}


def test_coroutines_and_threads_share_a_producer(log):
    with Producer(log, "orders", max_in_flight_bytes=2000) as producer:

        async def many():
            return await asyncio.gather(*(producer.publish_async(b"c%d" % n) for n in range(300)))

        acks: list = []
        threads = [
            threading.Thread(target=lambda t=t: acks.extend(producer.publish(b"t%d-%d" % (t, n)) for n in range(50)))
            for t in range(4)
        ]
        for thread in threads:
            thread.start()
        acks += asyncio.run(many())
        for thread in threads:
            thread.join()
    found = payloads(log)
    assert sorted(a.offset for a in acks) == list(range(500))
    assert sorted(found) == sorted(
        [b"c%d" % n for n in range(300)] + [b"t%d-%d" % (t, n) for t in range(4) for n in range(50)]
    )
    for t in range(4):
        assert [p for p in found if p.startswith(b"t%d-" % t)] == [b"t%d-%d" % (t, n) for n in range(50)]


class Counting(LocalLink):
    """Notes how many messages each batch has, and which thread has sent it."""

    sent: list[tuple[int, bool]]

    def put(self, batch, level):
        self.sent.append((batch.count, threading.current_thread() is threading.main_thread()))
        super().put(batch, level)


@pytest.fixture
def counted(log, monkeypatch):
    Counting.sent = []
    monkeypatch.setattr("frazil.log.remote.producer.LocalLink", Counting)
    return Counting.sent


def test_coroutines_of_one_turn_travel_together_and_their_loop_sends_them(log, counted):
    async def publisher(producer, name):
        return [await producer.publish_async(b"%d-%d" % (name, n)) for n in range(5)]

    async def crowd(producer):
        return await asyncio.gather(*(publisher(producer, name) for name in range(50)))

    with Producer(log, "orders") as producer:
        producer.publish(b"first")  # makes the way to the log, which a loop would leave to the thread
        acks = asyncio.run(crowd(producer))
    assert [count for count, _ in counted] == [1, 50, 50, 50, 50, 50]
    assert any(by_loop for _, by_loop in counted[1:])
    found = payloads(log)
    assert all(found[a.offset] == b"%d-%d" % (name, n) for name, its in enumerate(acks) for n, a in enumerate(its))


def test_a_loop_leaves_to_the_thread_what_could_make_it_wait(log, counted):
    async def crowd(producer):
        await asyncio.gather(*(producer.publish_async(b"x" * LIMIT) for _ in range(1000)))

    with Producer(log, "orders") as producer:
        producer.publish(b"first")
        asyncio.run(crowd(producer))
    assert counted[1:] == [(1000, False)]


def test_what_a_coroutine_hands_over_goes_with_a_blocking_call_behind_it(log):
    async def work(producer, call):
        task = asyncio.create_task(producer.publish_async(b"from the loop"))
        await asyncio.sleep(0)
        call()
        assert payloads(log)[0] == b"from the loop"
        return await task

    with Producer(log, "orders") as producer:
        assert asyncio.run(work(producer, lambda: producer.publish(b"from a thread"))).offset == 0
    with Producer(log, "orders") as producer:
        assert asyncio.run(work(producer, producer.flush)).offset == 2


def test_what_a_loop_has_left_behind_goes_when_the_producer_closes(log):
    async def leave(producer):
        asyncio.create_task(producer.publish_async(b"left"))  # noqa: RUF006 - nobody waits for it
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    with Producer(log, "orders") as producer:
        loop.run_until_complete(leave(producer))
    assert payloads(log) == [b"left"]
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_a_producer_that_another_thread_closes_in_the_middle_of_a_turn_answers_those_who_wait(log):
    async def work(producer):
        loop, closing = asyncio.get_running_loop(), threading.Thread(target=producer.close)
        tasks = [asyncio.create_task(producer.publish_async(b"%d" % n)) for n in range(3)]
        loop.call_soon(closing.start)  # behind them, and before the end of their turn
        loop.call_soon(closing.join)
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(work(Producer(log, "orders")))
    assert [type(outcome) for outcome in outcomes] == [UsageError] * 3
    assert payloads(log) == []


def test_a_blocking_call_that_waits_for_room_does_not_wait_for_its_own_loop(log):
    async def work(producer):
        task = asyncio.create_task(producer.publish_async(bytes(80)))
        blocking = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: blocking.set_result(producer.send(bytes(60)).result(10)))
        return (await task).offset, (await blocking).offset

    with Producer(log, "orders", max_in_flight_bytes=250) as producer:
        assert asyncio.run(work(producer)) == (0, 1)


def test_two_loops_share_a_producer(log):
    async def crowd(producer, name):
        sent = [b"%d-%d" % (name, n) for n in range(200)]
        acks = await asyncio.gather(*(producer.publish_async(p) for p in sent))
        return {a.offset: p for a, p in zip(acks, sent, strict=True)}

    with Producer(log, "orders") as producer, ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda name: asyncio.run(crowd(producer, name)), range(2)))
    assert dict(enumerate(payloads(log))) == told[0] | told[1]


def test_a_bad_message_fails_alone_among_those_that_travelled_with_it(log):
    with Producer(log, "orders", linger_ms=50) as producer:
        futures = [producer.send(b"x" * (LIMIT + 1) if n == 5 else b"%d" % n) for n in range(10)]
        with pytest.raises(UsageError, match="over the limit"):
            producer.flush()
    assert [f.exception() is None for f in futures] == [n != 5 for n in range(10)]
    assert payloads(log) == [b"%d" % n for n in range(10) if n != 5]


def test_batches_behind_a_refused_one_are_taken_in_order(log):
    with Producer(log, "orders") as producer:
        futures = [producer.send_batch([b"x" * LIMIT * 2] if n % 3 == 1 else [b"%d" % n]) for n in range(20)]
        with pytest.raises(UsageError):
            producer.flush()
        assert producer.publish(b"later").offset == 13
    assert [f.exception() is None for f in futures] == [n % 3 != 1 for n in range(20)]
    assert payloads(log) == [b"%d" % n for n in range(20) if n % 3 != 1] + [b"later"]


def test_the_older_of_two_producers_with_one_name_is_told_so_and_stays_out(log):
    older = Producer(log, "orders", name="billing-1")
    older.publish(b"a")
    with Producer(log, "orders", name="billing-1") as newer:
        newer.publish(b"b")
        for _ in range(2):
            with pytest.raises(ConflictError, match="epoch") as caught:
                older.publish(b"c")
        newer.publish(b"d")
    assert caught.value.hint == "one running producer per name"
    older.close()
    assert payloads(log) == [b"a", b"b", b"d"]


def test_a_closed_producer_takes_nothing(log):
    producer = Producer(log, "orders")
    future = producer.send(b"a")
    producer.close()
    assert future.done()
    with pytest.raises(UsageError, match="closed"):
        producer.publish(b"b")


@pytest.mark.parametrize(
    ("payload", "request_id", "headers"), [("text", None, None), (b"", 2**63, None), (b"", None, {"a": 1})]
)
def test_what_is_no_message_is_refused_and_harms_nobody(log, payload, request_id, headers):
    with Producer(log, "orders") as producer:
        with pytest.raises(UsageError):
            producer.publish(payload, request_id, headers)
        assert producer.publish(b"good").offset == 0


def test_who_would_go_beyond_the_limit_waits(log):
    held = threading.Event()
    appended = log.append

    def slow(*args, **kwargs):
        held.wait()
        return appended(*args, **kwargs)

    log.append = slow  # type: ignore[method-assign]
    with Producer(log, "orders", max_in_flight_bytes=250) as producer:
        sender = threading.Thread(target=lambda: [producer.send(b"x" * 50) for _ in range(100)])
        sender.start()
        sender.join(0.3)
        assert sender.is_alive()
        assert producer.held_bytes <= 1000
        held.set()
        sender.join()
    assert len(payloads(log)) == 100


def test_coroutines_that_give_up_waiting_for_room_do_not_hold_up_the_others(log):
    async def crowd(producer):
        tasks = [asyncio.create_task(producer.publish_async(b"%d" % n)) for n in range(400)]
        await asyncio.sleep(0)
        for task in tasks[100:300]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with Producer(log, "orders", max_in_flight_bytes=300) as producer:
        outcomes = asyncio.run(crowd(producer))
    given_up = [n for n, o in enumerate(outcomes) if isinstance(o, asyncio.CancelledError)]
    assert set(given_up) == set(range(100, 300))
    assert {b"%d" % n for n in range(400) if n not in given_up} <= set(payloads(log))


@pytest.fixture
def slow(log):
    """A log that takes a moment for each batch, so that publishers have to wait for room."""
    appended = log.append

    def append(*args, **kwargs):
        time.sleep(0.002)
        return appended(*args, **kwargs)

    log.append = append  # type: ignore[method-assign]
    return log


def publish_alone(producer, payload):
    return producer.publish_async(payload)


def publish_as_a_batch(producer, payload):
    return producer.publish_batch_async([payload])


def either(producer, payload):
    return producer.publish_async(payload) if len(payload) % 2 else producer.publish_batch_async([payload])


@pytest.mark.parametrize("publish", [publish_alone, publish_as_a_batch, either])
def test_coroutines_that_wait_for_room_keep_the_order_in_which_they_came(slow, publish):
    chance = random.Random(7)
    sizes = [chance.choice([100, 90, 1, 2, 3, 40]) for _ in range(300)]

    async def crowd(producer):
        tasks = []
        for size in sizes:
            tasks.append(asyncio.create_task(publish(producer, bytes(size))))
            if chance.random() < 0.2:  # newcomers find others waiting, and sometimes room
                await asyncio.sleep(chance.choice([0, 0, 0.001]))
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)

    with Producer(slow, "orders", max_in_flight_bytes=300) as producer:
        acks = asyncio.run(crowd(producer))
    assert [ack.offset for ack in acks] == list(range(300))
    assert [len(payload) for payload in payloads(slow)] == sizes


@pytest.mark.parametrize("publish", [publish_alone, publish_as_a_batch, either])
def test_the_others_keep_their_order_when_some_give_up_waiting_for_room(slow, publish):
    chance = random.Random(3)

    async def crowd(producer):
        tasks = [asyncio.create_task(publish(producer, b"%d" % n)) for n in range(300)]
        for task in chance.sample(tasks, 100):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait(tasks, timeout=60)
        return [n for n, task in enumerate(tasks) if not task.cancelled() and task.result().offset >= 0]

    with Producer(slow, "orders", max_in_flight_bytes=300) as producer:
        taken = asyncio.run(crowd(producer))
    found = [int(payload) for payload in payloads(slow)]
    assert found == sorted(found)
    assert len(taken) >= 200 and set(taken) <= set(found)


def test_coroutines_that_wait_for_room_are_told_when_the_producer_is_closed(log):
    closing = threading.Event()
    appended = log.append

    def append(*args, **kwargs):
        assert closing.wait(60)
        return appended(*args, **kwargs)

    log.append = append  # type: ignore[method-assign]

    async def crowd(producer):
        tasks = [asyncio.create_task(producer.publish_async(bytes(100))) for _ in range(20)]
        await asyncio.sleep(0)
        closed = asyncio.get_running_loop().run_in_executor(None, producer.close)
        while producer._buffer._refusal is None:
            await asyncio.sleep(0.001)
        closing.set()
        await closed
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)

    outcomes = asyncio.run(crowd(Producer(log, "orders", max_in_flight_bytes=300)))
    refused = [isinstance(outcome, UsageError) for outcome in outcomes]
    assert any(refused) and refused == sorted(refused)
    assert len(payloads(log)) == refused.count(False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_ever_when_the_producer_itself_fails(log):
    def broken(*_):
        raise RuntimeError("a bug")

    log.append = broken  # type: ignore[method-assign]
    producer = Producer(log, "orders")
    future = producer.send(b"a")
    with pytest.raises(FrazilError, match="producer failed"):
        future.result(20)
    with pytest.raises(FrazilError):
        producer.publish(b"b")
    with pytest.raises(FrazilError):
        producer.close()


# -- how large a batch gets --------------------------------------------------------------------------------------------

#: In these tests nothing goes because of it.
AN_HOUR_MS = 3_600_000
#: The buffer counts 100 bytes for it.
HUNDRED = bytes(36)


@pytest.fixture(params=["embedded", "broker"])
def way(request, log) -> Iterator[Log | str]:
    """What a producer is given: the log itself, or where its broker is."""
    if request.param == "embedded":
        yield log
        return
    with Broker(log) as broker:
        yield broker.address


def test_messages_within_the_linger_travel_as_one_batch_wherever_they_come_from(log, way):
    async def one_per_turn(producer):
        tasks = []
        for n in range(5):
            tasks.append(asyncio.create_task(producer.publish_async(b"c%d" % n)))
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in tasks)
        await asyncio.to_thread(producer.flush)
        return await asyncio.gather(*tasks)

    with Producer(way, "orders", linger_ms=AN_HOUR_MS) as producer:
        producer.send(b"first")
        producer.flush()  # makes the way to the log: from now on a loop could send at once
        sent = [producer.send(b"s%d" % n) for n in range(5)]
        acks = asyncio.run(one_per_turn(producer))
        assert [f.result(30).offset for f in sent] == list(range(1, 6))
        assert [a.offset for a in acks] == list(range(6, 11))
    assert batches(log) == [1, 10]


def test_a_batch_goes_as_soon_as_it_has_its_bytes_and_the_rest_stays(log, way):
    with Producer(way, "orders", linger_ms=AN_HOUR_MS, batch_bytes=1000) as producer:
        full = [producer.send(HUNDRED) for _ in range(10)]
        assert [f.result(30).offset for f in full] == list(range(10))
        more = [producer.send(HUNDRED) for _ in range(15)]
        assert [f.result(30).offset for f in more[:10]] == list(range(10, 20))
        assert batches(log) == [10, 10]
        assert not any(f.done() for f in more[10:])
    assert batches(log) == [10, 10, 5]


def test_a_batch_goes_when_the_next_message_would_make_it_too_large(log, way):
    with Producer(way, "orders", linger_ms=AN_HOUR_MS, batch_bytes=300) as producer:
        sent = [producer.send(payload) for payload in (HUNDRED, HUNDRED, bytes(LIMIT))]
        assert [f.result(30).offset for f in sent[:2]] == [0, 1]
        assert batches(log) == [2] and not sent[2].done()
    assert batches(log) == [2, 1]


def test_what_coroutines_publish_in_one_turn_or_in_several_is_divided_by_bytes_too(log, way):
    async def crowd(producer):
        first = [asyncio.create_task(producer.publish_async(HUNDRED)) for _ in range(25)]
        await asyncio.wait_for(asyncio.gather(*first[:20]), 30)
        assert not any(task.done() for task in first[20:])
        second = [asyncio.create_task(producer.publish_async(HUNDRED)) for _ in range(6)]
        await asyncio.wait_for(asyncio.gather(*first), 30)
        assert not any(task.done() for task in second)
        await asyncio.to_thread(producer.flush)
        await asyncio.gather(*second)

    with Producer(way, "orders", linger_ms=AN_HOUR_MS, batch_bytes=1000) as producer:
        asyncio.run(crowd(producer))
    assert batches(log) == [10, 10, 5, 6]


def test_a_lone_message_goes_after_the_linger_though_nobody_asks_for_it(log, way):
    with Producer(way, "orders", linger_ms=30) as producer:
        for n in range(3):
            assert producer.send(b"alone").result(30).offset == n
        assert asyncio.run(producer.publish_async(b"alone")).offset == 3
        assert batches(log) == [1, 1, 1, 1]


def test_a_batch_lingers_from_its_first_message_on_and_no_shorter_or_longer(log, monkeypatch):
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("frazil.log.remote.send_buffer.time", clock)
    buffer = SendBuffer(batch_bytes=10**6, linger_s=0.5, limit=10**9)
    sender = Sender(log, lambda: LocalLink(log, "orders"), "orders", buffer)

    def after(seconds: float, payload: bytes | None = None) -> list[int]:
        clock.now += seconds
        if payload is not None:
            buffer.add(payload, None, None, Future())
        sender.run(lambda: False)
        return batches(log)

    assert after(0, b"a") == []
    assert after(0.25, b"b") == []
    assert buffer.due_in() == 0.25
    assert after(0.1875) == []
    assert after(0.0625) == [2]
    assert buffer.due_in() is None
    assert after(10, b"c") == [2], "its own time begins with it"
    assert after(0.5) == [2, 1]


# -- with faults -------------------------------------------------------------------------------------------------------


class Network:
    """Ways that break at random, and bring what they still hold to the log late, or never."""

    def __init__(self, log: Log, chance: random.Random, faults: float) -> None:
        self.log, self.chance, self.faults = log, chance, faults
        self.strays: list = []

    def link(self) -> BreakingLink:
        return BreakingLink(self)

    def full(self) -> bool:
        return self.chance.random() < self.faults / 2

    def breaks(self) -> bool:
        self.bring_strays()
        return self.chance.random() < self.faults

    def bring_strays(self) -> None:
        """One of the broken connections gets on, in its own order."""
        while self.strays and self.chance.random() < 0.3:
            connection = self.chance.choice(self.strays)
            batch, level = connection.popleft()
            if not connection:
                self.strays.remove(connection)
            try:
                self.log.append("orders", batch, level)
            except FrazilError:
                continue


class BreakingLink(LocalLink):
    def __init__(self, network: Network) -> None:
        super().__init__(network.log, "orders")
        self._network = network
        self._answers: deque = deque()
        self._broken = False

    def put(self, batch, level):
        super().put(batch, level)
        if self._network.breaks():
            self._break()
        while self._waiting and self._network.chance.random() < 0.5:
            self._take_one()

    def reply(self):
        if self._network.breaks():
            self._break()
        if not self._answers:
            self._take_one()
        answer = self._answers.popleft()
        if isinstance(answer, FrazilError):
            raise answer
        return answer

    def _take_one(self):
        if self._waiting and self._network.full():
            self._waiting.popleft()
            self._answers.append(UnavailableError("the log is full, for a moment"))
            return
        try:
            self._answers.append(LocalLink.reply(self))
        except FrazilError as error:
            self._answers.append(error)

    def _break(self):
        if self._waiting and self._network.chance.random() < 0.7:
            self._network.strays.append(deque(self._waiting))
        self._waiting.clear()
        raise LostError("broken")


class ScriptedLink(LocalLink):
    """Does with each batch what its script says; without one it brings it to the log."""

    def __init__(self, log: Log, *script: str) -> None:
        super().__init__(log, "orders")
        self._script = list(script)
        self.held: deque = deque()

    def reply(self):
        step = self._script.pop(0) if self._script else ""
        if step == "break":
            self.held, self._waiting = self._waiting, deque()
            raise LostError("broken")
        if step == "full":
            self._waiting.popleft()
            raise UnavailableError("the log is full, for a moment")
        return super().reply()


@pytest.mark.parametrize("name", [None, "p"])
def test_copies_in_a_broken_connection_are_not_taken_beside_what_was_sent_again(log, name):
    links = [ScriptedLink(log, "break"), ScriptedLink(log, "full"), ScriptedLink(log)]
    first = links[0]
    buffer = SendBuffer(batch_bytes=400, linger_s=0, limit=10**9)
    sender = Sender(log, lambda: links.pop(0), "orders", buffer, name=name, sleep=lambda _: None)
    waiters: list[Future] = [Future(), Future()]
    for payload, waiter in zip((b"a", b"b"), waiters, strict=True):
        buffer.add_batch(PendingBatch.of_batch(Batch.of_messages([payload]), waiter))
    sender.run(lambda: False)
    assert [waiter.result().offset for waiter in waiters] == [0, 1]
    for batch, level in first.held:  # they reach the log late, when it has room again
        with pytest.raises(ConflictError):
            log.append("orders", batch, level)
    assert payloads(log) == [b"a", b"b"]


@pytest.mark.parametrize("name", [None, "p"])
def test_what_a_broken_connection_brought_before_it_was_shut_out_is_not_sent_again(log, name):
    links = [ScriptedLink(log, "break"), ScriptedLink(log, "full"), ScriptedLink(log)]
    first = links[0]
    buffer = SendBuffer(batch_bytes=400, linger_s=0, limit=10**9)
    sender = Sender(log, lambda: links.pop(0), "orders", buffer, name=name, sleep=lambda _: None)
    register = log.register

    def register_late(*args):
        for batch, level in list(first.held)[:1]:
            log.append("orders", batch, level)
        register(*args)  # its answer got lost
        return register(*args)

    log.register = register_late  # type: ignore[method-assign]
    waiters: list[Future] = [Future(), Future()]
    for payload, waiter in zip((b"a", b"b"), waiters, strict=True):
        buffer.add_batch(PendingBatch.of_batch(Batch.of_messages([payload]), waiter))
    sender.run(lambda: False)
    assert [(w.result().offset, w.result().duplicate) for w in waiters] == [(0, True), (1, False)]
    assert payloads(log) == [b"a", b"b"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), faults=st.sampled_from([0.02, 0.05, 0.1]), named=st.booleans())
def test_whatever_breaks_each_acknowledged_message_is_there_once_and_in_order(tmp_path_factory, seed, faults, named):
    chance = random.Random(seed)
    with Log.open(tmp_path_factory.mktemp("log"), FAST) as log:
        log.create_topic("orders")
        network = Network(log, chance, faults)
        buffer = SendBuffer(batch_bytes=400, linger_s=0, limit=10**9)
        sender = Sender(
            log, network.link, "orders", buffer, name="p" if named else None, patience_s=10**6, sleep=lambda _: None
        )
        sent = []
        for n in range(60):
            bad = chance.random() < 0.1
            payload = b"%d" % n + b"x" * (LIMIT * 2 if bad else 0)
            future: Future = Future()
            if chance.random() < 0.5:
                buffer.add(payload, None, None, future)
            else:
                buffer.add_batch(PendingBatch.of_batch(Batch.of_messages([payload]), future))
            sent.append((payload, future, bad))
            if chance.random() < 0.2:
                sender.send_at_once()
            if chance.random() < 0.2:
                sender.run(lambda: chance.random() < 0.2)
        sender.run(lambda: False)
        while network.strays:
            network.bring_strays()
        found = payloads(log)
    acked = [p for p, f, _ in sent if f.exception() is None]
    assert len(set(found)) == len(found), "nothing comes twice"
    assert set(acked) <= set(found), "nothing acknowledged is missing"
    unknown = {p for p, f, _ in sent if isinstance(f.exception(), UnavailableError)}
    assert set(found) <= set(acked) | unknown, "what was refused is not there"
    order = {p: n for n, (p, _, _) in enumerate(sent)}
    assert [order[p] for p in found if p in set(acked)] == sorted(order[p] for p in acked)
    assert all(isinstance(f.exception(), (UsageError, UnavailableError)) for _, f, bad in sent if bad)
