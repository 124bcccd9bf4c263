"""How `frazil pipeline` ends: in bounded time, whatever hangs, and it says what was left."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.servers import Running, Server, eventually, serving
from tests.e2e.test_up import descendants, lives

pytestmark = pytest.mark.timeout(240)

STOP_S = 12.0
#: As `frazil pipeline --help` says, and some seconds for a machine with much to do.
BOUND_S = STOP_S + 15 + 8


@contextmanager
def pipeline(shell, *args: str) -> Iterator[Running]:
    running = Running(shell, "pipeline", "--set", "spark.master=local[2]", "--set", f"pipeline.stop_s={STOP_S}", *args)
    try:
        yield running
    finally:
        started = descendants(running.process.pid)
        running.end()
        eventually(lambda: not any(map(lives, started)))


def at(server: Server) -> tuple[str, ...]:
    return ("--set", f"log.broker={server.served['flight']}")


def stop(running: Running, within: float, number: signal.Signals = signal.SIGTERM) -> int:
    """Its exit code; nothing that it had started may be left."""
    started = descendants(running.process.pid)
    began = time.monotonic()
    running.send(number)
    code = running.wait(120)
    assert time.monotonic() - began < within, running.errors
    eventually(lambda: not any(map(lives, started)), 20)
    assert "Traceback" not in running.errors
    return code


def last_error(running: Running) -> dict:
    return json.loads(running.errors.strip().splitlines()[-1])


def test_a_broker_that_was_killed_does_not_keep_it(shell):
    with serving(shell) as server:
        server.create("orders", "iceberg")
        server.publish("orders", "a", "b")
        with pipeline(shell, *at(server)) as running:
            assert running.ready(120)["topics"] == 1
            eventually(lambda: server.get("/topics/orders")["sinks"] == {"archive": 2}, 60)
            server.publish("orders", "c")
            server.end()
            assert stop(running, BOUND_S) == 3
            told = last_error(running)
    assert "stopped before everything was in its table" in told["message"]
    [topic] = told["topics"]
    assert (topic["topic"], topic["offset"]) in [("orders", 2), ("orders", 3)]


@pytest.mark.slow
def test_a_broker_that_hangs_while_spark_reads_from_it_does_not_keep_it(shell):
    with serving(shell) as server:
        server.create("orders", "iceberg")
        server.publish("orders", "a")
        with pipeline(shell, *at(server), "--set", "pipeline.max_lag_ms=0") as running:
            running.ready(120)
            try:
                server.publish("orders", "b")
                server.send(signal.SIGSTOP)
                assert stop(running, BOUND_S) == 3
            finally:
                server.send(signal.SIGCONT)


def test_a_second_signal_ends_it_at_once_with_its_jvm(shell):
    with serving(shell) as server:
        server.create("orders", "iceberg")
        with pipeline(shell, *at(server)) as running:
            running.ready(120)
            try:
                server.send(signal.SIGSTOP)
                time.sleep(0.5)
                running.send(signal.SIGTERM)
                time.sleep(1)
                assert running.process.poll() is None
                assert stop(running, 8) == 130
            finally:
                server.send(signal.SIGCONT)
            assert last_error(running)["error"] == "InterruptedByUser"


class SilentCatalog:
    """A REST catalog that says hello, then takes requests and never answers."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked = threading.Event()
        self._held: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._held.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        while request := client.recv(65536):
            if b"/v1/config" not in request.splitlines()[0]:
                self.asked.set()
                continue
            body = b'{"defaults": {}, "overrides": {}}'
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)

    def close(self) -> None:
        self._listening.close()
        for client in self._held:
            client.close()


@pytest.fixture
def silent() -> Iterator[SilentCatalog]:
    catalog = SilentCatalog()
    yield catalog
    catalog.close()


@pytest.mark.slow
def test_a_catalog_that_does_not_answer_does_not_keep_it(shell, silent):
    with serving(shell) as server:
        server.create("orders", "iceberg")
        server.publish("orders", "a")
        catalog = ("--set", f"catalog.uri={silent.uri}", "--set", "catalog.warehouse=x")
        with pipeline(shell, *at(server), *catalog) as running:
            assert silent.asked.wait(120)
            assert stop(running, BOUND_S) == 3
            assert "stopped before everything was in its table" in last_error(running)["message"]


def test_a_drain_that_is_interrupted_ends_in_bounded_time_and_the_next_one_goes_on(shell, silent):
    with serving(shell) as server:
        server.create("orders", "iceberg")
        server.publish("orders", "a")
        catalog = ("--set", f"catalog.uri={silent.uri}", "--set", "catalog.warehouse=x")
        with pipeline(shell, "--drain", *at(server), *catalog) as running:
            assert silent.asked.wait(120)
            assert stop(running, BOUND_S, signal.SIGINT) == 130
            assert last_error(running)["topics"][0]["rows"] == 0
        done = shell.json("pipeline", "--drain", *at(server))
        assert (done[0]["offset"], done[0]["rows"]) == (1, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_spark_starts_one_signal_is_enough(shell, number):
    with serving(shell) as server, pipeline(shell, *at(server)) as running:
        eventually(lambda: any("java" in name(pid) for pid in descendants(running.process.pid)), 60)
        assert stop(running, 20, number) == 130


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text() if lives(pid) else ""


@pytest.mark.slow
def test_a_drain_that_fails_says_how_far_it_came(shell):
    with serving(shell) as server:
        for topic in ("bad", "good"):
            server.create(topic, "iceberg")
            server.publish(topic, "a", "b")
        shell.json("pipeline", "--drain", *at(server), "--topic", "bad")
        metadata = next(shell.home.rglob("topics/bad/metadata"))
        for file in metadata.glob("*.metadata.json"):
            file.write_text("{")
        server.publish("bad", "c")
        with pipeline(shell, "--drain", *at(server)) as running:
            assert running.wait(180) == 3
        topics = {topic["topic"]: topic for topic in last_error(running)["topics"]}
        assert (topics["good"]["offset"], topics["good"]["rows"]) == (2, 2)
        assert topics["bad"]["rows"] == 0
        assert "good (offset 2 of 2; 2 rows taken)" in last_error(running)["message"]
