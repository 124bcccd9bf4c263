"""MP3 and AAC without a container, and their tags: ID3v2 and ID3v1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from frazil.extract.media.model import BLOCK, Media, Stream
from frazil.extract.window import Damaged, Window

#: Maximum bytes of one ID3 frame; covers are not read.
FRAME: Final = 16 * 1024
FRAMES: Final = {
    **dict.fromkeys(("TIT2", "TT2"), "title"),
    **dict.fromkeys(("TPE1", "TP1"), "author"),
    **dict.fromkeys(("TALB", "TAL"), "album"),
    **dict.fromkeys(("TPE2", "TP2"), "album_author"),
    **dict.fromkeys(("TDRC", "TYER", "TYE", "TDRL"), "date"),
    **dict.fromkeys(("TCON", "TCO"), "genre"),
    **dict.fromkeys(("TRCK", "TRK"), "track"),
    **dict.fromkeys(("TCOM", "TCM"), "composer"),
    **dict.fromkeys(("TCOP", "TCR"), "copyright"),
    **dict.fromkeys(("TSSE", "TSS", "TENC"), "encoder"),
}
#: kbit/s: MPEG 1 layers 1 to 3, MPEG 2 layer 1, MPEG 2 layers 2 and 3.
RATES: Final = {
    (1, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
SAMPLING: Final = (44100, 48000, 32000)
AAC_SAMPLING: Final = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)


def id3(window: Window, at: int, media: Media) -> int:
    """Reads the ID3v2 tags at an offset. Returns the offset after them."""
    head = window.read(at, 10)
    if head[:3] != b"ID3":
        return at
    version, end = head[3], at + 10 + _synchsafe(head[6:10])
    at += 10
    if head[5] & 0x40 and version > 2:
        extended = window.read(at, 4)
        at += _synchsafe(extended) if version == 4 else 4 + int.from_bytes(extended, "big")
    for name, start, size in _frames(window, at, min(end, window.size), version):
        if name in ("APIC", "PIC"):
            media.cover = True
        elif name in FRAMES:
            media.tag(FRAMES[name], _text(window.some(start, min(size, FRAME))))
    return end


def _frames(window: Window, at: int, end: int, version: int) -> Iterator[tuple[str, int, int]]:
    long = version > 2
    while at + (10 if long else 6) <= end:
        window.step()
        head = window.read(at, 10 if long else 6)
        if not head[0]:
            return  # padding
        size = int.from_bytes(head[3:6], "big") if not long else _size(head[4:8], version)
        at += len(head)
        yield head[: 4 if long else 3].decode("latin-1"), at, size
        at += size


def _size(told: bytes, version: int) -> int:
    return _synchsafe(told) if version == 4 else int.from_bytes(told, "big")


def _synchsafe(told: bytes) -> int:
    size = 0
    for byte in told:
        size = size << 7 | byte & 0x7F
    return size


def _text(data: bytes) -> str:
    encoding = {0: "latin-1", 1: "utf-16", 2: "utf-16-be", 3: "utf-8"}.get(data[0] if data else 0, "latin-1")
    return data[1:].decode(encoding, "replace").strip("\0 ").split("\0")[0]


def read_mpeg(window: Window) -> Media:
    """Reads MP3 or AAC, with or without tags.

    Raises:
        Damaged: there is no frame of sound.
    """
    media = Media("mp3")
    start = id3(window, 0, media) if window.size >= 10 else 0
    found = _sync(window.some(start, BLOCK * 2))
    if found is None:
        raise Damaged("no audio frame after the tags" if start else "no audio frame")
    at, aac = found
    end = window.size - _id3v1(window, media)
    if aac:
        _aac(window, start + at, end, media)
    else:
        _mp3(window, start + at, end, media)
    return media


def _id3v1(window: Window, media: Media) -> int:
    if window.size < 128 or window.read(window.size - 128, 3) != b"TAG":
        return 0
    tag = window.read(window.size - 128, 128)
    for name, a, b in (("title", 3, 33), ("author", 33, 63), ("album", 63, 93), ("date", 93, 97)):
        media.tag(name, tag[a:b].split(b"\0")[0].decode("latin-1").strip())
    return 128


def _sync(data: bytes) -> tuple[int, bool] | None:
    """Finds a frame that is followed by another or the end of the data. Returns its offset, and whether it is AAC."""
    at = data.find(b"\xff")
    while 0 <= at < len(data) - 7:
        for aac in (False, True):
            size = _aac_size(data[at : at + 7]) if aac else _mp3_size(data[at : at + 4])
            follows = at + size
            if size and (follows > len(data) - 7 or (_aac_size if aac else _mp3_size)(data[follows : follows + 7])):
                return at, aac
        at = data.find(b"\xff", at + 1)
    return None


def _mp3_frame(head: bytes) -> tuple[int, int, int, int, int, int] | None:
    """Returns frame size, kbit/s, sample rate, samples per frame, channels and layer."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer = {0: 2.5, 2: 2, 3: 1}.get(head[1] >> 3 & 3), 4 - (head[1] >> 1 & 3)
    rate, sampling = head[2] >> 4, head[2] >> 2 & 3
    if version is None or layer == 4 or rate in (0, 15) or sampling == 3:
        return None
    kbits = RATES[(1, layer) if version == 1 else (2, min(layer, 2))][rate]
    frequency = SAMPLING[sampling] // {1: 1, 2: 2, 2.5: 4}[version]
    samples = 384 if layer == 1 else 1152 if layer == 2 or version == 1 else 576
    padding = (head[2] >> 1 & 1) * (4 if layer == 1 else 1)
    return samples * kbits * 125 // frequency + padding, kbits, frequency, samples, 1 if head[3] >> 6 == 3 else 2, layer


