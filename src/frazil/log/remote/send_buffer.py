"""Where messages gather until they are sent. Its size is bounded: who would go beyond, waits."""

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
    """Single messages gather in an open parcel. It is closed when it is full, when it has lingered, or when asked.

    Args:
        batch_bytes: bytes at which a parcel is full.
        linger_s: how long a parcel that is not full waits for more; 0: until nothing is on its way.
        limit: bytes that may be held, from `add` until the acknowledgement.
    """

    def __init__(self, batch_bytes: int, linger_s: float, limit: int) -> None:
        self._batch_bytes, self._linger_s, self._limit = batch_bytes, linger_s, limit
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: Loops whose coroutines wait for room.
        self._loops: dict[Loop, Callable[[Loop], None]] = {}
        self._threads = 0
        self._open: PendingBatch | None = None
        self._closed: deque[PendingBatch] = deque()
        self.held = 0
        self._added = 0
        self._settled = 0
        self._refusal: BaseException | None = None

    # -- in ----------------------------------------------------------------------------------------------------------

    def add(self, payload: bytes, request_id: int | None, headers: dict[str, str] | None, waiter: Waiter) -> None:
        """Adds a message of a thread; waits in it for room."""
        size = size_of(payload, headers)
        with self._lock:
            self._wait_for_room(size)
            self._put((payload, request_id, headers, waiter), size)

    def room_for(self, size: int, loop: Loop, let_in: Callable[[Loop], None]) -> int:
        """How many bytes a loop may gather, at least this many; 0: it is let in when that may have changed."""
        with self._lock:
            if not self._has_room(size):
                self._loops[loop] = let_in
                return 0
            return max(size, min(self._batch_bytes, _MOST_MESSAGES * OVERHEAD, self._limit - self.held))

    def add_gathered(self, parcel: PendingBatch) -> None:
        """Adds what the coroutines of a loop have gathered in a turn, unless it is here already."""
        with self._lock:
            if parcel.handed_over or not parcel.messages:  # Ctrl-C may have come before its first message
                return
            parcel.handed_over = True
            refusal = self._refusal
            if refusal is None:
                self._join(parcel)
        if refusal is not None:
            parcel.fail(refusal)

    def _join(self, parcel: PendingBatch) -> None:
        self.held += parcel.size
        self._added += len(parcel)
        before = self._open
        if before is None or before.size + parcel.size > self._batch_bytes:
            self._close()
            self._open = parcel
        else:
            before.messages += parcel.messages
            before.size += parcel.size
            before.loop = parcel.loop if before.loop is parcel.loop else None
        self._close_if_full()

    def add_whole(self, parcel: PendingBatch) -> None:
        """Adds a ready batch; waits in this thread for room."""
        with self._lock:
            self._wait_for_room(parcel.size)
            self._put_whole(parcel)

    def offer_whole(self, parcel: PendingBatch, loop: Loop, let_in: Callable[[Loop], None]) -> bool:
        """Adds a ready batch of a loop if there is room; else the loop is let in when that may have changed."""
        with self._lock:
            if not self._has_room(parcel.size):
                self._loops[loop] = let_in
                return False
            self._put_whole(parcel)
            return True

    def _put(self, message: Message, size: int) -> None:
        if self._open is None or self._open.size + size > self._batch_bytes:
            self._close()
            self._open = PendingBatch(time.monotonic())
        self._open.messages.append(message)
        self._open.size += size
        self._open.loop = None
        self.held += size
        self._added += 1
        self._close_if_full()

    def _close_if_full(self) -> None:
        parcel = self._open
        if parcel is not None and (parcel.size >= self._batch_bytes or len(parcel.messages) >= _MOST_MESSAGES):
            self._close()

    def _put_whole(self, parcel: PendingBatch) -> None:
        self._close()
        self._closed.append(parcel)
        self.held += parcel.size
        self._added += 1

    def _close(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None

    # -- room --------------------------------------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        if self._refusal is not None:
            raise self._refusal
        return self.held + size <= self._limit or self.held == 0

    def _wait_for_room(self, size: int) -> None:
        while not self._has_room(size):
            self._threads += 1
            try:
                self._changed.wait()
            finally:
                self._threads -= 1

    def _let_loops_in(self) -> None:
        for loop, let_in in self._loops.items():
            with suppress(RuntimeError):  # it is closed: nobody waits any more
                loop.call_soon_threadsafe(let_in, loop)
        self._loops.clear()

    # -- out ---------------------------------------------------------------------------------------------------------

    def take(self, *, idle: bool, most: float = math.inf) -> PendingBatch | None:
        """The next parcel that is due.

        Args:
            idle: nothing is on its way.
            most: a larger one stays.
        """
        with self._lock:
            if not self._closed and self._is_due(idle):
                self._close()
            return self._closed.popleft() if self._closed and self._closed[0].size <= most else None

    def has_due(self) -> bool:
        with self._lock:
            return bool(self._closed) or self._is_due(idle=True)

    def _is_due(self, idle: bool) -> bool:
        if self._open is None:
            return False
        if self._linger_s:
            return time.monotonic() - self._open.born >= self._linger_s
        return idle

    def due_in(self) -> float | None:
        """Seconds until the open parcel has lingered; None where there is none, or where it is due already."""
        with self._lock:
            left = 0.0 if self._open is None else self._open.born + self._linger_s - time.monotonic()
            return left if left > 0 else None

    def settled(self, parcel: PendingBatch) -> None:
        """A parcel has been answered, for good or ill: there is room again."""
        with self._lock:
            self.held -= parcel.size
            self._settled += len(parcel)
            if self._threads:
                self._changed.notify_all()
            self._let_loops_in()

    # -- all of it ---------------------------------------------------------------------------------------------------

    def close_open(self) -> int:
        """Makes what gathers due. Returns how many messages were added until now."""
        with self._lock:
            self._close()
            return self._added

    def wait_settled(self, count: int) -> None:
        """Waits until so many messages have been answered."""
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
            parcels = list(self._closed)
            self._closed.clear()
            return parcels

    def refuse(self, error: BaseException) -> None:
        """Takes no more messages: who adds or waits gets this error."""
        with self._lock:
            self._refusal = self._refusal or error
            self._close()
            self._changed.notify_all()
            self._let_loops_in()
