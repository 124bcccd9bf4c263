"""Notifies coroutines when a topic has grown. One thread per topic polls its log, for any number of waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from frazil.log.protocol import LogAccess

#: Seconds of one wait on the log. It delays nothing; it limits how long a thread takes to end.
_POLL_S = 0.5
#: Topics polled at the same time; further ones take turns.
_THREADS = 32


class _TopicEnd:
    """The known end of one topic, and the waiters for a later one."""

    def __init__(self) -> None:
        self.end = 0
        self.waiting: set[asyncio.Future[None]] = set()
        self.task: asyncio.Task[None] | None = None

    def settle_waiters(self, settle: Callable[[asyncio.Future[None]], None]) -> None:
        waiting, self.waiting = self.waiting, set()
        for waiter in waiting:
            if not waiter.done():
                settle(waiter)


class TopicWatcher:
    """Watches all topics of a log. Belongs to one event loop."""

    def __init__(self, log: LogAccess) -> None:
        self._log = log
        self._topics: dict[str, _TopicEnd] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "frazil-watch")

    async def wait_beyond(self, topic: str, offset: int, seconds: float) -> bool:
        """Waits until the topic's visible end lies beyond an offset; returns False at the timeout."""
        topic_end = self._topics.setdefault(topic, _TopicEnd())
        if topic_end.task is None:
            topic_end.end = offset  # a later end wakes everybody at once; an earlier one would only ask twice
            topic_end.task = asyncio.create_task(self._poll(topic, topic_end))
        elif topic_end.end > offset:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        topic_end.waiting.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return False
        finally:
            topic_end.waiting.discard(waiter)
        return True

    async def _poll(self, topic: str, topic_end: _TopicEnd) -> None:
        """Polls the log while there are waiters for the topic."""
        loop = asyncio.get_running_loop()
        try:
            while topic_end.waiting:
                end = await loop.run_in_executor(self._threads, self._log.wait, topic, topic_end.end, _POLL_S)
                if end > topic_end.end:
                    topic_end.end = end
                    topic_end.settle_waiters(lambda waiter: waiter.set_result(None))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait have to know
            failure = error
            topic_end.settle_waiters(lambda waiter: waiter.set_exception(failure))
        finally:
            self._topics.pop(topic, None)

    def wake(self) -> None:
        """Wakes all waiters, as if their topics had grown."""
        for topic_end in self._topics.values():
            topic_end.settle_waiters(lambda waiter: waiter.set_result(None))

    def close(self) -> None:
        self.wake()
        self._threads.shutdown(wait=True, cancel_futures=True)
