"""What the requests share: the log, who reads a topic, memory for bodies, and threads for what takes long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from fastapi import Request

from frazil.api.documents_access import DocumentsAccess, OpenStore
from frazil.api.reading import ReaderOf
from frazil.api.request_body import BodyMemory
from frazil.api.topic_watcher import TopicWatcher
from frazil.errors import UnavailableError
from frazil.log.log import Log
from frazil.log.protocol import Ack, TopicInfo
from frazil.settings import SettingsModel
from frazil.topics.reading.reader import TopicReader

P = ParamSpec("P")
T = TypeVar("T")

#: What is decoded and rendered at the same time. More would only take memory and the loop's share of the processor.
_THREADS = 4
_SMALLEST_BODY_LIMIT = 16 * 1024 * 1024


class Service:
    """Belongs to one app and one event loop."""

    def __init__(
        self,
        log: Log,
        settings: SettingsModel,
        reader_of: ReaderOf | None = None,
        open_documents: OpenStore | None = None,
    ) -> None:
        self.log = log
        self.settings = settings
        self.reader_of: ReaderOf = reader_of or (lambda topic: TopicReader(log, topic))
        self.body_limit = max(2 * settings.log.max_message_size, _SMALLEST_BODY_LIMIT)
        self.bodies = BodyMemory(max(settings.log.max_buffer, self.body_limit))
        self.documents = DocumentsAccess(open_documents)
        self.stopping = False
        self.probing = threading.Lock()
        """Held by the one probe that tries whether a topic takes messages again."""
        self._watch = TopicWatcher(log)
        self._threads = ThreadPoolExecutor(_THREADS, "frazil-http")
        # Apart, because these may wait for the disk.
        self._publishing = ThreadPoolExecutor(_THREADS, "frazil-publish")

    async def off_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs what may block, or takes long, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def info(self, topic: str) -> TopicInfo:
        """What the log knows of a topic; one that must be opened first, and perhaps recovered, does not hold others."""
        if self.log.is_open(topic):
            return self.log.info(topic)
        return await self.off_loop(self.log.info, topic)

    async def publish_off_loop(self, publish: Callable[[], Ack]) -> Ack:
        return await asyncio.get_running_loop().run_in_executor(self._publishing, publish)

    async def grown(self, topic: str, offset: int, seconds: float) -> bool:
        """Waits until a topic has grown beyond an offset. False when the time is over, or the server stops."""
        return not self.stopping and await self._watch.wait_beyond(topic, offset, seconds)

    def must_run(self) -> None:
        if self.stopping:
            raise UnavailableError("the server is stopping", hint="send it again when it is back")

    def stop(self) -> None:
        """From now on nothing new is taken; live tails end."""
        self.stopping = True
        self._watch.wake()

    def close(self) -> None:
        self._watch.close()
        self._threads.shutdown()
        self._publishing.shutdown()
        self.documents.close()


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


async def shared_service(request: Request) -> Service:
    """The same for routes: FastAPI hands a plain function to a thread, for each request."""
    return service_of(request)
