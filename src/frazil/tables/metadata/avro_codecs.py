"""The codecs of Avro's blocks."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable

#: Of the files that are written here. Level 6 takes twice the time, and saves a tenth.
_LEVEL = 3
#: Bytes of Snappy's shortest element, and what it can stand for: no honest block claims to be larger.
_SNAPPY_RATIO = 64 // 2


def decompress(codec: str, data: bytes) -> bytes:
    """Returns the records of a block.

    Args:
        codec: as the file's head names it.
        data: the block.

    Raises:
        ValueError: the block is damaged, or the codec unknown.
    """
    try:
        return _find(codec)[1](data)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, MemoryError) as error:
        raise ValueError(f"a block cannot be decompressed: {error}") from error


def compress(codec: str, data: bytes) -> bytes:
    """Returns a block of records.

    Raises:
        ValueError: the codec is unknown.
    """
    return _find(codec)[0](data)


def _find(codec: str) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    if codec not in _CODECS:
        raise ValueError(f"the codec '{codec}' is unknown")
    return _CODECS[codec]


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, wbits=-15)
    return packer.compress(data) + packer.flush()


def _inflate(data: bytes) -> bytes:
    return zlib.decompress(data, -15)


def _snappy(data: bytes) -> bytes:
    import pyarrow as pa

    packed: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return packed + zlib.crc32(data).to_bytes(4, "big")


def _unsnappy(data: bytes) -> bytes:
    import pyarrow as pa

    body, checksum = data[:-4], data[-4:]
    size = 0
    for place, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if size > len(body) * _SNAPPY_RATIO:
        raise ValueError("a block of Snappy's has a wrong length")
    found: bytes = pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(found).to_bytes(4, "big") != checksum:
        raise ValueError("a block has a wrong checksum")
    return found


def _zstandard(data: bytes) -> bytes:
    import pyarrow as pa

    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


def _unzstandard(data: bytes) -> bytes:
    import pyarrow as pa

    # As a stream: frames need not say how long their content is.
    with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
        found: bytes = stream.read()
    return found


_CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "null": (lambda data: data, lambda data: data),
    "deflate": (_deflate, _inflate),
    "snappy": (_snappy, _unsnappy),
    "zstandard": (_zstandard, _unzstandard),
    "bzip2": (bz2.compress, bz2.decompress),
    "xz": (lzma.compress, lzma.decompress),
}
