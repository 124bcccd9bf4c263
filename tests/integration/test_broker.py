"""A broker in a process of its own, real sockets, and clients that trust nothing but acknowledgements."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.errors import (
    ConflictError,
    FrazilError,
    IntegrityError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from frazil.log.batch import Batch
from frazil.log.log import Log
from frazil.log.messages import decode_chunk
from frazil.log.producers import FencedError
from frazil.log.protocol import Level, OffsetGoneError
from frazil.log.remote.broker import MOST_WAITERS, Broker
from frazil.log.remote.client import Client
from frazil.log.remote.producer import Producer
from frazil.log.remote.transport import flight
from frazil.settings.model import LogSettings, NetworkSettings
from tests.services.process import free_port
from tests.sink_kit import until

LIMIT = 100_000
MIB = 1024 * 1024
SERVE = """
import signal, sys, threading
from pathlib import Path
from frazil.log.remote.broker import Broker
from frazil.log.log import Log
from frazil.settings.model import LogSettings

folder, port, settings = sys.argv[1:]
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
with Log.open(Path(folder), LogSettings.model_validate_json(settings)) as log:
    with Broker(log, port=int(port)) as broker:
        log.announce(flight=broker.address)
        print(broker.address, flush=True)
        stop.wait()
print("stopped", flush=True)
"""
HASTY = NetworkSettings(connect_timeout=1, read_timeout=1, retry_attempts=2, retry_timeout=1)
#: One try, which waits for its answer also on a busy machine.
ONCE = NetworkSettings(connect_timeout=60, read_timeout=60, retry_attempts=1)


class BrokerProcess:
    """A broker that can be killed and started again at the same address."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self._settings = LogSettings(**{"max_message_size": LIMIT, **settings}).model_dump_json()
        self.port = free_port()  # nobody else gets it while the broker is away
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", SERVE, str(self.folder), str(self.port), self._settings]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address == f"grpc://127.0.0.1:{self.port}", "it did not start"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Stops it in the middle of whatever it does; it answers nothing until `SIGCONT`."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        while any(_runs(task) for task in tasks.iterdir()):
            time.sleep(0.01)

    def terminate(self) -> str:
        """Asks it to stop, and returns what it says."""
        self.process.terminate()
        said, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return said

    def memory(self) -> int:
        """Bytes of memory that are its own."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def _runs(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] != "T"
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False


@contextmanager
def running(folder: Path, **settings: object) -> Iterator[BrokerProcess]:
    process = BrokerProcess(folder, **settings)
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running(tmp_path_factory.mktemp("broker") / "log") as process:
        yield process


@pytest.fixture
def broker(shared: BrokerProcess) -> BrokerProcess:
    """A broker that runs, and without topics. A test may kill it."""
    if shared.process.poll() is not None:
        shared.start()
    with Client(shared.address) as client:
        for topic in client.topics():
            client.delete_topic(topic.name)
    return shared


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.address) as client:
        client.create_topic("orders")
        yield client


def rows(client: Client, start: int = 0, end: int | None = None) -> list[dict]:
    client.sync("orders")
    view = client.info("orders").view
    tables = [decode_chunk(chunk, view, start, end) for chunk in client.chunks("orders", start, end)]
    return [row for table in tables for row in table.to_pylist()]


def payloads(client: Client) -> list[bytes]:
    return [row["payload"] for row in rows(client)]


# -- publish and read --------------------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_read_back_by_another_client(broker, client):
    with Producer(broker.address, "orders", name="billing-1") as producer:
        assert producer.publish(b"0", request_id=7).offset == 0
        assert producer.publish(b"1", headers={"lang": "de"}).level == Level.disk
        assert asyncio.run(producer.publish_async(b"2")).offset == 2
        assert producer.publish_batch([b"3", b"4"]).offset == 3
        assert producer.publish_batch(pa.record_batch({"payload": [b"5"], "amount": [1.5]})).offset == 5
    with Client(broker.address) as other:
        found = rows(other)
    assert [(r["offset"], r["payload"]) for r in found] == [(n, b"%d" % n) for n in range(6)]
    assert found[0]["request_id"] == 7
    assert found[1]["headers"] == [("lang", "de")]
    assert found[5]["amount"] == 1.5
    assert {(r["producer_name"], r["broker_addr"]) for r in found} == {("billing-1", broker.address)}


@pytest.mark.parametrize("level", list(Level))
def test_a_publisher_chooses_how_safe_its_messages_are(broker, client, level):
    with Producer(broker.address, "orders", level=level) as producer:
        ack = producer.publish(b"a")
    assert (ack.level, ack.count) == (level, 1)
    assert payloads(client) == [b"a"]


def test_every_question_to_a_log_has_the_same_answer_through_a_broker(tmp_path):
    with Log.open(tmp_path / "log", LogSettings(max_file_size=4096)) as log, Broker(log) as broker:
        log.announce(flight=broker.address)
        with Client(broker.address) as client:
            created = client.create_topic("orders", storage="log")
            assert created == log.info("orders")
            assert client.create_topic("orders", exist_ok=True) == created
            with pytest.raises(ConflictError, match="already") as taken:
                client.create_topic("orders")
            assert taken.value.cause is None, "how the error travelled is no cause of it"
            columns = pa.record_batch({"payload": [b"x" * 3000] * 3, "city": ["Bern"] * 3})
            for _ in range(5):
                client.append("orders", Batch.of_arrow(columns))
            time_us = log.info("orders").last_time_us
            client.commit("orders", "audit", 4)
            client.configure("orders", {"sinks": ["billing"], "retention_age_s": 0})
            client.report("orders", "billing", 12)
            assert client.topics() == log.topics()
            assert client.info("orders") == log.info("orders")
            assert client.spans("orders", 2, 10**6, 4) == log.spans("orders", 2, 10**6, 4)
            assert client.offset_at("orders", time_us) == log.offset_at("orders", time_us) == 12
            assert client.wait("orders", 3, 0) == client.sync("orders") == 15
            assert [c.data.to_pybytes() for c in client.chunks("orders", 4, 8)] == [
                c.data.to_pybytes() for c in log.chunks("orders", 4, 8)
            ]
            planned = client.retain("orders", dry_run=True)
            assert client.retain("orders") == planned
            assert planned.start == log.info("orders").start > 0
            with pytest.raises(OffsetGoneError) as gone:
                list(client.chunks("orders", 0))
            assert gone.value.start == planned.start
            client.delete_topic("orders")
            assert client.topics() == []


def test_a_pickled_client_makes_a_connection_of_its_own(client):
    with pickle.loads(pickle.dumps(client)) as copy:
        assert copy.info("orders") == client.info("orders")


def test_a_reader_that_waits_is_told_at_once_and_hinders_nobody(broker, client):
    ends: list[int] = []
    readers = [threading.Thread(target=lambda: ends.append(client.wait("orders", 0, 30))) for _ in range(40)]
    for reader in readers:
        reader.start()
    client.append("orders", Batch.of_messages([b"a"]))
    for reader in readers:
        reader.join(20)
    assert ends == [1] * 40


def test_too_many_waiting_readers_are_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr("frazil.log.remote.broker.MOST_WAITERS", 2)
    assert MOST_WAITERS > 2
    with Log.open(tmp_path / "log") as log, Broker(log) as broker, Client(broker.address, HASTY) as client:
        log.create_topic("orders")

        def insist() -> None:
            while True:
                with suppress(UnavailableError):
                    client.wait("orders", 0, 30.0)
                    return

        readers = [threading.Thread(target=insist) for _ in range(2)]
        for reader in readers:
            reader.start()

        def is_refused() -> bool:
            try:
                client.wait("orders", 0, 0.1)
            except UnavailableError as error:  # or one of its own haste
                return "2 readers wait" in error.message
            return False

        until(is_refused)
        log.publish("orders", b"a")
        log.publish("orders", b"b")
        for reader in readers:
            reader.join()


def test_a_reader_that_has_hung_up_gives_its_place_to_another(tmp_path, monkeypatch):
    monkeypatch.setattr("frazil.log.remote.broker.MOST_WAITERS", 1)
    with Log.open(tmp_path / "log") as log, Broker(log) as broker:
        log.create_topic("orders")
        with Client(broker.address, HASTY) as hasty, pytest.raises(UnavailableError):
            hasty.wait("orders", 0, 30.0)
        began = time.monotonic()

        def has_room() -> bool:
            with Client(broker.address) as other, suppress(UnavailableError):
                return other.wait("orders", 0, 0.1) == 0
            return False

        until(has_room)
        assert time.monotonic() - began < 12, "it would have kept it for 20 s"


# -- once, and in order ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deaths", "pause"), [(4, 0.0), pytest.param(200, 0.02, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_nothing_is_lost_or_doubled_when_the_broker_is_killed_under_load(tmp_path, deaths, pause):
    """Threads, coroutines and pipelined batches; the broker dies again and again. The witness is what was acknowledged.

    In the soak they pause after each, or there would be more messages than this test can hold.
    """
    chance = random.Random(deaths)
    with running(tmp_path / "log", max_file_size=256 * 1024) as broker:
        with Client(broker.address) as client:
            client.create_topic("orders")
        stop = threading.Event()
        witness: dict[str, list[tuple[bytes, int]]] = {name: [] for name in ("single", "loop", "batch")}
        failures: list[BaseException] = []
        publishers = [
            threading.Thread(target=_guarded, args=(work, broker.address, stop, pause, witness, failures))
            for work in (_publish_singly, _publish_on_a_loop, _publish_batches)
        ]
        for publisher in publishers:
            publisher.start()
        # A producer needs a broker to begin with. Later it waits for one that is away.
        until(lambda: failures or all(witness.values()))
        for _ in range(deaths):
            time.sleep(chance.uniform(0.05, 0.7) if pause else 0.7)
            broker.kill()
            broker.start()
        time.sleep(0.5)
        until(lambda: failures or min(map(len, witness.values())) > 20)
        stop.set()
        for publisher in publishers:
            publisher.join(120)
        assert not failures, failures
        with Client(broker.address) as client:
            found = rows(client)
    assert [r["offset"] for r in found] == list(range(len(found)))
    for name, acknowledged in witness.items():
        assert len(acknowledged) > 20, f"'{name}' got on"
        own = [(r["payload"], r["offset"]) for r in found if r["producer_name"] == name]
        assert own == acknowledged, f"'{name}': each message once, in order, at the offset that was acknowledged"


def _guarded(work, address, stop, pause, witness, failures):
    try:
        work(address, stop, pause, witness)
    except BaseException as error:  # noqa: BLE001 - told by the test
        failures.append(error)


def _publish_singly(address, stop, pause, witness):
    with Producer(address, "orders", name="single") as producer:
        n = 0
        while not stop.wait(pause):
            payload = b"single %d" % n
            witness["single"].append((payload, producer.publish(payload).offset))
            n += 1


def _publish_on_a_loop(address, stop, pause, witness):
    async def run(producer):
        n = 0
        while not stop.is_set():
            some = [b"loop %d" % at for at in range(n, n + 50)]
            acks = await asyncio.gather(*(producer.publish_async(p) for p in some))
            witness["loop"] += [(p, a.offset) for p, a in zip(some, acks, strict=True)]
            n += 50
            await asyncio.sleep(pause)

    with Producer(address, "orders", name="loop") as producer:
        asyncio.run(run(producer))


def _publish_batches(address, stop, pause, witness):
    def note(some, future):
        if future.exception() is None:  # else `flush` raises it
            witness["batch"] += [(p, future.result().offset + n) for n, p in enumerate(some)]

    with Producer(address, "orders", name="batch", max_in_flight_bytes=200_000) as producer:
        number = 0
        while not stop.wait(pause):
            some = [b"batch %d %d " % (number, n) + b"x" * 100 for n in range(100)]
            producer.send_batch(some).add_done_callback(partial(note, some))
            number += 1
        producer.flush()


def test_a_producer_that_sends_everything_twice_is_taken_once(broker, client):
    me = client.register("orders", "twice")
    for sequence in range(20):
        batch = Batch.of_messages(
            [b"%d" % sequence],
            producer_id=me.producer_id,
            producer_epoch=me.producer_epoch,
            sequence=sequence,
        )
        first, second = client.append("orders", batch), client.append("orders", batch)
        assert (first.offset, first.duplicate) == (sequence, False)
        assert second == first._replace(duplicate=True)
    broker.kill()
    broker.start()
    assert client.append("orders", batch).duplicate
    assert payloads(client) == [b"%d" % n for n in range(20)]


def test_the_older_of_two_producers_with_one_name_stays_out_even_after_a_restart(broker, client):
    older = Producer(broker.address, "orders", name="billing-1")
    older.publish(b"a")
    with Producer(broker.address, "orders", name="billing-1") as newer:
        newer.publish(b"b")
        broker.kill()
        broker.start()
        with pytest.raises(FencedError) as caught:
            older.publish(b"c")
        newer.publish(b"d")
    older.close()
    assert caught.value.hint == "one running producer per name"
    assert payloads(client) == [b"a", b"b", b"d"]


def test_a_broker_that_hangs_is_left_and_found_again(broker, client):
    began = patiently(lambda: Producer(broker.address, "orders", network=HASTY))
    with began as producer, Client(broker.address, HASTY) as hasty:
        producer.publish(b"a")
        patiently(hasty.topics)
        broker.pause()
        futures = [producer.send(b"%d" % n) for n in range(5)]
        try:
            with pytest.raises(UnavailableError, match="does not answer"):
                hasty.info("orders")
            with pytest.raises(UnavailableError):
                hasty.append("orders", Batch.of_messages([b"never known"]))
        finally:
            broker.process.send_signal(signal.SIGCONT)
        assert [f.result(60).count for f in futures] == [1] * 5
    assert [p for p in payloads(client) if p != b"never known"] == [b"a", b"0", b"1", b"2", b"3", b"4"]


def patiently(call):
    """What a hasty client is told, once the broker was quick enough for it."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except UnavailableError:
            assert time.monotonic() < end


