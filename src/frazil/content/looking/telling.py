"""Tells the log what was seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from frazil.content.events.observation import observation
from frazil.content.looking.listing import PAGE, Object
from frazil.log.remote.producer import Producer


class Teller:
    """Publishes observations of one bucket, and waits for each acknowledgement.

    Args:
        producer: to the topic of events.
        bucket: as it is called in the tables.
        source: who looked.
        max_bytes: of one message.
    """

    def __init__(self, producer: Producer, bucket: str, source: str, max_bytes: int) -> None:
        self._producer, self._bucket, self._source, self._max_bytes = producer, bucket, source, max_bytes
        self.end = 0
        """The offset behind the last message."""

    def tell(self, objects: Sequence[Object], observed_at: datetime) -> None:
        """Returns when the objects are as safe as the log makes them."""
        for start in range(0, len(objects), PAGE):
            for payload in self._messages(objects[start : start + PAGE], observed_at):
                ack = self._producer.publish(payload, headers={"source": self._source})
                self.end = max(self.end, ack.offset + ack.count)

    def _messages(self, objects: Sequence[Object], observed_at: datetime) -> Iterator[bytes]:
        """Long keys make long messages, and the log takes only so much at once."""
        payload = observation(self._bucket, objects, observed_at, self._source)
        if len(payload) <= self._max_bytes or len(objects) == 1:
            yield payload
            return
        half = len(objects) // 2
        yield from self._messages(objects[:half], observed_at)
        yield from self._messages(objects[half:], observed_at)
