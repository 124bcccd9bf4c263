"""A producer: publishes to one topic, each message once and in order, across failures of connection and broker."""

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
from frazil.log.backpressure import BlockedCalls, Call
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
    """Publishes to one topic. Safe for concurrent use by threads and coroutines; each keeps its order.

    Messages that arrive while a batch is in flight form the next batch. When the connection breaks, unacknowledged
    batches are resent, and the log recognises them by their sequence: nothing is lost or duplicated.

    Args:
        log: a log of this process, a client, or the address of a broker.
        topic: an existing topic.
        name: a name that this producer keeps across restarts. It fences an older producer of the same name.
        level: how safe a message must be to be acknowledged; by default that of the log's sync mode.
        batch_bytes: size at which a batch is sent although others are in flight.
        linger_ms: how long a batch that is not full waits for more messages; 0: only while another is in flight.
        max_in_flight_bytes: unacknowledged bytes at which publishers are blocked.
        patience_s: how long a broker may be unreachable before publishers get an error.
        network: timeouts of the connection, if an address is given.
        internal: for messages of Frazil's own components; only these may have the reserved header.
        key: of the log, if an address is given, for `internal`.

    Raises:
        NotAllowedError: `internal`, and the key is not known.
        NotFoundError: the topic does not exist.
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
        self._buffer = SendBuffer(batch_bytes, linger_ms / 1000, max_in_flight_bytes)
        asked = None if level is None else Level(level)
        self._sender = Sender(
            log, _make_link(log, topic, internal), topic, self._buffer, name=name, level=asked, patience_s=patience_s
        )
        self._send_lock = threading.Lock()
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        #: Messages that the coroutines of each loop published in its current iteration.
        self._open_batches: dict[asyncio.AbstractEventLoop, PendingBatch] = {}
        #: Calls of coroutines that are blocked by a full buffer. A loop with blocked calls has no open batch.
        self._blocked_calls = BlockedCalls()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"frazil-producer-{topic}", daemon=True)
        self._thread.start()

    # -- publish -----------------------------------------------------------------------------------------------------

    def publish(self, payload: bytes, request_id: int | None = None, headers: dict[str, str] | None = None) -> Ack:
        """Publishes a message; returns when it is as safe as the level requires."""
        waiter = ThreadWaiter()
        self._enqueue_open_batch(_get_running_loop())
        self._buffer.add(_bytes(payload), _id(request_id), _headers(headers), waiter)
        return self._wait_for_ack(waiter)

    async def publish_async(
        self, payload: bytes, request_id: int | None = None, headers: dict[str, str] | None = None
    ) -> Ack:
        """Publishes a message from a coroutine.

        It is sent at the end of the loop's iteration, together with the messages of other coroutines.
        """
        loop = get_running_loop()
        if type(payload) is not bytes or request_id is not None or headers:
            payload, request_id, headers = _bytes(payload), _id(request_id), _headers(headers)
        size = size_of(payload, headers) if headers else len(payload) + OVERHEAD
        pending = self._open_batches.get(loop)
        if pending is None or pending.size + size > pending.max_size:
            # Not a lambda: its cells would slow down the calls that need none.
            return await self._call_in_order(
                loop, partial(self._add_to_open_batch, payload, request_id, headers, size, loop)
            )
        waiter: asyncio.Future[Ack] = loop.create_future()
        pending.messages.append((payload, request_id, headers, waiter))
        pending.size += size
        return await waiter

    def _add_to_open_batch(
        self,
        payload: bytes,
        request_id: int | None,
        headers: dict[str, str] | None,
        size: int,
        loop: asyncio.AbstractEventLoop,
    ) -> asyncio.Future[Ack] | None:
        """Adds a message to the batch of the loop's iteration, or to a new one; returns None if there is no room.

        Only the loop's thread fills that batch, without a lock, until the iteration ends.
        """
        pending = self._open_batches.get(loop)
        if pending is None or pending.size + size > pending.max_size:
            self._enqueue_open_batch(loop)
            max_size = self._buffer.get_room(size, loop, self._admit_calls)
            if not max_size:
                return None
            pending = PendingBatch(time.monotonic(), loop, max_size)
            loop.call_soon(self._send_from_loop, pending)  # before it can be used
            self._open_batches[loop] = pending
        waiter: asyncio.Future[Ack] = loop.create_future()
        pending.messages.append((payload, request_id, headers, waiter))
        pending.size += size
        return waiter

    def _call_in_order(self, loop: asyncio.AbstractEventLoop, start: Call) -> asyncio.Future[Ack]:
        """Starts a call of a coroutine, at once or after the blocked calls of its loop."""
        answer = start() if loop not in self._blocked_calls else None
        return answer if answer is not None else self._blocked_calls.block(loop, start)

    def _admit_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop not in self._blocked_calls:  # Ctrl-C came as it was blocked
            return
        try:
            self._blocked_calls.admit(loop)
        except BaseException:  # Ctrl-C: the other calls must not stay blocked
            loop.call_soon(self._admit_calls, loop)
            raise
        finally:
            if loop in self._blocked_calls:
                self._enqueue_open_batch(loop)  # admitted messages must not be joined while others are blocked

    def _enqueue_open_batch(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Enqueues the open batch of this thread's loop, so that later messages are ordered after it."""
        pending = self._open_batches.pop(loop, None) if loop is not None else None
        if pending is not None:
            self._buffer.add_open_batch(pending)
            self._wake_thread()  # the caller may block for room next, and be the loop that would send it

    def send(self, payload: bytes, request_id: int | None = None, headers: dict[str, str] | None = None) -> Future[Ack]:
        """Enqueues a message; returns at once if there is room.

        `flush` raises the error of a future that is not awaited.
        """
        waiter = self._make_tracked_future()
        self._enqueue_open_batch(_get_running_loop())
        self._buffer.add(_bytes(payload), _id(request_id), _headers(headers), waiter)
        self._wake_thread()
        return waiter

    def publish_batch(self, messages: Messages, request_ids: Sequence[int | None] | None = None) -> Ack:
        """Publishes messages as one batch: all or none are accepted. The acknowledgement has the first offset.

        Args:
            messages: payloads; or a record batch or table with a column `payload`, and optionally `request_id`,
                `headers` and further columns.
            request_ids: one per payload.
        """
        waiter = ThreadWaiter()
        self._enqueue_open_batch(_get_running_loop())
        self._buffer.add_batch(_make_pending(messages, request_ids, waiter))
        return self._wait_for_ack(waiter)

    async def publish_batch_async(self, messages: Messages, request_ids: Sequence[int | None] | None = None) -> Ack:
        loop = get_running_loop()
        waiter: asyncio.Future[Ack] = loop.create_future()
        pending = _make_pending(messages, request_ids, waiter)

        def start() -> asyncio.Future[Ack] | None:
            self._enqueue_open_batch(loop)
            if not self._buffer.try_add_batch(pending, loop, self._admit_calls):
                return None
            self._wake_thread()
            return waiter

        return await self._call_in_order(loop, start)

    def send_batch(self, messages: Messages, request_ids: Sequence[int | None] | None = None) -> Future[Ack]:
        """Enqueues a batch; returns at once if there is room."""
        waiter = self._make_tracked_future()
        self._enqueue_open_batch(_get_running_loop())
        self._buffer.add_batch(_make_pending(messages, request_ids, waiter))
        self._wake_thread()
        return waiter

    @property
    def held_bytes(self) -> int:
        """Bytes that are not acknowledged yet."""
        return self._buffer.held_bytes

    # -- the end -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Waits until all enqueued messages are answered.

        Raises:
            FrazilError: the first error since the last flush of a message given to `send` or `send_batch`.
        """
        self._enqueue_open_batch(_get_running_loop())
        count = self._buffer.close_open()
        self._wake_thread()
        self._buffer.wait_settled(count)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Flushes, then closes the connection. Waits up to `patience_s` for an unreachable broker."""
        if self._closed:
            return
        self._enqueue_open_batch(_get_running_loop())
        self._buffer.reject(UsageError(f"the producer of topic '{self.topic}' is closed"))
        try:
            self.flush()
        finally:
            self._closed = True
            self._wake_thread()
            self._thread.join(5.0)
            if self._send_lock.acquire(timeout=1.0):
                self._sender.close()
            if self._client is not None:
                self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- who carries -------------------------------------------------------------------------------------------------

    def _wait_for_ack(self, waiter: ThreadWaiter) -> Ack:
        """Sends in the publisher's own thread if no other sends: a round trip through another thread costs more."""
        self._send_pending(waiter)
        if not waiter.is_answered():  # it lingers, or another thread sends it
            self._wake_thread()
        waiter.wait()
        return waiter.result()

    def _send_pending(self, until: ThreadWaiter | None = None) -> None:
        if not self._send_lock.acquire(blocking=False):
            return  # the sending thread checks for work once more after it has released the lock
        try:
            self._sender.run(until.is_answered if until is not None else _never)
        finally:
            self._send_lock.release()
            if self._sender.has_work():
                self._wake_thread()

    def _send_from_loop(self, pending: PendingBatch) -> None:
        """Sends the loop's open batch if nothing else is in flight. A thread takes the reply."""
        assert pending.loop is not None or pending.is_enqueued
        if pending.loop is not None and self._open_batches.get(pending.loop) is pending:
            del self._open_batches[pending.loop]
        self._buffer.add_open_batch(pending)
        try:
            if self._send_lock.acquire(blocking=False):
                try:
                    self._sender.send_at_once()
                finally:
                    self._send_lock.release()
        finally:
            self._wake_thread()

    def _run(self) -> None:
        while not self._closed:
            with suppress(queue.Empty):
                self._wakeups.get(timeout=self._buffer.due_in())
            try:
                self._send_pending()
            except Exception as error:
                # No publisher may wait forever for a thread that has ended.
                with self._send_lock:
                    self._sender.abandon(FrazilError("the producer failed", cause=first_line(error)))
                raise

    def _wake_thread(self) -> None:
        if self._wakeups.empty():
            self._wakeups.put(None)

    def _make_tracked_future(self) -> Future[Ack]:
        waiter = _make_future()
        waiter.add_done_callback(self._record_error)
        return waiter

    def _record_error(self, waiter: Future[Ack]) -> None:
        self._error = self._error or waiter.exception()


def _make_link(access: LogAccess, topic: str, internal: bool) -> Callable[[], Link]:
    if isinstance(access, Client):
        return partial(access.stream, topic, internal=internal)
    return partial(LocalLink, access, topic, internal=internal)


def _never() -> bool:
    return False


def _make_future() -> Future[Ack]:
    """Returns a future that cannot be cancelled: an enqueued message cannot be withdrawn."""
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


def _make_pending(messages: Messages, request_ids: Sequence[int | None] | None, waiter: Waiter) -> PendingBatch:
    if isinstance(messages, pa.Table):
        messages = _to_single_batch(messages)
    if isinstance(messages, pa.RecordBatch):
        return PendingBatch.of_batch(Batch.of_arrow(messages), waiter)
    return PendingBatch.of_batch(Batch.of_messages(messages, request_ids), waiter)


def _to_single_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    if len(batches) > 1:  # a column with more than 2 GiB of text
        raise UsageError("the table is too large for one batch", hint="smaller batches")
    return batches[0]
