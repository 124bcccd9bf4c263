"""Wrappers that are object stores themselves: one tries again, one stops asking a server that is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from frazil.errors import ConflictError, NotFoundError, UnavailableError
from frazil.observe.resilience import CircuitBreaker, retry
from frazil.settings.model import NetworkSettings
from frazil.storage.store import Data, ObjectInfo, ObjectStore, chunks_of, sha256_of

T = TypeVar("T")


class Retrying:
    """Repeats what failed for lack of an answer, as far as that is safe.

    A stream goes on where it broke, if the object is still the same. A listing is repeated until its first object is
    there; content from an iterator is sent once. Their single requests are repeated below, by obstore.
    """

    def __init__(self, store: ObjectStore, network: NetworkSettings) -> None:
        self._store = store
        self._network = network
        self.root = store.root
        self.lists_in_key_order = store.lists_in_key_order

    def head(self, key: str) -> ObjectInfo:
        return self._again("head", lambda: self._store.head(key))

    def get(self, key: str) -> bytes:
        return self._again("get", lambda: self._store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._again("get_range", lambda: self._store.get_range(key, start, length))

    def get_stream(self, key: str, *, start: int = 0, etag: str | None = None) -> Iterator[bytes]:
        while True:
            chunks = self._resuming(key, start, etag or self.head(key).etag)
            try:
                first = next(chunks, None)
                break
            except ConflictError:
                if etag is not None:
                    raise
                # replaced between the two requests: read the newer one
        if first is not None:
            yield first
            yield from chunks

    def _resuming(self, key: str, position: int, etag: str) -> Iterator[bytes]:
        """Yields the chunks of one version; resumes a broken stream where it broke."""
        chunks = self._store.get_stream(key, start=position, etag=etag)

        def next_chunk() -> bytes | None:
            nonlocal chunks
            try:
                return next(chunks, None)
            except UnavailableError:  # a generator that raised is at its end
                chunks = self._store.get_stream(key, start=position, etag=etag)
                raise

        while (chunk := self._again("get_stream", next_chunk)) is not None:
            position += len(chunk)
            yield chunk

    def put(self, key: str, data: Data, *, sha256: str | None = None) -> str:
        if isinstance(data, bytes | Path):
            return self._again("put", lambda: self._store.put(key, data, sha256=sha256))
        return self._store.put(key, data, sha256=sha256)

    def put_if_absent(self, key: str, data: bytes | Path, *, sha256: str | None = None) -> str:
        return self._conditional(
            "put_if_absent", key, data, lambda: self._store.put_if_absent(key, data, sha256=sha256)
        )

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return self._conditional("put_if_match", key, data, lambda: self._store.put_if_match(key, data, etag))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        def begin() -> tuple[ObjectInfo | None, Iterator[ObjectInfo]]:
            found = self._store.list(prefix, start_after=start_after)
            return next(found, None), found

        first, rest = self._again("list", begin)
        if first is not None:
            yield first
            yield from rest

    def copy(self, source: str, target: str) -> None:
        self._again("copy", lambda: self._store.copy(source, target))

    def delete(self, *keys: str) -> None:
        self._again("delete", lambda: self._store.delete(*keys))

    def checksum(self, key: str) -> str:
        return sha256_of(self.get_stream(key))

    def _again(self, operation: str, fn: Callable[[], T]) -> T:
        return retry(fn, self._network, operation=f"storage.{operation}")

    def _conditional(self, operation: str, key: str, data: bytes | Path, put: Callable[[], str]) -> str:
        """Retries a conditional put; if a reply was lost, recognises a conflict with its own earlier write."""
        reply_lost = False

        def attempt() -> str:
            nonlocal reply_lost
            try:
                return put()
            except UnavailableError:
                reply_lost = True
                raise

        try:
            return self._again(operation, attempt)
        except ConflictError:
            etag = self._etag_if_ours(key, data) if reply_lost else None
            if etag is None:
                raise
            return etag

    def _etag_if_ours(self, key: str, data: bytes | Path) -> str | None:
        try:
            etag = self.head(key).etag
            return etag if sha256_of(self.get_stream(key, etag=etag)) == sha256_of(chunks_of(data)) else None
        except (NotFoundError, ConflictError):  # written by others meanwhile
            return None


class Breaker:
    """Sends every request through a circuit breaker."""

    def __init__(self, store: ObjectStore, breaker: CircuitBreaker) -> None:
        self._store = store
        self._breaker = breaker
        self.root = store.root
        self.lists_in_key_order = store.lists_in_key_order

    def head(self, key: str) -> ObjectInfo:
        return self._breaker.call(lambda: self._store.head(key))

    def get(self, key: str) -> bytes:
        return self._breaker.call(lambda: self._store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._breaker.call(lambda: self._store.get_range(key, start, length))

    def get_stream(self, key: str, *, start: int = 0, etag: str | None = None) -> Iterator[bytes]:
        return self._each(self._store.get_stream(key, start=start, etag=etag))

    def put(self, key: str, data: Data, *, sha256: str | None = None) -> str:
        return self._breaker.call(lambda: self._store.put(key, data, sha256=sha256))

    def put_if_absent(self, key: str, data: bytes | Path, *, sha256: str | None = None) -> str:
        return self._breaker.call(lambda: self._store.put_if_absent(key, data, sha256=sha256))

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return self._breaker.call(lambda: self._store.put_if_match(key, data, etag))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._each(self._store.list(prefix, start_after=start_after))

    def copy(self, source: str, target: str) -> None:
        self._breaker.call(lambda: self._store.copy(source, target))

    def delete(self, *keys: str) -> None:
        self._breaker.call(lambda: self._store.delete(*keys))

    def checksum(self, key: str) -> str:
        return sha256_of(self.get_stream(key))

    def _each(self, items: Iterator[T]) -> Iterator[T]:
        while (item := self._breaker.call(lambda: next(items, None))) is not None:
            yield item
