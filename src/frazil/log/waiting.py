"""Who waits for a commit: a thread, or a coroutine. One of those who wait leads the next commit."""

from __future__ import annotations

import asyncio
import threading

from frazil.log.access import Ack


class ThreadWaiter:
    """A thread that waits for its acknowledgement, or to be told to lead."""

    __slots__ = ("_lock", "ack", "error", "leads")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.ack: Ack | None = None
        self.error: BaseException | None = None
        self.leads = False

    def wait(self) -> None:
        self._lock.acquire()

    def wake(self) -> None:
        self._lock.release()

    def take(self, outcome: Ack | BaseException) -> None:
        if isinstance(outcome, Ack):
            self.ack = outcome
        else:
            self.error = outcome

    def result(self) -> Ack:
        if self.error is not None:
            raise self.error
        assert self.ack is not None
        return self.ack


Waiter = ThreadWaiter | asyncio.Future[Ack]


def settle_all(settled: list[tuple[asyncio.Future[Ack], Ack | BaseException]]) -> None:
    for future, outcome in settled:
        settle(future, outcome)


def settle(future: asyncio.Future[Ack], outcome: Ack | BaseException) -> None:
    if future.done():  # cancelled by its owner; the message is in the log all the same
        return
    if isinstance(outcome, Ack):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
