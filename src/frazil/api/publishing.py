"""Bodies → batches. Pure functions of bytes; a request is one batch, so that it is stored whole or not at all."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from frazil.api.models import MAX_MESSAGES, NewMessage, NewMessages
from frazil.api.request_body import JSON, NDJSON, parsed
from frazil.errors import IntegrityError, UsageError, first_line
from frazil.log.batch import Batch
from frazil.log.columns import HEADERS
from frazil.log.ipc import is_compressed

RAW = "application/octet-stream"
ARROW = "application/vnd.apache.arrow.stream"

HEADER_PREFIX = "x-frazil-header-"
_PAYLOADS = ("payload", "payload_json", "payload_base64")


@dataclass(frozen=True)
class Publication:
    """A request to publish, apart from where to."""

    body: bytes
    known: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The topic's columns so far: JSON numbers and texts are read as these types."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of a raw message, which has no place for them in its body."""
    request_id: int | None = None
    producer: dict[str, int] = field(default_factory=dict)


def batch_of(kind: str, publication: Publication) -> Batch:
    """The batch that a body of one of the `KINDS` holds.

    Raises:
        UsageError: it is not what its type says, or a message is not valid; the text says which.
        IntegrityError: it is no Arrow stream.
    """
    return KINDS[kind](publication)


def _of_json(given: Publication) -> Batch:
    return _of_messages(parsed(NewMessages, given.body).messages, given)


def _of_ndjson(given: Publication) -> Batch:
    lines = [(n, line) for n, line in enumerate(given.body.split(b"\n"), 1) if line.strip()]
    if len(lines) > MAX_MESSAGES:
        raise UsageError(f"{len(lines):,} messages are more than {MAX_MESSAGES:,}", hint="several requests, or Arrow")
    return _of_messages([parsed(NewMessage, line, f"line {n}") for n, line in lines], given)


def _of_raw(given: Publication) -> Batch:
    return _packed_or_arrow([given.body], [given.request_id], [given.headers or None], {}, given)


def _of_arrow(given: Publication) -> Batch:
    try:
        if is_compressed(given.body):
            raise UsageError("the Arrow stream is compressed inside", hint="Arrow IPC without compression")
        with pa.ipc.open_stream(given.body) as reader:
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
        rows = pa.concat_batches(batches) if batches else None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise IntegrityError(
            "the body is no Arrow stream",
            cause=first_line(error)[:300],
            hint=f"the IPC stream format, as {ARROW}; the file format is another",
        ) from error
    if rows is None:
        raise UsageError("the Arrow stream has no record batch", hint="at least one message")
    return Batch.of_arrow(rows, **given.producer)


KINDS: dict[str, Callable[[Publication], Batch]] = {
    JSON: _of_json, NDJSON: _of_ndjson, RAW: _of_raw, ARROW: _of_arrow,
}  # fmt: skip


def _of_messages(messages: Sequence[NewMessage], given: Publication) -> Batch:
    payloads = [_payload(message, number) for number, message in enumerate(messages)]
    request_ids = [message.request_id for message in messages]
    headers = [message.headers for message in messages]
    names = dict.fromkeys(name for message in messages for name in message.columns or ())
    columns = {name: [(message.columns or {}).get(name) for message in messages] for name in names}
    return _packed_or_arrow(payloads, request_ids, headers, columns, given)


def _payload(message: NewMessage, number: int) -> bytes:
    sent = message.model_fields_set.intersection(_PAYLOADS)
    if len(sent) != 1:
        raise UsageError(
            f"message {number} has {' and '.join(sorted(sent)) or 'no payload'}",
            hint=f"exactly one of {', '.join(_PAYLOADS)}",
        )
    try:
        if message.payload_base64 is not None:
            return base64.b64decode(message.payload_base64, validate=True)
        if message.payload is not None:
            return message.payload.encode()
        if "payload_json" in sent:
            return json.dumps(message.payload_json, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except binascii.Error as error:
        raise UsageError(f"payload_base64 of message {number} is no base64", cause=str(error)) from error
    except ValueError as error:  # a lone surrogate, or a number that is none
        raise UsageError(f"the payload of message {number} has no JSON or UTF-8 form", cause=str(error)) from error
    raise UsageError(f"{sent.pop()} of message {number} is null", hint='an empty payload is allowed: ""')


def _packed_or_arrow(
    payloads: Sequence[bytes],
    request_ids: Sequence[int | None],
    headers: Sequence[dict[str, str] | None],
    columns: dict[str, list[Any]],
    given: Publication,
) -> Batch:
    made = {name: _column(name, values, given.known) for name, values in columns.items()}
    if not any(headers) and not any(made.values()):
        return Batch.of_messages(payloads, request_ids, **given.producer)
    arrays: dict[str, pa.Array] = {"payload": pa.array(payloads, pa.binary())}
    if any(number is not None for number in request_ids):
        arrays["request_id"] = pa.array(request_ids, pa.int64())
    if any(headers):
        arrays["headers"] = _header_column(headers)
    arrays |= {name: column for name, column in made.items() if column is not None}
    return Batch.of_arrow(pa.record_batch(list(arrays.values()), list(arrays)), **given.producer)


def _header_column(headers: Iterable[dict[str, str] | None]) -> pa.Array:
    try:
        return pa.array([None if h is None else list(h.items()) for h in headers], HEADERS)
    except UnicodeEncodeError as error:
        raise UsageError("a header has no UTF-8 form", cause=str(error)) from error


def _column(name: str, values: list[Any], known: pa.Schema) -> pa.Array | None:
    """Values in the type that the topic has for the column; None where there are none."""
    try:
        column = pa.array(values)
        at = known.get_field_index(name)
        if pa.types.is_null(column.type):
            return None
        return column if at < 0 else column.cast(known.field(at).type)
    except (pa.ArrowException, UnicodeEncodeError, TypeError, OverflowError) as error:
        wanted = known.field(name).type if name in known.names else "one type"
        raise UsageError(f"the values of column '{name}' cannot be made {wanted}", cause=str(error)) from error
