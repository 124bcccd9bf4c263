"""Detects the container by the first bytes, never by the name, and reads it."""

from __future__ import annotations

from frazil.extract import Item, Unsupported
from frazil.extract.media import asf, isobmff, matroska, mpeg, riff, vorbis
from frazil.extract.media.model import BLOCK, Media
from frazil.extract.window import Window

#: Boxes with which QuickTime and MP4 start.
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot", b"styp")


def open_media(item: Item) -> Media:
    """Reads the container of an object.

    Raises:
        Unsupported: the container is unknown.
        Damaged: it ends too early.
        TooMuch: more would have to be read than the limits say.
    """
    head = item.head(4096)
    if not head:
        raise Unsupported("the object is empty")
    window = Window(item, block=BLOCK)
    if head[4:8] in _BOXES:
        return isobmff.read_isobmff(window)
    if head[:4] == b"\x1aE\xdf\xa3":
        return matroska.read_matroska(window)
    if (head[:4] in (b"RIFF", b"RF64") and head[8:12] in (b"WAVE", b"AVI ")) or (
        head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC")
    ):
        return riff.read_riff(window)
    if head[:4] == b"fLaC":
        return vorbis.read_flac(window)
    if head[:4] == b"OggS":
        return vorbis.read_ogg(window)
    if head[:16] == asf.HEADER:
        return asf.read_asf(window)
    if mpeg.is_audio(head):
        return mpeg.read_mpeg(window)
    raise Unsupported(
        "not a container that is read: MP4, QuickTime, Matroska, WebM, AVI, WAV, AIFF, FLAC, Ogg, ASF, MP3, AAC"
    )
