"""Caches of what was read of files that never change: manifests, manifest lists, columns. Nothing in them gets stale.

`log.producers` is not built on them: what it drops is part of the log's recoverable state, and has two keys.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Bytes that a server caches: some columns of a few million objects.
SERVER_BYTES = 256 << 20
#: One value may take this share of a `ByteCache`; a larger one would evict all others.
_SHARE = 16


class LruCache(Generic[K, V]):
    """The values that were used last, up to a total size. Safe for any number of threads.

    Args:
        capacity: the size of all values together, at most.
        largest: the size of one value, at most; a larger one is not cached. None: the capacity.
    """

    def __init__(self, capacity: int, *, largest: int | None = None) -> None:
        self._capacity = capacity
        self._largest = capacity if largest is None else largest
        self._lock = threading.Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Returns the total size of the cached values."""
        return self._size

    @property
    def has_room(self) -> bool:
        """Whether another value would evict few others."""
        return 8 * self._size < 7 * self._capacity

    def get(self, key: K) -> V | None:
        """Returns a value, which then counts as the one used last; None if it is not cached."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Caches a value unless it is too large, and evicts those that were not used for longest."""
        if size > self._largest:
            return
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = (value, size)
            self._size += size - before
            while self._size > self._capacity:
                _, (_, evicted) = self._values.popitem(last=False)
                self._size -= evicted

    def get_or_compute(self, key: K, compute: Callable[[], V], size: Callable[[V], int] = lambda _: 1) -> V:
        """Returns a cached value, or computes and caches it. Two threads may both compute it: neither waits."""
        found = self.get(key)
        if found is None:
            found = compute()
            self.put(key, found, size(found))
        return found


class ByteCache(LruCache[Hashable, Any]):
    """Decoded columns and what was computed from them, in bounded memory; sizes are bytes."""

    def __init__(self, max_bytes: int = SERVER_BYTES) -> None:
        super().__init__(max_bytes, largest=max_bytes // _SHARE)


def disabled_cache() -> ByteCache:
    """Returns a cache that holds nothing, for a process that answers one query."""
    return ByteCache(0)
