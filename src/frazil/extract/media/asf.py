"""WMA and WMV: objects of ASF, each named by a GUID."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from frazil.extract import normalize
from frazil.extract.media.model import Media, Stream
from frazil.extract.media.riff import SOUNDS
from frazil.extract.window import Window


def _guid(told: str) -> bytes:
    return UUID(told).bytes_le


HEADER: Final = _guid("75B22630-668E-11CF-A6D9-00AA0062CE6C")
FILE: Final = _guid("8CABDCA1-A947-11CF-8EE4-00C00C205365")
STREAM: Final = _guid("B7DC0791-A9B7-11CF-8EE6-00C00C205365")
TOLD: Final = _guid("75B22633-668E-11CF-A6D9-00AA0062CE6C")
MORE: Final = _guid("D2D0A440-E307-11D2-97F0-00A0C95EA850")
SOUND: Final = _guid("F8699E40-5B4D-11CF-A8FD-00805F5C442B")
PICTURE: Final = _guid("BC19EFC0-5B4D-11CF-A8FD-00805F5C442B")
EPOCH: Final = datetime(1601, 1, 1, tzinfo=UTC)
WM_SOUNDS: Final = {**SOUNDS, 0x160: "wma", 0x161: "wma", 0x162: "wma", 0x163: "wma"}
NAMES: Final = {
    "WM/AlbumTitle": "album",
    "WM/AlbumArtist": "album_author",
    "WM/Year": "date",
    "WM/Genre": "genre",
    "WM/TrackNumber": "track",
    "WM/Composer": "composer",
}


def read_asf(window: Window) -> Media:
    """Reads the objects of the header."""
    media = Media("asf")
    (size,) = window.unpack("<Q", 16)
    for name, at, end in _objects(window, 30, min(size, window.size)):
        data = window.some(at, min(end - at, 64 * 1024))
        if name == FILE and len(data) >= 64:
            created, length, _, preroll = struct.unpack("<Q8xQQQ", data[24:64])
            media.duration = max(0.0, length / 1e7 - preroll / 1e3) or None
            told = normalize.time_since(EPOCH, created / 1e7)
            media.taken_at = told.isoformat(timespec="seconds") if told else None
        elif name == STREAM and len(data) >= 70:
            _stream(data, media)
        elif name == TOLD and len(data) >= 10:
            _told(data, media)
        elif name == MORE:
            _more(data, media)
    return media


def _objects(window: Window, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    while at + 24 <= end:
        window.step()
        name, size = window.unpack("<16sQ", at)
        if size < 24:
            return
        yield name, at + 24, at + size
        at += size


def _stream(data: bytes, media: Media) -> None:
    if data[:16] == SOUND:
        code, channels, rate, speed, _, bits = struct.unpack("<HHIIHH", data[54:70])
        codec = WM_SOUNDS.get(code, f"wave_{code:#06x}")
        media.streams.append(Stream("audio", codec, None, None, 0, None, rate, channels, bits or None, speed * 8))
    elif data[:16] == PICTURE and len(data) >= 85:
        width, height = struct.unpack("<II", data[54:62])
        codec = data[81:85].decode("latin-1").strip("\0 ").lower()
        media.streams.append(Stream("video", codec or None, width, height))


def _told(data: bytes, media: Media) -> None:
    at = 10
    for name, length in zip(("title", "author", "copyright", "comment"), struct.unpack("<4H", data[:8]), strict=True):
        media.tag(name, data[at : at + length].decode("utf-16-le", "replace").strip("\0 "))
        at += length


def _more(data: bytes, media: Media) -> None:
    at = 2
    for _ in range(min(int.from_bytes(data[:2], "little"), 1000)):
        length = int.from_bytes(data[at : at + 2], "little")
        name = data[at + 2 : at + 2 + length].decode("utf-16-le", "replace").strip("\0")
        at += 2 + length
        if at + 4 > len(data):
            return
        kind, length = struct.unpack("<HH", data[at : at + 4])
        value = data[at + 4 : at + 4 + length]
        at += 4 + length
        if name == "WM/Picture":
            media.cover = True
        told = (
            value.decode("utf-16-le", "replace").strip("\0 ") if kind == 0 else str(int.from_bytes(value[:8], "little"))
        )
        media.tag(NAMES.get(name), told)
