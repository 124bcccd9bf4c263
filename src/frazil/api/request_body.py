"""Bodies of requests: limited in size, and in the memory that all of them take."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import Message
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from frazil.api.failures import RequestError, invalid
from frazil.errors import IntegrityError, UnavailableError, UsageError

Model = TypeVar("Model", bound=BaseModel)

JSON = "application/json"
NDJSON = "application/x-ndjson"
#: Limit of a body that contains only parameters.
SMALL = 64 * 1024
#: Seconds within which a client must send more of its body.
_IDLE_S = 30.0
#: Seconds that a request waits for memory for its body.
_MEMORY_WAIT_S = 20.0
_UTF_8 = ("utf-8", "utf8", "us-ascii", "ascii")
#: Digits of the longest number in a header: `int` fails on thousands of them.
_MAX_DIGITS = 19
#: Bytes of a refused body that are read and dropped: a client that is still sending would not see the response.
_DRAINED = 256 * 1024 * 1024


class BodyMemory:
    """Limits the bytes of bodies in memory. Requests beyond the limit wait in turn."""

    def __init__(self, total: int) -> None:
        self._free = self._total = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Reserves memory while the block runs. Raises UnavailableError if none becomes free in time."""
        size = min(size, self._total)
        await self._acquire(size)
        try:
            yield
        finally:
            self._free += size
            self._wake()

    async def _acquire(self, size: int) -> None:
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            async with asyncio.timeout(_MEMORY_WAIT_S):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it was given just now
                self._free += size
            else:
                self._waiting.remove((size, turn))
            self._wake()
            if isinstance(error, TimeoutError):
                raise UnavailableError(
                    "the server has as many requests in memory as it may hold", hint="send it again a little later"
                ) from None
            raise

    def _wake(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= size
                turn.set_result(None)


def declared_size(request: Request) -> int | None:
    """Returns the size of the body according to the client; None if it is sent in chunks."""
    return header_number(request.headers.get("content-length", ""))


def header_number(text: str) -> int | None:
    """The number in a header of at most 19 decimal digits; None if it is anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


async def read_body(request: Request, limit: int) -> bytes:
    """Reads the body of a request.

    Raises:
        RequestError: it is over the limit (413), compressed or in another charset than UTF-8 (415), or is not
            sent (408).
        IntegrityError: it does not match the client's `X-Frazil-Crc32`.
    """
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise RequestError(f"a body in {encoding} is not understood", status=415, hint="send it uncompressed")
    _check_charset(request)
    if (declared_size(request) or 0) > limit:
        await _drain(request, 0)
        raise _too_large(limit)
    body = bytearray()
    async for piece in _read_chunks(request):
        body += piece
        if len(body) > limit:
            read = len(body)
            body.clear()
            await _drain(request, read)
            raise _too_large(limit)
    _check_crc(request, body)
    return bytes(body)


def _check_charset(request: Request) -> None:
    """Refuses text in another charset than UTF-8. The charset of a body that is not text is ignored."""
    given = Message()
    given["content-type"] = request.headers.get("content-type", "")
    charset = given.get_content_charset()
    is_text = given.get_content_maintype() == "text" or content_type(request) in (JSON, NDJSON)
    if charset and is_text and charset not in _UTF_8:
        raise RequestError(
            f"a body in the charset {charset} is not understood", status=415, hint="send it as UTF-8: charset=utf-8"
        )


async def _read_chunks(request: Request) -> AsyncIterator[bytes]:
    pieces = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(_IDLE_S):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise RequestError(f"nothing more of the body came for {_IDLE_S:.0f} s", status=408) from error
        yield piece


async def _drain(request: Request, read: int) -> None:
    try:
        async for piece in _read_chunks(request):
            read += len(piece)
            if read > _DRAINED:
                return
    except (ClientDisconnect, RequestError):
        return  # nobody is there to read the answer, or it comes too late; the refusal stands


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"the body is over the limit of {limit:,} bytes",
        status=413,
        hint="several smaller requests, or Arrow Flight for large batches",
    )


def _check_crc(request: Request, body: bytearray) -> None:
    given = request.headers.get("x-frazil-crc32")
    if given is None:
        return
    if (crc := header_number(given)) is None:
        raise UsageError("X-Frazil-Crc32 is no number", hint="the CRC-32 of the body, in decimal digits")
    if crc != zlib.crc32(body):
        raise IntegrityError("the body was damaged on its way: its CRC does not fit", hint="send it again")


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def json_of(request: Request, model: type[Model]) -> Model:
    """Parses a small JSON body into a model; an empty one counts as `{}`."""
    body = await read_body(request, SMALL)
    if body and content_type(request) != JSON:
        raise RequestError("the body's type is not understood", status=415, hint=f"Content-Type: {JSON}")
    return parsed(model, body or b"{}")


def parsed(model: type[Model], text: bytes, what: str = "the body") -> Model:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise invalid(what, error.errors(include_url=False, include_context=False, include_input=False)) from None
