"""The state of a topic's log besides messages: producers, extra columns, subscriptions.

It is written as frames of kind `state`: all of it in the head of each segment, so that retention cannot erase it, and
each change between the messages, before the first message that needs it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from frazil.log.frame import Bytes, Header, Kind
from frazil.log.producers import Producer, Producers, TakenBatch
from frazil.log.protocol import decode_schema, encode_schema

#: Limited because each head of a segment contains them all.
MAX_SUBSCRIPTIONS = 10_000
_MAX_NAMES = 65_536


@dataclass
class State:
    producers: Producers = field(default_factory=Producers)
    names: dict[int, str] = field(default_factory=dict)
    """Names of producers, for a while also of those whose retries are forgotten: readers want them."""
    extra: pa.Schema = field(default_factory=lambda: pa.schema([]))
    subscriptions: dict[str, int] = field(default_factory=dict)

    def snapshot(self, previous: int | None) -> bytes:
        """Returns all state for the head of a segment. `previous` is the end of the segment before."""
        return _encode(
            previous=previous,
            full=True,
            producers=self.producers.to_json(),
            extra=encode_schema(self.extra),
            subscriptions=self.subscriptions,
        )

    def apply(self, change: dict[str, Any]) -> None:
        """Applies the content of a state frame."""
        for row in change.get("producers", []):
            self.put_producer(Producer.from_json(row))
        if "extra" in change:
            self.extra = decode_schema(change["extra"])
        self.subscriptions |= change.get("subscriptions", {})

    def put_producer(self, producer: Producer) -> None:
        self.producers.put(producer)
        if producer.name is not None:
            self.names[producer.id] = producer.name
            while len(self.names) > _MAX_NAMES:
                del self.names[next(iter(self.names))]

    def apply_frame(self, header: Header, body: Bytes | None) -> None:
        """Applies a frame that was found at recovery."""
        if header.kind == Kind.state and body is not None:
            self.apply(read_state(body))
        elif header.count and header.producer_id and header.sequence >= 0:
            taken = TakenBatch(header.sequence, header.base_offset, header.count, header.time_us)
            self.producers.apply_frame(header.producer_id, header.producer_epoch, taken)


def read_state(body: Bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(bytes(body))
    return content


def producer_change(producer: Producer) -> bytes:
    return _encode(producers=[producer.to_json()])


def extra_change(extra: pa.Schema) -> bytes:
    return _encode(extra=encode_schema(extra))


def subscription_change(name: str, offset: int) -> bytes:
    return _encode(subscriptions={name: offset})


def _encode(**content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
