"""WAV, AVI and AIFF: nested chunks, little-endian (RIFF, RF64) or big-endian (FORM)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from frazil.extract.media import mpeg
from frazil.extract.media.model import Media, Stream
from frazil.extract.window import Window

INFO: Final = {
    b"INAM": "title",
    b"IART": "author",
    b"IPRD": "album",
    b"ICRD": "date",
    b"IGNR": "genre",
    b"ICMT": "comment",
    b"ICOP": "copyright",
    b"ISFT": "encoder",
    b"ITRK": "track",
    b"NAME": "title",
    b"AUTH": "author",
    b"ANNO": "comment",
    b"(c) ": "copyright",
}
#: Formats of WAVE.
SOUNDS: Final = {
    1: "pcm",
    2: "adpcm",
    3: "pcm",
    6: "alaw",
    7: "mulaw",
    17: "adpcm",
    85: "mp3",
    255: "aac",
    0x2000: "ac3",
}
#: Codecs of AVI by FourCC.
PICTURES: Final = {
    **dict.fromkeys((b"h264", b"x264", b"avc1"), "h264"),
    **dict.fromkeys((b"xvid", b"divx", b"dx50", b"fmp4", b"mp4v"), "mpeg4"),
    **dict.fromkeys((b"mjpg", b"avrn"), "mjpeg"),
    **dict.fromkeys((b"dvsd", b"dv25"), "dv"),
    b"hevc": "hevc",
}

Chunk = tuple[bytes, int, int]


def read_riff(window: Window) -> Media:
    """Reads the chunks."""
    form, _, kind = struct.unpack(">4sI4s", window.read(0, 12))
    if form == b"FORM":
        return _aiff(window)
    media = Media("avi" if kind == b"AVI " else "wav")
    if kind == b"AVI ":
        for name, at, end in _chunks(window, 12, window.size, "<"):
            _avi(window, name, at, end, media)
    else:
        _wave(window, media)
    return media


def _chunks(window: Window, at: int, end: int, order: str) -> Iterator[Chunk]:
    while at + 8 <= min(end, window.size):
        window.step()
        name, size = struct.unpack(order + "4sI", window.read(at, 8))
        yield name, at + 8, at + 8 + size
        at += 8 + size + size % 2


def _wave(window: Window, media: Media) -> None:
    speed, length, large = 0, 0, 0
    for name, at, end in _chunks(window, 12, window.size, "<"):
        if name == b"fmt ":
            speed = _format(window, at, end, media)
        elif name == b"ds64":
            (large,) = window.unpack("<8xQ", at)
        elif name == b"data":
            size = large if end - at == 0xFFFFFFFF and large else end - at
            length = min(size, window.size - at)
            if at + size >= window.size:
                break
        else:
            _told(window, name, at, end, media)
    if speed and length:
        media.duration = length / speed


def _format(window: Window, at: int, end: int, media: Media) -> int:
    """Reads the audio format. Returns bytes per second."""
    code, channels, rate, speed, _, bits = window.unpack("<HHIIHH", at)
    if code == 0xFFFE and end - at >= 26:
        (code,) = window.unpack("<H", at + 24)
    media.streams.append(
        Stream(
            "audio", SOUNDS.get(code, f"wave_{code:#06x}"), None, None, 0, None, rate, channels, bits or None, speed * 8
        )
    )
    return int(speed)


def _told(window: Window, name: bytes, at: int, end: int, media: Media) -> None:
    if name == b"LIST" and window.some(at, 4) == b"INFO":
        for tag, start, to in _chunks(window, at + 4, end, "<"):
            media.tag(INFO.get(tag), _text(window, start, to))
    elif name in (b"id3 ", b"ID3 "):
        mpeg.id3(window, at, media)


def _text(window: Window, at: int, end: int) -> str:
    return window.some(at, min(end - at, 4096)).rstrip(b"\0").decode("utf-8", "replace").strip()


def _avi(window: Window, name: bytes, at: int, end: int, media: Media) -> None:
    kind = window.some(at, 4) if name == b"LIST" else b""
    if kind == b"hdrl":
        for inner, start, to in _chunks(window, at + 4, end, "<"):
            if inner == b"avih":
                step, frames = window.unpack("<I12xI", start)
                media.duration = step * frames / 1e6 or None
            elif inner == b"LIST" and window.some(start, 4) == b"strl":
                _stream(window, start + 4, to, media)
            elif inner == b"IDIT":
                media.taken_at = _idit(_text(window, start, to))
    elif name == b"IDIT":
        media.taken_at = _idit(_text(window, at, end))
    else:
        _told(window, name, at, end, media)


def _stream(window: Window, at: int, end: int, media: Media) -> None:
    kind, code, scale, rate = b"", b"", 0, 0
    for name, start, to in _chunks(window, at, end, "<"):
        if name == b"strh":
            kind, code, scale, rate = window.unpack("<4s4s12xII", start)
        elif name == b"strf" and kind == b"auds":
            _format(window, start, to, media)
        elif name == b"strf" and kind == b"vids":
            width, height, inner = window.unpack("<4xii4x4s", start)
            four = (code.strip(b"\0 ") or inner).lower()
            codec = PICTURES.get(four, four.decode("latin-1").strip("\0 ") or "raw")
            speed = round(rate / scale, 3) if scale and rate else None
            media.streams.append(Stream("video", codec, abs(width), abs(height), frame_rate=speed))


def _idit(told: str) -> str | None:
    """Parses the recording time that cameras write: Wed May 01 12:34:56 2024."""
    for form in ("%a %b %d %H:%M:%S %Y", "%Y:%m:%d %H:%M:%S", "%Y-%m-%d %H:%M:%S"):
        try:
            return datetime.strptime(told.strip(), form).isoformat()
        except ValueError:
            continue
    return None


def _aiff(window: Window) -> Media:
    media = Media("aiff")
    for name, at, end in _chunks(window, 12, window.size, ">"):
        if name == b"COMM":
            channels, frames, bits, power, mantissa = window.unpack(">hIhHQ", at)
            rate = mantissa / 2 ** (16446 - (power & 0x7FFF)) if 16383 <= power & 0x7FFF < 16415 else 0
            code = window.some(at + 18, 4).lower() if end - at >= 22 else b""
            codec = "pcm" if code in (b"", b"none", b"sowt", b"twos", b"fl32") else code.decode("latin-1").strip()
            media.streams.append(Stream("audio", codec, sample_rate=int(rate) or None, channels=channels, bits=bits))
            media.duration = frames / rate if rate else None
        elif name in INFO:
            media.tag(INFO[name], _text(window, at, end))
        else:
            _told(window, name, at, end, media)
    return media
