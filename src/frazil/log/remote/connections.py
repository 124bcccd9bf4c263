"""What clients hold open in a broker: streams, which are limited, and connections, which are closed at its end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from frazil.errors import UnavailableError


class Streams:
    """Counts the open streams of producers and readers. Each one occupies a thread of the broker."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self._lock = threading.Lock()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Counts one stream while the block runs. Raises UnavailableError at the limit."""
        with self._lock:
            if self._open >= self._most:
                raise UnavailableError(
                    f"the broker has {self._most:,} streams of producers and readers open, and takes no more",
                    hint="close some, try again later, or raise serve.max_streams",
                )
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1


def cut_connections(port: int) -> None:
    """Closes every TCP connection that a client has made to a port of this process."""
    for number in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # closed in the meantime, or not a socket
            connection = socket.socket(fileno=number)
            try:
                if _accepted(connection) and connection.getsockname()[1] == port:
                    connection.shutdown(socket.SHUT_RDWR)
            finally:
                # Neither this nor a copy may be closed: closing any descriptor of a file drops its locks, SQLite's too.
                connection.detach()


def _accepted(connection: socket.socket) -> bool:
    internet = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
    return internet and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
