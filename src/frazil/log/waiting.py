"""Who waits for a commit: a thread, or a coroutine. One of those who wait leads the next commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress

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

    def result(self) -> Ack:
        if self.error is not None:
            raise self.error
        assert self.ack is not None
        return self.ack


Waiter = ThreadWaiter | asyncio.Future[Ack]
Outcome = tuple[Waiter, Ack | BaseException]


def tell(outcomes: Iterable[Outcome], own: ThreadWaiter | None, loop: asyncio.AbstractEventLoop | None) -> None:
    """Hands out acknowledgements and errors.

    Args:
        outcomes: to whom, and what.
        own: the leader itself, which needs no wake-up.
        loop: the loop in whose thread this runs, if it is one.
    """
    elsewhere: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Ack], Ack | BaseException]]] = {}
    for waiter, outcome in outcomes:
        if isinstance(waiter, ThreadWaiter):
            if isinstance(outcome, Ack):
                waiter.ack = outcome
            else:
                waiter.error = outcome
            if waiter is not own:
                waiter.wake()
        elif (its := waiter.get_loop()) is loop:
            _settle(waiter, outcome)
        else:
            elsewhere.setdefault(its, []).append((waiter, outcome))
    for its, settled in elsewhere.items():
        with suppress(RuntimeError):  # it is closed: nobody waits any more
            its.call_soon_threadsafe(_settle_all, settled)


def _settle_all(settled: list[tuple[asyncio.Future[Ack], Ack | BaseException]]) -> None:
    for future, outcome in settled:
        _settle(future, outcome)


def _settle(future: asyncio.Future[Ack], outcome: Ack | BaseException) -> None:
    if future.done():  # cancelled by its owner; the message is in the log all the same
        return
    if isinstance(outcome, Ack):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
