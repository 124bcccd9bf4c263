"""The object that extractors read: by ranges, in cached blocks, within limits."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from frazil.extract import Limits, Reads, TooMuch
from frazil.extract.engine.source import ObjectRef, Source

UNKNOWN_TYPE: Final = "application/octet-stream"
#: Size of the first block, which holds most headers. Blocks start at its multiples; sequential reads make them grow.
BLOCK: Final = 16 * 1024
_LARGEST: Final = 4 * 1024 * 1024
#: Maximum bytes of cached blocks; the oldest are dropped first.
_MAX_CACHED: Final = 64 * 1024 * 1024


class ObjectItem:
    """An `Item` over a source.

    Args:
        wanted: the object to read.
        content_type: the type it was uploaded with.
        open_source: opens the source; called at the first read.
        limits: the limits for this object.
        reading: called before (True) and after (False) each request to the storage.
    """

    def __init__(
        self,
        wanted: ObjectRef,
        content_type: str | None,
        open_source: Callable[[], Source],
        limits: Limits,
        reading: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.bucket, self.key, self.version_id, self.etag = wanted.bucket, wanted.key, wanted.version_id, wanted.etag
        self.content_type, self.limits = content_type, limits
        self.detected_type = UNKNOWN_TYPE
        self.shared: dict[str, Any] = {}
        self.bytes_read = 0
        self._size = wanted.size
        self._open, self._reading = open_source, reading
        self._source: Source | None = None
        self._failure: BaseException | None = None
        self._starts: list[int] = []
        self._blocks: list[bytes] = []
        self._cached_bytes = 0
        self._next = BLOCK
        self._limit = self._wholeowed = limits.max_range_bytes
        self._whole = False

    # -- what extractors use -----------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        if self._size is None:
            self._size = self._request(lambda source: source.total())
        return self._size

    def head(self, count: int = 4096) -> bytes:
        return self.read(0, count)

    def read(self, start: int, length: int) -> bytes:
        end = min(start + max(length, 0), self.size)
        start = max(start, 0)
        parts = []
        while start < end:
            block, at = self._block(start, end)
            part = block[start - at : end - at]
            if not part:
                break  # shorter than its listed size
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def open(self) -> BinaryIO:
        return io.BufferedReader(_File(self), 8192)

    def whole(self) -> bytes:
        if self.size > self.limits.max_bytes:
            raise TooMuch(f"the object has {self.size:,} bytes; at most {self.limits.max_bytes:,} are read")
        self._whole = True
        return self.read(0, self.size)

    # -- what the engine uses ----------------------------------------------------------------------------------------

    def allow(self, reads: Reads) -> None:
        """Resets the read limit to that of the next extractor."""
        self._limit = self.limits.max_bytes if reads == "whole" else self.limits.max_range_bytes
        self._wholeowed = self._limit

    def expect_whole(self) -> None:
        """Prepares for a read of the whole object, with as few requests as possible."""
        self._whole = self._size is not None and self._size <= self.limits.max_bytes

    def finish(self) -> None:
        """Raises ObjectChanged or ObjectGone if the content did not stay the same."""
        if self._source is not None and self._failure is None:
            self._source.check()

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _block(self, start: int, end: int) -> tuple[bytes, int]:
        """Returns the block that holds the byte at `start`, and its offset."""
        index = bisect_right(self._starts, start) - 1
        if index >= 0:
            at, block = self._starts[index], self._blocks[index]
            if start < at + len(block):
                return block, at
        low, high = self._span(index, start, end)
        data = self._fetch(low, high)
        self._cache(low, data)
        return data, low

    def _span(self, before: int, start: int, end: int) -> tuple[int, int]:
        """Returns the range to request: from the previous block or a boundary, at most to the next cached block."""
        reached = self._starts[before] + len(self._blocks[before]) if before >= 0 else 0
        following = self._starts[before + 1] if before + 1 < len(self._starts) else self.size
        low = max(reached, start - start % BLOCK)
        if self._whole:
            return low, min(following, max(end, low + _LARGEST))
        self._next = min(2 * self._next, _LARGEST) if low == reached > 0 else BLOCK
        high = max(end, low + self._next)
        return low, min(high + (-high % BLOCK if end < following else 0), following)

    def _fetch(self, low: int, high: int) -> bytes:
        if high - low > self._wholeowed:
            raise TooMuch(f"more than {self._limit:,} bytes of it would have to be read")
        data: bytes = self._request(lambda source: source.fetch(low, high))
        self._wholeowed -= len(data)
        self.bytes_read += len(data)
        return data

    def _request(self, ask: Callable[[Source], Any]) -> Any:
        if self._failure is not None:
            raise self._failure
        self._reading(True)
        try:
            if self._source is None:
                self._source = self._open()
            return ask(self._source)
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._reading(False)

    def _cache(self, at: int, data: bytes) -> None:
        """Caches a block. The first one always stays, because every extractor starts there."""
        while self._cached_bytes + len(data) > _MAX_CACHED and len(self._starts) > 1:
            self._cached_bytes -= len(self._blocks.pop(1))
            del self._starts[1]
        index = bisect_right(self._starts, at)
        self._starts.insert(index, at)
        self._blocks.insert(index, data)
        self._cached_bytes += len(data)


class _File(io.RawIOBase):
    """The object as a raw file."""

    def __init__(self, item: ObjectItem) -> None:
        self._item, self._at = item, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._item.size}[whence]
        if base + offset < 0:
            raise OSError(22, "before the first byte")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._item.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
