"""The extractor `image`: size, time, camera and place of a picture, from EXIF, XMP or IPTC in any format."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from frazil.extract import Item, TooMuch, Unsupported, extractor
from frazil.extract.images.exif_values import altitude, coordinates, text, windows
from frazil.extract.images.header import Header
from frazil.extract.images.iptc import read_iptc
from frazil.extract.images.read_header import read_header
from frazil.extract.images.tiff import Ifd, Tiff
from frazil.extract.images.xmp import read_xmp
from frazil.extract.window import Damaged

_MAKE, _MODEL, _DESCRIPTION, _ARTIST, _LENS = 0x010F, 0x0110, 0x010E, 0x013B, 0xA434
_EXPOSURE, _WINDOWS_TITLE, _WINDOWS_AUTHOR = 0x829A, 0x9C9B, 0x9C9D
_WHEN = re.compile(
    r"(\d{4})[:/.-](\d\d)[:/.-](\d\d)[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?\s*(Z|[+-]\d\d:?\d\d)?"
)
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")
_COMPANY = re.compile(
    r"[\s,]+(corporation|corp\.?|company|co\.?|ltd\.?|inc\.?|ag|gmbh|camera|imaging|optical|electronics?|electric|digital)\b\.?",
    re.IGNORECASE,
)
#: Placeholders that cameras write as description.
_NO_TITLE = re.compile(r"[\w ]+ digital camera|sony dsc|samsung|dcim\\.*|default", re.IGNORECASE)


@extractor(
    "image",
    version="1",
    types=["image/*"],
    fields={
        "format": "JPEG, PNG, HEIC, CR2 …",
        "width": "pixels, after rotation",
        "height": "pixels, after rotation",
        "mode": "colours: RGB, L, CMYK …",
        "frames": "pages or frames, if headers have them",
        "orientation": "EXIF orientation of the stored image: 1 to 8",
        "taken_at": "the camera's wall clock",
        "taken_offset": "offset of that clock from UTC, if the camera recorded it",
        "camera": "maker and model",
        "lens": "model of the lens",
        "latitude": "degrees, south is negative",
        "longitude": "degrees, west is negative",
        "altitude": "metres above the sea",
        "title": "by XMP, IPTC or EXIF",
        "author": "by XMP, IPTC or EXIF",
        "warnings": "damaged parts that were skipped",
    },
)
def IMAGE(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes an Extractor
    """Size, time, camera and location of an image; reads only headers."""
    header = read_header(item)
    if not header.format:
        raise Unsupported(f"headers of {item.detected_type} are not supported")
    if header.width is None or header.height is None:
        raise Damaged("; ".join(header.warnings) or "the picture has no size")
    warnings = list(header.warnings)
    turned = header.orientation >= 5
    found: dict[str, Any] = {
        "format": header.format,
        "width": header.height if turned else header.width,
        "height": header.width if turned else header.height,
        "mode": header.mode,
        "frames": header.frames,
        "orientation": header.orientation,
    }
    xmp = _other(read_xmp, item, warnings)
    iptc = _other(read_iptc, item, warnings)
    tiff = header.tiff
    if tiff is not None:
        found["camera"] = _camera(tiff)
        found["taken_at"], found["taken_offset"] = _taken(
            tiff, known=found["camera"] is not None or _EXPOSURE in tiff.exif
        )
        found["lens"] = _text(tiff, tiff.exif, _LENS)
        found["latitude"], found["longitude"] = coordinates(tiff)
        found["altitude"] = altitude(tiff)
        warnings += [f"EXIF: {warning}" for warning in tiff.warnings]
    _complete(found, header, xmp, iptc)
    if warnings:
        found["warnings"] = list(dict.fromkeys(warnings))[:20]
    return {name: told for name, told in found.items() if told is not None}


def _other(read: Any, item: Item, warnings: list[str]) -> dict[str, Any]:
    try:
        told: dict[str, Any] = read(item)
    except (Damaged, TooMuch) as failure:
        warnings.append(str(failure))
        return {}
    return told


def _text(tiff: Tiff, ifd: Ifd, tag: int) -> str | None:
    raw = tiff.value(ifd, tag) if tag in ifd else None
    return text(raw) or None if isinstance(raw, bytes) else None


def _camera(tiff: Tiff) -> str | None:
    """Joins maker and model; the maker is not repeated, and loses its legal form."""
    maker, model = _text(tiff, tiff.main, _MAKE), _text(tiff, tiff.main, _MODEL)
    if maker is None or model is None:
        return model or maker
    short = _COMPANY.sub("", maker).strip() or maker
    first = model.lower().split()[0]
    return model if first in maker.lower().split() or model.lower().startswith(short.lower()) else f"{short} {model}"


def _taken(tiff: Tiff, *, known: bool) -> tuple[str | None, str | None]:
    """Returns when the picture was taken; else when the camera wrote the file."""
    choices = [(tiff.exif, 0x9003, 0x9291, 0x9011), (tiff.exif, 0x9004, 0x9292, 0x9012)]
    if known:
        choices.append((tiff.main, 0x0132, 0x9290, 0x9010))
    for ifd, tag, fraction, zone in choices:
        when, offset = _iso_time(_text(tiff, ifd, tag), _text(tiff, tiff.exif, fraction))
        if when is not None:
            return when, offset or _offset(_text(tiff, tiff.exif, zone))
    return None, None


def _iso_time(told: str | None, fraction: str | None = None) -> tuple[str | None, str | None]:
    """Converts a time to ISO 8601, with its offset if it has one; None if the camera's clock was never set."""
    parts = _WHEN.match(told) if told else None
    if parts is None:
        return None, None
    year, month, day, hour, minute, second, digits, zone = parts.groups()
    try:
        when = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0))
    except ValueError:
        return None, None
    digits = digits or (fraction if fraction and fraction.isascii() and fraction.isdigit() else "")
    when = when.replace(microsecond=int(digits[:6].ljust(6, "0")) if digits else 0)
    return when.isoformat(), _offset(zone)


