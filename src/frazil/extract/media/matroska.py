"""Matroska and WebM: EBML elements, each with an id and a length of variable width."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from frazil.extract import normalize
from frazil.extract.media.model import Media, Stream
from frazil.extract.window import Damaged, Window

EPOCH: Final = datetime(2001, 1, 1, tzinfo=UTC)
TEXT: Final = 16 * 1024
SEGMENT, SEEK_HEAD, SEEK, SEEK_ID, SEEK_AT = 0x18538067, 0x114D9B74, 0x4DBB, 0x53AB, 0x53AC
INFO, TRACKS, TRACK, TAGS, TAG, SIMPLE = 0x1549A966, 0x1654AE6B, 0xAE, 0x1254C367, 0x7373, 0x67C8
ATTACHMENTS, ATTACHED, ATTACHED_TYPE, CLUSTER = 0x1941A469, 0x61A7, 0x4660, 0x1F43B675
CODECS: Final = {
    "V_MPEG4/ISO/AVC": "h264",
    "V_MPEGH/ISO/HEVC": "hevc",
    "V_MPEG4/ISO/ASP": "mpeg4",
    "V_MPEG2": "mpeg2",
    "V_MS/VFW/FOURCC": "vfw",
    "A_MPEG/L3": "mp3",
    "A_PCM/INT/LIT": "pcm",
    "A_PCM/FLOAT/IEEE": "pcm",
}
NAMES: Final = {
    "TITLE": "title",
    "ARTIST": "author",
    "DIRECTOR": "author",
    "ALBUM": "album",
    "DATE_RELEASED": "date",
    "DATE_RECORDED": "date",
    "GENRE": "genre",
    "COMMENT": "comment",
    "DESCRIPTION": "description",
    "COPYRIGHT": "copyright",
    "ENCODER": "encoder",
}

Element = tuple[int, int, int]


def read_matroska(window: Window) -> Media:
    """Reads the elements before the first cluster, and those that they point to.

    Raises:
        Damaged: there is no segment.
    """
    media = Media("webm" if b"webm" in window.some(0, 64) else "matroska")
    segment = next(((a, b) for name, a, b in _elements(window, 0, window.size) if name == SEGMENT), None)
    if segment is None:
        raise Damaged("the file ends before its segment")
    seen: set[int] = set()
    later: list[int] = []
    for name, at, end in _elements(window, *segment):
        if name == CLUSTER:
            break
        seen.add(name)
        if name == SEEK_HEAD:
            later += [
                segment[0] + to for ident, to in _seeks(window, at, end) if ident in (INFO, TRACKS, TAGS, ATTACHMENTS)
            ]
        _take(window, name, at, end, media)
    for place in later[:16]:
        for name, at, end in _elements(window, place, window.size):
            if name not in seen:
                seen.add(name)
                _take(window, name, at, end, media)
            break
    return media


def _elements(window: Window, at: int, end: int) -> Iterator[Element]:
    end = min(end, window.size)
    while at < end:
        window.step()
        head = window.some(at, 12)
        width = 9 - head[0].bit_length()
        if width > 4 or len(head) <= width:
            return
        name = int.from_bytes(head[:width], "big")
        more = 9 - head[width].bit_length()
        if more > 8 or len(head) < width + more:
            return
        size = int.from_bytes(head[width : width + more], "big") & (1 << 7 * more) - 1
        start = at + width + more
        stop = end if size == (1 << 7 * more) - 1 else start + size
        yield name, start, stop
        at = stop


def _seeks(window: Window, at: int, end: int) -> Iterator[tuple[int, int]]:
    for name, start, stop in _elements(window, at, end):
        if name == SEEK:
            parts = {n: _number(window, a, b) for n, a, b in _elements(window, start, stop)}
            if SEEK_ID in parts and SEEK_AT in parts:
                yield parts[SEEK_ID], parts[SEEK_AT]


def _number(window: Window, at: int, end: int) -> int:
    return int.from_bytes(window.some(at, min(end - at, 8)), "big")


def _real(window: Window, at: int, end: int) -> float:
    data = window.some(at, min(end - at, 8))
    return float(struct.unpack(">d" if len(data) == 8 else ">f", data)[0]) if len(data) in (4, 8) else 0.0


def _text(window: Window, at: int, end: int) -> str:
    return window.some(at, min(end - at, TEXT)).rstrip(b"\0").decode("utf-8", "replace")


def _take(window: Window, name: int, at: int, end: int, media: Media) -> None:
    if name == INFO:
        _info(window, at, end, media)
    elif name == TRACKS:
        for inner, start, stop in _elements(window, at, end):
            if inner == TRACK:
                _track(window, start, stop, media)
    elif name == TAGS:
        _tags(window, at, end, media, 0)
    elif name == ATTACHMENTS:
        for inner, start, stop in _elements(window, at, end):
            if inner == ATTACHED:
                kinds = (_text(window, a, b) for n, a, b in _elements(window, start, stop) if n == ATTACHED_TYPE)
                media.cover = media.cover or any(kind.startswith("image/") for kind in kinds)


def _info(window: Window, at: int, end: int, media: Media) -> None:
    scale, length = 1_000_000, 0.0
    for name, start, stop in _elements(window, at, end):
        if name == 0x2AD7B1:
            scale = _number(window, start, stop)
        elif name == 0x4489:
            length = _real(window, start, stop)
        elif name == 0x7BA9:
            media.tag("title", _text(window, start, stop))
        elif name == 0x5741:
            media.tag("encoder", _text(window, start, stop))
        elif name == 0x4461:
            told = normalize.time_since(EPOCH, struct.unpack(">q", window.read(start, 8))[0] / 1e9)
            media.taken_at = told.isoformat() if told else None
    if length > 0:
        media.duration = length * scale / 1e9


def _track(window: Window, at: int, end: int, media: Media) -> None:
    stream = Stream("")
    for name, start, stop in _elements(window, at, end):
        if name == 0x83:
            stream.kind = {1: "video", 2: "audio"}.get(_number(window, start, stop), "")
        elif name == 0x86:
            told = _text(window, start, stop)
            stream.codec = CODECS.get(told) or told.partition("_")[2].partition("/")[0].lower() or None
        elif name == 0x23E383:
            nanoseconds = _number(window, start, stop)
            stream.frame_rate = round(1e9 / nanoseconds, 3) if nanoseconds else None
        elif name == 0xE0:
            parts = {n: _number(window, a, b) for n, a, b in _elements(window, start, stop)}
            stream.width, stream.height = parts.get(0xB0), parts.get(0xBA)
        elif name == 0xE1:
            _sound(window, start, stop, stream)
    if stream.kind == "audio":
        stream.frame_rate = None
    if stream.kind:
        media.streams.append(stream)


def _sound(window: Window, at: int, end: int, stream: Stream) -> None:
    stream.sample_rate, stream.channels = 8000, 1  # the defaults of Matroska
    for name, start, stop in _elements(window, at, end):
        if name == 0xB5:
            stream.sample_rate = int(min(max(_real(window, start, stop), 0), 1e9)) or None
        elif name == 0x9F:
            stream.channels = _number(window, start, stop)
        elif name == 0x6264:
            stream.bits = _number(window, start, stop)


def _tags(window: Window, at: int, end: int, media: Media, depth: int) -> None:
    for name, start, stop in _elements(window, at, end):
        if name == TAG and depth == 0:
            _tags(window, start, stop, media, 1)
        elif name == SIMPLE:
            parts = {n: _text(window, a, b) for n, a, b in _elements(window, start, stop) if n in (0x45A3, 0x4487)}
            media.tag(NAMES.get(parts.get(0x45A3, "").upper()), parts.get(0x4487))
