"""Paths in the footers of Puffin files: the data file that each deletion vector belongs to."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from frazil.errors import IntegrityError, UnsupportedError

if TYPE_CHECKING:
    from frazil.tables.relocation.prefixes import PrefixMap

_MAGIC = b"PFA1"
_REFERENCED = "referenced-data-file"
#: Behind the payload: its size, the flags and the magic number.
_TAIL = struct.Struct("<iI4s")
_COMPRESSED = 1


def relocate_puffin(data: bytes, prefixes: PrefixMap) -> bytes:
    """Returns a Puffin file whose blobs refer to relocated data files.

    Blobs keep their bytes and offsets. A file that holds no path, such as one with statistics, is returned unchanged. A
    compressed footer with paths becomes a plain one, because Iceberg's Java library cannot read compressed footers.

    Raises:
        IntegrityError: this is not a whole Puffin file.
        UnmappedPathError: a path lies below none of the prefixes.
        UnsupportedError: the footer has flags that Frazil does not know.
    """
    start, payload = _find_footer(data)
    try:
        footer = json.loads(payload)
        blobs = [blob for blob in footer["blobs"] if _REFERENCED in (blob.get("properties") or {})]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged() from error
    if not blobs:
        return data
    for blob in blobs:
        blob["properties"][_REFERENCED] = prefixes.map(blob["properties"][_REFERENCED])
    return data[:start] + _encode_footer(footer)


def _find_footer(data: bytes) -> tuple[int, bytes]:
    """Returns where the footer begins, and its payload, decompressed."""
    end = len(data) - _TAIL.size
    if end < 2 * len(_MAGIC) or not data.startswith(_MAGIC):
        raise _damaged()
    size, flags, magic = _TAIL.unpack_from(data, end)
    start = end - size - len(_MAGIC)
    if magic != _MAGIC or size < 0 or start < len(_MAGIC) or data[start : start + len(_MAGIC)] != _MAGIC:
        raise _damaged()
    if flags & ~_COMPRESSED:
        raise UnsupportedError(
            "cannot rewrite a Puffin file", cause=f"its footer has unknown flags: {flags:#x}", hint="update Frazil"
        )
    payload = data[end - size : end]
    return start, _decompress(payload) if flags & _COMPRESSED else payload


def _decompress(payload: bytes) -> bytes:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(payload), "lz4") as stream:
            return bytes(stream.read())
    except (pa.ArrowException, OSError) as error:
        raise _damaged() from error


def _encode_footer(footer: dict[str, Any]) -> bytes:
    payload = json.dumps(footer, ensure_ascii=False, separators=(",", ":")).encode()
    return _MAGIC + payload + _TAIL.pack(len(payload), 0, _MAGIC)


def _damaged() -> IntegrityError:
    return IntegrityError("a Puffin file cannot be read", hint="frazil table verify, or restore it")
