"""Headers that take a few lines to read: GIF, BMP, icons, SVG."""

from __future__ import annotations

import re

from frazil.extract.images.header import Header
from frazil.extract.images.window import Broken, Window

_SVG = re.compile(rb"<(?:\w+:)?svg\b[^>]*>", re.IGNORECASE)
_LENGTH = re.compile(rb"\s(width|height)\s*=\s*[\"']\s*([\d.]+)(?:px)?\s*[\"']")
_BOX = re.compile(rb"\sviewBox\s*=\s*[\"']\s*[-\d.]+[\s,]+[-\d.]+[\s,]+([\d.]+)[\s,]+([\d.]+)")


def read_gif(window: Window, header: Header) -> None:
    """Reads the size of a GIF; its frames could only be counted by reading all of it.

    Raises:
        Broken: it is cut.
    """
    width, height = window.unpack("<HH", 6)
    header.width, header.height, header.mode = width or None, height or None, "P"


def read_bmp(window: Window, header: Header) -> None:
    """Reads the size of a BMP.

    Raises:
        Broken: it is cut.
    """
    old = window.unpack("<I", 14)[0] == 12
    width, height = window.unpack("<HH" if old else "<ii", 18)
    (bits,) = window.unpack("<H", 24 if old else 28)
    header.width, header.height = abs(width) or None, abs(height) or None
    header.mode = {1: "1", 4: "P", 8: "P", 32: "RGBA"}.get(bits, "RGB")


def read_icon(window: Window, header: Header) -> None:
    """Reads the largest of the sizes of an icon.

    Raises:
        Broken: it is cut.
    """
    (count,) = window.unpack("<H", 4)
    sizes = [window.unpack("BB", 6 + 16 * n) for n in range(min(count, 64))]
    if not sizes:
        raise Broken("an icon without pictures")
    header.width, header.height = max((w or 256, h or 256) for w, h in sizes)
    header.frames = count


def read_svg(window: Window, header: Header) -> None:
    """Reads the size that a drawing wants to have.

    Raises:
        Broken: there is none.
    """
    root = _SVG.search(window.get(0, 4096))
    if root is None:
        raise Broken("no svg element")
    lengths = {name: _whole(value) for name, value in _LENGTH.findall(root.group())}
    box = _BOX.search(root.group())
    header.width = lengths.get(b"width") or (_whole(box.group(1)) if box else None)
    header.height = lengths.get(b"height") or (_whole(box.group(2)) if box else None)
    if header.width is None or header.height is None:
        raise Broken("an svg element without a size in pixels")


def _whole(text: bytes) -> int | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return round(number) if 0.5 <= number < 1e9 else None
