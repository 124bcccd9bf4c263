"""One process that owns the log and serves it: Arrow Flight and HTTP, until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache

import uvicorn

from frazil.api.app import Api, create_app
from frazil.api.reading import ReaderOf
from frazil.api.service import Service
from frazil.api.sockets import check_free, listening, shown_host
from frazil.content.tables import ContentTables
from frazil.content.tail import ContentTail
from frazil.documents.open import open_store, store_url
from frazil.documents.store import DocumentStore
from frazil.followers import following
from frazil.log.log import Log
from frazil.log.remote.broker import Broker
from frazil.observe.logs import get_logger
from frazil.settings import Settings
from frazil.tables.store import LazyStore
from frazil.topics.handover import take_log
from frazil.topics.reading.reader import TopicReader, reader_of

#: Seconds that running requests have to end in; then the server hangs up, and a little later it stops waiting.
_GRACE = 5
#: Connections at the same time; further ones are answered with 503.
_CONNECTIONS = 1024
#: Topics whose table's plan is remembered.
_READERS = 256

log = get_logger(__name__)


@dataclass(frozen=True)
class Served:
    """Where the log is, and where it can be reached."""

    log: str
    http: str
    flight: str
    pid: int

    def to_dict(self) -> dict[str, str | int]:
        return asdict(self)


def run_server(settings: Settings, ready: Callable[[Served], None]) -> None:
    """Serves the log of the settings until SIGTERM, SIGINT or SIGHUP; returns when everything is on disk.

    Raises:
        LockedError: another process has the log and keeps it; says which.
        ConflictError: a port is taken.
    """
    serve = settings.model.serve
    with (
        LazyStore(settings) as tables,
        take_log(settings) as opened,
        listening(serve.host, serve.http_port, "serve.http_port") as web,
    ):
        if serve.flight_port:
            check_free(serve.host, serve.flight_port, "serve.flight_port")
        _recover(opened)
        tail = ContentTail.of_log(settings, opened)
        app = create_app(
            opened,
            settings.model,
            _reader_of(settings, opened, tables),
            lambda: ContentTables.of(tables.store(), settings, tail),
            lambda: _open_documents(settings, opened),
        )
        with Broker(opened, serve.host, serve.flight_port, max_streams=serve.max_streams) as broker:
            http = f"http://{shown_host(serve.host)}:{web.getsockname()[1]}"
            opened.announce(flight=broker.address, http=http)
            if settings.model.database.url:
                app.state.service.documents.start()
            served = Served(str(opened.directory), http, broker.address, os.getpid())
            try:
                with following(settings, opened, app.state.service.documents.store):
                    asyncio.run(_serve(app, web, lambda: ready(served)))
            finally:
                app.state.service.close()


def _recover(opened: Log) -> None:
    """Opens every topic now: what a crash has left is repaired before the first request, and told."""
    for topic in opened.topics():
        if topic.problem:
            log.error("a topic cannot be used", topic=topic.name, problem=topic.problem)


def _reader_of(settings: Settings, opened: Log, tables: LazyStore) -> ReaderOf:
    """Readers of table and log. The catalog is opened when a message is wanted that only the table has."""

    @lru_cache(_READERS)
    def reader(topic: str) -> TopicReader:
        return reader_of(opened, settings, topic, tables, first="log")

    return reader


def _open_documents(settings: Settings, opened: Log) -> DocumentStore:
    if store_url(settings) != "iceberg":
        return open_store(settings)
    from frazil.documents.iceberg.store import open_iceberg_store

    return open_iceberg_store(settings, opened)


async def _serve(app: Api, web: socket.socket, ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, limit_concurrency=_CONNECTIONS, timeout_keep_alive=30,
        timeout_graceful_shutdown=2 * _GRACE,
    )  # fmt: skip
    server = _Server(config, app.state.service)
    serving = asyncio.create_task(server.serve([web]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        ready()
    await serving


class _Server(uvicorn.Server):
    """Ends by a signal as a program that has done its work: uvicorn would raise the signal again."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        taken = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
        for number in taken:
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self._service.stop()
        self.force_exit = self.should_exit  # the second signal does not wait for anybody
        self.should_exit = True
        asyncio.get_running_loop().call_later(_GRACE, self._hang_up)

    def _hang_up(self) -> None:
        """On clients that do not read what they asked for, or do not send what they announced."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
