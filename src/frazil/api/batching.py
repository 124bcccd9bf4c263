"""Messages of many small requests as few batches: what comes while one batch is on its way goes with the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from frazil.log.protocol import Ack

#: Bytes of payloads that go as one batch, where more waits.
_BATCH_BYTES = 1024 * 1024

Headers = dict[str, str]


@dataclass(frozen=True)
class _Waiting:
    payload: bytes
    headers: Headers
    offset: asyncio.Future[int]


class RequestBatcher:
    """Belongs to one event loop.

    Args:
        append: stores payloads with their headers as one batch.
    """

    def __init__(self, append: Callable[[list[bytes], list[Headers]], Awaitable[Ack]]) -> None:
        self._append = append
        self._waiting: deque[_Waiting] = deque()
        self._carrying: asyncio.Task[None] | None = None

    async def publish(self, payload: bytes, headers: Headers) -> int:
        """The offset of a message, when the batch that it went with is acknowledged; or that batch's error."""
        waiting = _Waiting(payload, headers, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._carrying is None:
            self._carrying = asyncio.create_task(self._carry())
        return await waiting.offset

    async def _carry(self) -> None:
        try:
            while self._waiting:
                batch = self._next()
                try:
                    ack = await self._append([w.payload for w in batch], [w.headers for w in batch])
                except Exception as error:  # noqa: BLE001 - it is the error of each request
                    _tell(batch, error)
                    continue
                for number, waiting in enumerate(batch):
                    if not waiting.offset.done():  # cancelled
                        waiting.offset.set_result(ack.offset + number)
        finally:
            self._carrying = None

    def _next(self) -> list[_Waiting]:
        batch = [self._waiting.popleft()]
        size = len(batch[0].payload)
        while self._waiting and size + len(self._waiting[0].payload) <= _BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].payload)
        return batch


def _tell(batch: list[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.offset.done():
            waiting.offset.set_exception(error)
