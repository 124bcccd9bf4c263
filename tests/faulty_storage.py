"""Storage that fails now and then: files through a FileIO that lets some reads fail, and S3 behind a gateway."""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from pyiceberg.io import FileIO
from pyiceberg.table import Table

Fault = Callable[[int], OSError | None]


def every_third(number: int) -> OSError | None:
    """As an object store under load: now a 503, now a connection that is cut."""
    if number % 3:
        return None
    if number % 2:
        return ConnectionResetError(104, "Connection reset by peer")
    return OSError("When reading information for key: AWS Error SLOW_DOWN during GetObject: HTTP response code: 503")


def first_of_four(number: int) -> OSError | None:
    """Fails the first of every four reads; counted per file, an attempt of up to three reads passes when repeated."""
    return OSError("AWS Error SLOW_DOWN during GetObject: HTTP response code: 503") if number % 4 == 1 else None


class FaultyIO(FileIO):
    """The same files. Before each read `fault` is asked, with the read's number from 1 on, whether it fails.

    Args:
        reads_of: counts the reads of each file, which are then numbered per file: faults do not depend on the order of
            threads.
    """

    def __init__(self, inner: FileIO, fault: Fault, reads_of: Counter[str] | None = None) -> None:
        super().__init__(inner.properties)
        self._inner, self._fault = inner, fault
        self._reads_of = reads_of
        self._lock = threading.Lock()
        self.reads = self.failed = 0

    def check(self, location: str) -> None:
        with self._lock:
            self.reads += 1
            number = self.reads
            if self._reads_of is not None:
                self._reads_of[location] += 1
                number = self._reads_of[location]
            error = self._fault(number)
            self.failed += error is not None
        if error is not None:
            raise error

    def new_input(self, location: str) -> Any:
        return _Input(self._inner.new_input(location), self)

    def new_output(self, location: str) -> Any:
        return self._inner.new_output(location)

    def delete(self, location: Any) -> None:
        self._inner.delete(location)


class _Input:
    def __init__(self, inner: Any, io: FaultyIO) -> None:
        self._inner, self._io = inner, io

    def open(self, seekable: bool = True) -> _File:
        return _File(self._inner.open(seekable=seekable), self._io, self._inner.location)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _File:
    """Only what readers of Parquet and Avro need: PyArrow takes shortcuts past `read` where it sees any."""

    def __init__(self, inner: Any, io: FaultyIO, location: str) -> None:
        self._inner, self._io, self._location = inner, io, location
        self.seek, self.tell, self.close = inner.seek, inner.tell, inner.close

    def read(self, *size: int) -> bytes:
        self._io.check(self._location)
        return bytes(self._inner.read(*size))

    @property
    def closed(self) -> bool:
        return bool(self._inner.closed)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def on_faulty_storage(table: Table, fault: Fault, reads_of: Counter[str] | None = None) -> FaultyIO:
    """From now on the table reads its files through the fault."""
    io = FaultyIO(table.io, fault, reads_of)
    table.io = io
    return io


#: What a request may meet: an answer that asks for patience, no answer, or one that is lost after the deed.
Meeting = Literal["503", "cut", "lost"]
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"
#: What a gateway tells apart. Parts of an upload count as PUT, and a listing is no GET.
REQUESTS = ("PUT", "GET", "HEAD", "LIST", "DELETE")


def request_kind(method: str, path: str) -> str:
    place, _, query = path.partition("?")
    if method == "POST":
        return "DELETE" if query.startswith("delete") else "PUT"
    if method == "GET" and ("list-type" in query or "/" not in place.strip("/")):
        return "LIST"
    return method


@dataclass
class Gateway:
    """Before an S3 server: answers some requests with 503 SlowDown, and hands all else on.

    Attributes:
        url: where it listens.
        every: of a kind of request each n-th is refused with SlowDown.
        first: so many of a kind are, from the first on.
        seen: requests, by kind.
        refused: those that were refused.
        server: to which it hands on.
    """

    url: str = ""
    every: Mapping[str, int] = field(default_factory=dict)
    first: Mapping[str, int] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    server: SplitResult = field(default_factory=lambda: urlsplit(""))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def meets(self, method: str, path: str) -> Meeting | None:
        """What a request meets here; None: it is handed on."""
        return "503" if self.refuses(method, path) else None

    def refuses(self, method: str, path: str) -> bool:
        kind = request_kind(method, path)
        with self._lock:
            self.seen[kind] += 1
            nth = self.every.get(kind)
            refuse = self.seen[kind] <= self.first.get(kind, 0) or (nth is not None and self.seen[kind] % nth == 0)
            self.refused[kind] += refuse
            return refuse


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gateway: Gateway

    def hand_on(self) -> None:
        body = self.body()
        fault = self.gateway.meets(self.command, self.path)
        if fault == "503":
            self.answer(503, _SLOW_DOWN, {})
        elif fault == "cut":
            self.cut()
        else:
            reply = self.ask(body)
            if fault == "lost":
                self.cut()
            else:
                self.answer(*reply)

    def body(self) -> bytes | Iterator[bytes]:
        """PyArrow sends what it uploads in chunks, and no length before."""
        if not self.headers.get("Transfer-Encoding"):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return iter(parts)

    def ask(self, body: bytes | Iterator[bytes]) -> tuple[int, bytes, dict[str, str]]:
        server = self.gateway.server
        connection = http.client.HTTPConnection(server.hostname or "", server.port, timeout=60)
        # With its own Host: that is what the request was signed with.
        chunked = not isinstance(body, bytes)
        connection.request(self.command, self.path, body, dict(self.headers.items()), encode_chunked=chunked)
        reply = connection.getresponse()
        found = reply.status, reply.read(), dict(reply.getheaders())
        connection.close()
        return found

    def cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = hand_on  # noqa: N815 - the library's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@contextmanager
def gateway_to(server: str, gateway: Gateway | None = None) -> Iterator[Gateway]:
    """Puts a gateway before a server, by default one that answers as its `every` and `first` say."""
    gateway = Gateway() if gateway is None else gateway
    gateway.server = urlsplit(server)
    http_server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"gateway": gateway}))
    gateway.url = f"http://127.0.0.1:{http_server.server_port}"
    thread = threading.Thread(target=http_server.serve_forever, daemon=True)
    thread.start()
    try:
        yield gateway
    finally:
        http_server.shutdown()
        http_server.server_close()
        thread.join()
