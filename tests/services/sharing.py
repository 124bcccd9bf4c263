"""The servers of one test run, shared by its workers: the runner owns them, a worker asks for one by name."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from tempfile import TemporaryDirectory

from tests.services.handle import Handle
from tests.services.kit import Services
from tests.services.process import ServerError

_SOCKET = "TEST_SERVICES_SOCKET"


@contextlib.contextmanager
def share_services() -> Iterator[dict[str, str]]:
    """Serves the servers by name until the block ends; yields the environment that workers need."""
    with TemporaryDirectory(prefix="frazil-run-") as folder, Services() as services:
        address = f"{folder}/services.sock"
        with Listener(address, family="AF_UNIX", backlog=64) as listener:
            threading.Thread(target=_serve, args=(listener, services), daemon=True).start()
            yield {_SOCKET: address}


def shared_services() -> Services:
    """Returns the servers of the run that this process is a worker of, or servers for this process alone."""
    return _SharedServices(os.environ[_SOCKET]) if _SOCKET in os.environ else Services()


class _SharedServices(Services):
    """Servers that another process starts and stops; `own` ones belong to this process."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._known: dict[str, Handle] = {}

    def _once(self, name: str, start: object) -> Handle:  # type: ignore[override]
        if name not in self._known:
            with Client(self._address, family="AF_UNIX") as connection:
                connection.send(name)
                answer = connection.recv()
            if isinstance(answer, str):
                raise ServerError(answer)
            self._known[name] = answer
        return self._known[name]


def _serve(listener: Listener, services: Services) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError:  # the run has ended
            return
        threading.Thread(target=_answer, args=(connection, services), daemon=True).start()


def _answer(connection: Connection, services: Services) -> None:
    with connection:
        name = connection.recv()
        try:
            connection.send(getattr(services, name))
        except Exception as error:  # noqa: BLE001 - the test that asked must see it
            connection.send(f"{type(error).__name__}: {error}")
