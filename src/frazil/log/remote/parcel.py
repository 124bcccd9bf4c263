"""Messages that travel to the log as one batch, and who waits for their acknowledgement."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from frazil.log.access import Ack
from frazil.log.batch import Batch
from frazil.log.singles import batch_with_headers

Waiter = Future[Ack] | asyncio.Future[Ack]
#: What a message costs in memory besides its payload, about.
_OVERHEAD = 64


class Parcel:
    """Either single messages of several publishers, or one batch of one publisher (`whole`)."""

    __slots__ = ("_headers", "_payloads", "_request_ids", "_waiters", "attempts", "batch", "born", "size", "whole")

    def __init__(self, born: float = 0.0) -> None:
        self._payloads: list[bytes] = []
        self._request_ids: list[int | None] = []
        self._headers: list[dict[str, str] | None] = []
        self._waiters: list[Waiter] = []
        self.batch: Batch | None = None
        self.born = born
        self.size = 0
        self.whole = False
        self.attempts = 0

    @classmethod
    def of_batch(cls, batch: Batch, waiter: Waiter) -> Parcel:
        parcel = cls()
        parcel.batch, parcel.size, parcel.whole = batch, len(batch.body), True
        parcel._waiters.append(waiter)
        return parcel

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, payload: bytes, request_id: int | None, headers: dict[str, str] | None, waiter: Waiter) -> None:
        self._payloads.append(payload)
        self._request_ids.append(request_id)
        self._headers.append(headers)
        self._waiters.append(waiter)
        self.size += size_of(payload, headers)

    def encoded(self) -> Batch:
        """The batch; made once, then kept for retries."""
        if self.batch is None:
            if any(self._headers):
                self.batch = batch_with_headers(self._payloads, self._request_ids, self._headers)
            else:
                self.batch = Batch.of_messages(self._payloads, self._request_ids)
        return self.batch

    def halves(self) -> list[Parcel]:
        """Two parcels with the same messages, so that a bad one does not take its neighbours with it."""
        middle = len(self) // 2
        return [self._part(0, middle), self._part(middle, len(self))]

    def _part(self, first: int, last: int) -> Parcel:
        part = Parcel(self.born)
        for at in range(first, last):
            part.add(self._payloads[at], self._request_ids[at], self._headers[at], self._waiters[at])
        return part

    def settle(self, ack: Ack) -> None:
        """Hands out the acknowledgement: each message its own offset."""
        if self.whole or len(self) == 1:
            _tell(self._waiters, [ack])
            return
        topic, offset, _, level, time_us, duplicate = ack
        offsets: Sequence[int] = range(offset, offset + len(self)) if offset >= 0 else [offset] * len(self)
        _tell(self._waiters, [Ack(topic, at, 1, level, time_us, duplicate) for at in offsets])

    def fail(self, error: BaseException) -> None:
        # Each its own: an error that is raised in several threads would mix up their tracebacks.
        _tell(self._waiters, [copy.copy(error) for _ in self._waiters])


def size_of(payload: bytes, headers: dict[str, str] | None) -> int:
    size = len(payload) + _OVERHEAD
    return size + sum(len(k) + len(v) + _OVERHEAD for k, v in headers.items()) if headers else size


def _tell(waiters: Sequence[Waiter], outcomes: Sequence[Ack | BaseException]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Ack], Ack | BaseException]]] = {}
    for waiter, outcome in zip(waiters, outcomes, strict=True):
        if isinstance(waiter, Future):
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


def _settle(future: Waiter, outcome: Ack | BaseException) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
