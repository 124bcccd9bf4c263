"""Headers of JPEG and Photoshop files."""

from __future__ import annotations

import struct

from frazil.extract.images.header import Header
from frazil.extract.images.tiff import read_tiff
from frazil.extract.window import Damaged, Window

_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_PHOTOSHOP = b"Photoshop 3.0\0"
_SIZES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_LOSSLESS = frozenset({0xC3, 0xC7, 0xCB, 0xCF})
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_MAX_SEGMENTS = 1024


def read_jpeg(window: Window, header: Header) -> bool:
    """Walks the segments up to the size of the picture, stepping over what is not needed.

    Returns:
        Whether it is a picture that usual software shows: not one of the lossless kinds that RAW files hold.

    Raises:
        Damaged: the size is not found.
    """
    at = 2
    for _ in range(_MAX_SEGMENTS):
        lead, marker, length = window.unpack(">BBH", at)
        if lead != 0xFF:
            raise Damaged(f"no JPEG marker at byte {window.start + at}")
        if marker == 0xFF:
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        if marker in _SIZES:
            height, width, parts = window.unpack(">xHHB", at + 4)
            header.width, header.height, header.mode = width or None, height or None, _MODES.get(parts)
            return marker not in _LOSSLESS
        if marker in (0xD9, 0xDA):
            break
        if marker == 0xE1 or marker == 0xED:
            _application(window.part(at + 4, length - 2), marker, header)
        at += 2 + max(length, 2)
    raise Damaged("a JPEG without the size of its picture")


def _application(segment: Window, marker: int, header: Header) -> None:
    start = segment.get(0, 32)
    if marker == 0xED:
        if start.startswith(_PHOTOSHOP):
            resources(segment.part(len(_PHOTOSHOP)), header)
    elif start.startswith(b"Exif\0") and header.tiff is None:
        exif(segment.part(6), header)
    elif start.startswith(_XMP) and header.xmp is None:
        header.xmp = segment.part(len(_XMP))


def exif(block: Window, header: Header) -> None:
    """Reads an EXIF block; a broken one leaves a warning."""
    try:
        header.tiff = read_tiff(block)
    except Damaged as failure:
        header.warnings.append(f"EXIF: {failure}")
        return
    turned = header.tiff.number(header.tiff.main, 0x0112)
    if turned is not None and 1 <= turned <= 8:
        header.orientation = turned


def resources(block: Window, header: Header) -> None:
    """Steps through Photoshop's resources for IPTC, XMP and EXIF."""
    at = 0
    for _ in range(_MAX_SEGMENTS):
        start = block.get(at, 7)
        if len(start) < 7 or start[:4] not in (b"8BIM", b"MeSa", b"PHUT"):
            return
        number = int.from_bytes(start[4:6], "big")
        at += 6 + (start[6] + 2 & ~1)
        size = block.get(at, 4)
        if len(size) < 4:
            return
        (length,) = struct.unpack(">I", size)
        at += 4
        if number == 0x0404 and header.iptc is None:
            header.iptc = block.part(at, length)
        elif number == 0x0424 and header.xmp is None:
            header.xmp = block.part(at, length)
        elif number == 0x0422 and header.tiff is None:
            exif(block.part(at, length), header)
        at += length + (length & 1)


def read_photoshop(window: Window, header: Header) -> None:
    """Reads a PSD: size, colours, and its resources.

    Raises:
        Damaged: it is cut.
    """
    height, width, _, mode = window.unpack(">IIHH", 14)
    header.width, header.height = width or None, height or None
    header.mode = {0: "1", 1: "L", 2: "P", 3: "RGB", 4: "CMYK", 9: "LAB"}.get(mode)
    (colours,) = window.unpack(">I", 26)
    (length,) = window.unpack(">I", 30 + colours)
    resources(window.part(34 + colours, length), header)
