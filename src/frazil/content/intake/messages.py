"""Batches of event bodies for the log: stored unchanged, with a header for their source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frazil.content.intake import metrics
from frazil.log.batch import Batch, batch_with_headers
from frazil.log.protocol import Ack, Level, LogAccess
from frazil.log.trust import add_mark


def headers_of(source: str, dialect: str | None = None) -> dict[str, str]:
    """Returns the headers of a message: its source, and its dialect if fixed."""
    return {"source": source} | ({"dialect": dialect} if dialect else {})


def batch_of(payloads: Sequence[bytes], headers: Sequence[dict[str, str]]) -> Batch:
    """Creates a batch. Without headers it is packed, which takes a fifth of the time and half the space."""
    if not any(headers):
        return Batch.of_messages(list(payloads))
    return batch_with_headers(list(payloads), [None] * len(payloads), list(headers))


@dataclass
class Taken:
    """The messages that are durable: their number, bytes and offsets."""

    topic: str
    messages: int = 0
    bytes: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def add(self, ack: Ack, size: int) -> None:
        last = ack.offset + ack.count - 1
        self.messages += ack.count
        self.bytes += size
        self.first_offset = ack.offset if self.first_offset is None else min(self.first_offset, ack.offset)
        self.last_offset = last if self.last_offset is None else max(self.last_offset, last)

    def to_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "messages": self.messages,
            "bytes": self.bytes,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
        }


def store(
    access: LogAccess, topic: str, payloads: Sequence[bytes], headers: dict[str, str], *, internal: bool = False
) -> Ack:
    """Appends messages as one batch, and returns when they are on disk, whatever the log's sync mode says.

    Args:
        access: the log.
        topic: the topic.
        payloads: one per message.
        headers: of each of them.
        internal: they are Frazil's own (see `frazil.log.trust`), not events that came from outside.
    """
    headers = add_mark(headers) if internal else headers
    ack = access.append(topic, batch_of(payloads, [headers] * len(payloads)), Level.disk, internal=internal)
    metrics.MESSAGES.labels(headers["source"]).inc(len(payloads))
    metrics.BYTES.labels(headers["source"]).inc(sum(map(len, payloads)))
    return ack
