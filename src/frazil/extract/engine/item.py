"""An object as extractors see it: read by ranges, in blocks that are kept, and no more than the limits allow."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from frazil.extract import Limits, Reads, TooMuch
from frazil.extract.engine.source import ObjectRef, Source

UNKNOWN_TYPE: Final = "application/octet-stream"
#: The first block: most headers lie in it. Blocks begin at its multiples, and grow while reading goes on behind them.
BLOCK: Final = 16 * 1024
_LARGEST: Final = 4 * 1024 * 1024
#: Blocks beyond this are not kept together; those that were read first go first.
_KEPT: Final = 64 * 1024 * 1024


class ObjectItem:
    """An `Item`.

    Args:
        wanted: what is read.
        content_type: as it was uploaded.
        open_source: gives the bytes; is called at the first read.
        limits: how much it may take.
        reading: is told before (True) and after (False) the storage is asked.
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
        self._broken: BaseException | None = None
        self._starts: list[int] = []
        self._blocks: list[bytes] = []
        self._held = 0
        self._next = BLOCK
        self._limit = self._allowed = limits.max_range_bytes
        self._all = False

    # -- what extractors use -----------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        if self._size is None:
            self._size = self._asking(lambda source: source.total())
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
                break  # it is shorter than it was said to be
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def open(self) -> BinaryIO:
        return io.BufferedReader(_File(self), 8192)

    def whole(self) -> bytes:
        if self.size > self.limits.max_bytes:
            raise TooMuch(f"it has {self.size:,} bytes; at most {self.limits.max_bytes:,} are read")
        self._all = True
        return self.read(0, self.size)

    # -- what the engine uses ----------------------------------------------------------------------------------------

    def allow(self, reads: Reads) -> None:
        """The next extractor may read as much as its kind may."""
        self._limit = self.limits.max_bytes if reads == "whole" else self.limits.max_range_bytes
        self._allowed = self._limit

    def expect_whole(self) -> None:
        """Somebody will read all of it: then it comes with as few requests as possible."""
        self._all = self._size is not None and self._size <= self.limits.max_bytes

    def finish(self) -> None:
        """Raises Changed or Gone where the content was not the same to the end."""
        if self._source is not None and self._broken is None:
            self._source.check()

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _block(self, start: int, end: int) -> tuple[bytes, int]:
        """A block that holds the byte at `start`, and where it begins."""
        index = bisect_right(self._starts, start) - 1
        if index >= 0:
            at, block = self._starts[index], self._blocks[index]
            if start < at + len(block):
                return block, at
        low, high = self._span(index, start, end)
        data = self._fetch(low, high)
        self._keep(low, data)
        return data, low

    def _span(self, before: int, start: int, end: int) -> tuple[int, int]:
        """What to ask for: from the end of the block before, or a multiple of a block, to the next block or so."""
        reached = self._starts[before] + len(self._blocks[before]) if before >= 0 else 0
        following = self._starts[before + 1] if before + 1 < len(self._starts) else self.size
        low = max(reached, start - start % BLOCK)
        if self._all:
            return low, min(following, max(end, low + _LARGEST))
        self._next = min(2 * self._next, _LARGEST) if low == reached > 0 else BLOCK
        high = max(end, low + self._next)
        return low, min(high + (-high % BLOCK if end < following else 0), following)

    def _fetch(self, low: int, high: int) -> bytes:
        if high - low > self._allowed:
            raise TooMuch(f"more than {self._limit:,} bytes of it would have to be read")
        data: bytes = self._asking(lambda source: source.fetch(low, high))
        self._allowed -= len(data)
        self.bytes_read += len(data)
        return data

    def _asking(self, ask: Callable[[Source], Any]) -> Any:
        if self._broken is not None:
            raise self._broken
        self._reading(True)
        try:
            if self._source is None:
                self._source = self._open()
            return ask(self._source)
        except Exception as error:
            self._broken = error
            raise
        finally:
            self._reading(False)

    def _keep(self, at: int, data: bytes) -> None:
        """The first block always stays: everybody begins there."""
        while self._held + len(data) > _KEPT and len(self._starts) > 1:
            self._held -= len(self._blocks.pop(1))
            del self._starts[1]
        index = bisect_right(self._starts, at)
        self._starts.insert(index, at)
        self._blocks.insert(index, data)
        self._held += len(data)


class _File(io.RawIOBase):
    """The object as a file."""

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
