"""Where a picture was taken."""

from __future__ import annotations

from frazil.extract.images.exif_values import rationals
from frazil.extract.images.tiff import Tiff

_LATITUDE, _LONGITUDE, _ALTITUDE = 2, 4, 6
_BOUNDS = {_LATITUDE: 90.0, _LONGITUDE: 180.0, 20: 90.0, 22: 180.0}


def degrees(tiff: Tiff, tag: int) -> float | None:
    """Latitude or longitude in degrees, south and west negative; None: not there, or no place on Earth."""
    parts = rationals(tiff, tiff.gps, tag)
    if not parts or len(parts) > 3 or parts[0] is None:
        return None
    whole, minutes, seconds = (part or 0 for part in (*parts, 0, 0)[:3])
    found = whole + minutes / 60 + seconds / 3600
    reference = tiff.value(tiff.gps, tag - 1)
    if isinstance(reference, bytes) and reference[:1].upper() in (b"S", b"W"):
        found = -found
    return round(found, 7) if abs(found) <= _BOUNDS[tag] else None


def altitude(tiff: Tiff) -> float | int | None:
    """Metres above the sea; None: not there, or not near the Earth."""
    parts = rationals(tiff, tiff.gps, _ALTITUDE)
    if not parts or parts[0] is None or abs(parts[0]) > 1_000_000:
        return None
    below = tiff.value(tiff.gps, 5)
    first = below[0] if isinstance(below, (tuple, bytes)) and below else below
    height = round(parts[0], 3)
    return -height if first in (1, 3, 0x31) else height


def coordinates(tiff: Tiff) -> tuple[float | None, float | None]:
    """Latitude and longitude, both or none; 0, 0 is what cameras write that do not know."""
    latitude, longitude = degrees(tiff, _LATITUDE), degrees(tiff, _LONGITUDE)
    if latitude is None or longitude is None or (latitude == 0 and longitude == 0):
        return None, None
    return latitude, longitude
