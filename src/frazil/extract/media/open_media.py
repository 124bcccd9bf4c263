"""Which container it is, told by the first bytes and never by the name."""

from __future__ import annotations

from frazil.extract import Item, Unsupported
from frazil.extract.media import asf, isobmff, matroska, mpeg, riff, vorbis
from frazil.extract.media.model import BLOCK, Media
from frazil.extract.window import Window

#: Boxes with which QuickTime and MP4 start.
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot", b"styp")


def open_media(item: Item) -> Media:
    """What the container of an object says.

    Raises:
        Unsupported: a container that is not known here.
        Damaged: it ends too early.
        TooMuch: more would have to be read than the limits say.
    """
    head = item.head(4096)
    if not head:
        raise Unsupported("the object is empty")
    window = Window(item, block=BLOCK)
    if head[4:8] in _BOXES:
        return isobmff.look(window)
    if head[:4] == b"\x1aE\xdf\xa3":
        return matroska.look(window)
    if (head[:4] in (b"RIFF", b"RF64") and head[8:12] in (b"WAVE", b"AVI ")) or (
        head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC")
    ):
        return riff.look(window)
    if head[:4] == b"fLaC":
        return vorbis.flac(window)
    if head[:4] == b"OggS":
        return vorbis.ogg(window)
    if head[:16] == asf.HEADER:
        return asf.look(window)
    if mpeg.is_audio(head):
        return mpeg.look(window)
    raise Unsupported(
        "not a container that is read: MP4, QuickTime, Matroska, WebM, AVI, WAV, AIFF, FLAC, Ogg, ASF, MP3, AAC"
    )
