"""Tells the log what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from types import TracebackType
from typing import Self

from frazil.content.events.observation import observation
from frazil.content.scan.listing import PAGE, Object
from frazil.log.access import LogAccess
from frazil.log.remote.producer import Producer
from frazil.log.trust import marked


class ObservationPublisher:
    """Publishes observations of one bucket, and waits for each acknowledgement.

    Args:
        producer: to the topic of events, an internal one.
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
                ack = self._producer.publish(payload, headers=marked({"source": self._source}))
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


class LazyObservationPublisher:
    """A teller that connects to the log when there is something to tell: often there is nothing.

    Args:
        log: a log of this process, a client, or the address of a broker.
        topic: the topic of events.
        bucket: as it is called in the tables.
        source: who looks.
        max_bytes: of one message.
        before_publishing: called before the first message; raises if there should be none.
        key: of the log, where its address is given.
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
        self._teller: ObservationPublisher | None = None

    @property
    def end(self) -> int:
        """The offset behind the last message; 0: nothing was told."""
        return 0 if self._teller is None else self._teller.end

    def tell(self, objects: Sequence[Object], observed_at: datetime) -> None:
        """Returns when the objects, if there are any, are as safe as the log makes them."""
        if not objects:
            return
        if self._teller is None:
            if self._before_publishing is not None:
                self._before_publishing()
            producer = self._stack.enter_context(Producer(self._log, self._topic, internal=True, key=self._key))
            self._teller = ObservationPublisher(producer, self._bucket, self._source, self._max_bytes)
        self._teller.tell(objects, observed_at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
