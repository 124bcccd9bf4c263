"""Publishes observations to the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import Self

from frazil.content.events.observation import observation
from frazil.content.scan.listing import PAGE, Object
from frazil.log.protocol import LogAccess
from frazil.log.remote.producer import Producer
from frazil.log.trust import add_mark


class ObservationPublisher:
    """Publishes observations of one bucket, waiting for each acknowledgement.

    Args:
        producer: to the topic of events, an internal one.
        bucket: its name in the tables.
        source: the command that observed it.
        max_bytes: of one message.
    """

    def __init__(self, producer: Producer, bucket: str, source: str, max_bytes: int) -> None:
        self._producer, self._bucket, self._source, self._max_bytes = producer, bucket, source, max_bytes
        self.end = 0
        """The offset after the last message."""

    def publish(self, objects: Sequence[Object], observed_at: datetime) -> None:
        """Publishes objects, and returns when they are durable in the log."""
        for start in range(0, len(objects), PAGE):
            for payload in self._messages(objects[start : start + PAGE], observed_at):
                ack = self._producer.publish(payload, headers=add_mark({"source": self._source}))
                self.end = max(self.end, ack.offset + ack.count)

    def _messages(self, objects: Sequence[Object], observed_at: datetime) -> Iterator[bytes]:
        """Splits objects into messages that the log accepts: long keys make long messages."""
        payload = observation(self._bucket, objects, observed_at, self._source)
        if len(payload) <= self._max_bytes or len(objects) == 1:
            yield payload
            return
        half = len(objects) // 2
        yield from self._messages(objects[:half], observed_at)
        yield from self._messages(objects[half:], observed_at)


class LazyObservationPublisher:
    """A publisher that connects to the log when there is something to publish, which is often nothing.

    Args:
        log: a log of this process, a client, or the address of a broker.
        topic: the topic of events.
        bucket: its name in the tables.
        source: the command that observes it.
        max_bytes: of one message.
        before_publishing: called before the first message; raises if there should be none.
        key: the key of the log, if its address is given.
    """

    def __init__(
        self,
        log: LogAccess | str,
        topic: str,
        bucket: str,
        source: str,
        max_bytes: int,
        before_publishing: Callable[[], None] | None = None,
        key: str | None = None,
    ) -> None:
        self._log, self._topic, self._key = log, topic, key
        self._bucket, self._source, self._max_bytes = bucket, source, max_bytes
        self._before_publishing = before_publishing
        self._stack = ExitStack()
        self._publisher: ObservationPublisher | None = None

    @property
    def end(self) -> int:
        """The offset after the last message; 0 if nothing was published."""
        return 0 if self._publisher is None else self._publisher.end

    def publish(self, objects: Sequence[Object], observed_at: datetime) -> None:
        """Publishes objects, if there are any, and returns when they are durable in the log."""
        if not objects:
            return
        if self._publisher is None:
            if self._before_publishing is not None:
                self._before_publishing()
            producer = self._stack.enter_context(Producer(self._log, self._topic, internal=True, key=self._key))
            self._publisher = ObservationPublisher(producer, self._bucket, self._source, self._max_bytes)
        self._publisher.publish(objects, observed_at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
