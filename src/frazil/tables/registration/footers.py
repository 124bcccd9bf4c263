"""Reads the footers of Parquet files, and says of a file without one what it may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from frazil.errors import first_line

#: Reads a part of a file: its path, where to begin, and how many bytes; fewer where the file ends.
ReadRange = Callable[[str, int, int], bytes]

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
#: Read in one go from the end. Most footers are smaller.
_TAIL = 64 * 1024
_SMALLEST = 12


@dataclass(frozen=True)
class UnusableFile:
    """A file that cannot be registered now.

    Attributes:
        path: where it lies.
        kind: `waiting` for the rest of it; `foreign`: not Parquet; `damaged`; `empty`: without rows.
        reason: in a few words.
    """

    path: str
    kind: Literal["waiting", "foreign", "damaged", "empty"]
    reason: str


def read_footer(read: ReadRange, path: str, size: int) -> pq.FileMetaData | UnusableFile:
    """Reads the footer of a file of a known size, in one request where it is not unusually large."""
    if size < _SMALLEST:
        return _without_footer(read(path, 0, 4), path)
    length = min(size, _TAIL)
    tail = read(path, size - length, length)
    if len(tail) < length:
        return UnusableFile(path, "waiting", "it has become smaller since it was listed")
    if tail[-4:] == _ENCRYPTED:
        return UnusableFile(path, "damaged", "its footer is encrypted")
    if tail[-4:] != _MAGIC:
        return _without_footer(tail[:4] if length == size else read(path, 0, 4), path)
    needed = int.from_bytes(tail[-8:-4], "little") + 8
    if needed > size - 4 or (length == size and tail[:4] != _MAGIC):
        return UnusableFile(path, "damaged", "its footer does not fit its size")
    if needed > length:
        tail = read(path, size - needed, needed)
    try:
        # Parquet looks for the footer at the end, so that the end is enough.
        found: pq.FileMetaData = pq.read_metadata(pa.BufferReader(tail[-needed:]))
    except (pa.ArrowException, OSError) as error:
        return UnusableFile(path, "damaged", f"its footer cannot be read: {first_line(error)}")
    if found.num_rows == 0:
        return UnusableFile(path, "empty", "it has no rows")
    return found


def _without_footer(head: bytes, path: str) -> UnusableFile:
    # Some tools give a file its whole size first, and write zeros.
    if _MAGIC.startswith(head[:4]) or not any(head):
        return UnusableFile(path, "waiting", "it has no Parquet footer yet")
    return UnusableFile(path, "foreign", "it is not Parquet")
