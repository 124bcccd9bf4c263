"""What was decoded once and may be wanted again, in bounded memory. Data files never change, so nothing gets stale."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

#: Bytes that a server keeps: some columns of a few million objects.
SERVER_BYTES = 256 << 20
#: One thing may take this share of it; a larger one would drive out all others.
_SHARE = 16


class ByteCache:
    """The things that were asked for last, up to so many bytes. Any number of threads may ask."""

    def __init__(self, max_bytes: int = SERVER_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._things: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    @property
    def size(self) -> int:
        """Bytes that are kept now."""
        return self._bytes

    @property
    def has_room(self) -> bool:
        """Whether what is kept now does not drive out much else."""
        return 8 * self._bytes < 7 * self._max_bytes

    def get(self, key: Hashable) -> Any:
        """A thing, or None."""
        with self._lock:
            found = self._things.get(key)
            if found is None:
                return None
            self._things.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, thing: Any, size: int) -> None:
        """Keeps a thing if it is small enough, and lets go of those that nobody has asked for longest."""
        if size * _SHARE > self._max_bytes:
            return
        with self._lock:
            _, before = self._things.pop(key, (None, 0))
            self._things[key] = (thing, size)
            self._bytes += size - before
            while self._bytes > self._max_bytes:
                _, (_, gone) = self._things.popitem(last=False)
                self._bytes -= gone

    def get_or_compute(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """A thing that is kept, or made now. Two threads may both make it: none waits for the other."""
        found: T | None = self.get(key)
        if found is None:
            found = make()
            self.put(key, found, size(found))
        return found


def disabled_cache() -> ByteCache:
    """For one question: what it needs twice it holds itself."""
    return ByteCache(0)
