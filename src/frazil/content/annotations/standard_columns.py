"""The standard columns: a pure function of extraction results, so that they can always be recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

#: Column → paths of its value in `metadata`; the first one that exists counts.
SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "detected_type": ("type.media_type",),
    "image_width": ("image.width", "video.width"),
    "image_height": ("image.height", "video.height"),
    "taken_at": ("image.taken_at", "video.taken_at"),
    "camera": ("image.camera", "video.camera"),
    "latitude": ("image.latitude", "video.latitude"),
    "longitude": ("image.longitude", "video.longitude"),
    "duration": ("audio.duration", "video.duration"),
    "page_count": ("pdf.page_count", "office.page_count"),
    "title": ("image.title", "pdf.title", "office.title", "audio.title", "video.title", "text.title"),
    "author": ("image.author", "pdf.author", "office.author", "audio.author", "video.author"),
    "language": ("text.language", "office.language"),
    "content_hash": ("hash.sha256",),
    "perceptual_hash": ("picture.perceptual",),
}
_MAX_INT: Final = 2**31 - 1
_MAX_TEXT: Final = 4096


def standard_columns(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Computes all standard columns; null without a plausible value."""
    made = {name: _first(metadata, paths, _READERS[name]) for name, paths in SOURCES.items()}
    made["labels"] = _labels(metadata) or None
    if made["latitude"] is None or made["longitude"] is None:
        made["latitude"] = made["longitude"] = None
    return made


def _first(metadata: Mapping[str, Any], paths: Iterable[str], read: Any) -> Any:
    for path in paths:
        extractor, _, name = path.partition(".")
        data = metadata.get(extractor)
        value = read(data.get(name)) if isinstance(data, Mapping) else None
        if value is not None:
            return value
    return None


def _labels(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the labels of the local model and Rekognition by descending confidence, each once."""
    found: list[tuple[float, str]] = []
    ours, theirs = metadata.get("labels"), metadata.get("rekognition")
    for seen in (ours, theirs.get("Labels") if isinstance(theirs, Mapping) else None):
        for label in seen if isinstance(seen, list) else ():
            name = _text(label.get("Name")) if isinstance(label, Mapping) else None
            if name is not None:
                found.append((_number(label.get("Confidence")) or 0.0, name))
    found.sort(key=lambda one: -one[0])
    return list(dict.fromkeys(name for _, name in found))


def _text(value: Any) -> str | None:
    return (value.strip()[:_MAX_TEXT] or None) if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and 0 <= number <= _MAX_INT else None


def _seconds(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _degrees(limit: float) -> Any:
    def read(value: Any) -> float | None:
        number = _number(value)
        return number if number is not None and abs(number) <= limit else None

    return read


def _wall_clock(value: Any) -> datetime | None:
    """Parses a time as wall clock; a time zone is dropped."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if found is None else found.replace(tzinfo=None)


def _bits(value: Any) -> int | None:
    """Converts 16 hexadecimal digits to a signed 64-bit number."""
    try:
        number = int(value, 16) if isinstance(value, str) and len(value) == 16 else None
    except ValueError:
        return None
    return None if number is None else number - 2**64 if number >= 2**63 else number


_READERS: Final[dict[str, Any]] = {
    **dict.fromkeys(("detected_type", "camera", "title", "author", "language", "content_hash"), _text),
    **dict.fromkeys(("image_width", "image_height", "page_count"), _count),
    "duration": _seconds,
    "latitude": _degrees(90),
    "longitude": _degrees(180),
    "taken_at": _wall_clock,
    "perceptual_hash": _bits,
}