def _offset(told: str | None) -> str | None:
    if told == "Z":
        return "+00:00"
    parts = _OFFSET.fullmatch(told) if told else None
    if parts is None or int(parts.group(2)) > 15 or int(parts.group(3)) > 59:
        return None
    return f"{parts.group(1)}{parts.group(2)}:{parts.group(3)}"


def _complete(found: dict[str, Any], header: Header, xmp: dict[str, Any], iptc: dict[str, Any]) -> None:
    """Completes the result from XMP and IPTC, which have better titles and authors than EXIF."""
    tiff, texts = header.tiff, header.texts
    if found.get("taken_at") is None:
        told = _first(xmp, "exif.DateTimeOriginal", "photoshop.DateCreated")
        found["taken_at"], found["taken_offset"] = _iso_time(told)
    found["lens"] = found.get("lens") or _first(xmp, "aux.Lens")
    description = _text(tiff, tiff.main, _DESCRIPTION) if tiff else None
    if description is not None and _NO_TITLE.fullmatch(description):
        description = None
    found["title"] = (
        _first(xmp, "dc.title")
        or iptc.get("ObjectName")
        or (windows(tiff, tiff.main, _WINDOWS_TITLE) if tiff else None)
        or description
        or texts.get("Title")
    )
    found["author"] = (
        _first(xmp, "dc.creator")
        or ", ".join(iptc.get("By-line", ()))
        or (_text(tiff, tiff.main, _ARTIST) or windows(tiff, tiff.main, _WINDOWS_AUTHOR) if tiff else None)
        or texts.get("Author")
    )


def _first(xmp: dict[str, Any], *paths: str) -> str | None:
    for path in paths:
        prefix, _, name = path.partition(".")
        told = xmp.get(prefix, {}).get(name)
        if isinstance(told, list):
            told = ", ".join(part for part in told if isinstance(part, str))
        if isinstance(told, str) and told:
            return told
    return None
