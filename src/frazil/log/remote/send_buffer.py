"""The send buffer of a producer. Its size is bounded: publishers beyond it are blocked."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from frazil.log.remote.pending_batch import OVERHEAD, Message, PendingBatch, Waiter, size_of

Loop = asyncio.AbstractEventLoop

_MOST_MESSAGES = 100_000


class SendBuffer:
    """Collects single messages in an open batch, which is closed when it is full, has lingered, or is requested.

    Args:
        batch_bytes: size at which a batch is full.
        linger_s: how long a batch that is not full waits for more messages; 0: until nothing is in flight.
        limit: bytes that may be held from `add` until the acknowledgement.
    """

    def __init__(self, batch_bytes: int, linger_s: float, limit: int) -> None:
        self._batch_bytes, self._linger_s, self._limit = batch_bytes, linger_s, limit
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: Loops with blocked coroutines, and what to call when there is room.
        self._loops: dict[Loop, Callable[[Loop], None]] = {}
        self._threads = 0
        self._open: PendingBatch | None = None
        self._closed: deque[PendingBatch] = deque()
        self.held_bytes = 0
        self._added = 0
        self._settled = 0
        self._refusal: BaseException | None = None

    # -- in ----------------------------------------------------------------------------------------------------------

    def add(self, payload: bytes, request_id: int | None, headers: dict[str, str] | None, waiter: Waiter) -> None:
        """Adds a message of a thread; blocks it until there is room."""
        size = size_of(payload, headers)
        with self._lock:
            self._wait_for_room(size)
            self._put((payload, request_id, headers, waiter), size)

    def get_room(self, size: int, loop: Loop, on_room: Callable[[Loop], None]) -> int:
        """Returns how many bytes a loop may collect, at least `size`; 0: `on_room` is called when there is room."""
        with self._lock:
            if not self._has_room(size):
                self._loops[loop] = on_room
                return 0
            return max(size, min(self._batch_bytes, _MOST_MESSAGES * OVERHEAD, self._limit - self.held_bytes))

    def add_open_batch(self, pending: PendingBatch) -> None:
        """Adds the open batch of a loop, unless it was added already."""
        with self._lock:
            if pending.is_enqueued or not pending.messages:  # Ctrl-C may have come before its first message
                return
            pending.is_enqueued = True
            refusal = self._refusal
            if refusal is None:
                self._merge(pending)
        if refusal is not None:
            pending.fail(refusal)

    def _merge(self, pending: PendingBatch) -> None:
        self.held_bytes += pending.size
        self._added += len(pending)
        open_batch = self._open
        if open_batch is None or open_batch.size + pending.size > self._batch_bytes:
            self._close()
            self._open = pending
        else:
            open_batch.messages += pending.messages
            open_batch.size += pending.size
            open_batch.loop = pending.loop if open_batch.loop is pending.loop else None
        self._close_if_full()

    def add_batch(self, pending: PendingBatch) -> None:
        """Adds a publisher's batch; blocks this thread until there is room."""
        with self._lock:
            self._wait_for_room(pending.size)
            self._put_batch(pending)

    def try_add_batch(self, pending: PendingBatch, loop: Loop, on_room: Callable[[Loop], None]) -> bool:
        """Adds a publisher's batch of a loop if there is room; otherwise `on_room` is called later."""
        with self._lock:
            if not self._has_room(pending.size):
                self._loops[loop] = on_room
                return False
            self._put_batch(pending)
            return True

    def _put(self, message: Message, size: int) -> None:
        if self._open is None or self._open.size + size > self._batch_bytes:
            self._close()
            self._open = PendingBatch(time.monotonic())
        self._open.messages.append(message)
        self._open.size += size
        self._open.loop = None
        self.held_bytes += size
        self._added += 1
        self._close_if_full()

    def _close_if_full(self) -> None:
        pending = self._open
        if pending is not None and (pending.size >= self._batch_bytes or len(pending.messages) >= _MOST_MESSAGES):
            self._close()

    def _put_batch(self, pending: PendingBatch) -> None:
        self._close()
        self._closed.append(pending)
        self.held_bytes += pending.size
        self._added += 1

    def _close(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None

    # -- room --------------------------------------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        if self._refusal is not None:
            raise self._refusal
        return self.held_bytes + size <= self._limit or self.held_bytes == 0

    def _wait_for_room(self, size: int) -> None:
        while not self._has_room(size):
            self._threads += 1
            try:
                self._changed.wait()
            finally:
                self._threads -= 1

    def _notify_loops(self) -> None:
        for loop, on_room in self._loops.items():
            with suppress(RuntimeError):  # the loop is closed: there is no waiter any more
                loop.call_soon_threadsafe(on_room, loop)
        self._loops.clear()

    # -- out ---------------------------------------------------------------------------------------------------------

    def take(self, *, idle: bool, max_size: float = math.inf) -> PendingBatch | None:
        """Returns the next batch that is due, if any.

        Args:
            idle: nothing is in flight.
            max_size: a larger batch is left.
        """
        with self._lock:
            if not self._closed and self._is_due(idle):
                self._close()
            return self._closed.popleft() if self._closed and self._closed[0].size <= max_size else None

    def has_due(self) -> bool:
        with self._lock:
            return bool(self._closed) or self._is_due(idle=True)

    def _is_due(self, idle: bool) -> bool:
        if self._open is None:
            return False
        if self._linger_s:
            return time.monotonic() - self._open.created_at >= self._linger_s
        return idle

    def due_in(self) -> float | None:
        """Returns the seconds until the open batch has lingered; None if there is none, or it is due already."""
        with self._lock:
            remaining = 0.0 if self._open is None else self._open.created_at + self._linger_s - time.monotonic()
            return remaining if remaining > 0 else None

    def release(self, pending: PendingBatch) -> None:
        """Frees the room of a batch that was answered."""
        with self._lock:
            self.held_bytes -= pending.size
            self._settled += len(pending)
            if self._threads:
                self._changed.notify_all()
            self._notify_loops()

    # -- all of it ---------------------------------------------------------------------------------------------------

    def close_open(self) -> int:
        """Makes the open batch due. Returns how many messages were added until now."""
        with self._lock:
            self._close()
            return self._added

    def wait_settled(self, count: int) -> None:
        """Blocks until that many messages have been answered."""
        with self._lock:
            while self._settled < count:
                self._threads += 1
                try:
                    self._changed.wait()
                finally:
                    self._threads -= 1

    def take_all(self) -> list[PendingBatch]:
        with self._lock:
            self._close()
            batches = list(self._closed)
            self._closed.clear()
            return batches

    def reject(self, error: BaseException) -> None:
        """Rejects further messages: publishers, blocked ones included, get this error."""
        with self._lock:
            self._refusal = self._refusal or error
            self._close()
            self._changed.notify_all()
            self._notify_loops()
