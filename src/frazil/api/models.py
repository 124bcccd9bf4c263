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
    payload_base64: str | None = Field(None, description="the payload as base64, for bytes that are not text")
    headers: dict[str, str] | None = Field(None, description="names and values, both text")
    request_id: Long | None = Field(None, description="a number defined by the producer")
    columns: dict[str, Scalar] | None = Field(
        None, description="values of further columns, which are added to the topic's table"
    )


class NewMessages(Sent):
    messages: Annotated[list[NewMessage], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="published together, in this order, all or none"
    )


class Acknowledgement(Answered):
    topic: str = Field(description="its name")
    offset: int = Field(
        description="of the first message; the others follow. -1 if it is unknown: at level `memory`, and for a "
        "repeated batch that the log no longer remembers"
    )
    count: int = Field(description="messages")
    level: Level = Field(description="their durability: `memory`, `os` or `disk`")
    time_us: int = Field(description="when they were appended, in microseconds since 1970, UTC")
    duplicate: bool = Field(description="this batch was already stored, and was not stored again")


class EventsTaken(Answered):
    """The response to an event notification."""

    topic: str = Field(description="topic of events: the setting `content.topic`")
    offset: int | None = Field(description="of the message; null if nothing was stored")
    count: int = Field(description="messages that were stored: 1, or 0")
    level: Level = Field(description="its durability: always `disk`")
    note: str | None = Field(description="why nothing was stored, if so")


class Message(Answered):
    """One message as JSON: `payload` if it is UTF-8 text, otherwise `payload_base64`."""

    offset: int = Field(description="its offset in the topic")
    partition: int = Field(description="always 0 in the embedded log")
    publish_time: str = Field(description="when it was appended, ISO 8601, UTC")
    payload: str = Field(description="the payload, if it is text")
    payload_base64: str = Field(description="the payload, if it is not text or `payload=base64` was requested")
    headers: dict[str, str] | None = Field(description="names and values")
    request_id: int | None = Field(description="the number defined by the producer")
    producer_id: int | None = Field(description="of a producer with an identity")
    producer_name: str | None = Field(description="of a producer that registered with a name")
    columns: dict[str, Any] = Field(description="values of producer columns; without empty ones")


class MessagePage(Answered):
    topic: str = Field(description="its name")
    messages: list[Message] = Field(description="in order of their offsets")
    next: int = Field(description="position to continue: `from` of the next request")
    end: int = Field(description="the end at the time of the read; `next` = `end`: there are no more messages for now")


class NewTopic(Sent):
    storage: Storage | None = Field(
        None, description="`iceberg` or `log`; by default from the setting `topics.storage`"
    )


class TopicChanges(Sent):
    """Retention of a topic in the log. Storage and sinks change by `frazil topic migrate NAME --to log`."""

    retention_age_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="seconds that committed messages stay in the log; null: no limit by age"
    )
    retention_bytes: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None, description="bytes of committed messages that stay in the log; null: no limit by size"
    )


class Topic(Answered):
    name: str = Field(description="its name")
    log_id: str = Field(description="ID of the topic's log, which is also stored in its table")
    epoch: int = Field(description="increases each time the log is opened")
    storage: Storage = Field(description="`iceberg`: log, then table; `log`: only the log")
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
    sinks: dict[str, int | None] = Field(description="enabled sinks, and the offset up to which each has committed")
    subscriptions: dict[str, int] = Field(description="subscriptions, and the next offset that each reads")
    retention_age_s: float | None = Field(description="see `TopicChanges`")
    retention_bytes: int | None = Field(description="see `TopicChanges`")
    problem: str | None = Field(description="why the topic cannot be used, if so")
    refuses: str | None = Field(description="why the topic accepts no messages, if so; it can be read")
    columns: dict[str, str] = Field(description="producer columns, with their Arrow types")


class TopicList(Answered):
    topics: list[Topic] = Field(description="by name")


class NewProducer(Sent):
    name: str | None = Field(None, description="a persistent name; without one, the producer has only its ID")


class Producer(Answered):
    producer_id: int = Field(description="the same each time the name registers")
    producer_epoch: int = Field(description="incremented each time the name registers; older epochs are fenced")


class Position(Sent):
    offset: Offset = Field(description="the next offset that the subscription reads")


class Subscription(Answered):
    topic: str = Field(description="the topic's name")
    subscription: str = Field(description="the subscription's name")
    offset: int = Field(description="the next offset that it reads")


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
