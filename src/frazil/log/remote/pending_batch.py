"""Messages that travel to the log as one batch, and who waits for their acknowledgement."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from frazil.log.batch import Batch, batch_with_headers
from frazil.log.protocol import Ack
from frazil.log.waiters import ThreadWaiter, acknowledge

Waiter = ThreadWaiter | Future[Ack] | asyncio.Future[Ack]
#: Payload, request id, headers, and who waits for it.
Message = tuple[bytes, int | None, dict[str, str] | None, Waiter]
#: What a message costs in memory besides its payload, about.
OVERHEAD = 64


class PendingBatch:
    """Either single messages of several publishers, or one batch of one publisher (`whole`)."""

    __slots__ = ("_waiter", "attempts", "batch", "born", "handed_over", "loop", "messages", "most", "size")

    def __init__(self, born: float = 0.0, loop: asyncio.AbstractEventLoop | None = None, most: int = 0) -> None:
        self.messages: list[Message] = []
        self.loop = loop
        """The loop from which all its messages come; None where there are others."""
        self.most = most
        """Bytes that it may gather in a turn of its loop."""
        self.handed_over = False
        self._waiter: Waiter | None = None
        self.batch: Batch | None = None
        self.born = born
        self.size = 0
        self.attempts = 0

    @classmethod
    def of_batch(cls, batch: Batch, waiter: Waiter) -> PendingBatch:
        parcel = cls()
        parcel.batch, parcel.size, parcel._waiter = batch, len(batch.body), waiter
        return parcel

    @property
    def whole(self) -> bool:
        return self._waiter is not None

    def __len__(self) -> int:
        return 1 if self._waiter is not None else len(self.messages)

    def encoded(self) -> Batch:
        """The batch; made once, then kept for retries."""
        if self.batch is None:
            payloads, request_ids, headers, _ = zip(*self.messages, strict=True)
            if headers.count(None) < len(headers):
                self.batch = batch_with_headers(list(payloads), list(request_ids), list(headers))
            else:
                self.batch = Batch.of_messages(payloads, request_ids)
        return self.batch

    def halves(self) -> list[PendingBatch]:
        """Two parcels with the same messages, so that a bad one does not take its neighbours with it."""
        middle = len(self) // 2
        return [self._part(self.messages[:middle]), self._part(self.messages[middle:])]

    def _part(self, messages: list[Message]) -> PendingBatch:
        part = PendingBatch(self.born, self.loop)
        part.messages = messages
        part.size = sum(size_of(payload, headers) for payload, _, headers, _ in messages)
        return part

    def settle(self, ack: Ack) -> None:
        """Hands out the acknowledgement: each message its own offset."""
        if self.loop is not None:
            with suppress(RuntimeError):  # it is closed: nobody waits any more
                self.loop.call_soon_threadsafe(_acknowledge, self.messages, ack)
        elif self._waiter is not None:
            _tell([self._waiter], [ack])
        else:
            topic, offset, _, level, time_us, duplicate = ack
            step = 1 if offset >= 0 else 0
            acks = [Ack(topic, offset + step * n, 1, level, time_us, duplicate) for n in range(len(self))]
            _tell([waiter for _, _, _, waiter in self.messages], acks)

    def fail(self, error: BaseException) -> None:
        waiters = [self._waiter] if self._waiter is not None else [waiter for _, _, _, waiter in self.messages]
        # Each its own: an error that is raised in several threads would mix up their tracebacks.
        _tell(waiters, [copy.copy(error) for _ in waiters])


def size_of(payload: bytes, headers: dict[str, str] | None) -> int:
    size = len(payload) + OVERHEAD
    return size + sum(len(k) + len(v) + OVERHEAD for k, v in headers.items()) if headers else size


def _acknowledge(messages: list[Message], ack: Ack) -> None:
    acknowledge([waiter for _, _, _, waiter in messages], ack)  # type: ignore[misc]  # all come from a loop


def _tell(waiters: Sequence[Waiter], outcomes: Sequence[Ack | BaseException]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Ack], Ack | BaseException]]] = {}
    for waiter, outcome in zip(waiters, outcomes, strict=True):
        if isinstance(waiter, ThreadWaiter):
            waiter.outcome = outcome
            waiter.wake()
        elif isinstance(waiter, Future):
            _settle(waiter, outcome)
        else:
            by_loop.setdefault(waiter.get_loop(), []).append((waiter, outcome))
    for loop, told in by_loop.items():
        with suppress(RuntimeError):  # it is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle_all, told)


def _settle_all(told: list[tuple[asyncio.Future[Ack], Ack | BaseException]]) -> None:
    for future, outcome in told:
        if not future.done():  # else its owner has cancelled it; the message is in the log all the same
            _settle(future, outcome)


def _settle(future: Future[Ack] | asyncio.Future[Ack], outcome: Ack | BaseException) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
