"""Tells coroutines when a topic has grown. However many wait for a topic, one thread asks its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from frazil.log.protocol import LogAccess

#: Seconds of one question to the log; nothing is late by it, it only says how soon a thread can end.
_ASK = 0.5
#: Topics that are asked at the same time; further ones take turns.
_THREADS = 32


class _Growth:
    """What is known of one topic's end, and who wants to know more."""

    def __init__(self) -> None:
        self.end = 0
        self.waiting: set[asyncio.Future[None]] = set()
        self.task: asyncio.Task[None] | None = None

    def tell(self, settle: Callable[[asyncio.Future[None]], None]) -> None:
        waiting, self.waiting = self.waiting, set()
        for turn in waiting:
            if not turn.done():
                settle(turn)


class TopicWatcher:
    """Of all topics of a log. Belongs to one event loop."""

    def __init__(self, log: LogAccess) -> None:
        self._log = log
        self._topics: dict[str, _Growth] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "frazil-watch")

    async def beyond(self, topic: str, offset: int, seconds: float) -> bool:
        """Waits until the topic's visible end lies beyond an offset, which it has reached. False: the time is over."""
        growth = self._topics.setdefault(topic, _Growth())
        if growth.task is None:
            growth.end = offset  # a later end wakes everybody at once; an earlier one would only ask twice
            growth.task = asyncio.create_task(self._ask(topic, growth))
        elif growth.end > offset:
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        growth.waiting.add(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except TimeoutError:
            return False
        finally:
            growth.waiting.discard(turn)
        return True

    async def _ask(self, topic: str, growth: _Growth) -> None:
        """Runs as long as somebody waits for the topic."""
        loop = asyncio.get_running_loop()
        try:
            while growth.waiting:
                end = await loop.run_in_executor(self._threads, self._log.wait, topic, growth.end, _ASK)
                if end > growth.end:
                    growth.end = end
                    growth.tell(lambda turn: turn.set_result(None))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait have to know
            failure = error
            growth.tell(lambda turn: turn.set_exception(failure))
        finally:
            self._topics.pop(topic, None)

    def wake(self) -> None:
        """Everybody stops waiting, as if their topic had grown."""
        for growth in self._topics.values():
            growth.tell(lambda turn: turn.set_result(None))

    def close(self) -> None:
        self.wake()
        self._threads.shutdown(wait=True, cancel_futures=True)
