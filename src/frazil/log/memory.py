"""Reuses read buffers: faulting in fresh pages costs several times the read itself."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

import pyarrow as pa

_MIB = 1024 * 1024
_BLOCK = 8 * _MIB
#: Unused blocks that are kept.
_MAX_FREE = 12
#: Options of `mallopt`: size from which memory is mapped, and free memory from which it is returned.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_MMAP_BYTES, _TRIM_BYTES = 32 * _MIB, 128 * _MIB

_free: list[pa.Buffer] = []


class _LentBlock:
    """Lives as long as any view of a block; afterwards the block is reused."""

    __slots__ = ("_block",)

    def __init__(self, block: pa.Buffer) -> None:
        self._block = block

    def __del__(self, free: list[pa.Buffer] = _free, limit: int = _MAX_FREE) -> None:  # globals are gone at exit
        if len(free) < limit:
            free.append(self._block)


def read_at(fd: int, position: int, size: int) -> pa.Buffer:
    """Reads up to `size` bytes of a file at a position."""
    if size > _BLOCK:
        return pa.py_buffer(os.pread(fd, size, position))
    try:
        block = _free.pop()
    except IndexError:
        block = pa.py_buffer(bytearray(_BLOCK))
    lent = _LentBlock(block)
    read = os.preadv(fd, [memoryview(block)[:size]], position)
    return pa.foreign_buffer(block.address, read, base=lent)


@cache
def keep_freed_memory() -> None:
    """Makes this process keep freed memory for its next allocations, which pays off for repetitive work.

    By default glibc returns larger allocations at once, and the system clears and maps their pages anew. Has no effect
    with other libraries.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
