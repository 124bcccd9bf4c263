"""Chapter 2: publish, kill the broker, lose nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from frazil.demo.session import SharedSession
from frazil.demo.stage import Stage
from frazil.errors import IntegrityError, SetupError
from frazil.log.remote.client import Client
from frazil.log.remote.producer import Producer
from frazil.settings import Settings
from frazil.topics.reading.reader import open_reader
from frazil.topics.sinks.pipeline import Pipeline

TOPIC = "camera_events"
_PRODUCERS = 4
_EACH = 5000
_LATER = 1000


def chapter(stage: Stage, settings: Settings, session: SharedSession) -> None:
    stage.chapter("Chapter 2: publish, kill the broker, lose nothing")
    with _Broker(settings.model.home) as broker:
        with stage.step("start the broker as a separate process (frazil serve)"):
            address = broker.start()
        with Client(address) as client:
            client.create_topic(TOPIC, storage="iceberg")
            acked = _publish_through_a_crash(stage, broker, address)
            _check_log(stage, client, settings, acked)
            _freeze(stage, session, client, address)
            with stage.step(f"{_LATER:,} more messages, which are only in the log so far"):
                acked += _send(address, "late", _LATER)
            _replay(stage, client, settings, acked)


def _publish_through_a_crash(stage: Stage, broker: _Broker, address: str) -> list[tuple[int, bytes]]:
    """What was acknowledged: offset and payload of each message."""
    acked: list[list[tuple[int, bytes]]] = [[] for _ in range(_PRODUCERS)]
    halfway = threading.Barrier(_PRODUCERS + 1)

    def produce(number: int) -> None:
        acked[number] = _send(address, f"camera-{number}", _EACH, halfway)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(_PRODUCERS)]
    with stage.step(
        f"{_PRODUCERS} producers publish {_PRODUCERS * _EACH:,} messages; half-way, the broker is killed (-9)"
    ):
        for thread in threads:
            thread.start()
        halfway.wait(timeout=120)
        broker.kill()
        broker.start(address)
        for thread in threads:
            thread.join()
    return [pair for pairs in acked for pair in pairs]


def _send(address: str, name: str, count: int, halfway: threading.Barrier | None = None) -> list[tuple[int, bytes]]:
    payloads = [json.dumps({"camera": name, "shot": shot, "iso": 100 << shot % 7}).encode() for shot in range(count)]
    waiting = []
    with Producer(address, TOPIC, name=name) as producer:
        for shot, payload in enumerate(payloads):
            if halfway is not None and shot == count // 2:
                halfway.wait(timeout=120)
            waiting.append(producer.send(payload))
        return [(ack.result().offset, payload) for ack, payload in zip(waiting, payloads, strict=True)]


def _check_log(stage: Stage, client: Client, settings: Settings, acked: list[tuple[int, bytes]]) -> None:
    with stage.step("compare the log with the acknowledgements") as record:
        found = _read(client, settings)
        record |= _compare(acked, found)
    stage.table(["acknowledged", "in the log", "lost", "doubled"], [[len(acked), len(found), 0, 0]])


def _compare(acked: list[tuple[int, bytes]], found: list[tuple[int, bytes]]) -> dict[str, int]:
    """Raises if one message is missing, doubled, or at another offset than its acknowledgement said."""
    times = Counter(payload for _, payload in found)
    lost = [payload for _, payload in acked if payload not in times]
    doubled = [payload for payload, count in times.items() if count > 1]
    if lost or doubled or sorted(acked) != found:
        raise IntegrityError(
            f"the topic differs from the acknowledgements: {len(lost)} lost, {len(doubled)} duplicated",
            hint="please report it",
        )
    return {"acknowledged": len(acked), "found": len(found), "lost": 0, "doubled": 0}


def _freeze(stage: Stage, session: SharedSession, client: Client, address: str) -> None:
    spark = session.get()
    freezing = stage.step(f"the pipeline writes the topic from the log to the Iceberg table topics.{TOPIC}")
    with freezing, Pipeline(session.settings, client, spark, address) as pipeline:
        status = pipeline.drain()
    stage.table(["topic", "rows", "commits", "position"], [[s.topic, s.rows, s.commits, s.offset] for s in status])


def _replay(stage: Stage, client: Client, settings: Settings, acked: list[tuple[int, bytes]]) -> None:
    with stage.step("replay the topic from its start: the table first, then the log, as one stream") as record:
        record |= _compare(acked, _read(client, settings))
    info = client.info(TOPIC)
    in_table = info.sinks["archive"] or 0
    stage.table(["replayed", "from the table", "from the log"], [[len(acked), in_table, info.end - in_table]])


def _read(client: Client, settings: Settings) -> list[tuple[int, bytes]]:
    with open_reader(client, settings, TOPIC) as reader:
        return [
            (row["offset"], row["payload"])
            for table in reader.read(0, columns=["offset", "payload"])
            for row in table.to_pylist()
        ]


class _Broker:
    """`frazil serve` as a process that can be killed."""

    def __init__(self, home: Path) -> None:
        self._home, self._config = home, home.parent / "frazil.yaml"
        self._process: subprocess.Popen[str] | None = None

    def start(self, address: str | None = None) -> str:
        """Starts it, and returns its address when it is ready; by default on a free port."""
        port = address.rpartition(":")[2] if address else "0"
        # The user's environment and settings file may name another log, which must not see the demo's messages.
        own = {"home": self._home, "log.directory": self._home / "log", "serve.flight_port": port, "serve.http_port": 0}
        options = [part for key, value in own.items() for part in ("--set", f"{key}={value}")]
        with (self._config.parent / "broker.log").open("a") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "frazil", "serve", "--config", self._config, *options, "-o", "json"],
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SetupError("the broker did not start", hint=f"frazil serve --config {self._config}")
        return str(json.loads(line)["flight"])

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> _Broker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=60)
