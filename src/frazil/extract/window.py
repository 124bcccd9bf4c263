"""Reads parts of an object by offset, in cached blocks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from frazil.extract import Item, TooMuch

#: Bytes of a block. A request costs more than reading some KB.
BLOCK: Final = 4096
#: Boxes, chunks, elements or pages in one file.
MAX_PARTS: Final = 20_000


class Damaged(Exception):  # noqa: N818 - the status of a file, shown as "Damaged: the file ends …"
    """The file is cut off, or breaks the rules of its format."""


class Window:
    """An object, or a part of it, whose offsets start at 0. All windows of an object share its blocks.

    Args:
        item: the object.
        start: where the part starts.
        size: its length; None: to the end.
        block: bytes of one read.
    """

    def __init__(
        self, item: Item, start: int = 0, size: int | None = None, *, block: int = BLOCK, blocks: _Blocks | None = None
    ) -> None:
        self.item = item
        self.start = start
        left = max(0, item.size - start)
        self.size = left if size is None else max(0, min(size, left))
        self._blocks = blocks if blocks is not None else _Blocks(item, block)

    def get(self, at: int, length: int) -> bytes:
        """Returns bytes at an offset; fewer at the end of the part."""
        if at < 0 or at >= self.size:
            return b""
        return self._blocks.get(self.start + at, min(length, self.size - at))

    def read(self, at: int, length: int) -> bytes:
        """Returns exactly these bytes.

        Raises:
            Damaged: the file ends before.
            TooMuch: more would be read than the limits allow.
        """
        if at < 0 or length < 0 or at + length > self.size:
            raise Damaged(f"the file ends at {self.start + self.size}, before what should be at {self.start + at}")
        data = self._blocks.get(self.start + at, length)
        if len(data) < length:
            raise Damaged(f"the object has less than its {self.item.size} bytes")
        return data

    def some(self, at: int, length: int) -> bytes:
        """Returns these bytes, or fewer at the end.

        Raises:
            Damaged: the file ends before `at`.
        """
        return self.read(at, max(0, min(length, self.size - at)))

    def unpack(self, form: str, at: int) -> tuple[Any, ...]:
        """Returns the numbers at an offset, in a format of `struct`.

        Raises:
            Damaged: the part ends before.
        """
        size = struct.calcsize(form)
        data = self.get(at, size)
        if len(data) < size:
            ends = self.start + self.size
            if at > self.size or at < 0:
                raise Damaged(f"a header should be at byte {self.start + at}, but the data ends at byte {ends}")
            raise Damaged(f"the data ends at byte {ends}, within a header")
        return struct.unpack(form, data)

    def part(self, start: int, size: int | None = None) -> Window:
        """Returns a window on a part of this one."""
        start = max(0, min(start, self.size))
        left = self.size - start
        return Window(self.item, self.start + start, left if size is None else min(size, left), blocks=self._blocks)

    def step(self) -> None:
        """Counts a box, chunk or page, so that endless ones are noticed.

        Raises:
            TooMuch: more parts than a sound file has.
        """
        self._blocks.steps += 1
        if self._blocks.steps > MAX_PARTS:
            raise TooMuch(f"more than {MAX_PARTS:,} parts")

    def boxes(self, at: int = 0, end: int | None = None) -> Iterator[tuple[bytes, int, int]]:
        """Yields the boxes of the ISO base media file format (MP4, HEIF, JPEG 2000) as (name, start, end of contents).

        Ends at the first box that is cut off or impossible. The last box may end behind the file.
        """
        end = self.size if end is None else end
        while at + 8 <= min(end, self.size):
            self.step()
            size, name = self.unpack(">I4s", at)
            start = at + 8
            if size == 1 and len(long := self.get(start, 8)) == 8:
                size, start = int.from_bytes(long, "big"), start + 8
            elif size == 0:
                size = end - at
            if size < start - at:
                return
            yield name, start, at + size
            at += size


class _Blocks:
    def __init__(self, item: Item, size: int) -> None:
        self.steps = 0
        self._item, self._size = item, size
        self._held: dict[int, bytes] = {0: item.head(size)}

    def get(self, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        size = self._size
        first, last = start // size, (start + length - 1) // size
        missing = [n for n in range(first, last + 1) if n not in self._held]
        if missing:
            self._fetch(missing[0], missing[-1])
        if first == last:
            return self._held[first][start - first * size :][:length]
        return b"".join(self._held[n] for n in range(first, last + 1))[start - first * size :][:length]

    def _fetch(self, first: int, last: int) -> None:
        size, most = self._size, self._item.limits.max_range_bytes
        if (len(self._held) + last - first) * size >= most:
            raise TooMuch(f"more than {most:,} bytes would have to be read")
        data = self._item.read(first * size, min((last - first + 1) * size, self._item.size - first * size))
        for n in range(first, last + 1):
            self._held[n] = data[(n - first) * size :][:size]