def test_publishers_are_told_when_the_broker_stays_away(broker, client):
    with Producer(broker.address, "orders", patience_s=2) as producer:
        producer.publish(b"a")
        broker.kill()
        with pytest.raises(UnavailableError, match="no way to the broker") as caught:
            producer.publish(b"b")
        broker.start()
        assert producer.publish(b"c").count == 1
    assert "frazil serve" in caught.value.hint
    assert payloads(client) == [b"a", b"c"]


def test_a_broker_that_is_asked_to_stop_ends_what_it_has_begun(broker, client):
    """It does so at once although a producer and a reader idle at it, and nothing acknowledged is lost."""
    acknowledged = []
    with Producer(broker.address, "orders", patience_s=0.2) as busy, Producer(broker.address, "orders") as idle:
        idle.publish(b"idle")
        waiting = threading.Thread(target=wait_in_vain, args=(client,))
        waiting.start()

        def publish():
            with pytest.raises(FrazilError):
                for n in range(10**6):
                    acknowledged.append((b"%d" % n, busy.publish(b"%d" % n).offset))

        publisher = threading.Thread(target=publish)
        publisher.start()
        time.sleep(0.3)
        began = time.monotonic()
        assert broker.terminate() == "stopped\n"
        assert time.monotonic() - began < 20, "it does not wait for idle clients"
        publisher.join()
        waiting.join()
    with Log.open(broker.folder) as log:
        view = log.info("orders").view
        found = [r for c in log.chunks("orders", 0) for r in decode_chunk(c, view).to_pylist()]
    assert [(r["payload"], r["offset"]) for r in found if r["payload"] != b"idle"][: len(acknowledged)] == acknowledged


