"""Headers of PNG files."""

from __future__ import annotations

import struct
import zlib

from frazil.extract.images.header import Header
from frazil.extract.images.jpeg import exif
from frazil.extract.window import Damaged, Window

_MODES = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
_TAIL = 8192
_MAX_CHUNKS = 1024
_MAX_PACKET = 4 << 20


def read_png(window: Window, header: Header) -> None:
    """Reads the chunks before the pixels, and those at the end of the file.

    Raises:
        Damaged: it is cut before its size.
    """
    length, name, width, height, _, colours = window.unpack(">I4sIIBB", 8)
    if name != b"IHDR":
        raise Damaged("a PNG that does not start with its size")
    header.width, header.height, header.mode, header.frames = width or None, height or None, _MODES.get(colours), 1
    at = 8 + 12 + length
    for _ in range(_MAX_CHUNKS):
        start = window.get(at, 8)
        if len(start) < 8:
            header.warnings.append("PNG: it ends before its pixels")
            return
        length, name = struct.unpack(">I4s", start)
        if name == b"IDAT":
            break
        _chunk(name, window.part(at + 8, length), header)
        at += 12 + length
    if header.tiff is None or header.xmp is None:
        _behind(window, header)


def _chunk(name: bytes, data: Window, header: Header) -> None:
    if name == b"eXIf" and header.tiff is None:
        exif(data, header)
    elif name == b"acTL":
        frames = data.get(0, 4)
        header.frames = int.from_bytes(frames, "big") if len(frames) == 4 else 1
    elif name == b"tEXt":
        key, _, text = data.get(0, 4096).partition(b"\0")
        header.texts[key.decode("latin-1")] = text.decode("latin-1")
    elif name == b"iTXt":
        _international(data, header)


def _international(data: Window, header: Header) -> None:
    start = data.get(0, 512)
    key, _, rest = start.partition(b"\0")
    if len(rest) < 2:
        return
    packed = rest[0] == 1
    _, _, rest = rest[2:].partition(b"\0")
    _, _, rest = rest.partition(b"\0")
    at = len(start) - len(rest)
    if key == b"XML:com.adobe.xmp":
        if header.xmp is None:
            header.xmp = _unpacked(data.part(at), header) if packed else data.part(at)
    elif not packed:
        header.texts[key.decode("latin-1")] = data.get(at, 4096).decode("utf-8", "replace")


def _unpacked(data: Window, header: Header) -> bytes | None:
    try:
        return zlib.decompressobj().decompress(data.get(0, min(data.size, _MAX_PACKET)), _MAX_PACKET)
    except zlib.error as failure:
        header.warnings.append(f"PNG: XMP cannot be unpacked: {failure}")
        return None


def _behind(window: Window, header: Header) -> None:
    """Reads the chunks after the pixels: they must form a chain to the end, or the match was in pixels by chance."""
    first = max(0, window.size - _TAIL)
    tail = window.get(first, _TAIL)
    if not tail.endswith(b"IEND\xaeB`\x82"):
        return
    found = [at for name in (b"eXIf", b"iTXt", b"tEXt", b"zTXt", b"tIME") if (at := tail.find(name)) >= 4]
    at = min(found, default=0) - 4
    chain: list[tuple[bytes, int, int]] = []
    while 0 <= at <= len(tail) - 12:
        length, name = struct.unpack_from(">I4s", tail, at)
        if name == b"IEND":
            for name, start, size in chain:
                _chunk(name, window.part(first + start, size), header)
            return
        chain.append((name, at + 8, length))
        at += 12 + length
