"""The JSON of the API: what is sent and what is answered. docs/http-api.md is checked against these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from frazil.log.protocol import Level, Storage

#: Messages of one request in JSON; more belong into Arrow.
MAX_MESSAGES = 10_000

Long = Annotated[int, Field(ge=-(2**63) + 1, lt=2**63)]
Offset = Annotated[int, Field(ge=0, lt=2**63)]
Scalar = bool | Long | float | str | None


class Sent(BaseModel):
    """Nothing unknown is taken: a misspelt field would otherwise be lost in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Answered(BaseModel):
    """Describes an answer; the answers themselves are not validated again."""


class NewMessage(Sent):
    """One message to publish. It has exactly one of `payload`, `payload_json` and `payload_base64`."""

    payload: str | None = Field(None, description="the payload as text; its UTF-8 bytes are stored")
    payload_json: JsonValue = Field(None, description="the payload as any JSON value; its compact text is stored")
    payload_base64: str | None = Field(None, description="the payload as base64, for bytes that are no text")
    headers: dict[str, str] | None = Field(None, description="names and values, both text")
    request_id: Long | None = Field(None, description="a number of the producer's own")
    columns: dict[str, Scalar] | None = Field(
        None, description="values of further columns, which the topic's table gets too"
    )


class NewMessages(Sent):
    messages: Annotated[list[NewMessage], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="published together, in this order, all or none"
    )


class Acknowledgement(Answered):
    topic: str = Field(description="its name")
    offset: int = Field(
        description="of the first message; the others follow. -1 where it is not known: at level `memory`, and for a "
        "repeated batch that is too old to be remembered"
    )
    count: int = Field(description="messages")
    level: Level = Field(description="how safe they are: `memory`, `os` or `disk`")
    time_us: int = Field(description="when they were appended, in microseconds since 1970, UTC")
    duplicate: bool = Field(description="this batch was there before, and was not stored again")


class EventsTaken(Answered):
    """The answer to an event notification."""

    topic: str = Field(description="where events go: the setting `content.topic`")
    offset: int | None = Field(description="of the message; null where nothing was stored")
    count: int = Field(description="messages that were stored: 1, or 0")
    level: Level = Field(description="how safe it is: always `disk`")
    note: str | None = Field(description="why nothing was stored, where that is so")


class Message(Answered):
    """One message as JSON: `payload` where it is UTF-8 text, else `payload_base64`."""

    offset: int = Field(description="its place in the topic")
    partition: int = Field(description="always 0 in the embedded log")
    publish_time: str = Field(description="when it was appended, ISO 8601, UTC")
    payload: str = Field(description="the payload, where it is text")
    payload_base64: str = Field(description="the payload, where it is no text or `payload=base64` was asked for")
    headers: dict[str, str] | None = Field(description="names and values")
    request_id: int | None = Field(description="the producer's own number")
    producer_id: int | None = Field(description="of a producer with an identity")
    producer_name: str | None = Field(description="of a producer that registered with a name")
    columns: dict[str, Any] = Field(description="values of the columns that producers brought; without empty ones")


class MessagePage(Answered):
    topic: str = Field(description="its name")
    messages: list[Message] = Field(description="in order of their offsets")
    next: int = Field(description="where to go on reading: `from` of the next request")
    end: int = Field(description="the end when this was read; `next` = `end`: nothing more for now")


class NewTopic(Sent):
    storage: Storage | None = Field(
        None, description="`iceberg` or `log`; by default as the setting `topics.storage` says"
    )


class TopicChanges(Sent):
    """How long the log keeps a topic's messages. Storage and sinks change by `frazil topic migrate NAME --to log`."""

    retention_age_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="seconds that committed messages stay in the log; null: age does not count"
    )
    retention_bytes: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None, description="bytes of committed messages that stay in the log; null: size does not count"
    )


class Topic(Answered):
    name: str = Field(description="its name")
    log_id: str = Field(description="identity of the topic's log, which its table knows too")
    epoch: int = Field(description="grows each time the log is opened")
    storage: Storage = Field(description="`iceberg`: log, then table; `log`: the log alone")
    created_at: str = Field(description="ISO 8601, UTC")
    broker_addr: str = Field(description="where the log is served by Arrow Flight")
    sync_mode: str = Field(description="`always`, `periodic` or `none`, as the setting `log.sync_mode`")
    start: int = Field(description="the first offset that the log still has")
    end: int = Field(description="the visible end: all below is on disk")
    written: int = Field(description="the end of what is written, on disk or not")
    size: int = Field(description="bytes in the log")
    segments: int = Field(description="files in the log")
    first_time_us: int | None = Field(description="of the first message in the log, microseconds since 1970")
    last_time_us: int | None = Field(description="of the last message in the log, microseconds since 1970")
    gaps: list[tuple[int, int]] = Field(description="ranges between start and end that the log does not have")
    sinks: dict[str, int | None] = Field(description="enabled sinks, and up to which offset each has committed")
    subscriptions: dict[str, int] = Field(description="subscriptions, and the next offset that each wants")
    retention_age_s: float | None = Field(description="as `TopicChanges` says")
    retention_bytes: int | None = Field(description="as `TopicChanges` says")
    problem: str | None = Field(description="why the topic cannot be used, where that is so")
    refuses: str | None = Field(description="why the topic takes no messages, where that is so; it can be read")
    columns: dict[str, str] = Field(description="columns that producers brought, with their Arrow types")


class TopicList(Answered):
    topics: list[Topic] = Field(description="by name")


class NewProducer(Sent):
    name: str | None = Field(None, description="a name that stays; without one the producer is known by its id alone")


class Producer(Answered):
    producer_id: int = Field(description="the same each time the name registers")
    producer_epoch: int = Field(description="one more each time the name registers; older ones are shut out")


class Position(Sent):
    offset: Offset = Field(description="the next offset that the subscription wants")


class Subscription(Answered):
    topic: str = Field(description="the topic's name")
    subscription: str = Field(description="the subscription's name")
    offset: int = Field(description="the next offset that it wants")


class Health(Answered):
    status: Literal["ok"] = Field(description="always `ok`")


class Readiness(Answered):
    status: Literal["ready"] = Field(description="always `ready`; 503 otherwise")
    topics: int = Field(description="how many there are")
    documents: Literal["opening", "ready", "unavailable"] = Field(
        description="state of the document store, once it is in use; it does not change the status"
    )


class Failure(Answered):
    """Every answer with a status of 400 and above."""

    error: str = Field(description="the kind, as in docs/errors.md")
    message: str = Field(description="what happened, and where")
    cause: str | None = Field(description="why, as far as it is known")
    hint: str | None = Field(description="the next thing to do")
    exit_code: int = Field(description="that of the command line")
    retryable: bool = Field(description="the same request may succeed later")
    start: int = Field(description="only with status 410: from which offset on it can be read")
    acknowledged: int = Field(description="only of a request to publish: 0, because it is one batch, all or none")
    stored: Literal["no", "unknown"] = Field(
        description="only of a request to publish: `no`, or `unknown` after a failure of the disk in the middle"
    )
