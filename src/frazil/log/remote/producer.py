"""A producer: publishes to one topic, each message once and in order, whatever happens to connection and broker."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from asyncio import _get_running_loop, get_running_loop
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias

import pyarrow as pa

from frazil.errors import FrazilError, UsageError, first_line
from frazil.log.backpressure import BlockedCalls, Go
from frazil.log.batch import Batch
from frazil.log.protocol import Ack, Level, LogAccess
from frazil.log.remote.client import Client
from frazil.log.remote.pending_batch import OVERHEAD, PendingBatch, Waiter, size_of
from frazil.log.remote.send_buffer import SendBuffer
from frazil.log.remote.sender import Link, LocalLink, Sender
from frazil.log.waiters import ThreadWaiter
from frazil.settings.model import NetworkSettings

_MIB = 1024 * 1024
_INT64 = range(-(2**63) + 1, 2**63)

Messages: TypeAlias = Sequence[bytes] | pa.RecordBatch | pa.Table


class Producer:
    """Publishes to one topic. Safe for threads and coroutines at once; messages of one of them stay in order.

    Whatever waits while a batch is on its way goes together as the next one. When the connection breaks, what has no
    acknowledgement is sent again, and the log knows it by its sequence: nothing is lost, nothing comes twice.

    Args:
        log: a log of this process, a client, or the address of a broker.
        topic: a topic that exists.
        name: a name that this producer keeps over restarts. It shuts out an older producer of the same name.
        level: how safe a message is to be when it is acknowledged; by default as the log's sync mode says.
        batch_bytes: bytes at which a batch goes even if others are on their way.
        linger_ms: how long a batch that is not full waits for more; 0: only while another is on its way.
        max_in_flight_bytes: bytes that may wait for their acknowledgement; then publishers wait.
        patience_s: how long a broker may be away before publishers are told.
        network: timeouts of the connection, when an address is given.
        internal: for messages of Frazil's own components; only these may have the header that says so.
        key: of the log, when an address is given, for `internal`.

    Raises:
        NotAllowedError: `internal`, and the key is not known.
        NotFoundError: there is no such topic.
        UnavailableError: there is no broker at the address.
    """

    def __init__(
        self,
        log: LogAccess | str,
        topic: str,
        *,
        name: str | None = None,
        level: Level | str | None = None,
        batch_bytes: int = _MIB,
        linger_ms: float = 0.0,
        max_in_flight_bytes: int = 32 * _MIB,
        patience_s: float = 60.0,
        network: NetworkSettings | None = None,
        internal: bool = False,
        key: str | None = None,
    ) -> None:
        self._client = None
        if isinstance(log, str):
            log = self._client = Client(log, network, key)
        if internal and isinstance(log, Client):
            log.require_key()
        self.topic, self.name = topic, name
        self._outbox = SendBuffer(batch_bytes, linger_ms / 1000, max_in_flight_bytes)
        asked = None if level is None else Level(level)
        self._courier = Sender(
            log, _way_to(log, topic, internal), topic, self._outbox, name=name, level=asked, patience_s=patience_s
        )
        self._carrying = threading.Lock()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        #: Messages of each loop's coroutines in this turn.
        self._gathering: dict[asyncio.AbstractEventLoop, PendingBatch] = {}
        #: Calls of coroutines that wait for room. While a loop has some, it gathers nothing.
        self._outside = BlockedCalls()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._carry_what_waits, name=f"frazil-producer-{topic}", daemon=True)
        self._thread.start()

    # -- publish -----------------------------------------------------------------------------------------------------

    def publish(self, payload: bytes, request_id: int | None = None, headers: dict[str, str] | None = None) -> Ack:
        """Publishes a message, and returns when it is as safe as the level says."""
        waiter = ThreadWaiter()
        self._hand_over(_get_running_loop())
        self._outbox.add(_bytes(payload), _id(request_id), _headers(headers), waiter)
        return self._result(waiter)

    async def publish_async(
        self, payload: bytes, request_id: int | None = None, headers: dict[str, str] | None = None
    ) -> Ack:
        """Publishes a message from a coroutine.

        It goes when the loop has had its turn, together with those that other coroutines publish in the same turn.
        """
        loop = get_running_loop()
        if type(payload) is not bytes or request_id is not None or headers:
            payload, request_id, headers = _bytes(payload), _id(request_id), _headers(headers)
        size = size_of(payload, headers) if headers else len(payload) + OVERHEAD
        parcel = self._gathering.get(loop)
        if parcel is None or parcel.size + size > parcel.most:
            # Not a lambda: its cells would slow down those that need none.
            return await self._in_order(loop, partial(self._gather, payload, request_id, headers, size, loop))
        waiter: asyncio.Future[Ack] = loop.create_future()
        parcel.messages.append((payload, request_id, headers, waiter))
        parcel.size += size
        return await waiter

    def _gather(
        self,
        payload: bytes,
        request_id: int | None,
        headers: dict[str, str] | None,
        size: int,
        loop: asyncio.AbstractEventLoop,
    ) -> asyncio.Future[Ack] | None:
        """Puts a message into the parcel of this turn of a loop, or into a new one; None where there is no room.

        Only the loop's thread fills it, without a lock, until the turn ends.
        """
        parcel = self._gathering.get(loop)
        if parcel is None or parcel.size + size > parcel.most:
            self._hand_over(loop)
            most = self._outbox.room_for(size, loop, self._let_in)
            if not most:
                return None
            parcel = PendingBatch(time.monotonic(), loop, most)
            loop.call_soon(self._carry_from_loop, parcel)  # before anybody can use it
            self._gathering[loop] = parcel
        waiter: asyncio.Future[Ack] = loop.create_future()
        parcel.messages.append((payload, request_id, headers, waiter))
        parcel.size += size
        return waiter

    def _in_order(self, loop: asyncio.AbstractEventLoop, go: Go) -> asyncio.Future[Ack]:
        """Lets a call of a coroutine go at once, or behind those of its loop that wait for room."""
        answer = go() if loop not in self._outside else None
        return answer if answer is not None else self._outside.wait(loop, go)

    def _let_in(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop not in self._outside:  # Ctrl-C came when it began to wait
            return
        try:
            self._outside.let_in(loop)
        except BaseException:  # Ctrl-C: the others must not wait for ever
            loop.call_soon(self._let_in, loop)
            raise
        finally:
            if loop in self._outside:
                self._hand_over(loop)  # nobody may join those that were let in, while others wait

    def _hand_over(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """What this thread's loop has gathered goes before what follows."""
        parcel = self._gathering.pop(loop, None) if loop is not None else None
        if parcel is not None:
            self._outbox.add_gathered(parcel)
            self._ring()  # who waits for room now may be the loop that would carry it

    def send(self, payload: bytes, request_id: int | None = None, headers: dict[str, str] | None = None) -> Future[Ack]:
        """Hands a message over, and returns at once if there is room. `flush` tells what went wrong, if nobody asks."""
        waiter = self._noted()
        self._hand_over(_get_running_loop())
        self._outbox.add(_bytes(payload), _id(request_id), _headers(headers), waiter)
        self._ring()
        return waiter

    def publish_batch(self, messages: Messages, request_ids: Sequence[int | None] | None = None) -> Ack:
        """Publishes messages as one batch: all of them are taken, or none. The acknowledgement has the first offset.

        Args:
            messages: payloads; or a record batch or table with a column `payload`, and as it likes `request_id`,
                `headers` and columns of its own.
            request_ids: one per payload.
        """
        waiter = ThreadWaiter()
        self._hand_over(_get_running_loop())
        self._outbox.add_whole(_parcel(messages, request_ids, waiter))
        return self._result(waiter)

    async def publish_batch_async(self, messages: Messages, request_ids: Sequence[int | None] | None = None) -> Ack:
        loop = get_running_loop()
        waiter: asyncio.Future[Ack] = loop.create_future()
        parcel = _parcel(messages, request_ids, waiter)

        def go() -> asyncio.Future[Ack] | None:
            self._hand_over(loop)
            if not self._outbox.offer_whole(parcel, loop, self._let_in):
                return None
            self._ring()
            return waiter

        return await self._in_order(loop, go)

    def send_batch(self, messages: Messages, request_ids: Sequence[int | None] | None = None) -> Future[Ack]:
        """Hands a batch over, and returns at once if there is room."""
        waiter = self._noted()
        self._hand_over(_get_running_loop())
        self._outbox.add_whole(_parcel(messages, request_ids, waiter))
        self._ring()
        return waiter

    @property
    def held_bytes(self) -> int:
        """Bytes that wait for their acknowledgement."""
        return self._outbox.held

    # -- the end -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Waits until all that was handed over is answered.

        Raises:
            FrazilError: the first error since the last flush of a message that was given to `send` or `send_batch`.
        """
        self._hand_over(_get_running_loop())
        count = self._outbox.close_open()
        self._ring()
        self._outbox.wait_settled(count)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Flushes, then lets go of the connection. It waits for a broker that is away, up to `patience_s`."""
        if self._closed:
            return
        self._hand_over(_get_running_loop())
        self._outbox.refuse(UsageError(f"the producer of topic '{self.topic}' is closed"))
        try:
            self.flush()
        finally:
            self._closed = True
            self._ring()
            self._thread.join(5.0)
            if self._carrying.acquire(timeout=1.0):
                self._courier.close()
            if self._client is not None:
                self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- who carries -------------------------------------------------------------------------------------------------

    def _result(self, waiter: ThreadWaiter) -> Ack:
        """The publisher itself carries if nobody else does: the way to another thread and back costs more than it."""
        self._carry(waiter)
        if not waiter.answered():  # it lingers, or somebody else carries it
            self._ring()
        waiter.wait()
        return waiter.result()

    def _carry(self, until: ThreadWaiter | None = None) -> None:
        if not self._carrying.acquire(blocking=False):
            return  # who carries looks for work once more after it has let go
        try:
            self._courier.run(until.answered if until is not None else _never)
        finally:
            self._carrying.release()
            if self._courier.has_work():
                self._ring()

    def _carry_from_loop(self, parcel: PendingBatch) -> None:
        """Sends what has gathered in this turn of a loop, if nothing else is on its way. A thread takes the reply."""
        assert parcel.loop is not None or parcel.handed_over
        if parcel.loop is not None and self._gathering.get(parcel.loop) is parcel:
            del self._gathering[parcel.loop]
        self._outbox.add_gathered(parcel)
        try:
            if self._carrying.acquire(blocking=False):
                try:
                    self._courier.send_at_once()
                finally:
                    self._carrying.release()
        finally:
            self._ring()

    def _carry_what_waits(self) -> None:
        while not self._closed:
            with suppress(queue.Empty):
                self._bell.get(timeout=self._outbox.due_in())
            try:
                self._carry()
            except Exception as error:
                # Nobody may wait for ever for a thread that is gone.
                with self._carrying:
                    self._courier.abandon(FrazilError("the producer failed", cause=first_line(error)))
                raise

    def _ring(self) -> None:
        if self._bell.empty():
            self._bell.put(None)

    def _noted(self) -> Future[Ack]:
        waiter = _future()
        waiter.add_done_callback(self._note)
        return waiter

    def _note(self, waiter: Future[Ack]) -> None:
        self._error = self._error or waiter.exception()


