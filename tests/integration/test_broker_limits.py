"""Clumsy and hostile clients of a broker: too large, too many, and all at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from frazil.errors import UnavailableError, UsageError
from frazil.log import Batch, Producer
from frazil.log.log import Log
from frazil.log.remote.broker import Broker
from frazil.log.remote.client import Client
from frazil.log.remote.connections import Streams
from frazil.settings.model import LogSettings, NetworkSettings

pytestmark = pytest.mark.timeout(120)

MIB = 1024 * 1024
#: What is refused is not tried again.
ONCE = NetworkSettings(connect_timeout=30, read_timeout=60, retry_attempts=1)


@contextmanager
def serving(folder: Path, max_streams: int = 1000, **settings: int) -> Iterator[Client]:
    with (
        Log.open(folder, LogSettings(min_free=0, **settings)) as log,
        Broker(log, max_streams=max_streams) as broker,
        Client(broker.address, ONCE) as client,
    ):
        client.create_topic("orders")
        yield client


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(tmp_path / "log", max_streams=2, max_batch_size=MIB, max_message_size=MIB // 4) as made:
        yield made


def test_a_batch_over_the_limit_is_refused_and_the_next_is_taken(client):
    too_large = Batch.of_messages([bytes(MIB // 8)] * 9)
    with pytest.raises(UsageError, match="over the limit of 1,048,576") as refused:
        client.append("orders", too_large)
    assert "log.max_batch_size" in (refused.value.hint or "")
    assert client.append("orders", Batch.of_messages([bytes(MIB // 8)] * 7)).offset == 0


def test_a_producer_is_told_and_goes_on(client):
    with Producer(client, "orders") as producer:
        with pytest.raises(UsageError, match="over the limit"):
            producer.publish_batch([bytes(MIB // 8)] * 9)
        assert producer.publish_batch([b"a"]).offset == 0


def test_record_batches_of_any_flight_client_are_limited_too(client):
    connection = flight.connect(client.address)
    rows = pa.record_batch({"payload": pa.array([bytes(MIB // 8)] * 9, pa.binary())})
    writer, _ = connection.do_put(flight.FlightDescriptor.for_path("orders"), rows.schema)
    with pytest.raises(flight.FlightServerError, match="over the limit of 1,048,576"):
        writer.write_batch(rows)
        writer.done_writing()
        writer.close()
    assert client.info("orders").end == 0


def test_one_message_as_large_as_it_may_be_always_fits(tmp_path):
    with serving(tmp_path / "log", max_batch_size=1000, max_message_size=MIB) as client:
        assert client.append("orders", Batch.of_messages([bytes(MIB)])).offset == 0
        with pytest.raises(UsageError, match="over the limit"):
            client.append("orders", Batch.of_messages([bytes(MIB)] * 2))


def test_streams_beyond_the_limit_are_refused_until_one_is_closed(client):
    batch = Batch.of_messages([b"a"])
    with ExitStack() as stack:
        streams = [client.stream("orders") for _ in range(2)]
        for stream in streams:
            stack.callback(stream.close)
            stream.put(batch)
            stream.reply()
        with pytest.raises(UnavailableError) as refused:
            client.append("orders", batch)
        told = f"{refused.value.message} {refused.value.cause}"
        assert "the broker has 2 streams of producers and readers open, and takes no more" in told
        with pytest.raises(UnavailableError, match="the broker has 2 streams") as refused:
            list(client.chunks("orders", 0))
        assert "serve.max_streams" in (refused.value.hint or "")
        assert client.info("orders").end == 2, "other calls go on"
    until(lambda: client.append("orders", batch).count == 1)
    until(lambda: list(client.chunks("orders", 0)))


def test_a_read_that_was_given_up_is_no_longer_counted(client):
    for _ in range(20):
        client.append("orders", Batch.of_messages([bytes(MIB // 5)] * 4))
    for _ in range(10):
        until(lambda: first_of(client.chunks("orders", 0)))


def first_of(reading) -> bool:
    with closing(reading):
        return next(reading) is not None


def until(done) -> None:
    """A stream counts until the broker has seen that it is closed."""
    end = time.monotonic() + 60
    while True:
        try:
            assert done()
        except UnavailableError:
            assert time.monotonic() < end
            time.sleep(0.05)
        else:
            return


SERVE = """
import sys
from pathlib import Path
from frazil.log.log import Log
from frazil.log.remote.broker import Broker
from frazil.settings.model import LogSettings
settings = LogSettings(min_free=0, max_batch_size=int(sys.argv[2]), max_message_size=1048576, max_buffer=8388608)
with Log.open(Path(sys.argv[1]), settings) as log, Broker(log) as broker:
    log.create_topic("orders")
    print(broker.address, flush=True)
    sys.stdin.read()
"""


@pytest.mark.deep
def test_fifty_clients_with_the_largest_batch_take_bounded_memory(tmp_path):
    largest, clients, rounds = 2 * MIB, 50, 10
    command = [sys.executable, "-c", SERVE, str(tmp_path / "log"), str(largest)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        before = memory(process.pid)
        batch = Batch.of_messages([bytes(MIB - 64)] * 2)
        peak = 0
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.01):
                peak = max(peak, memory(process.pid))

        def send(client: Client, start: threading.Barrier) -> None:
            start.wait()
            for _ in range(rounds):
                assert client.append("orders", batch).count == 2

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ExitStack() as stack:
            start = threading.Barrier(clients)
            threads = [
                threading.Thread(target=send, args=(stack.enter_context(Client(address)), start))
                for _ in range(clients)
            ]  # fmt: skip
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert stack.enter_context(Client(address)).info("orders").end == clients * rounds * 2
        done.set()
        watcher.join()
    finally:
        process.kill()
        process.communicate()
    grown = (peak - before) / MIB
    # One batch per stream, which gRPC and Arrow have in memory before anybody sees it, three times for a moment.
    assert grown < 3.5 * clients * largest / MIB + 64, f"{grown:.0f} MiB of {clients * rounds * largest / MIB:.0f}"


def memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def test_a_stream_that_fails_is_no_longer_counted():
    streams = Streams(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"), streams.open():
            raise ValueError("no")
    with streams.open(), pytest.raises(UnavailableError), streams.open():
        pass
