"""Where messages gather until they are sent. Its size is bounded: who would go beyond, waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress

from frazil.log.remote.parcel import Parcel, Waiter, size_of

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
        """Adds a message; waits in this thread for room."""
        size = size_of(payload, headers)
        with self._lock:
            self._wait_for_room(size)
            self._put(payload, request_id, headers, waiter, size)

    def offer(
        self, payload: bytes, request_id: int | None, headers: dict[str, str] | None, waiter: Waiter
    ) -> asyncio.Future[None] | None:
        """Adds a message if there is room; else returns what a coroutine awaits before it tries again."""
        size = size_of(payload, headers)
        with self._lock:
            if self._has_room(size):
                self._put(payload, request_id, headers, waiter, size)
                return None
            return self._await_room(waiter, size)

    def add_whole(self, parcel: Parcel) -> None:
        """Adds a ready batch; waits in this thread for room."""
        with self._lock:
            self._wait_for_room(parcel.size)
            self._put_whole(parcel)

    def offer_whole(self, parcel: Parcel, waiter: Waiter) -> asyncio.Future[None] | None:
        with self._lock:
            if self._has_room(parcel.size):
                self._put_whole(parcel)
                return None
            return self._await_room(waiter, parcel.size)

    def _put(
        self, payload: bytes, request_id: int | None, headers: dict[str, str] | None, waiter: Waiter, size: int
    ) -> None:
        parcel = self._open
        if parcel is None:
            parcel = self._open = Parcel(time.monotonic())
        elif parcel.size + size > self._batch_bytes:
            self._close()
            parcel = self._open = Parcel(time.monotonic())
        parcel.add(payload, request_id, headers, waiter)
        self.held += size
        self._added += 1
        if parcel.size >= self._batch_bytes or len(parcel) >= _MOST_MESSAGES:
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

    def _await_room(self, waiter: Waiter, size: int) -> asyncio.Future[None]:
        assert isinstance(waiter, asyncio.Future)
        room: asyncio.Future[None] = waiter.get_loop().create_future()
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

    def take(self, *, idle: bool) -> Parcel | None:
        """The next parcel that is due. `idle`: nothing is on its way."""
        with self._lock:
            if not self._closed and self._is_due(idle):
                self._close()
            return self._closed.popleft() if self._closed else None

    def has_due(self) -> bool:
        with self._lock:
            return bool(self._closed) or self._is_due(idle=True)

    def _is_due(self, idle: bool) -> bool:
        if self._open is None:
            return False
        return time.monotonic() - self._open.born >= self._linger_s if self._linger_s else idle

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
