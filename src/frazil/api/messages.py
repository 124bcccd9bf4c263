"""`/topics/{topic}/messages` and `/topics/{topic}/tail`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from frazil.api import tail
from frazil.api.failures import RequestError, publishes, telling_what_is_stored
from frazil.api.models import Acknowledgement, Message, MessagePage, NewMessages
from frazil.api.publishing import ARROW, HEADER_PREFIX, KINDS, RAW, Publication, batch_of
from frazil.api.reading import Format, Page, PayloadForm, as_arrow, as_json, as_ndjson, offset_of, read_page
from frazil.api.request_body import JSON, NDJSON, content_type, declared_size, read_body
from frazil.api.service import Service, shared_service
from frazil.errors import UsageError
from frazil.log.protocol import Level

router = APIRouter(tags=["messages"])

SSE = "text/event-stream"
#: A body up to this size is parsed and checked in the event loop: handing it to a thread would take longer.
_INLINE = 32 * 1024
_MAX_PAGE = 16 * 1024 * 1024

Shared = Annotated[Service, Depends(shared_service)]
From = Annotated[str, Query(alias="from", description="an offset, a time (ISO 8601), `start` or `end`")]
PayloadAs = Annotated[
    PayloadForm, Query(description="`text`: as text where it is UTF-8, else as base64; `base64`: always so")
]
_Number = Annotated[int | None, Query(ge=0, lt=2**63)]

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/NewMessages"}},
            NDJSON: {"schema": {"type": "string", "description": "one `NewMessage` per line"}},
            RAW: {"schema": {"type": "string", "format": "binary", "description": "one message"}},
            ARROW: {"schema": {"type": "string", "format": "binary", "description": "an IPC stream"}},
        },
    }
}
#: Schemas that no route declares by itself.
EXTRA_MODELS = (NewMessages, Message)


@router.post("/topics/{topic}/messages", responses={200: {"model": Acknowledgement}}, openapi_extra=_BODY)
@publishes
async def publish(
    request: Request,
    topic: str,
    service: Shared,
    level: Annotated[Level | None, Query(description="how safe; by default as `log.sync_mode` says")] = None,
    producer_id: Annotated[_Number, Query(description="as registered; with epoch and sequence")] = None,
    producer_epoch: Annotated[_Number, Query(description="as registered")] = None,
    sequence: Annotated[_Number, Query(description="grows by one with each batch; a repeated one is known")] = None,
    request_id: Annotated[int | None, Query(description="of a raw message")] = None,
) -> JSONResponse:
    """Publishes messages, and answers when they are as safe as the level says."""
    with telling_what_is_stored():
        return await _publish(
            request, topic, service, level, _producer(producer_id, producer_epoch, sequence), request_id
        )


async def _publish(
    request: Request,
    topic: str,
    service: Service,
    level: Level | None,
    producer: dict[str, int],
    request_id: int | None,
) -> JSONResponse:
    service.must_run()
    kind = content_type(request)
    if kind not in KINDS:
        raise RequestError(
            f"a body of type {kind or '(none)'} is not understood",
            status=415,
            hint=f"Content-Type: {', '.join(KINDS)}",
        )
    known = (await service.info(topic)).extra  # before the body: an unknown topic is told at once
    size = declared_size(request)
    async with service.bodies.reserve(service.body_limit if size is None else size):
        body = await read_body(request, service.body_limit)
        given = Publication(body, known, _headers(request), request_id, producer)
        if len(body) <= _INLINE:
            ack = await service.log.append_async(topic, batch_of(kind, given), level)
        else:
            ack = await service.publish_off_loop(lambda: service.log.append(topic, batch_of(kind, given), level))
    return JSONResponse(ack.to_dict())


def _producer(producer_id: int | None, epoch: int | None, sequence: int | None) -> dict[str, int]:
    given = {"producer_id": producer_id, "producer_epoch": epoch, "sequence": sequence}
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        raise UsageError(f"{' and '.join(missing)} is missing", hint="all of them, or none")
    return {name: value for name, value in given.items() if value is not None}


def _headers(request: Request) -> dict[str, str]:
    found = {}
    for name, value in request.headers.raw:
        key = name.decode("latin-1")
        if key.startswith(HEADER_PREFIX):
            try:
                found[key.removeprefix(HEADER_PREFIX)] = value.decode()
            except UnicodeDecodeError as error:
                raise UsageError(f"the value of {key} is not UTF-8") from error
    return found


@router.get(
    "/topics/{topic}/messages",
    responses={
        200: {
            "model": MessagePage,
            "content": {
                NDJSON: {"schema": {"type": "string", "description": "one `Message` per line"}},
                ARROW: {"schema": {"type": "string", "format": "binary", "description": "an IPC stream"}},
            },
        }
    },
)
async def read(
    topic: str,
    service: Shared,
    start: From = "start",
    limit: Annotated[int, Query(ge=1, le=100_000, description="messages at most")] = 1000,
    max_bytes: Annotated[int, Query(ge=1, le=_MAX_PAGE, description="bytes of payload, about")] = 4 * 1024 * 1024,
    format: Annotated[Format, Query(description="`json`, `ndjson` or `arrow`")] = "json",  # noqa: A002 - the API's word
    payload: PayloadAs = "text",
) -> Response:
    """Reads messages from a place on; `next` says where to go on."""
    return await service.off_loop(_read, service, topic, start, limit, max_bytes, format, payload)


def _read(
    service: Service, topic: str, start: str, limit: int, max_bytes: int, wanted: Format, form: PayloadForm
) -> Response:
    reader = service.reader_of(topic)
    page = read_page(reader, offset_of(reader, start), limit, max_bytes)
    if wanted == "json":
        return Response(as_json(page, topic, form), media_type=JSON)
    body, kind = (as_ndjson(page, form), NDJSON) if wanted == "ndjson" else (as_arrow(page), ARROW)
    return Response(body, media_type=kind, headers=_place(page))


def _place(page: Page) -> dict[str, str]:
    return {"X-Frazil-Next": str(page.next), "X-Frazil-End": str(page.end)}


@router.get(
    "/topics/{topic}/tail",
    response_class=StreamingResponse,
    responses={200: {"content": {SSE: {"schema": {"type": "string", "description": "each event's data: `Message`"}}}}},
)
async def follow(
    request: Request,
    topic: str,
    service: Shared,
    start: From = "end",
    payload: PayloadAs = "text",
    heartbeat: Annotated[float, Query(ge=0.1, le=300, description="seconds between comments when nothing comes")] = 15,
) -> StreamingResponse:
    """Follows a topic by server-sent events. A client that comes back with `Last-Event-ID` misses nothing."""
    service.must_run()
    begin = await tail.beginning(service, topic, request, start)
    wanted = tail.Follow(topic, begin, payload, heartbeat)
    await service.off_loop(read_page, service.reader_of(topic), begin, 1, 1)  # what is wrong is told by a status
    return StreamingResponse(tail.events(service, wanted), media_type=SSE, headers={"Cache-Control": "no-store"})
