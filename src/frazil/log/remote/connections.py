"""Closes connections that idle clients hold open. gRPC offers no way to do this; the operating system does."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path


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
