"""A topic live, as server-sent events.

A client pulls: the next page is read when the last one is sent. So a slow client costs one page, and slows nobody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pyarrow as pa
from starlette.requests import Request

from frazil.api.reading import PayloadForm, json_bytes, messages_of, offset_of, read_page
from frazil.api.request_body import header_number
from frazil.api.service import Service
from frazil.errors import FrazilError, UsageError
from frazil.observe.metrics import gauge

TAILS = gauge("frazil_http_tails", "Tails that are connected now", "topic")

#: Of one page; what a slow client holds in memory, about twice.
_PAGE_BYTES = 256 * 1024
_PAGE_MESSAGES = 1000
ALIVE = b": alive\n\n"


@dataclass(frozen=True)
class Follow:
    """What a client wants to follow, and from where."""

    topic: str
    start: int
    form: PayloadForm
    heartbeat: float


async def beginning(service: Service, topic: str, request: Request, place: str) -> int:
    """Where to begin: after the event that a reconnecting client has seen last, else where it asks for."""
    last = request.headers.get("last-event-id")
    if last is None:
        return await service.off_loop(offset_of, service.reader_of(topic), place)
    if (seen := header_number(last)) is None:
        raise UsageError("Last-Event-ID is no offset", hint="the id of the last event that was seen")
    return seen + 1


async def events(service: Service, follow: Follow) -> AsyncIterator[bytes]:
    """The messages, then whatever comes, until the client or the server ends it. A failure is the last event."""
    reader = service.reader_of(follow.topic)
    at = follow.start
    connected = TAILS.labels(follow.topic)
    connected.inc()
    try:
        yield ALIVE  # the client sees that it is connected, also where nothing is published
        while not service.stopping:
            page = await service.off_loop(read_page, reader, at, _PAGE_MESSAGES, _PAGE_BYTES)
            if page.messages.num_rows:
                yield await service.off_loop(_rendered, page.messages, follow.form)
            at = page.next
            if at >= page.end and not await service.grown(follow.topic, at, follow.heartbeat):
                yield ALIVE
    except FrazilError as error:
        yield b"event: error\ndata: " + json_bytes(error.to_dict()) + b"\n\n"
    finally:
        connected.dec()


def _rendered(messages: pa.Table, form: PayloadForm) -> bytes:
    # JSON has no line breaks inside, so one `data:` line holds a message.
    return b"".join(
        b"id: %d\ndata: %b\n\n" % (message["offset"], json_bytes(message)) for message in messages_of(messages, form)
    )
