"""Objects for tests of extractors: bytes or a local file that is read by ranges, and counts what was read of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

from frazil.extract import Extractor, Limits, TooMuch


class MemoryItem:
    """An Item over bytes.

    `bytes_read` counts the bytes that were handed out, `reads` lists the ranges. As in the engine, the first bytes are
    kept, and `open()` reads in pieces of at least 8 KiB.
    """

    def __init__(
        self,
        data: bytes,
        key: str = "folder/object",
        *,
        content_type: str | None = None,
        detected_type: str | None = None,
        limits: Limits | None = None,
        size: int | None = None,
    ) -> None:
        self.data = data
        self.bucket = "bucket"
        self.key = key
        self.version_id = ""
        self.etag: str | None = "etag"
        self.size = len(data) if size is None else size
        self.content_type = content_type
        self.limits = limits or Limits()
        self.shared: dict[str, Any] = {}
        self.reads: list[tuple[int, int]] = []
        self._head = b""
        self.detected_type = "application/octet-stream"
        self.detected_type = detected_type or self._detected()

    def _detected(self) -> str:
        from frazil.extract.types.detect import TYPE

        return str(TYPE.look(self)["media_type"])

    def _fetch(self, start: int, length: int) -> bytes:
        return self.data[start : start + length]

    @property
    def bytes_read(self) -> int:
        return sum(length for _, length in self.reads)

    def head(self, count: int = 4096) -> bytes:
        if len(self._head) < count and len(self._head) < self.size:
            self._head += self.read(len(self._head), count - len(self._head))
        return self._head[:count]

    def read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"read({start}, {length})")
        got = self._fetch(start, length)
        self.reads.append((start, len(got)))
        return got

    def open(self) -> BinaryIO:
        return io.BufferedReader(_Ranges(self), 8192)  # type: ignore[return-value]

    def whole(self) -> bytes:
        if self.size > self.limits.max_bytes:
            raise TooMuch(f"{self.size} bytes are more than {self.limits.max_bytes}")
        return self.read(0, self.size)


class FileItem(MemoryItem):
    """An Item over a local file: for those too large to hold, such as sparse ones."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.path = path
        more.setdefault("key", path.name)
        super().__init__(b"", size=path.stat().st_size, **more)

    def _fetch(self, start: int, length: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(length)


class _Ranges(io.RawIOBase):
    def __init__(self, item: MemoryItem) -> None:
        self._item = item
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._item.size}[whence]
        if base + offset < 0:
            raise OSError(22, "seek before the start")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        got = self._item.read(self._at, len(buffer))
        buffer[: len(got)] = got
        self._at += len(got)
        return len(got)


def look(extractor: Extractor, data: bytes, key: str = "folder/object", **more: Any) -> Any:
    """What an extractor says of some bytes; `more` goes to the item."""
    return extractor.look(MemoryItem(data, key, **more))
