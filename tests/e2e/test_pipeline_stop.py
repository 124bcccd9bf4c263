"""How `frazil pipeline` ends: in bounded time, whatever hangs, and it says what was left."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.servers import Running, Server, eventually, serving
from tests.e2e.test_up import descendants, lives, state, told_of

pytestmark = pytest.mark.timeout(400)

STOP_S = 12.0
#: As `frazil pipeline --help` says, and half a minute for a machine with much to do. A call that hangs takes longer.
BOUND_S = STOP_S + 15 + 30


@contextmanager
def pipeline(shell, *args: str, stop_s: float = STOP_S) -> Iterator[Running]:
    running = Running(shell, "pipeline", "--set", "spark.master=local[2]", "--set", f"pipeline.stop_s={stop_s}", *args)
    try:
        yield running
    finally:
        started = descendants(running.process.pid)
        running.end()
        eventually(lambda: not any(map(lives, started)), 60)


def at(server: Server) -> tuple[str, ...]:
    return ("--set", f"log.broker={server.served['flight']}")


def stop(running: Running, within: float, number: signal.Signals = signal.SIGTERM) -> int:
    """Its exit code; nothing that it had started may be left."""
    started = descendants(running.process.pid)
    began = time.monotonic()
    running.send(number)
    code = running.wait(120)
    assert time.monotonic() - began < within, running.errors
    eventually(lambda: not any(map(lives, started)), 60)
    assert "Traceback" not in running.errors
    return code


def last_error(running: Running) -> dict:
    """What it ended with. A thread that it leaves behind may log something after that."""
    return next(json.loads(line) for line in reversed(running.errors.splitlines()) if line.startswith("{"))


@pytest.mark.deep
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


@pytest.mark.long("starts a pipeline of its own, because it is about the process that has the log")
def test_a_pipeline_that_was_started_first_hands_the_log_over_to_a_server(shell):
    shell.run("topic", "create", "orders")
    with pipeline(shell) as running:
        assert running.ready(120)["topics"] == 1
        with serving(shell) as server:
            server.publish("orders", "a", "b")
            eventually(lambda: server.get("/topics/orders")["sinks"] == {"archive": 2}, 90)
            assert "continues as its client" in running.errors
            assert stop(running, BOUND_S) == 0


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


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once_with_its_jvm(shell):
    with serving(shell) as server:
        server.create("orders", "iceberg")
        with pipeline(shell, *at(server), stop_s=60) as running:
            running.ready(120)
            try:
                server.send(signal.SIGSTOP)
                eventually(lambda: state(server.process.pid) == "T")
                running.send(signal.SIGTERM)
                eventually(lambda: has_come(signal.SIGTERM, running.process.pid))
                time.sleep(1)
                assert running.process.poll() is None
                assert stop(running, 30) == 130
            finally:
                server.send(signal.SIGCONT)
            assert last_error(running)["error"] == "InterruptedByUser"


def has_come(number: signal.Signals, pid: int) -> bool:
    """Whether a process has taken a signal. Another one of the same kind that is sent before would be lost."""
    waiting = re.search(r"^ShdPnd:\s*(\w+)", told_of(pid, "status"), re.MULTILINE)
    return waiting is None or not int(waiting[1], 16) >> (number - 1) & 1


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


@pytest.mark.slow
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
    with serving(shell) as server:
        for _ in range(3):
            code = stopped_while_spark_starts(shell, server, number)
            if code != 0:  # else this test stood still, and Spark had started before the signal came
                break
        assert code == 130


def stopped_while_spark_starts(shell, server: Server, number: signal.Signals) -> int:
    with pipeline(shell, *at(server)) as running:
        eventually(lambda: any("java" in told_of(pid, "comm") for pid in descendants(running.process.pid)), 60)
        return stop(running, 40, number)


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
