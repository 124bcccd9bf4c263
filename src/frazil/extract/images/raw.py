"""Headers of TIFF files and of the RAW formats that are TIFF inside, and of Fujifilm's RAF."""

from __future__ import annotations

import struct

from frazil.extract.images.header import Header
from frazil.extract.images.jpeg import read_jpeg
from frazil.extract.images.tiff import Ifd, Tiff, read_tiff
from frazil.extract.window import Damaged, Window

_MODES = {0: "L", 1: "L", 2: "RGB", 3: "P", 5: "CMYK", 6: "RGB", 8: "LAB"}
_XMP, _IPTC, _RESOURCES = 700, 33723, 34377
_WIDTH, _HEIGHT, _SUBFILE, _COMPRESSION, _STRIP, _STRIP_BYTES = 0x0100, 0x0101, 0x00FE, 0x0103, 0x0111, 0x0117
_JPEG, _JPEG_BYTES = 0x0201, 0x0202


def read_tiff_file(window: Window, header: Header) -> None:
    """Reads a TIFF: its first page.

    Raises:
        Damaged: the size is not found.
    """
    tiff = _common(window, header)
    header.width, header.height = _size(tiff, tiff.main)
    header.frames = tiff.pages
    photometric = tiff.number(tiff.main, 0x0106)
    bits = tiff.value(tiff.main, 0x0102)
    header.mode = _MODES.get(photometric) if photometric is not None else None
    if header.mode == "L" and bits == 1:
        header.mode = "1"
    if header.width is None:
        raise Damaged("a TIFF without the size of its picture")


def read_raw(window: Window, header: Header) -> None:
    """Reads a RAW file: its largest picture is the photo, the others are previews.

    Raises:
        Damaged: the size is not found.
    """
    tiff = _common(window, header)
    ifds = [tiff.main, *tiff.others]
    if header.format == "RW2":
        header.width, header.height = _sensor(tiff)
    else:
        sizes = [_size(tiff, ifd) for ifd in ifds if not (tiff.number(ifd, _SUBFILE) or 0) & 1] or [(None, None)]
        sizes.append((tiff.number(tiff.exif, 0xA002), tiff.number(tiff.exif, 0xA003)))
        header.width, header.height = max(sizes, key=lambda size: (size[0] or 0) * (size[1] or 0))
    header.previews = [preview for ifd in ifds for preview in _previews(tiff, ifd)]
    if not header.width or not header.height:
        raise Damaged("the picture has no size")


def read_raf(window: Window, header: Header) -> None:
    """Reads a RAF, whose EXIF is in the JPEG at its start.

    Raises:
        Damaged: it is cut.
    """
    at, length, directory, _ = window.unpack(">4I", 84)
    preview = window.part(at, length)
    try:
        read_jpeg(preview, header)
        header.previews.append(preview)
    except Damaged as failure:
        header.warnings.append(f"preview: {failure}")
    (count,) = window.unpack(">I", directory)
    directory += 4
    for _ in range(min(count, 256)):
        entry = window.get(directory, 8)
        if len(entry) < 8:
            break
        tag, size, high, wide = struct.unpack(">4H", entry)
        if tag in (0x0100, 0x0111) and size == 4 and high and wide:
            header.width, header.height = wide, high
        directory += 4 + size
    if header.width is None:
        raise Damaged("the picture has no size")


def _common(window: Window, header: Header) -> Tiff:
    header.tiff = tiff = read_tiff(window, deep=True)
    turned = tiff.number(tiff.main, 0x0112)
    if turned is not None and 1 <= turned <= 8:
        header.orientation = turned
    for tag, name in ((_XMP, "xmp"), (_IPTC, "iptc")):
        if tag in tiff.main:
            kind, count, at = tiff.main[tag]
            setattr(header, name, window.part(at, count * (4 if kind == 4 else 1)))
    return tiff


def _size(tiff: Tiff, ifd: Ifd) -> tuple[int | None, int | None]:
    width, height = tiff.number(ifd, _WIDTH), tiff.number(ifd, _HEIGHT)
    return (width, height) if width and height and width > 0 and height > 0 else (None, None)


def _sensor(tiff: Tiff) -> tuple[int | None, int | None]:
    """Reads the size from the borders on the sensor, as Panasonic writes them."""
    top, left, bottom, right = (tiff.number(tiff.main, tag) or 0 for tag in (4, 5, 6, 7))
    if right > left and bottom > top:
        return right - left, bottom - top
    return tiff.number(tiff.main, 2), tiff.number(tiff.main, 3)


def _previews(tiff: Tiff, ifd: Ifd) -> list[Window]:
    found = []
    if tiff.number(ifd, _COMPRESSION) in (6, 7):
        found.append((tiff.number(ifd, _STRIP), tiff.number(ifd, _STRIP_BYTES)))
    found.append((tiff.number(ifd, _JPEG), tiff.number(ifd, _JPEG_BYTES)))
    if 0x002E in ifd:
        _, count, at = ifd[0x002E]
        found.append((at, count))
    return [tiff.window.part(at, length) for at, length in found if at and length]
