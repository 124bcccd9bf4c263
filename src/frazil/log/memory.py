"""Reads into memory that was read into before: new memory of the system costs several times what the reading does."""

from __future__ import annotations

import os

import pyarrow as pa

_BLOCK = 8 * 1024 * 1024
#: Blocks that are kept while nobody uses them.
_MOST = 12

_free: list[pa.Buffer] = []


class _Lent:
    """Lives as long as anything that looks at a block; then the block may be used again."""

    __slots__ = ("_block",)

    def __init__(self, block: pa.Buffer) -> None:
        self._block = block

    def __del__(self, free: list[pa.Buffer] = _free, most: int = _MOST) -> None:  # names are gone when Python ends
        if len(free) < most:
            free.append(self._block)


def read_at(fd: int, position: int, size: int) -> pa.Buffer:
    """As many bytes of a file as it has there, at most `size`."""
    if size > _BLOCK:
        return pa.py_buffer(os.pread(fd, size, position))
    try:
        block = _free.pop()
    except IndexError:
        block = pa.py_buffer(bytearray(_BLOCK))
    lent = _Lent(block)
    read = os.preadv(fd, [memoryview(block)[:size]], position)
    return pa.foreign_buffer(block.address, read, base=lent)