def wait_in_vain(client: Client) -> None:
    with pytest.raises(UnavailableError):
        client.wait("orders", 10**9, 60)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_a_batch_with_a_bad_crc_is_refused_and_the_next_is_taken(client):
    batch = Batch.of_messages([b"good"])
    with pytest.raises(IntegrityError, match="CRC"):
        client.append("orders", dataclasses.replace(batch, crc=batch.crc ^ 1))
    with pytest.raises(IntegrityError, match="length"):
        client.append("orders", dataclasses.replace(batch, count=3))
    assert client.append("orders", batch).offset == 0


def test_a_message_over_the_limit_is_refused_and_the_next_is_taken(broker, client):
    with Producer(broker.address, "orders") as producer:
        with pytest.raises(UsageError, match="over the limit") as caught:
            producer.publish(b"x" * (LIMIT + 1))
        assert producer.publish(b"x" * LIMIT).offset == 0
    assert "log.max_message_size" in caught.value.hint


def test_a_column_that_changes_its_type_is_refused_and_batches_behind_it_are_taken(broker, client):
    with Producer(broker.address, "orders") as producer:
        producer.publish_batch(pa.record_batch({"payload": [b"0"], "amount": [1.5]}))
        refused = producer.send_batch(pa.record_batch({"payload": [b"1"], "amount": ["much"]}))
        behind = [producer.send_batch([b"%d" % n]) for n in range(2, 20)]
        with pytest.raises(UsageError, match="amount"):
            producer.flush()
        assert isinstance(refused.exception(), UsageError)
        assert [f.result().offset for f in behind] == list(range(1, 19))
    assert payloads(client) == [b"%d" % n for n in range(20) if n != 1]


