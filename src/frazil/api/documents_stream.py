"""Documents as lines of JSON (NDJSON), of any number in bounded memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing

from fastapi.responses import StreamingResponse
from starlette.types import Send

from frazil.api.documents_access import DocumentsAccess
from frazil.api.documents_answers import NO_CACHE, Select
from frazil.api.reading import json_bytes
from frazil.api.request_body import NDJSON
from frazil.documents.model import Document
from frazil.documents.store import DocumentStore
from frazil.errors import FrazilError
from frazil.observe.logs import get_logger

#: Seconds after which a client that reads nothing is hung up on: there are few turns for exports.
_STALLED_S = 60.0

log = get_logger(__name__)


class DocumentLines:
    """Batches of documents as lines. Threads take turns: one may close what another still reads."""

    def __init__(self, batches: Iterator[list[Document]], select: Select) -> None:
        self._batches, self._select = batches, select
        self._lock = threading.Lock()

    def read(self) -> bytes | None:
        """Returns the lines of the next batch; None: that was all."""
        with self._lock:
            batch = next(self._batches, None)
        return None if batch is None else b"".join(json_bytes(self._select(found)) + b"\n" for found in batch)

    def close(self) -> None:
        with self._lock:
            close = getattr(self._batches, "close", None)
            if close is not None:
                close()


class DocumentStream(StreamingResponse):
    """An answer that breaks off if the store fails in the middle: what arrives complete is complete.

    What fails before the first line is answered as any error.
    """

    def __init__(self, documents: DocumentsAccess, begin: Callable[[DocumentStore], DocumentLines]) -> None:
        self._lines = _read_lines(documents, begin)
        super().__init__(self._lines, media_type=NDJSON, headers={**NO_CACHE, "Vary": "Accept"})

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._lines) as lines:
            first = await anext(lines, b"")  # before the status is sent
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await _send_unless_stalled(send, first)
                async for chunk in lines:
                    await _send_unless_stalled(send, chunk)
            except TimeoutError:
                log.warning("a stream of documents broke off: the client does not read", seconds=_STALLED_S)
                raise
            except FrazilError as error:
                log.warning("a stream of documents broke off", error=error.in_one_line)
                raise
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_unless_stalled(send: Send, body: bytes) -> None:
    """Raises TimeoutError if the client does not read: it must not keep others from exporting."""
    async with asyncio.timeout(_STALLED_S):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _read_lines(
    documents: DocumentsAccess, begin: Callable[[DocumentStore], DocumentLines]
) -> AsyncGenerator[bytes]:
    async with documents.streaming():
        lines = await documents.read("export", begin)
        try:
            while (chunk := await documents.run(lines.read)) is not None:
                yield chunk
        finally:
            documents.close_later(lines)
