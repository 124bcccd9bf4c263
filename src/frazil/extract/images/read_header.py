"""Reads the headers of a picture once, for all extractors of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frazil.extract import Item
from frazil.extract.images import bmff, jpeg, png, raw, small_formats
from frazil.extract.images.header import Header
from frazil.extract.window import Damaged, Window

_SHARED = "image_header"

_READERS: dict[str, tuple[str, Callable[[Window, Header], Any]]] = {
    "image/jpeg": ("JPEG", jpeg.read_jpeg),
    "image/png": ("PNG", png.read_png),
    "image/webp": ("WEBP", small_formats.read_webp),
    "image/tiff": ("TIFF", raw.read_tiff_file),
    "image/gif": ("GIF", small_formats.read_gif),
    "image/bmp": ("BMP", small_formats.read_bmp),
    "image/vnd.microsoft.icon": ("ICO", small_formats.read_icon),
    "image/svg+xml": ("SVG", small_formats.read_svg),
    "image/vnd.adobe.photoshop": ("PSD", jpeg.read_photoshop),
    "image/heic": ("HEIC", bmff.read_heif),
    "image/heif": ("HEIF", bmff.read_heif),
    "image/avif": ("AVIF", bmff.read_heif),
    "image/jp2": ("JPEG2000", bmff.read_jpeg2000),
    "image/x-canon-cr3": ("CR3", bmff.read_cr3),
    "image/x-canon-cr2": ("CR2", raw.read_raw),
    "image/x-nikon-nef": ("NEF", raw.read_raw),
    "image/x-sony-arw": ("ARW", raw.read_raw),
    "image/x-adobe-dng": ("DNG", raw.read_raw),
    "image/x-olympus-orf": ("ORF", raw.read_raw),
    "image/x-panasonic-rw2": ("RW2", raw.read_raw),
    "image/x-pentax-pef": ("PEF", raw.read_raw),
    "image/x-samsung-srw": ("SRW", raw.read_raw),
    "image/x-fuji-raf": ("RAF", raw.read_raf),
}


def read_header(item: Item) -> Header:
    """Reads the headers of a picture. Damaged ones are incomplete, with warnings.

    A format without a reader gives a header without a format.
    """
    known = item.shared.get(_SHARED)
    if isinstance(known, Header):
        return known
    name, read = _READERS.get(item.detected_type, ("", None))
    header = Header(name)
    if read is not None:
        try:
            read(Window(item), header)
        except Damaged as failure:
            header.warnings.append(str(failure))
    if header.tiff is not None:
        header.warnings.extend(f"EXIF: {warning}" for warning in header.tiff.warnings)
        header.tiff.warnings.clear()
    item.shared[_SHARED] = header
    return header