def test_an_unknown_topic_is_told_with_the_nearest_name(broker, client):
    for call in (
        lambda: client.info("order"),
        lambda: client.append("order", Batch.of_messages([b"a"])),
        lambda: list(client.chunks("order", 0)),
        lambda: Producer(broker.address, "order"),
    ):
        with pytest.raises(NotFoundError, match="topic 'order' does not exist") as caught:
            call()
        assert caught.value.hint == "'orders'"


def test_without_a_broker_the_error_says_how_to_start_one():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # so nobody else listens there
        port = deaf.getsockname()[1]
        for call in (lambda c: c.topics(), lambda c: c.append("orders", Batch.of_messages([b"a"]))):
            with Client(f"grpc://127.0.0.1:{port}", ONCE) as client, pytest.raises(UnavailableError) as caught:
                call(client)
            assert str(port) in caught.value.message
            assert "frazil serve" in caught.value.hint
            assert "refused" in caught.value.cause


def test_a_server_that_is_no_broker_is_told_apart():
    class Other(flight.FlightServerBase):
        pass

    class Page(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as web, Other("grpc://127.0.0.1:0") as other:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        for port, why in ((web.server_port, "does not speak Arrow Flight"), (other.port, "another Flight server")):
            with Client(f"grpc://127.0.0.1:{port}", ONCE) as client, pytest.raises(UsageError) as caught:
                client.topics()
            assert why in caught.value.cause
            assert "frazil serve" in caught.value.hint
        web.shutdown()


def test_a_server_that_never_says_a_word_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with Client(f"grpc://127.0.0.1:{port}", HASTY) as client, pytest.raises(UnavailableError):
            client.topics()


@pytest.mark.parametrize("address", ["nonsense", "http://127.0.0.1:1", "grpc://", "grpc://host", "grpc://host:port"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UsageError, match=address) as caught:
        Client(address)
    assert caught.value.hint == "grpc://host:port"


def test_a_port_that_is_taken_is_refused(tmp_path):
    with Log.open(tmp_path / "log") as log, Broker(log) as first:
        port = int(first.address.rpartition(":")[2])
        with pytest.raises(ConflictError, match=str(port)) as caught:
            Broker(log, port=port).start()
    assert "serve.flight_port" in caught.value.hint


# -- any Flight client -------------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(broker: BrokerProcess, client: Client) -> Iterator[flight.FlightClient]:
    with flight.connect(broker.address) as connection:
        yield connection


def test_any_flight_client_publishes_and_reads(foreign):
    batch = pa.record_batch({"payload": [b"a", b"b"], "city": ["Bern", None]})
    command = flight.FlightDescriptor.for_command(json.dumps({"topic": "orders", "level": "os"}).encode())
    for descriptor, level, offset in ((flight.FlightDescriptor.for_path("orders"), "disk", 0), (command, "os", 2)):
        writer, replies = foreign.do_put(descriptor, batch.schema)
        writer.write_batch(batch)
        ack = json.loads(replies.read().to_pybytes())
        assert (ack["offset"], ack["count"], ack["level"]) == (offset, 2, level)
        writer.close()
    list(foreign.do_action(flight.Action("sync", b'{"topic": "orders"}')))
    (listed,) = foreign.list_flights()
    info = foreign.get_flight_info(flight.FlightDescriptor.for_path("orders"))
    assert listed.schema == info.schema == foreign.get_schema(listed.descriptor).schema
    table = foreign.do_get(info.endpoints[0].ticket).read_all()
    assert table.schema == info.schema
    assert table.num_rows == info.total_records == 4
    assert table.column("payload").to_pylist() == [b"a", b"b", b"a", b"b"]
    assert table.column("city").to_pylist() == ["Bern", None, "Bern", None]
    some = flight.Ticket(json.dumps({"topic": "orders", "start": 1, "end": 3, "columns": ["offset", "city"]}).encode())
    assert foreign.do_get(some).read_all().to_pydict() == {"offset": [1, 2], "city": [None, "Bern"]}
    assert {a.type for a in foreign.list_actions()} >= {"hello", "info", "wait", "retain"}


def test_a_flight_client_that_reads_no_acknowledgement_is_not_stuck(foreign, client):
    batch = pa.record_batch({"payload": [b"a"]})
    target = flight.FlightDescriptor.for_command(b'{"topic": "orders", "level": "memory"}')
    writer, _ = foreign.do_put(target, batch.schema)
    for _ in range(5000):
        writer.write_batch(batch)
    writer.close()
    assert client.sync("orders") == 5000


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"message": [b"a"]}, "no column 'payload'"),
        ({"payload": [b"a"], "offset": [1]}, "'offset' is given by the log"),
        ({"payload": [None]}, "payload is null"),
        ({"payload": [b"x" * (LIMIT + 1)]}, "over the limit"),
    ],
)
def test_what_a_flight_client_sends_wrong_is_told(foreign, columns, why):
    batch = pa.record_batch(columns)
    writer, _ = foreign.do_put(flight.FlightDescriptor.for_path("orders"), batch.schema)
    with pytest.raises(flight.FlightServerError, match=why) as caught:
        writer.write_batch(batch)
        writer.close()
    assert json.loads(caught.value.extra_info)["error"] == "UsageError"


