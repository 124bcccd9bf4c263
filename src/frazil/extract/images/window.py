"""Reads a file here and there: what was read is kept, what is not asked for is not read."""

from __future__ import annotations

import struct
from typing import Any

from frazil.extract import Item, TooMuch

#: Reads begin and end at multiples of this: a request costs more than some KB do.
_PIECE = 4096


class Broken(Exception):  # noqa: N818 - the file is at fault
    """The file is damaged, or is not what it seems."""


class Window:
    """A part of an object, or all of it, whose offsets start at 0.

    Args:
        item: the object.
        start: where the part starts.
        size: its length; None: to the end.
    """

    def __init__(self, item: Item, start: int = 0, size: int | None = None, pieces: _Pieces | None = None) -> None:
        self.item = item
        self.start = start
        left = max(0, item.size - start)
        self.size = left if size is None else max(0, min(size, left))
        self._pieces = pieces if pieces is not None else _Pieces(item)

    def get(self, at: int, length: int) -> bytes:
        """Bytes from an offset on; fewer where the part ends."""
        if at < 0 or at >= self.size:
            return b""
        return self._pieces.get(self.start + at, min(length, self.size - at))

    def part(self, start: int, size: int | None = None) -> Window:
        """A part of this part."""
        start = max(0, min(start, self.size))
        left = self.size - start
        return Window(self.item, self.start + start, left if size is None else min(size, left), self._pieces)

    def unpack(self, form: str, at: int) -> tuple[Any, ...]:
        """Numbers at an offset.

        Raises:
            Broken: the part ends before.
        """
        size = struct.calcsize(form)
        data = self.get(at, size)
        if len(data) < size:
            ends = self.start + self.size
            if at > self.size or at < 0:
                raise Broken(f"a header is said to be at byte {self.start + at}, and it ends at byte {ends}")
            raise Broken(f"it ends at byte {ends}, within a header")
        return struct.unpack(form, data)


class _Pieces:
    def __init__(self, item: Item) -> None:
        self._item = item
        self._kept: list[tuple[int, bytes]] = [(0, item.head(_PIECE))]
        self._read = 0

    def get(self, start: int, length: int) -> bytes:
        end = start + length
        for at, data in self._kept:
            if at <= start < at + len(data):
                part = data[start - at : end - at]
                return part if len(part) == length else part + self.get(start + len(part), length - len(part))
        low, high = start - start % _PIECE, min(end + -end % _PIECE, self._item.size)
        self._read += high - low
        if self._read > self._item.limits.max_range_bytes:
            raise TooMuch(f"headers of more than {self._item.limits.max_range_bytes} bytes")
        data = self._item.read(low, high - low)
        self._kept.append((low, data))
        return data[start - low : end - low]
