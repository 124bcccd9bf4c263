"""Waiters of a commit: a blocked thread, or coroutines of one event loop. One of the waiters leads the next commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from frazil.log.protocol import Ack


class ThreadWaiter:
    """A thread that is blocked until its acknowledgement arrives or it is elected leader."""

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

    def is_answered(self) -> bool:
        return self.outcome is not None

    def result(self) -> Ack:
        outcome = self.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None
        return outcome


class LoopWaiter:
    """The future of a coroutine's batch; None for single messages, which have futures of their own."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Ack] | None = None) -> None:
        self.loop, self.future = loop, future


Waiter = ThreadWaiter | LoopWaiter


def resolve_futures(futures: Iterable[asyncio.Future[Ack] | None], first: Ack) -> None:
    """Resolves the futures of adjacent messages, each with its own offset; runs in their loop.

    A cancelled future leaves its message in the log. This is the hot path of single messages, so that it avoids the
    constructor of `Ack`.
    """
    topic, offset, _, level, time_us, duplicate = first
    step = 1 if offset >= 0 else 0  # -1: unknown
    new = tuple.__new__
    for future in futures:
        if future is not None and not future.done():
            future.set_result(new(Ack, (topic, offset, 1, level, time_us, duplicate)))
        offset += step


def reject_futures(futures: Iterable[asyncio.Future[Ack] | None], error: BaseException) -> None:
    for future in futures:
        if future is not None and not future.done():
            future.set_exception(error)