@pytest.mark.parametrize(
    ("ticket", "why"),
    [
        (b"not json", "the ticket is wrong"),
        (b'{"topic": "orders", "from": 3}', "the ticket is wrong"),
        (b'{"topic": "orders", "format": "csv"}', "the ticket is wrong"),
        (b'{"topic": "orders", "columns": ["city"]}', "no column 'city'"),
        (b'{"topic": "nothing"}', "topic 'nothing' does not exist"),
    ],
)
def test_a_wrong_ticket_is_told(foreign, ticket, why):
    with pytest.raises(flight.FlightServerError, match=why):
        foreign.do_get(flight.Ticket(ticket)).read_all()


@pytest.mark.parametrize(
    ("action", "body", "why"),
    [
        ("fly", b"{}", "no action 'fly'"),
        ("info", b"not json", "no JSON"),
        ("info", b"[]", "JSON object"),
        ("info", b"{}", "arguments of 'info'"),
        ("info", b'{"topic": "orders", "more": 1}', "arguments of 'info'"),
        ("wait", b'{"topic": "orders", "offset": "high", "timeout": 1}', "arguments of '_?wait'"),
        ("create_topic", b'{"name": "../x"}', "no topic's name"),
    ],
)
def test_a_wrong_action_is_told_without_a_traceback(foreign, action, body, why):
    with pytest.raises(flight.FlightServerError, match=why) as caught:
        list(foreign.do_action(flight.Action(action, body)))
    assert "Traceback" not in str(caught.value)
    assert json.loads(caught.value.extra_info)["error"] == "UsageError"


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def backlog(broker: BrokerProcess, client: Client) -> int:
    """A log of 160 MiB; returns its messages."""
    batch = [b"x" * 64 * 1024] * 16
    with Producer(broker.address, "orders", level="os") as producer:
        for _ in range(160):
            producer.send_batch(batch)
    return client.sync("orders")


