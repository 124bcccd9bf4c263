"""Batches the messages of many small requests: those that arrive while a batch is in flight form the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from frazil.log.protocol import Ack

#: Payload bytes of one batch if more is pending.
_BATCH_BYTES = 1024 * 1024

Headers = dict[str, str]


@dataclass(frozen=True)
class _Waiting:
    payload: bytes
    headers: Headers
    offset: asyncio.Future[int]


class RequestBatcher:
    """Batches messages. Belongs to one event loop.

    Args:
        append: stores payloads with their headers as one batch.
    """

    def __init__(self, append: Callable[[list[bytes], list[Headers]], Awaitable[Ack]]) -> None:
        self._append = append
        self._waiting: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def publish(self, payload: bytes, headers: Headers) -> int:
        """Returns the offset of a message once its batch is acknowledged; raises that batch's error."""
        waiting = _Waiting(payload, headers, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return await waiting.offset

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch = self._take_batch()
                try:
                    ack = await self._append([w.payload for w in batch], [w.headers for w in batch])
                except Exception as error:  # noqa: BLE001 - it is the error of each request
                    _reject(batch, error)
                    continue
                for number, waiting in enumerate(batch):
                    if not waiting.offset.done():  # cancelled
                        waiting.offset.set_result(ack.offset + number)
        finally:
            self._sending = None

    def _take_batch(self) -> list[_Waiting]:
        batch = [self._waiting.popleft()]
        size = len(batch[0].payload)
        while self._waiting and size + len(self._waiting[0].payload) <= _BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].payload)
        return batch


def _reject(batch: list[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.offset.done():
            waiting.offset.set_exception(error)
