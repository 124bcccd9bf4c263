"""`frazil serve` and `frazil pipeline` are killed in turns, or both at once; the table is the judge."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from frazil.catalogs import open_catalog
from frazil.log.remote.producer import Producer
from frazil.settings import load_settings
from tests.e2e.conftest import Shell
from tests.e2e.servers import Running, eventually
from tests.services.process import free_port

TOPIC = "orders"


class Witness:
    """Publishes numbers, one after the other, and keeps where each was acknowledged. It outlives every broker."""

    def __init__(self, address: str) -> None:
        self._producer = Producer(address, TOPIC, patience_s=300.0)
        self._stop = threading.Event()
        self.acknowledged: list[tuple[int, bytes]] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop.is_set():
                    return
                payload = b"message %d" % number
                self.acknowledged.append((self._producer.publish(payload).offset, payload))
                time.sleep(0.002)
        except BaseException as error:
            self.error = error
            raise

    def more(self) -> None:
        """Waits until further messages are acknowledged."""
        wanted = len(self.acknowledged) + 20
        eventually(lambda: len(self.acknowledged) >= wanted or self.error is not None, 120)
        assert self.error is None

    def end(self) -> list[tuple[int, bytes]]:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert self.error is None
        self._producer.close()
        return self.acknowledged


class Killable:
    """A command that is killed, with the JVM that it has started, and started again."""

    def __init__(self, start: Callable[[], Running]) -> None:
        self._start = start
        self.running = start()
        self.running.ready(120)

    def kill(self) -> None:
        self.running.send(signal.SIGKILL)
        self.running.wait(60)

    def again(self) -> None:
        self.running = self._start()
        self.running.ready(120)

    def stop(self) -> None:
        self.running.send(signal.SIGTERM)
        assert self.running.wait(180) == 0, self.running.errors


def in_table(shell: Shell, home: Path) -> list[tuple[int, bytes]]:
    settings = load_settings(flags={"home": str(home)}, environ={})
    rows = open_catalog(settings.catalog()).load_table(f"topics.{TOPIC}").scan().to_arrow().sort_by("offset")
    return list(zip(rows["offset"].to_pylist(), rows["payload"].to_pylist(), strict=True))


@pytest.mark.long("starts Spark again after each kill")
@pytest.mark.deep
@pytest.mark.parametrize(
    "rounds",
    [
        1,
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(4 * 3600)], id="soak"),
    ],
)
def test_whoever_is_killed_the_table_has_every_acknowledged_message_once_and_in_order(shell, tmp_path, rounds):
    home, http, flight = tmp_path / "kept", free_port(), free_port()
    here = ("--set", f"home={home}", "--set", f"serve.http_port={http}", "--set", f"serve.flight_port={flight}")
    serve = Killable(lambda: Running(shell, "serve", *here))
    assert shell.run("topic", "create", TOPIC, *here).returncode == 0
    pipeline = Killable(lambda: Running(shell, "pipeline", *here))
    witness = Witness(f"grpc://127.0.0.1:{flight}")
    chance = random.Random(rounds)
    try:
        for number in range(rounds):
            witness.more()
            time.sleep(chance.uniform(0, 2.0))
            victims = [[serve, pipeline], [serve], [pipeline]][number % 3]
            for victim in victims:
                victim.kill()
            for victim in victims:
                victim.again()
        witness.more()
        acknowledged = witness.end()
        pipeline.stop()  # it takes what is left
        serve.stop()
    finally:
        serve.running.end()
        pipeline.running.end()
    assert in_table(shell, home) == acknowledged
    assert [offset for offset, _ in acknowledged] == list(range(len(acknowledged)))
