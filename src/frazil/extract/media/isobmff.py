"""MP4, QuickTime, M4A, 3GP: nested boxes, with the tracks in `moov`."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime
from typing import Final

from frazil.extract import normalize
from frazil.extract.media.model import Media, Stream
from frazil.extract.window import Damaged, Window

EPOCH: Final = datetime(1904, 1, 1, tzinfo=UTC)
#: Maximum bytes of one tag.
TAG: Final = 16 * 1024

CODECS: Final = {
    **dict.fromkeys((b"avc1", b"avc3"), "h264"),
    **dict.fromkeys((b"hvc1", b"hev1", b"dvh1", b"dvhe"), "hevc"),
    **dict.fromkeys((b"sowt", b"twos", b"lpcm", b"in24", b"in32", b"fl32", b"raw ", b"ipcm", b"fpcm"), "pcm"),
    **dict.fromkeys((b"apch", b"apcn", b"apcs", b"apco", b"ap4h", b"ap4x"), "prores"),
    b"mp4v": "mpeg4",
    b"vp08": "vp8",
    b"vp09": "vp9",
    b"av01": "av1",
    b"jpeg": "mjpeg",
    b"mjpa": "mjpeg",
    b"s263": "h263",
    b"mp4a": "aac",
    b".mp3": "mp3",
    b"ac-3": "ac3",
    b"ec-3": "eac3",
    b"Opus": "opus",
    b"fLaC": "flac",
    b"samr": "amr",
    b"sawb": "amr_wb",
    b"ulaw": "mulaw",
}
TAGS: Final = {
    b"\xa9nam": "title",
    b"\xa9ART": "author",
    b"\xa9aut": "author",
    b"\xa9alb": "album",
    b"aART": "album_author",
    b"\xa9day": "date",
    b"\xa9gen": "genre",
    b"\xa9wrt": "composer",
    b"\xa9cmt": "comment",
    b"\xa9too": "encoder",
    b"\xa9swr": "encoder",
    b"\xa9mak": "make",
    b"\xa9mod": "model",
    b"cprt": "copyright",
    b"desc": "description",
}
KEYS: Final = {
    "title": "title",
    "displayname": "title",
    "author": "author",
    "artist": "author",
    "album": "album",
    "creationdate": "creationdate",
    "location.iso6709": "keyed_location",
    "make": "make",
    "model": "model",
    "software": "encoder",
    "description": "description",
    "comment": "comment",
    "copyright": "copyright",
}


def read_isobmff(window: Window) -> Media:
    """Reads the boxes.

    Raises:
        Damaged: `moov` is missing, or ends behind the file.
    """
    media = Media("quicktime" if window.some(8, 4) == b"qt  " else "mp4")
    scale = 0
    for name, start, end in window.boxes(*_index(window)):
        if name == b"mvhd":
            scale = _movie(window, start, media)
        elif name == b"trak":
            stream = _track(window, start, end)
            if stream:
                media.streams.append(stream)
        elif name == b"udta":
            _user(window, start, end, media)
        elif name == b"meta":
            _meta(window, start, end, media)
        elif name == b"mvex":
            media.duration = media.duration or _fragments(window, start, end, scale)
    told = media.tags.pop("creationdate", None)
    media.taken_at = normalize.date(told) or media.taken_at
    keyed, plain = media.tags.pop("keyed_location", None), media.tags.pop("location", None)
    media.place = place(keyed) or place(plain) or media.place
    return media


def _index(window: Window) -> tuple[int, int]:
    """Returns the range of `moov`."""
    for name, start, end in window.boxes():
        if name == b"moov":
            if end > window.size:
                raise Damaged("the file ends inside the index of its tracks (moov)")
            return start, end
    raise Damaged("no index of the tracks (moov): the file is truncated, or was never finished")


def place(told: str | None) -> tuple[float, float, float | None] | None:
    """Parses latitude, longitude and altitude in ISO 6709, such as +48.8500+002.3500+035.000/."""
    found = re.match(r"([+-]\d+(?:\.\d+)?)([+-]\d+(?:\.\d+)?)([+-]\d+(?:\.\d+)?)?", (told or "")[:100].strip())
    if not found:
        return None
    return _believed(_degrees(found[1], 2), _degrees(found[2], 3), float(found[3]) if found[3] else None)


def _believed(latitude: float, longitude: float, height: float | None) -> tuple[float, float, float | None] | None:
    if abs(latitude) > 90 or abs(longitude) > 180 or (latitude, longitude) == (0, 0):
        return None  # (0, 0) is a camera without reception
    return latitude, longitude, height


def _degrees(told: str, digits: int) -> float:
    """Parses ±DD.D, ±DDMM.M or ±DDMMSS.S."""
    whole, _, fraction = told[1:].partition(".")
    parts = [whole[:digits], whole[digits : digits + 2], whole[digits + 2 : digits + 4]]
    told_parts = [part for part in parts if part]
    told_parts[-1] += f".{fraction or 0}"
    value = sum(float(part) / float(60**i) for i, part in enumerate(told_parts))
    return round(-value if told[0] == "-" else value, 7)


def _movie(window: Window, at: int, media: Media) -> int:
    """Reads duration and creation time. Returns the time scale."""
    long = window.read(at, 1) == b"\1"
    created, _, scale, length = window.unpack(">QQIQ" if long else ">IIII", at + 4)
    if scale and length not in (0, 0xFFFFFFFF, 2**64 - 1):
        media.duration = length / scale
    told = normalize.time_since(EPOCH, created)
    media.taken_at = told.isoformat() if told else None
    return int(scale)


def _fragments(window: Window, start: int, end: int, scale: int) -> float | None:
    """Returns the duration of a fragmented file in seconds."""
    for name, at, _ in window.boxes(start, end):
        if name == b"mehd" and scale:
            (length,) = window.unpack(">Q" if window.read(at, 1) == b"\1" else ">I", at + 4)
            return float(length / scale)
    return None


def _track(window: Window, start: int, end: int) -> Stream | None:
    found: dict[bytes, tuple[int, int]] = {}
    _gather(window, start, end, found, 0)
    if b"hdlr" not in found or b"stsd" not in found:
        return None
    handler = window.some(found[b"hdlr"][0] + 8, 4)
    kind = {b"vide": "video", b"soun": "audio"}.get(handler)
    if kind is None:
        return None
    stream = Stream(kind)
    entry, entry_end = found[b"stsd"][0] + 8, found[b"stsd"][1]
    _sample_entry(window, entry, entry_end, stream)
    if kind == "video":
        _shape(window, found, stream)
    return stream


def _gather(window: Window, start: int, end: int, found: dict[bytes, tuple[int, int]], depth: int) -> None:
    for name, at, to in window.boxes(start, end):
        if name in (b"mdia", b"minf", b"stbl") and depth < 3:
            _gather(window, at, to, found, depth + 1)
        elif name in (b"tkhd", b"mdhd", b"hdlr", b"stsd", b"stsz", b"stz2") and name not in found:
            found[name] = (at, to)


def _sample_entry(window: Window, at: int, end: int, stream: Stream) -> None:
    if at + 36 > min(end, window.size):
        return
    code = window.read(at + 4, 4)
    stream.codec = CODECS.get(code) or normalize.text(code.decode("latin-1").strip().lower())
    if stream.kind == "video":
        width, height = window.unpack(">HH", at + 32)
        stream.width, stream.height = width or None, height or None
        return
    version, channels, bits, _, _, rate = window.unpack(">H6xHHHHI", at + 16)
    stream.channels, stream.bits, stream.sample_rate = channels or None, bits or None, rate >> 16 or None
    inner = at + 36 + {1: 16, 2: 36}.get(version, 0)
    if code == b"mp4a":
        for name, start, _ in window.boxes(inner, end):
            if name == b"esds" and b"\x04" in (head := window.some(start, 64)):
                kind = _object_type(head)
                stream.codec = {0x6B: "mp3", 0x69: "mp3", 0xA5: "ac3", 0xA9: "dts"}.get(kind, "aac")


def _object_type(esds: bytes) -> int:
    """Returns the audio type of an elementary stream: tag 4, a length of up to four bytes, then one byte."""
    found = re.search(rb"\x04(?:[\x80-\xff]{0,3}[\x00-\x7f])(.)", esds[4:], re.DOTALL)
    return found[1][0] if found else 0x40


def _shape(window: Window, found: dict[bytes, tuple[int, int]], stream: Stream) -> None:
    """Reads rotation and frame rate."""
    if b"tkhd" in found:
        at = found[b"tkhd"][0]
        matrix = at + (52 if window.read(at, 1) == b"\1" else 40)
        a, b = window.unpack(">ii", matrix)
        stream.rotation = {(0, 1): 90, (-1, 0): 180, (0, -1): 270}.get((a >> 16, b >> 16), 0)
    if b"mdhd" in found and b"stsz" in found:
        at = found[b"mdhd"][0]
        long = window.read(at, 1) == b"\1"
        scale, length = window.unpack(">IQ" if long else ">II", at + (20 if long else 12))
        (samples,) = window.unpack(">I", found[b"stsz"][0] + 8)
        if scale and length and samples > 1:
            stream.frame_rate = round(samples * scale / length, 3)


def _user(window: Window, start: int, end: int, media: Media) -> None:
    for name, at, to in window.boxes(start, end):
        if name == b"meta":
            _meta(window, at, to, media)
        elif name == b"loci":
            _loci(window.some(at, min(to - at, 1024)), media)
        elif name[:1] == b"\xa9" and to - at > 4:
            (length,) = window.unpack(">H", at)
            value = window.some(at + 4, min(length, to - at - 4, TAG)).decode("utf-8", "replace")
            media.tag("location" if name == b"\xa9xyz" else TAGS.get(name), value)


def _loci(data: bytes, media: Media) -> None:
    """Reads the location of a 3GP video: a name, a role, then longitude, latitude and altitude in 1/65536."""
    end = data.find(b"\0", 6)
    if end < 0 or len(data) < end + 14:
        return
    longitude, latitude, height = (round(n / 65536, 6) for n in struct.unpack(">iii", data[end + 2 : end + 14]))
    media.place = _believed(latitude, longitude, height)


def _meta(window: Window, start: int, end: int, media: Media) -> None:
    """Reads the tags of iTunes (by box name) and of QuickTime (by a list of keys)."""
    if window.some(start + 4, 4) != b"hdlr":
        start += 4
    keys: list[str] = []
    for name, at, to in window.boxes(start, end):
        if name == b"keys":
            keys = _keys(window, at, to)
        elif name == b"ilst":
            for tag, inner, inner_end in window.boxes(at, to):
                _item(window, tag, inner, inner_end, keys, media)


def _keys(window: Window, at: int, end: int) -> list[str]:
    return [
        window.some(start, min(to - start, 256)).decode("utf-8", "replace").lower().removeprefix("com.apple.quicktime.")
        for _, start, to in window.boxes(at + 8, end)
    ]


def _item(window: Window, tag: bytes, at: int, end: int, keys: list[str], media: Media) -> None:
    if tag == b"covr":
        media.cover = True
        return
    number = int.from_bytes(tag, "big")
    name = KEYS.get(keys[number - 1]) if 0 < number <= len(keys) else TAGS.get(tag)
    if name is None and tag != b"trkn":
        return
    for kind, start, to in window.boxes(at, end):
        if kind == b"data":
            value = window.some(start + 8, min(to - start - 8, TAG))
            if tag == b"trkn":
                media.tag("track", int.from_bytes(value[2:4], "big"))
            else:
                media.tag(name, value.decode("utf-8", "replace"))