def _mp3_size(head: bytes) -> int:
    frame = _mp3_frame(head)
    return frame[0] if frame else 0


def _mp3(window: Window, at: int, end: int, media: Media) -> None:
    frame = _mp3_frame(window.read(at, 4))
    assert frame is not None, "_sync found it"
    size, kbits, frequency, samples, channels, layer = frame
    stream = Stream("audio", f"mp{layer}", sample_rate=frequency, channels=channels, bit_rate=kbits * 1000)
    media.streams.append(stream)
    first = window.some(at, min(size, 1024))
    frames = _counted(first)
    if frames:
        media.duration = frames * samples / frequency
        stream.bit_rate = round((end - at) * 8 / media.duration)
    else:
        media.duration = (end - at) / (kbits * 125)


def _counted(frame: bytes) -> int:
    """Returns the number of frames, which encoders with variable bit rate write into the first one."""
    for mark in (b"Xing", b"Info"):
        at = frame.find(mark)
        if at > 0 and frame[at + 7 : at + 8] and frame[at + 7] & 1:
            return int.from_bytes(frame[at + 8 : at + 12], "big")
    at = frame.find(b"VBRI")
    return int.from_bytes(frame[at + 14 : at + 18], "big") if at > 0 else 0


def _aac_size(head: bytes) -> int:
    if len(head) < 7 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or (head[2] >> 2 & 15) >= len(AAC_SAMPLING):
        return 0
    size = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    return size if size >= 7 else 0


def _aac(window: Window, at: int, end: int, media: Media) -> None:
    """Reads AAC. The duration is estimated from the frames of the first 64 KiB."""
    media.container = "aac"
    head = window.read(at, 7)
    rate = AAC_SAMPLING[head[2] >> 2 & 15]
    media.streams.append(Stream("audio", "aac", sample_rate=rate, channels=(head[2] & 1) << 2 | head[3] >> 6))
    data = window.some(at, BLOCK * 2)
    place, frames = 0, 0
    while size := _aac_size(data[place : place + 7]):
        place, frames = place + size, frames + 1
    media.duration = (end - at) / (place / frames) * 1024 / rate


def is_audio(head: bytes) -> bool:
    """Whether the first bytes are an ID3 tag or a frame."""
    return head[:3] == b"ID3" or bool(_mp3_frame(head[:4])) or bool(_aac_size(head[:7]))
