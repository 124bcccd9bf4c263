"""Memory that was used before is used again: new memory of the system costs several times what the reading does."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

import pyarrow as pa

_MIB = 1024 * 1024
_BLOCK = 8 * _MIB
#: Blocks that are kept while nobody uses them.
_MOST = 12
#: `mallopt`: from which size on a piece comes from the system, and how much may lie free before it gets that back.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_KEPT, _KEPT = 32 * _MIB, 128 * _MIB

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


@cache
def keep_freed_memory() -> None:
    """Lets this process keep what it frees for what it needs next: for one that does the same again and again.

    glibc gives larger pieces back at once, and the system clears and maps every page of them anew. Other libraries do
    as they like.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        library.mallopt(_TRIM_THRESHOLD, _KEPT)
