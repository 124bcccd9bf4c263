"""Compression of the blocks of Avro files, by the codecs that the Avro specification knows."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable

from frazil.errors import UnsupportedError

_CHECKSUM = 4
#: More than Snappy can save: a copy of 64 bytes takes three.
_SNAPPY_RATIO = 64


def compress(codec: str, data: bytes) -> bytes:
    """Returns a block in a codec, named as in the header of the file."""
    return _find(codec)[0](data)


def decompress(codec: str, data: bytes) -> bytes:
    """Returns what a block holds.

    Raises:
        UnsupportedError: the codec is unknown.
        ValueError, OSError, EOFError, zlib.error, lzma.LZMAError: the block is damaged.
    """
    return _find(codec)[1](data)


def _find(codec: str) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    if codec not in _CODECS:
        known = ", ".join(_CODECS)
        raise UnsupportedError(f"cannot read Avro files with the codec '{codec}'", cause=f"known are {known}")
    return _CODECS[codec]


def _same(data: bytes) -> bytes:
    return data


def _deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


def _inflate(data: bytes) -> bytes:
    return zlib.decompress(data, -15)


def _compress_snappy(data: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.Codec("snappy").compress(data, asbytes=True)) + zlib.crc32(data).to_bytes(_CHECKSUM, "big")


def _decompress_snappy(data: bytes) -> bytes:
    import pyarrow as pa

    size = shift = 0
    for byte in data:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > _SNAPPY_RATIO * len(data):
        raise ValueError("the size of a block is wrong")
    found = bytes(pa.Codec("snappy").decompress(data[:-_CHECKSUM], size, asbytes=True))
    if zlib.crc32(found).to_bytes(_CHECKSUM, "big") != data[-_CHECKSUM:]:
        raise ValueError("the checksum of a block is wrong")
    return found


def _compress_zstandard(data: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def _decompress_zstandard(data: bytes) -> bytes:
    import pyarrow as pa

    # A frame need not say how much it holds.
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())


_CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "null": (_same, _same),
    "deflate": (_deflate, _inflate),
    "snappy": (_compress_snappy, _decompress_snappy),
    "zstandard": (_compress_zstandard, _decompress_zstandard),
    "bzip2": (bz2.compress, bz2.decompress),
    "xz": (lzma.compress, lzma.decompress),
}
