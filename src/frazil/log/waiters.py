"""Who waits for a commit: a thread, or coroutines of one event loop. One of those who wait leads the next commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from frazil.log.protocol import Ack


class ThreadWaiter:
    """A thread that waits for its acknowledgement, or to be told to lead."""

    __slots__ = ("_lock", "leads", "outcome")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.outcome: Ack | BaseException | None = None
        self.leads = False

    def wait(self) -> None:
        self._lock.acquire()

    def wake(self) -> None:
        self._lock.release()

    def answered(self) -> bool:
        return self.outcome is not None

    def result(self) -> Ack:
        outcome = self.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None
        return outcome


class LoopWaiter:
    """A coroutine that waits for its batch; or those of one loop that wait for single messages, which have futures."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Ack] | None = None) -> None:
        self.loop, self.future = loop, future


Waiter = ThreadWaiter | LoopWaiter


def acknowledge(futures: Iterable[asyncio.Future[Ack] | None], first: Ack) -> None:
    """Answers those who wait for neighbouring messages, each with its own offset; runs in their loop.

    One that was cancelled has its message in the log all the same. This runs for each message, so that it is as short
    as can be, and does without the detour by `Ack(…)`.
    """
    topic, offset, _, level, time_us, duplicate = first
    step = 1 if offset >= 0 else 0  # -1: not known
    new = tuple.__new__
    for future in futures:
        if future is not None and not future.done():
            future.set_result(new(Ack, (topic, offset, 1, level, time_us, duplicate)))
        offset += step


def refuse(futures: Iterable[asyncio.Future[Ack] | None], error: BaseException) -> None:
    for future in futures:
        if future is not None and not future.done():
            future.set_exception(error)
