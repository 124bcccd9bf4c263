"""The extractor `exif`: all tags by name."""

from __future__ import annotations

from typing import Any

from frazil.extract import Item, extractor
from frazil.extract.images.exif_values import MAKER_NOTE, altitude, degrees, rationals, value
from frazil.extract.images.read_header import read_header
from frazil.extract.images.tiff import Tiff

#: Tags with offsets and data of the file itself, and those of other extractors.
_LEFT_OUT = frozenset({
    0x014A, 0x8769, 0x8825, 0xA005, 0x0111, 0x0117, 0x0144, 0x0145, 0x0201, 0x0202, 0x02BC, 0x83BB, 0x8649, 0x8773,
    0x0140, 0xEA1C, 0xC634, 0xC4A5, 0x002E,
})  # fmt: skip


@extractor(
    "exif",
    version="1",
    types=["image/*"],
    fields={
        "(tag)": "each tag under its usual name: Make, Model, FNumber, ExposureTime, ISOSpeedRatings …",
        "GPSLatitude": "degrees, south is negative; null: invalid",
        "GPSLongitude": "degrees, west is negative; null: invalid",
        "GPSAltitude": "metres above the sea",
        "MakerNoteLength": "bytes of the maker note, which only the camera's maker can interpret",
    },
)
def EXIF(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes an Extractor
    """All EXIF tags of an image; empty if it has none."""
    tiff = read_header(item).tiff
    return {} if tiff is None else tags_by_name(tiff)


def tags_by_name(tiff: Tiff) -> dict[str, Any]:
    """Returns the tags of a TIFF block by name."""
    from PIL.ExifTags import GPSTAGS, TAGS

    found: dict[str, Any] = {}
    for ifd in (tiff.main, tiff.exif):
        for tag, (_, count, _) in ifd.items():
            if tag == MAKER_NOTE:
                found["MakerNoteLength"] = count
            elif tag not in _LEFT_OUT:
                told = value(tiff, ifd, tag)
                if told is not None and told != "":
                    found[TAGS.get(tag) or f"0x{tag:04X}"] = told
    for tag in tiff.gps:
        told = _gps(tiff, tag)
        if told is not None and told != "":
            found[GPSTAGS.get(tag) or f"GPS0x{tag:04X}"] = told
    return found


def _gps(tiff: Tiff, tag: int) -> Any:
    if tag in (2, 4, 20, 22):
        return degrees(tiff, tag)
    if tag == 6:
        return altitude(tiff)
    if tag == 7:
        parts = rationals(tiff, tiff.gps, tag)
        if len(parts) == 3 and all(part is not None for part in parts):
            hours, minutes, seconds = parts
            return f"{int(hours or 0):02d}:{int(minutes or 0):02d}:{float(seconds or 0):09.6f}".removesuffix(".000000")
        return None
    if tag == 0:
        version = tiff.value(tiff.gps, tag)
        return ".".join(str(part) for part in version) if isinstance(version, (tuple, bytes)) else None
    if tag in (27, 28):
        from frazil.extract.images.exif_values import comment

        return comment(tiff.value(tiff.gps, tag), tiff.order)
    return value(tiff, tiff.gps, tag)
