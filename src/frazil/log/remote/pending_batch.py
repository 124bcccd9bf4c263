"""Messages that are sent to the log as one batch, and the waiters for their acknowledgement."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from frazil.log.batch import Batch, batch_with_headers
from frazil.log.protocol import Ack
from frazil.log.waiters import ThreadWaiter, resolve_futures

Waiter = ThreadWaiter | Future[Ack] | asyncio.Future[Ack]
#: Payload, request id, headers, and the waiter.
Message = tuple[bytes, int | None, dict[str, str] | None, Waiter]
#: Approximate memory of a message besides its payload.
OVERHEAD = 64


class PendingBatch:
    """Single messages of any publishers, or one batch of one publisher (`is_batch`)."""

    __slots__ = ("_waiter", "attempts", "batch", "created_at", "is_enqueued", "loop", "max_size", "messages", "size")

    def __init__(
        self, created_at: float = 0.0, loop: asyncio.AbstractEventLoop | None = None, max_size: int = 0
    ) -> None:
        self.messages: list[Message] = []
        self.loop = loop
        """The loop of all its publishers; None if there are others."""
        self.max_size = max_size
        """Bytes that it may hold while its loop's iteration lasts."""
        self.is_enqueued = False
        self._waiter: Waiter | None = None
        self.batch: Batch | None = None
        self.created_at = created_at
        self.size = 0
        self.attempts = 0

    @classmethod
    def of_batch(cls, batch: Batch, waiter: Waiter) -> PendingBatch:
        pending = cls()
        pending.batch, pending.size, pending._waiter = batch, len(batch.body), waiter
        return pending

    @property
    def is_batch(self) -> bool:
        return self._waiter is not None

    def __len__(self) -> int:
        return 1 if self._waiter is not None else len(self.messages)

    def encode(self) -> Batch:
        """Returns the batch, which is encoded once and kept for retries."""
        if self.batch is None:
            payloads, request_ids, headers, _ = zip(*self.messages, strict=True)
            if headers.count(None) < len(headers):
                self.batch = batch_with_headers(list(payloads), list(request_ids), list(headers))
            else:
                self.batch = Batch.of_messages(payloads, request_ids)
        return self.batch

    def split(self) -> list[PendingBatch]:
        """Returns two halves, so that one bad message does not fail its neighbours."""
        middle = len(self) // 2
        return [self._make_part(self.messages[:middle]), self._make_part(self.messages[middle:])]

    def _make_part(self, messages: list[Message]) -> PendingBatch:
        part = PendingBatch(self.created_at, self.loop)
        part.messages = messages
        part.size = sum(size_of(payload, headers) for payload, _, headers, _ in messages)
        return part

    def settle(self, ack: Ack) -> None:
        """Delivers the acknowledgement: to each message its own offset."""
        if self.loop is not None:
            with suppress(RuntimeError):  # the loop is closed: there is no waiter any more
                self.loop.call_soon_threadsafe(_acknowledge, self.messages, ack)
        elif self._waiter is not None:
            _deliver([self._waiter], [ack])
        else:
            topic, offset, _, level, time_us, duplicate = ack
            step = 1 if offset >= 0 else 0
            acks = [Ack(topic, offset + step * n, 1, level, time_us, duplicate) for n in range(len(self))]
            _deliver([waiter for _, _, _, waiter in self.messages], acks)

    def fail(self, error: BaseException) -> None:
        waiters = [self._waiter] if self._waiter is not None else [waiter for _, _, _, waiter in self.messages]
        # One copy each: an error raised in several threads would mix up their tracebacks.
        _deliver(waiters, [copy.copy(error) for _ in waiters])


def size_of(payload: bytes, headers: dict[str, str] | None) -> int:
    size = len(payload) + OVERHEAD
    return size + sum(len(k) + len(v) + OVERHEAD for k, v in headers.items()) if headers else size


def _acknowledge(messages: list[Message], ack: Ack) -> None:
    resolve_futures([waiter for _, _, _, waiter in messages], ack)  # type: ignore[misc]  # all come from a loop


def _deliver(waiters: Sequence[Waiter], outcomes: Sequence[Ack | BaseException]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Ack], Ack | BaseException]]] = {}
    for waiter, outcome in zip(waiters, outcomes, strict=True):
        if isinstance(waiter, ThreadWaiter):
            waiter.outcome = outcome
            waiter.wake()
        elif isinstance(waiter, Future):
            _settle(waiter, outcome)
        else:
            by_loop.setdefault(waiter.get_loop(), []).append((waiter, outcome))
    for loop, delivered in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: there is no waiter any more
            loop.call_soon_threadsafe(_settle_all, delivered)


def _settle_all(delivered: list[tuple[asyncio.Future[Ack], Ack | BaseException]]) -> None:
    for future, outcome in delivered:
        if not future.done():  # a cancelled future leaves its message in the log
            _settle(future, outcome)


def _settle(future: Future[Ack] | asyncio.Future[Ack], outcome: Ack | BaseException) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
