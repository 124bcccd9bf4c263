"""Headers of WebP files."""

from __future__ import annotations

import struct

from frazil.extract.images.header import Header
from frazil.extract.images.jpeg import exif
from frazil.extract.images.window import Broken, Window

_MAX_CHUNKS = 256


def read_webp(window: Window, header: Header) -> None:
    """Steps from chunk to chunk; EXIF and XMP stand behind the pixels.

    Raises:
        Broken: it is cut before its size.
    """
    at, extended, frames = 12, False, 0
    for _ in range(_MAX_CHUNKS):
        start = window.get(at, 8)
        if len(start) < 8:
            break
        name, length = struct.unpack("<4sI", start)
        data = window.part(at + 8, length)
        if name in (b"VP8X", b"VP8 ", b"VP8L") and header.width is None:
            extended = _size(name, data, header)
            if not extended:
                break
        elif name == b"ANMF":
            frames += 1
        elif name == b"EXIF" and header.tiff is None:
            exif(data.part(6) if data.get(0, 6) == b"Exif\0\0" else data, header)
        elif name == b"XMP " and header.xmp is None:
            header.xmp = data
        at += 8 + length + (length & 1)
    else:
        frames = 0
    if header.width is None:
        raise Broken("a WebP without the size of its picture")
    header.frames = frames or (None if at < window.size and extended else 1)


def _size(name: bytes, data: Window, header: Header) -> bool:
    """The size; whether other chunks may follow."""
    if name == b"VP8X":
        flags, wide, high = data.unpack("<I3s3s", 0)
        header.width, header.height = int.from_bytes(wide, "little") + 1, int.from_bytes(high, "little") + 1
        header.mode = "RGBA" if flags & 0x10 else "RGB"
        return True
    if name == b"VP8L":
        mark, bits = data.unpack("<BI", 0)
        if mark != 0x2F:
            raise Broken("a WebP without the size of its picture")
        header.width, header.height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        header.mode = "RGBA" if bits >> 28 & 1 else "RGB"
        return False
    wide, high = data.unpack("<6xHH", 0)
    header.width, header.height, header.mode = wide & 0x3FFF or None, high & 0x3FFF or None, "RGB"
    return False
