"""Hanging up. gRPC offers no way to close connections that idle clients hold open; the operating system does."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path


def cut_connections(port: int) -> None:
    """Closes every TCP connection of this process that a client has made to its port."""
    for number in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # closed meanwhile, or no socket
            connection = socket.socket(fileno=number)
            try:
                if _accepted(connection) and connection.getsockname()[1] == port:
                    connection.shutdown(socket.SHUT_RDWR)
            finally:
                # Never closed here, nor a copy of it: closing any descriptor of a file, SQLite's too, drops its locks.
                connection.detach()


def _accepted(connection: socket.socket) -> bool:
    internet = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
    return internet and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