def test_a_slow_reader_does_not_grow_the_broker(broker, client, backlog):
    before = broker.memory()
    readers = [client.chunks("orders", 0) for _ in range(8)]
    for reader in readers:
        next(reader)
    time.sleep(1)
    assert broker.memory() - before < 96 * MIB, "8 readers of 160 MiB each"
    assert sum(1 for _ in readers[0]) > 10, "it gets the rest"
    for reader in readers:
        reader.close()


def test_a_reader_that_stops_early_leaves_nothing_behind(broker, client, backlog):
    for _ in range(5):
        next(client.chunks("orders", 0))
    before, threads = broker.memory(), threads_of(broker)
    for _ in range(60):
        reader = client.chunks("orders", 0)
        next(reader)
        reader.close()
    until(lambda: broker.memory() - before < 48 * MIB and threads_of(broker) - threads < 20)


def threads_of(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.process.pid}/task").iterdir()))


def test_a_stream_that_breaks_is_taken_up_behind_its_last_chunk(broker, client, backlog):
    ends = []
    for n, chunk in enumerate(client.chunks("orders", 0)):
        ends += decode_chunk(chunk, client.info("orders").view, columns=["offset"]).column("offset").to_pylist()
        if n in (3, 9):
            broker.kill()
            broker.start()
    assert ends == list(range(backlog))


def test_a_broker_under_a_fast_producer_stays_small(broker, client):
    batch = [b"x" * 1024] * 1000
    with Producer(broker.address, "orders", max_in_flight_bytes=64 * MIB) as producer:
        producer.publish_batch(batch)
        before = broker.memory()
        for _ in range(200):
            producer.send_batch(batch)
        assert broker.memory() - before < 96 * MIB
