"""Messages for answers: a page of them from wherever they are, as JSON, as lines or as Arrow."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import to_json

from frazil.errors import UsageError
from frazil.log.columns import MESSAGE
from frazil.topics.dead_letters.json_values import python_values
from frazil.topics.reading.reader import TopicReader
from frazil.topics.reading.seek import seek

Format = Literal["json", "ndjson", "arrow"]
PayloadForm = Literal["text", "base64"]

#: What a message costs besides its payload, roughly, so that a page of empty ones has an end too.
_BUDGET = 16 * 1024 * 1024  # a page needs little of what a replay would read ahead
_COST = 128


ReaderOf = Callable[[str], TopicReader]


@dataclass(frozen=True)
class Page:
    """Messages from one place on, as many as were wanted."""

    messages: pa.Table
    next: int
    end: int


def read_page(reader: TopicReader, start: int, limit: int, max_bytes: int) -> Page:
    """At most `limit` messages with about `max_bytes` of payload; one at least, where there is one.

    Raises:
        UsageError: the topic has not come that far.
        OffsetGoneError: the first message cannot be read any more.
    """
    end = reader.info().end
    if start > end:
        raise UsageError(f"offset {start} lies beyond the end, {end}", hint="from=end, or an offset below it")
    parts: list[pa.Table] = []
    following = end  # offsets may have a gap before the end
    for table in reader.read(start, end=end, budget=_BUDGET):
        taken = _cut(table, limit, max_bytes, at_least_one=not parts)
        parts.append(taken)
        limit -= taken.num_rows
        max_bytes -= int(_sizes(taken).sum())
        if taken.num_rows < table.num_rows or limit <= 0 or max_bytes <= 0:
            following = parts[-1 if taken.num_rows else -2].column("offset")[-1].as_py() + 1
            break
    if not parts:
        return Page(reader.schema_of(reader.info(), None).empty_table(), following, end)
    return Page(pa.concat_tables(parts, promote_options="default"), following, end)


def _cut(table: pa.Table, limit: int, max_bytes: int, *, at_least_one: bool) -> pa.Table:
    fitting = int(np.searchsorted(np.cumsum(_sizes(table)), max_bytes, side="right"))
    return table.slice(0, min(limit, max(fitting, 1 if at_least_one else 0)))


def _sizes(table: pa.Table) -> Any:
    return pc.binary_length(table.column("payload")).to_numpy().astype(np.int64) + _COST


def as_json(page: Page, topic: str, form: PayloadForm) -> bytes:
    answer = {"topic": topic, "messages": messages_of(page.messages, form), "next": page.next, "end": page.end}
    return json_bytes(answer)


def as_ndjson(page: Page, form: PayloadForm) -> bytes:
    return b"".join(json_bytes(message) + b"\n" for message in messages_of(page.messages, form))


def as_arrow(page: Page) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, page.messages.schema) as writer:
        writer.write_table(page.messages)
    return bytes(sink.getvalue())


def json_bytes(value: Any) -> bytes:
    return to_json(value, bytes_mode="base64", inf_nan_mode="null")


def messages_of(table: pa.Table, form: PayloadForm) -> list[dict[str, Any]]:
    """Each message with the fields of `models.Message`."""
    named = ("offset", "partition", "publish_time", "request_id", "producer_id", "producer_name")
    columns = [python_values(table.column(name)) for name in named]
    payloads = table.column("payload").to_pylist()
    headers = table.column("headers").to_pylist()
    own = [name for name in table.column_names if name not in MESSAGE.names]
    extras = [python_values(table.column(name)) for name in own]
    messages = []
    for number, values in enumerate(zip(*columns, strict=True)):
        message = dict(zip(named, values, strict=True)) | _payload(payloads[number], form)
        message["headers"] = None if headers[number] is None else dict(headers[number])
        message["columns"] = {
            name: values[number] for name, values in zip(own, extras, strict=True) if values[number] is not None
        }
        messages.append(message)
    return messages


def _payload(payload: bytes, form: PayloadForm) -> dict[str, str]:
    if form == "text":
        try:
            return {"payload": payload.decode()}
        except UnicodeDecodeError:
            pass  # it is no text, and base64 says so
    return {"payload_base64": base64.b64encode(payload).decode()}


def offset_of(reader: TopicReader, text: str) -> int:
    """The offset that `from` leads to. A '+' in a query stands for a space, and clients forget to write %2B."""
    return seek(reader, text.replace(" ", "+") if "T" in text else text)
