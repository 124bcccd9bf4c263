"""FLAC and Ogg: Vorbis, Opus, FLAC, Speex, Theora. They share the format of comments."""

from __future__ import annotations

import struct
from typing import Final

from frazil.extract.media.model import Media, Stream
from frazil.extract.window import Damaged, Window

#: Maximum bytes of comments.
COMMENTS: Final = 256 * 1024
NAMES: Final = {
    "TITLE": "title",
    "ARTIST": "author",
    "ALBUM": "album",
    "ALBUMARTIST": "album_author",
    "DATE": "date",
    "YEAR": "date",
    "GENRE": "genre",
    "TRACKNUMBER": "track",
    "COMPOSER": "composer",
    "COMMENT": "comment",
    "DESCRIPTION": "description",
    "COPYRIGHT": "copyright",
    "ENCODER": "encoder",
}


def comments(data: bytes, media: Media) -> None:
    """Reads Vorbis comments: a vendor, then NAME=value."""
    at = 4 + int.from_bytes(data[:4], "little")
    total = int.from_bytes(data[at : at + 4], "little")
    at += 4
    for _ in range(min(total, 10_000)):
        length = int.from_bytes(data[at : at + 4], "little")
        if at + 4 >= len(data):
            return
        name, _, value = data[at + 4 : at + 4 + min(length, 16_384)].decode("utf-8", "replace").partition("=")
        if name.upper() in ("METADATA_BLOCK_PICTURE", "COVERART"):
            media.cover = True
        media.tag(NAMES.get(name.upper()), value)
        at += 4 + length


def streaminfo(data: bytes, media: Media) -> None:
    """Reads FLAC's stream info."""
    (packed,) = struct.unpack(">Q", data[10:18])
    rate, samples = packed >> 44, packed & (1 << 36) - 1
    media.streams.append(
        Stream("audio", "flac", sample_rate=rate, channels=(packed >> 41 & 7) + 1, bits=(packed >> 36 & 31) + 1)
    )
    if rate and samples:
        media.duration = samples / rate


def read_flac(window: Window, at: int = 0) -> Media:
    """Reads a FLAC file: metadata blocks at its start."""
    media = Media("flac")
    at += 4
    while True:
        window.step()
        (head,) = window.unpack(">I", at)
        kind, length = head >> 24 & 127, head & 0xFFFFFF
        if kind == 0:
            streaminfo(window.read(at + 4, 18), media)
        elif kind == 4:
            comments(window.some(at + 4, min(length, COMMENTS)), media)
        elif kind == 6:
            media.cover = True
        at += 4 + length
        if head >> 31 or kind == 127:
            return media


def read_ogg(window: Window) -> Media:
    """Reads an Ogg file: codecs from the first packets, duration from the last page."""
    media = Media("ogg")
    rates: dict[int, tuple[int, int]] = {}
    packets: dict[int, bytearray] = {}
    at = 0
    while at + 27 <= min(window.size, COMMENTS):
        window.step()
        head = window.read(at, 27)
        if head[:4] != b"OggS":
            break
        serial = int.from_bytes(head[14:18], "little")
        lacing = window.read(at + 27, head[26])
        body = at + 27 + head[26]
        if head[5] & 2:
            _first(window.some(body, 64), serial, rates, media)
            packets[serial] = bytearray()
        elif serial in packets:
            packets[serial] += window.some(body, sum(lacing))
            if any(n < 255 for n in lacing):
                _second(bytes(packets.pop(serial)), media)
        if not packets:
            break
        at = body + sum(lacing)
    if not media.streams:
        raise Damaged("no page identifies the stream")
    media.duration = _length(window, rates)
    return media


def _first(packet: bytes, serial: int, rates: dict[int, tuple[int, int]], media: Media) -> None:
    if packet[:7] == b"\x01vorbis" and len(packet) >= 28:
        channels, rate, _, nominal = struct.unpack("<BIii", packet[11:24])
        media.streams.append(
            Stream("audio", "vorbis", sample_rate=rate, channels=channels, bit_rate=nominal if nominal > 0 else None)
        )
        rates[serial] = (rate, 0)
    elif packet[:8] == b"OpusHead" and len(packet) >= 19:
        media.streams.append(Stream("audio", "opus", sample_rate=48000, channels=packet[9]))
        rates[serial] = (48000, int.from_bytes(packet[10:12], "little"))
    elif packet[:5] == b"\x7fFLAC" and len(packet) >= 35:
        streaminfo(packet[17:], media)
        rates[serial] = (media.streams[-1].sample_rate or 0, 0)
    elif packet[:8] == b"Speex   " and len(packet) >= 52:
        rate, _, _, channels = struct.unpack("<IIII", packet[36:52])
        media.streams.append(Stream("audio", "speex", sample_rate=rate, channels=channels))
        rates[serial] = (rate, 0)
    elif packet[:7] == b"\x80theora" and len(packet) >= 30:
        width, height = (int.from_bytes(packet[i : i + 3], "big") for i in (14, 17))
        above, below = struct.unpack(">II", packet[22:30])
        media.streams.append(
            Stream("video", "theora", width=width, height=height, frame_rate=round(above / below, 3) if below else None)
        )


def _second(packet: bytes, media: Media) -> None:
    for mark in (b"\x03vorbis", b"OpusTags", b"\x81theora"):
        if packet.startswith(mark):
            comments(packet[len(mark) :], media)
            return
    if packet[:1] == b"\x84":  # FLAC in Ogg
        comments(packet[4:], media)


def _length(window: Window, rates: dict[int, tuple[int, int]]) -> float | None:
    """Returns the duration from the last page of the audio stream, which counts samples since the start."""
    tail = window.some(max(0, window.size - 65_536), 65_536)
    at = tail.rfind(b"OggS")
    while at >= 0:
        if at + 18 <= len(tail):
            granule, serial = struct.unpack("<qI", tail[at + 6 : at + 18])
            rate, skipped = rates.get(serial, (0, 0))
            if rate and granule > skipped:
                return float(granule - skipped) / rate
        at = tail.rfind(b"OggS", 0, at)
    return None
