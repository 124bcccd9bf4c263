"""Where messages gather until they are sent. Its size is bounded: who would go beyond, waits."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from contextlib import suppress

from frazil.log.access import Ack
from frazil.log.remote.parcel import OVERHEAD, Message, Parcel, Waiter, size_of

_MOST_MESSAGES = 100_000


class Outbox:
    """Single messages gather in an open parcel. It is closed when it is full, when it has lingered, or when asked.

    Args:
        batch_bytes: bytes at which a parcel is full.
        linger_s: how long a parcel that is not full waits for more; 0: until nothing is on its way.
        limit: bytes that may be held, from `add` until the acknowledgement.
    """

    def __init__(self, batch_bytes: int, linger_s: float, limit: int) -> None:
        self._batch_bytes, self._linger_s, self._limit = batch_bytes, linger_s, limit
        #: Below this size a parcel is not full, by bytes or by messages.
        self._far = min(batch_bytes, _MOST_MESSAGES * OVERHEAD)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._coroutines: deque[tuple[asyncio.Future[None], int]] = deque()
        self._threads = 0
        self._open: Parcel | None = None
        self._closed: deque[Parcel] = deque()
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
            if self._open is not None:
                self._open.gathers = False

    def offer(
        self,
        payload: bytes,
        request_id: int | None,
        headers: dict[str, str] | None,
        waiter: asyncio.Future[Ack],
        loop: asyncio.AbstractEventLoop,
    ) -> asyncio.Future[None] | None:
        """Adds a message of a coroutine if there is room; else returns what it awaits before it tries again.

        Its parcel goes when the loop has had its turn (`gathered`), so that others of this turn go along.
        """
        size = size_of(payload, headers) if headers else len(payload) + OVERHEAD
        message = (payload, request_id, headers, waiter)
        with self._lock:
            parcel, held = self._open, self.held + size
            if parcel is not None and parcel.loop is loop and held < self._limit and parcel.size + size < self._far:
                parcel.messages.append(message)  # most come here: no call more than needed
                parcel.size += size
                self.held = held
                self._added += 1
            elif self._has_room(size):
                self._put(message, size, loop)
            else:
                return self._await_room(loop, size)
        return None

    def add_whole(self, parcel: Parcel) -> None:
        """Adds a ready batch; waits in this thread for room."""
        with self._lock:
            self._wait_for_room(parcel.size)
            self._put_whole(parcel)

    def offer_whole(self, parcel: Parcel, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None] | None:
        with self._lock:
            if self._has_room(parcel.size):
                self._put_whole(parcel)
                return None
            return self._await_room(loop, parcel.size)

    def _put(self, message: Message, size: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        parcel = self._open
        if parcel is None or parcel.size + size > self._batch_bytes:
            self._close()
            parcel = self._open = Parcel(time.monotonic(), loop)
            parcel.gathers = loop is not None
        elif parcel.loop is not loop:
            parcel.loop = None
        parcel.messages.append(message)
        parcel.size += size
        self.held += size
        self._added += 1
        if parcel.size >= self._batch_bytes or len(parcel.messages) >= _MOST_MESSAGES:
            self._close()

    def _put_whole(self, parcel: Parcel) -> None:
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

    def _await_room(self, loop: asyncio.AbstractEventLoop, size: int) -> asyncio.Future[None]:
        room: asyncio.Future[None] = loop.create_future()
        self._coroutines.append((room, size))
        return room

    def _fitting(self) -> list[asyncio.Future[None]]:
        """The coroutines for which there is room now; all of them when nothing is held."""
        left = self._limit - self.held if self.held else float("inf")
        fitting = []
        while self._coroutines and left > 0:
            room, size = self._coroutines.popleft()
            left -= size
            fitting.append(room)
        return fitting

    # -- out ---------------------------------------------------------------------------------------------------------

    def gathered(self) -> None:
        """A loop has had its turn: what its coroutines brought may go."""
        with self._lock:
            if self._open is not None:
                self._open.gathers = False

    def take(self, *, idle: bool, most: float = math.inf) -> Parcel | None:
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
        return idle and not self._open.gathers

    def due_in(self) -> float | None:
        """Seconds until the open parcel has lingered; None where there is none, or where it is due already."""
        with self._lock:
            left = 0.0 if self._open is None else self._open.born + self._linger_s - time.monotonic()
            return left if left > 0 else None

    def settled(self, parcel: Parcel) -> None:
        """A parcel has been answered, for good or ill: there is room again."""
        with self._lock:
            self.held -= parcel.size
            self._settled += len(parcel)
            if self._threads:
                self._changed.notify_all()
            fitting = self._fitting() if self._coroutines else []
        _open_up(fitting)

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

    def take_all(self) -> list[Parcel]:
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
            waiting = [room for room, _ in self._coroutines]
            self._coroutines.clear()
        _open_up(waiting)


def _open_up(rooms: list[asyncio.Future[None]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for room in rooms:
        by_loop.setdefault(room.get_loop(), []).append(room)
    for loop, its in by_loop.items():
        with suppress(RuntimeError):  # it is closed: nobody waits any more
            loop.call_soon_threadsafe(_tell_all, its)


def _tell_all(rooms: list[asyncio.Future[None]]) -> None:
    for room in rooms:
        if not room.done():  # else cancelled by its owner
            room.set_result(None)