def _way_to(access: LogAccess, topic: str, internal: bool) -> Callable[[], Link]:
    if isinstance(access, Client):
        return partial(access.stream, topic, internal=internal)
    return partial(LocalLink, access, topic, internal=internal)


def _never() -> bool:
    return False


def _future() -> Future[Ack]:
    """A future that cannot be cancelled: a message that was handed over cannot be taken back."""
    future: Future[Ack] = Future()
    future.set_running_or_notify_cancel()
    return future


def _bytes(payload: object) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, (bytearray, memoryview)):
        return bytes(payload)
    raise UsageError(f"a payload is bytes, not {type(payload).__name__}", hint="text.encode()")


def _id(request_id: int | None) -> int | None:
    if request_id is None or request_id in _INT64:
        return request_id
    raise UsageError(f"a request id is a number of 64 bits, not {request_id!r}")


def _headers(headers: dict[str, str] | None) -> dict[str, str] | None:
    if not headers:
        return None
    if all(isinstance(k, str) and isinstance(v, str) for k, v in headers.items()):
        return dict(headers)
    raise UsageError("headers are names and values of text", hint="str(value)")


def _parcel(messages: Messages, request_ids: Sequence[int | None] | None, waiter: Waiter) -> PendingBatch:
    if isinstance(messages, pa.Table):
        messages = _one_batch(messages)
    if isinstance(messages, pa.RecordBatch):
        return PendingBatch.of_batch(Batch.of_arrow(messages), waiter)
    return PendingBatch.of_batch(Batch.of_messages(messages, request_ids), waiter)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    if len(batches) > 1:  # a column with more than 2 GiB of text
        raise UsageError("the table is too large for one batch", hint="smaller batches")
    return batches[0]
