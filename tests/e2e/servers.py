"""`frazil serve` in a process of its own, and a plain HTTP client."""

from __future__ import annotations

import http.client
import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.conftest import FRAZIL, Shell

JSON = {"Content-Type": "application/json"}
RAW = {"Content-Type": "application/octet-stream"}
_FREE_PORTS = ("--set", "serve.http_port=0", "--set", "serve.flight_port=0")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    """A command that says on standard output, in JSON, when it is ready."""

    def __init__(self, shell: Shell, *args: str) -> None:
        self.process = subprocess.Popen(
            [FRAZIL, *args, "--output", "json"], cwd=shell.folder, env=shell.environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._said: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_out, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line)

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    def ready(self, seconds: float = 60) -> dict[str, Any]:
        line = self._said.get(timeout=seconds)
        assert line is not None, self.wait() and self.errors
        found: dict[str, Any] = json.loads(line)
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 60) -> int:
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(seconds)
        return code

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.wait()


class Server(Running):
    """A running `frazil serve`."""

    def __init__(self, shell: Shell, *args: str) -> None:
        super().__init__(shell, "serve", *_FREE_PORTS, *args)
        try:
            self.served = self.ready()
        except BaseException:
            self.end()
            raise
        self.http: str = self.served["http"]

    def connection(self, timeout: float = 60) -> http.client.HTTPConnection:
        place = urlsplit(self.http)
        assert place.hostname is not None
        return http.client.HTTPConnection(place.hostname, place.port, timeout=timeout)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = self.connection()
        try:
            connection.request(method, path, body, dict(headers or {}))
            got = connection.getresponse()
            return Answer(got.status, {name.lower(): value for name, value in got.headers.items()}, got.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json

    def post(self, path: str, value: Any = None) -> Answer:
        return self.ask("POST", path, None if value is None else json.dumps(value).encode(), JSON)

    def create(self, topic: str, storage: str = "log") -> None:
        answer = self.post(f"/topics/{topic}", {"storage": storage})
        assert answer.status == 201, answer.body

    def publish(self, topic: str, *payloads: str) -> dict[str, Any]:
        answer = self.post(f"/topics/{topic}/messages", {"messages": [{"payload": text} for text in payloads]})
        assert answer.status == 200, answer.body
        return answer.json

    def payloads(self, topic: str) -> list[str]:
        """All of a topic, page by page."""
        found, at = [], 0
        while True:
            page = self.get(f"/topics/{topic}/messages?from={at}")
            found += [message["payload"] for message in page["messages"]]
            at = page["next"]
            if at >= page["end"]:
                return found

    def metric(self, name: str) -> float:
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def memory_mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@contextmanager
def serving(shell: Shell, *args: str) -> Iterator[Server]:
    server = Server(shell, *args)
    try:
        yield server
    finally:
        server.end()


class Tail:
    """A client of server-sent events, which reads only when asked."""

    def __init__(self, server: Server, path: str, last_seen: int | None = None) -> None:
        self._connection = server.connection()
        headers = {} if last_seen is None else {"Last-Event-ID": str(last_seen)}
        self._connection.request("GET", path, headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        assert self._answer.headers["Content-Type"].startswith("text/event-stream")

    def block(self) -> list[str] | None:
        """The lines up to the next empty one; None at the end."""
        lines: list[str] = []
        while line := self._answer.readline():
            text = line.decode().rstrip("\n")
            if not text:
                return lines
            lines.append(text)
        return None

    def event(self) -> dict[str, str]:
        """The next event that is no heartbeat."""
        while (lines := self.block()) is not None:
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if fields:
                return fields
        raise EOFError

    def messages(self, count: int) -> list[dict[str, Any]]:
        found = []
        for _ in range(count):
            event = self.event()
            message = json.loads(event["data"])
            assert event["id"] == str(message["offset"])
            found.append(message)
        return found

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def eventually(condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
