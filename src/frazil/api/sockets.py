"""Ports to listen on, and in plain words why one cannot be had."""

from __future__ import annotations

import errno
import socket

from frazil.errors import ConflictError, FrazilError, NotAllowedError, UsageError


def listening(host: str, port: int, setting: str) -> socket.socket:
    """A socket bound to an address; port 0 gives any free one.

    Raises:
        ConflictError: another program listens there.
        NotAllowedError: the system does not give the port to this user.
        UsageError: this machine does not have the address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a crash its old connections linger
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise _translate_error(error, host, port, setting) from error
    return bound


def check_free(host: str, port: int, setting: str) -> None:
    """Raises as `listening` does. gRPC itself would share the port of another broker without a word."""
    listening(host, port, setting).close()


def _translate_error(error: OSError, host: str, port: int, setting: str) -> FrazilError:
    if error.errno == errno.EADDRINUSE:
        return ConflictError(
            f"port {port} of {host} is in use by another program",
            hint=f"stop that one, or take another port: --set {setting}=0 finds a free one",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotAllowedError(f"port {port} of {host} may not be used", hint=f"--set {setting}=8000, above 1023")
    return UsageError(f"cannot listen at {host}", hint="serve.host: 127.0.0.1, or an address of this machine")


def shown_host(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
