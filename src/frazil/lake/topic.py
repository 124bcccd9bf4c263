"""A topic of a lake, and its subscriptions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.errors import UsageError
from frazil.lake.background import iterate_in_thread
from frazil.lake.connection import Connection
from frazil.log.protocol import Ack, Level, TopicInfo
from frazil.log.remote.producer import Messages, Producer
from frazil.topics.reading import subscription
from frazil.topics.reading.seek import SeekTarget, resolve_seek_target
from frazil.topics.storage import open_storage

if TYPE_CHECKING:
    from frazil.topics.reading.reader import TopicReader
    from frazil.topics.storage import IcebergStorage, LogStorage


@dataclass(frozen=True)
class ProducerOptions:
    """How a topic publishes; see `frazil.log.Producer`."""

    name: str | None = None
    level: Level | None = None
    batch_bytes: int = 1 << 20
    linger_ms: float = 0.0
    patience_s: float = 60.0


class Topic:
    """Publishes to a topic and reads it, wherever its messages are: in its table, then in the log.

    Threads and coroutines may share one. Get it by `lake.topic(name)`.

    Attributes:
        name: the topic's name.
    """

    def __init__(self, connection: Connection, name: str, options: ProducerOptions) -> None:
        self.name = name
        self._connection, self._options = connection, options
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._storage = self._open_storage()

    def __repr__(self) -> str:
        return f"<frazil.Topic {self.name}>"

    def info(self) -> TopicInfo:
        """Returns what the log knows of the topic, such as `start`, `end`, `size`, `storage` and `subscriptions`."""
        self._connection.require_open()
        return self._storage.access.info(self.name)

    # -- publish -----------------------------------------------------------------------------------------------------

    def publish(
        self, payload: bytes | str, *, headers: dict[str, str] | None = None, request_id: int | None = None
    ) -> Ack:
        """Publishes a message, and returns when it is durable.

        Args:
            payload: bytes, or text, which is sent as UTF-8.
            headers: names and values.
            request_id: a number of your own, which comes back when the message is read.

        Raises:
            UsageError: the message is too large, or a value has the wrong type.
            UnavailableError: the log cannot take it. It may still be stored if the connection broke while it was sent.
        """
        return self._publisher().publish(_to_bytes(payload), request_id, headers)

    async def apublish(
        self, payload: bytes | str, *, headers: dict[str, str] | None = None, request_id: int | None = None
    ) -> Ack:
        """The same for coroutines. Messages of concurrent calls travel together."""
        return await self._publisher().publish_async(_to_bytes(payload), request_id, headers)

    def send(
        self, payload: bytes | str, *, headers: dict[str, str] | None = None, request_id: int | None = None
    ) -> Future[Ack]:
        """Hands a message over and returns at once, unless too many bytes wait for their acknowledgement already.

        The future has the acknowledgement, or the error. `flush` raises an error that nobody has asked for.
        """
        return self._publisher().send(_to_bytes(payload), request_id, headers)

    def flush(self) -> None:
        """Waits until all that was handed over by `send` is acknowledged, and raises the first error since the last."""
        if self._producer is not None:
            self._producer.flush()

    def publish_batch(
        self,
        messages: Sequence[bytes | str] | pa.RecordBatch | pa.Table,
        *,
        request_ids: Sequence[int | None] | None = None,
    ) -> Ack:
        """Publishes messages as one batch: all of them are taken, or none.

        Args:
            messages: payloads; or Arrow data with a column `payload`, and optionally `headers`, `request_id` and
                columns of your own, which become columns of the topic.
            request_ids: one per payload.

        Returns:
            The acknowledgement, with the offset of the first message.

        Raises:
            UsageError: a message or column cannot be stored; it says why. Nothing was stored.
        """
        return self._publisher().publish_batch(_to_batch(messages), request_ids)

    async def apublish_batch(
        self,
        messages: Sequence[bytes | str] | pa.RecordBatch | pa.Table,
        *,
        request_ids: Sequence[int | None] | None = None,
    ) -> Ack:
        """The same for coroutines."""
        return await self._publisher().publish_batch_async(_to_batch(messages), request_ids)

    def _publisher(self) -> Producer:
        self._connection.require_open()
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._storage.access, self.name, **asdict(self._options))
                self._connection.on_close(self._producer.close)
            return self._producer

    # -- read --------------------------------------------------------------------------------------------------------

    def read(
        self, start: SeekTarget | None = None, end: SeekTarget | None = None, *, columns: Collection[str] | None = None
    ) -> pa.Table:
        """Returns the messages of a range as one table, ordered by offset.

        Args:
            start: an offset, a datetime (without a time zone: UTC), "start" or "end"; by default the oldest message.
            end: the place to stop before; by default the end as it is now.
            columns: names of columns; by default all.

        Raises:
            OffsetGoneError: retention has removed the start of the range.
            UsageError: the topic has no such column.
        """
        reader = self._current_storage().reader
        tables = list(self._tables(reader, start, end, columns))
        schema = reader.schema(columns)
        # A column that came up meanwhile is missing in the tables before it.
        return pa.concat_tables([schema.empty_table(), *tables], promote_options="default")

    async def aread(
        self, start: SeekTarget | None = None, end: SeekTarget | None = None, *, columns: Collection[str] | None = None
    ) -> pa.Table:
        """The same for coroutines."""
        return await asyncio.to_thread(self.read, start, end, columns=columns)

    def iterate(
        self, start: SeekTarget | None = None, end: SeekTarget | None = None, *, columns: Collection[str] | None = None
    ) -> Iterator[pa.Table]:
        """Returns the messages of a range as tables of moderate size, for ranges that do not fit into memory."""
        return self._tables(self._current_storage().reader, start, end, columns)

    def follow(
        self,
        start: SeekTarget | None = None,
        *,
        columns: Collection[str] | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[pa.Table]:
        """Returns the messages from a place on, and then waits for new ones, until `stop` is set or the lake is closed.

        Args:
            start: as for `read`. "end": only new messages.
            columns: names of columns; by default all.
            stop: ends it. Closing the lake sets it too.
        """
        return self._tables(self._current_storage().reader, start, None, columns, follow=True, stop=stop)

    async def afollow(
        self, start: SeekTarget | None = None, *, columns: Collection[str] | None = None
    ) -> AsyncIterator[pa.Table]:
        """The same for coroutines. It ends when the loop over it is left or its task is cancelled."""
        stop = threading.Event()
        reader = await asyncio.to_thread(lambda: self._current_storage().reader)
        tables = await asyncio.to_thread(self._tables, reader, start, None, columns, follow=True, stop=stop)
        async for table in iterate_in_thread(tables, stop):
            yield table

    def subscribe(self, name: str) -> Subscription:
        """Returns a subscription: a named position in the topic, kept by the log."""
        return Subscription(self._connection, self._current_storage().reader, name)

    def _current_storage(self) -> LogStorage | IcebergStorage:
        self._connection.require_open()
        if self.info().storage != self._storage.kind:  # the topic was migrated meanwhile
            self._storage = self._open_storage()
        return self._storage

    def _open_storage(self) -> LogStorage | IcebergStorage:
        connection = self._connection
        return open_storage(connection.keep_log(), connection.settings, self.name, connection.store)

    def _tables(
        self,
        reader: TopicReader,
        start: SeekTarget | None,
        end: SeekTarget | None,
        columns: Collection[str] | None,
        *,
        follow: bool = False,
        stop: threading.Event | None = None,
    ) -> Generator[pa.Table]:
        first = None if start is None or start == "start" else resolve_seek_target(reader, start)
        last = None if end is None else resolve_seek_target(reader, end)
        asked = stop or threading.Event()
        tables = reader.read(first, end=last, columns=columns, follow=follow, stop=asked)
        return self._connection.guard(tables, asked)


class Subscription:
    """A named position in a topic. Each `read` or `follow` goes on where the last `commit` of this name was.

    Messages are delivered at least once: what was read and not committed comes again. The log keeps the position;
    retention does not wait for it.

    Attributes:
        name: of the subscription.
    """

    def __init__(self, connection: Connection, reader: TopicReader, name: str) -> None:
        self._connection = connection
        self._inner = subscription.Subscription(reader, name)
        self.name = name

    def __repr__(self) -> str:
        return f"<frazil.Subscription {self.name}>"

    @property
    def position(self) -> int | None:
        """The next offset that is wanted, as it was committed; None before the first commit."""
        return self._inner.position

    def read(self, *, columns: Collection[str] | None = None) -> Iterator[pa.Table]:
        """Returns the messages from the position to the end as it is now, as tables ordered by offset."""
        return self._tables(columns, threading.Event(), follow=False)

    def follow(
        self, *, columns: Collection[str] | None = None, stop: threading.Event | None = None
    ) -> Iterator[pa.Table]:
        """Returns the messages from the position on, and then waits for new ones; see `Topic.follow`."""
        return self._tables(columns, stop or threading.Event(), follow=True)

    async def afollow(self, *, columns: Collection[str] | None = None) -> AsyncIterator[pa.Table]:
        """The same for coroutines."""
        stop = threading.Event()
        async for table in iterate_in_thread(self._tables(columns, stop, follow=True), stop):
            yield table

    def commit(self, offset: int | None = None) -> int:
        """Stores the position durably, and returns it.

        Args:
            offset: the next offset that is wanted; by default the one after the last table that was returned.
        """
        return self._inner.commit(offset)

    async def acommit(self, offset: int | None = None) -> int:
        """The same for coroutines."""
        return await asyncio.to_thread(self.commit, offset)

    def _tables(self, columns: Collection[str] | None, stop: threading.Event, *, follow: bool) -> Generator[pa.Table]:
        self._connection.require_open()
        return self._connection.guard(self._inner.read(columns=columns, follow=follow, stop=stop), stop)


def parse_level(level: Level | str | None) -> Level | None:
    """Raises UsageError if there is no such level."""
    if level is None:
        return None
    try:
        return Level(level)
    except ValueError:
        raise UsageError(f"{level!r} is no level", hint=", ".join(f'"{known}"' for known in Level)) from None


def _to_bytes(payload: bytes | str) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload


def _to_batch(messages: Sequence[bytes | str] | pa.RecordBatch | pa.Table) -> Messages:
    if isinstance(messages, (pa.RecordBatch, pa.Table)):
        return messages
    if isinstance(messages, (str, bytes, bytearray, memoryview)):
        raise UsageError("a batch is a list of payloads, and this is one payload", hint="publish(payload)")
    return [_to_bytes(message) for message in messages]
