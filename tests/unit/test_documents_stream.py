"""The stream of documents over HTTP: a client that reads nothing keeps neither a turn nor a cursor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from frazil.api import documents_stream
from frazil.api.documents_stream import DocumentLines, DocumentStream


class Access:
    """What `DocumentsAccess` does for a stream: turns, calls, and the end of what was read."""

    def __init__(self) -> None:
        self.turns = 0
        self.closed: list[DocumentLines] = []

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        self.turns += 1
        try:
            yield
        finally:
            self.turns -= 1

    async def read(self, _name: str, begin: Callable[[Any], DocumentLines]) -> DocumentLines:
        return begin(None)

    async def run(self, call: Callable[[], Any]) -> Any:
        return call()

    def close_later(self, lines: DocumentLines) -> None:
        self.closed.append(lines)


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_client_that_reads_nothing_is_hung_up_on(monkeypatch, taken: int):
    """It takes the head of the answer, or some lines too, and then nothing more."""
    monkeypatch.setattr(documents_stream, "_STALLED_S", 0.05)
    access, sent = Access(), []

    async def send(message: Any) -> None:
        if len(sent) >= taken:
            await asyncio.Event().wait()
        sent.append(message)

    batches = iter([[{"n": number}] for number in range(100)])
    stream = DocumentStream(access, lambda _store: DocumentLines(batches, lambda found: found))  # type: ignore[arg-type]

    async def run() -> None:
        async with asyncio.timeout(5):
            await stream.stream_response(send)

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert time.monotonic() - started < 4, "it was not the test that ended it"
    assert (access.turns, len(access.closed)) == (0, 1)
    assert not any(message.get("more_body") is False for message in sent), "it does not look complete"
    assert next(batches)[0]["n"] < 5, "the rest was not read"


def test_a_client_that_reads_gets_every_line():
    access, sent = Access(), []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    batches = iter([[{"n": number}] for number in range(3)])
    stream = DocumentStream(access, lambda _store: DocumentLines(batches, lambda found: found))  # type: ignore[arg-type]
    asyncio.run(stream.stream_response(send))
    assert b"".join(sent) == b'{"n":0}\n{"n":1}\n{"n":2}\n'
    assert (access.turns, len(access.closed)) == (0, 1)
