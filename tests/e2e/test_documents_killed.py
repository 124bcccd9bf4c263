"""`frazil serve` and `frazil pipeline` are killed while documents change; the tables are compared with a witness.

The witness sends changes over HTTP from this process, repeats what was not answered under the same idempotency key, and
keeps what was acknowledged.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.catalogs import open_catalog
from frazil.settings import load_settings
from tests.e2e.conftest import Shell
from tests.e2e.servers import JSON, Running, eventually
from tests.e2e.test_killed_together import Killable
from tests.services.process import free_port

IDS = [f"d{number}" for number in range(6)]
THREADS = 3


class Witness:
    """Changes documents, and keeps the revisions that were acknowledged. It outlives every server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._numbers: Iterator[int] = itertools.count(1)
        self._lock = threading.Lock()
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not self._stop.is_set():
                with self._lock:
                    number = next(self._numbers)
                document_id = chance.choice(IDS)
                answer = self._put(document_id, number)
                with self._lock:
                    place = document_id, answer["revision"]
                    assert place not in self.acknowledged, "a revision was given to two changes"
                    self.acknowledged[place] = number
                time.sleep(0.005)
        except BaseException as error:
            self.errors.append(error)
            raise

    def _put(self, document_id: str, number: int) -> dict[str, Any]:
        """Repeats a change until it is acknowledged. Its number is its size."""
        body = json.dumps({"filename": f"{document_id}.pdf", "size_bytes": number}).encode()
        deadline = time.monotonic() + 200
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                connection.request(
                    "PUT", f"/api/v1/documents/{document_id}", body, {**JSON, "Idempotency-Key": f"change-{number}"}
                )
                answer = connection.getresponse()
                content = answer.read()
                if answer.status in (200, 201):
                    found: dict[str, Any] = json.loads(content)
                    return found
                assert answer.status >= 500, content
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            assert time.monotonic() < deadline, "no server answers any more"
            time.sleep(0.05)

    def more(self) -> None:
        """Waits until further changes are acknowledged."""
        wanted = len(self.acknowledged) + 30
        eventually(lambda: len(self.acknowledged) >= wanted or bool(self.errors), 200)
        assert not self.errors

    def end(self) -> dict[tuple[str, int], int]:
        self._stop.set()
        for thread in self._threads:
            thread.join(220)
            assert not thread.is_alive()
        assert not self.errors
        return self.acknowledged


def rows_of(home: Path, table: str) -> list[tuple[tuple[str, int], int]]:
    settings = load_settings(flags={"home": str(home)}, environ={})
    rows = open_catalog(settings.catalog()).load_table(f"document_archive.{table}").scan().to_arrow()
    columns = (rows[name].to_pylist() for name in ("document_id", "revision", "size_bytes"))
    return sorted(((document_id, revision), size) for document_id, revision, size in zip(*columns, strict=True))


@pytest.mark.deep
@pytest.mark.long("starts Spark again after each kill")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "rounds", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(3600)], id="soak")]
)
def test_whoever_is_killed_the_tables_have_every_acknowledged_revision_once(shell: Shell, tmp_path: Path, rounds: int):
    home, port = tmp_path / "kept", free_port()
    settings = {
        "home": home, "database.url": "iceberg", "serve.http_port": port, "serve.flight_port": free_port(),
        "pipeline.max_lag_ms": 300,
    }  # fmt: skip
    here = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    serve = Killable(lambda: Running(shell, "serve", *here))
    witness = Witness(port)
    witness.more()  # which makes the topic
    pipeline = Killable(lambda: Running(shell, "pipeline", *here))
    chance = random.Random(rounds)
    try:
        for number in range(rounds):
            witness.more()
            time.sleep(chance.uniform(0, 2.0))
            for victim in [[pipeline], [serve, pipeline], [serve]][number % 3]:
                victim.kill()
                victim.again()
        witness.more()
        acknowledged = witness.end()
        pipeline.stop()  # it takes what is left
        serve.stop()
    finally:
        serve.running.end()
        pipeline.running.end()
    expected = sorted(acknowledged.items())
    assert rows_of(home, "document_history") == expected
    latest = {document_id: (revision, size) for (document_id, revision), size in expected}
    assert rows_of(home, "document_metadata") == sorted(
        ((document_id, revision), size) for document_id, (revision, size) in latest.items()
    )
    assert shell.run("docs", "verify", *here).returncode == 0
