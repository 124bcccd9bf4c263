"""`POST /events/s3`: object stores send their event notifications here."""

from __future__ import annotations

import hmac
import json
import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response

from frazil.api.batching import Headers, RequestBatcher
from frazil.api.failures import answer_to, publishes, telling_what_is_stored
from frazil.api.messages import Shared
from frazil.api.models import EventsTaken
from frazil.api.request_body import JSON, declared_size, read_body
from frazil.api.service import Service
from frazil.content.intake import metrics
from frazil.content.intake.messages import batch_of
from frazil.content.names import CONTENT
from frazil.content.topic import ensure_topic
from frazil.errors import CredentialsError, FrazilError, NotFoundError
from frazil.log.protocol import Ack, Level
from frazil.observe.logs import get_logger

router = APIRouter(tags=["events"])

SOURCE = "webhook"
#: Payloads up to this size are made a batch in the event loop: handing them to a thread would take longer.
_INLINE = 64 * 1024
_CONFIRMATIONS = ("SubscriptionConfirmation", "UnsubscribeConfirmation")
_ARN = re.compile(r"arn:[\w:.-]{1,300}")
_HOST = re.compile(r"https?://([\w.-]{1,255})")
_SNS_TOKEN = re.compile(r"\w{1,1000}")

_BODY: dict[str, Any] = {
    "requestBody": {"content": {JSON: {"schema": {"type": "string", "description": "an event, as the store sends it"}}}}
}

Token = Annotated[str | None, Query(description="`content.token`, for senders that cannot send a header")]
Authorization = Annotated[str | None, Header(include_in_schema=False)]

log = get_logger(__name__)


@router.post("/events/s3", responses={200: {"model": EventsTaken}}, openapi_extra=_BODY)
@publishes
async def take(
    request: Request,
    service: Shared,
    dialect: Annotated[
        Literal["auto", "aws", "minio", "ceph", "versitygw", "other"] | None,
        Query(description="who speaks; by default as `content.dialect` says"),
    ] = None,
    token: Token = None,
    authorization: Authorization = None,
) -> Response:
    """Takes an event notification, as it is, and answers when it is on disk."""
    if (refused := refusal(service, authorization, token)) is not None:
        return refused
    try:
        with telling_what_is_stored():
            return await _take(request, service, dialect)
    except FrazilError as error:
        metrics.REFUSED.labels(SOURCE, type(error).__name__).inc()
        raise


@router.head("/events/s3", response_class=Response)
async def probe(service: Shared, token: Token = None, authorization: Authorization = None) -> Response:
    """Answers whether events would be taken with this token."""
    service.must_run()
    return refusal(service, authorization, token) or Response()


def refusal(
    service: Service, authorization: str | None, token: str | None, source: str = SOURCE
) -> JSONResponse | None:
    """The answer to a sender that does not know the token of the settings; None: it may go on."""
    wanted = service.settings.content.token
    if wanted is None or _knows(wanted.get_secret_value(), authorization, token):
        return None
    error = CredentialsError(
        "the token is wrong" if authorization or token else "the token is missing",
        hint="Authorization: Bearer TOKEN, or ?token=TOKEN, as the setting content.token says",
    )
    error.details = {"acknowledged": 0, "stored": "no"}
    metrics.REFUSED.labels(source, "CredentialsError").inc()
    answer = answer_to(error)
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def _knows(secret: str, authorization: str | None, token: str | None) -> bool:
    """Whether the sender knows the token. Each comparison takes as long, however much of a guess is right."""
    sent = (authorization or "").encode("latin-1")  # as it came
    scheme, _, rest = sent.partition(b" ")
    # MinIO sends a token of one word as `Bearer TOKEN`, and one of two words as it is.
    given = (sent, rest if scheme.lower() == b"bearer" else b"", (token or "").encode())
    return any(hmac.compare_digest(text, secret.encode()) for text in given) or not secret


async def _take(request: Request, service: Service, dialect: str | None) -> JSONResponse:
    service.must_run()
    limit = service.settings.log.max_message_size
    size = declared_size(request)
    async with service.bodies.reserve(limit if size is None else size):
        body = await read_body(request, limit)
        if not body.strip():
            return _answer(service, note="the body is empty")
        if (kind := _confirmation(request, body)) is not None:
            _tell_confirmation(kind, body)
            return _answer(service, note=f"{kind}: see the log of the server")
        await ensure_events(service)
        gathering: RequestBatcher = request.app.state.event_gatherer
        offset = await gathering.publish(body, {"dialect": dialect} if dialect else {})
    metrics.MESSAGES.labels(SOURCE).inc()
    metrics.BYTES.labels(SOURCE).inc(len(body))
    return _answer(service, offset=offset)


def _answer(service: Service, *, offset: int | None = None, note: str | None = None) -> JSONResponse:
    return JSONResponse(
        {
            "topic": service.settings.content.topic,
            "offset": offset,
            "count": 0 if offset is None else 1,
            "level": Level.disk,
            "note": note,
        }
    )


async def ensure_events(service: Service) -> None:
    """Makes the topic of events, where there is none."""
    name = service.settings.content.topic
    try:
        ready = CONTENT in (await service.info(name)).sinks
    except NotFoundError:
        ready = False
    if not ready:
        await service.off_loop(ensure_topic, service.log, name)


def gatherer(service: Service) -> RequestBatcher:
    """Puts the events of requests that come together into one batch, as one frame of the log."""

    async def append(payloads: list[bytes], headers: list[Headers]) -> Ack:
        topic = service.settings.content.topic
        if sum(map(len, payloads)) <= _INLINE:
            return await service.log.append_async(topic, batch_of(payloads, headers), Level.disk)
        return await service.publish_off_loop(
            lambda: service.log.append(topic, batch_of(payloads, headers), Level.disk)
        )

    return RequestBatcher(append)


def _confirmation(request: Request, body: bytes) -> str | None:
    """What SNS wants confirmed, where this is no event but such a question."""
    told = request.headers.get("x-amz-sns-message-type")
    if told in _CONFIRMATIONS:
        return told
    if b"Confirmation" not in body:
        return None
    kind = _field(body, "Type")
    return kind if kind in _CONFIRMATIONS else None


def _tell_confirmation(kind: str, body: bytes) -> None:
    """The URL in it is never fetched: whoever can post here would choose where this server connects to."""
    arn, token = _field(body, "TopicArn"), _field(body, "Token")
    host = _HOST.match(_field(body, "SubscribeURL"))
    confirm = f"aws sns confirm-subscription --topic-arn {arn} --token {token}"
    known = _ARN.fullmatch(arn) and _SNS_TOKEN.fullmatch(token)
    if kind == "SubscriptionConfirmation":
        event, what_to_do = "SNS asks to confirm a subscription; no event comes before that", confirm
    else:
        event, what_to_do = "SNS has ended a subscription; no event comes any more", f"to have it again: {confirm}"
    log.warning(event, host=host[1] if host else "", run=what_to_do if known else "(it names no topic of SNS)")


def _field(body: bytes, name: str) -> str:
    try:
        value = json.loads(body)[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return value if isinstance(value, str) else ""
