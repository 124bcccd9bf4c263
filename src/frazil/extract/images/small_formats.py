"""Headers of WebP, GIF, BMP, icons and SVG."""

from __future__ import annotations

import re
import struct

from frazil.extract.images.header import Header
from frazil.extract.images.jpeg import exif
from frazil.extract.window import Damaged, Window

_MAX_CHUNKS = 256


def read_webp(window: Window, header: Header) -> None:
    """Reads the chunks of a WebP; EXIF and XMP follow the pixels.

    Raises:
        Damaged: the file is truncated before its size.
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
        raise Damaged("a WebP without the size of its picture")
    header.frames = frames or (None if at < window.size and extended else 1)


def _size(name: bytes, data: Window, header: Header) -> bool:
    """Reads the size. Returns whether other chunks may follow."""
    if name == b"VP8X":
        flags, wide, high = data.unpack("<I3s3s", 0)
        header.width, header.height = int.from_bytes(wide, "little") + 1, int.from_bytes(high, "little") + 1
        header.mode = "RGBA" if flags & 0x10 else "RGB"
        return True
    if name == b"VP8L":
        mark, bits = data.unpack("<BI", 0)
        if mark != 0x2F:
            raise Damaged("a WebP without the size of its picture")
        header.width, header.height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        header.mode = "RGBA" if bits >> 28 & 1 else "RGB"
        return False
    wide, high = data.unpack("<6xHH", 0)
    header.width, header.height, header.mode = wide & 0x3FFF or None, high & 0x3FFF or None, "RGB"
    return False


_SVG = re.compile(rb"<(?:\w+:)?svg\b[^>]*>", re.IGNORECASE)
_LENGTH = re.compile(rb"\s(width|height)\s*=\s*[\"']\s*([\d.]+)(?:px)?\s*[\"']")
_BOX = re.compile(rb"\sviewBox\s*=\s*[\"']\s*[-\d.]+[\s,]+[-\d.]+[\s,]+([\d.]+)[\s,]+([\d.]+)")


def read_gif(window: Window, header: Header) -> None:
    """Reads the size of a GIF; its frames could only be counted by reading all of it.

    Raises:
        Damaged: the file is truncated.
    """
    width, height = window.unpack("<HH", 6)
    header.width, header.height, header.mode = width or None, height or None, "P"


def read_bmp(window: Window, header: Header) -> None:
    """Reads the size of a BMP.

    Raises:
        Damaged: the file is truncated.
    """
    old = window.unpack("<I", 14)[0] == 12
    width, height = window.unpack("<HH" if old else "<ii", 18)
    (bits,) = window.unpack("<H", 24 if old else 28)
    header.width, header.height = abs(width) or None, abs(height) or None
    header.mode = {1: "1", 4: "P", 8: "P", 32: "RGBA"}.get(bits, "RGB")


def read_icon(window: Window, header: Header) -> None:
    """Reads the largest of the sizes of an icon.

    Raises:
        Damaged: the file is truncated.
    """
    (count,) = window.unpack("<H", 4)
    sizes = [window.unpack("BB", 6 + 16 * n) for n in range(min(count, 64))]
    if not sizes:
        raise Damaged("an icon without pictures")
    header.width, header.height = max((w or 256, h or 256) for w, h in sizes)
    header.frames = count


def read_svg(window: Window, header: Header) -> None:
    """Reads the nominal size of a drawing.

    Raises:
        Damaged: there is no size.
    """
    root = _SVG.search(window.get(0, 4096))
    if root is None:
        raise Damaged("no svg element")
    lengths = {name: _whole(value) for name, value in _LENGTH.findall(root.group())}
    box = _BOX.search(root.group())
    header.width = lengths.get(b"width") or (_whole(box.group(1)) if box else None)
    header.height = lengths.get(b"height") or (_whole(box.group(2)) if box else None)
    if header.width is None or header.height is None:
        raise Damaged("an svg element without a size in pixels")


def _whole(text: bytes) -> int | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return round(number) if 0.5 <= number < 1e9 else None
