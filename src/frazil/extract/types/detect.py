"""The extractor `type`: detects the media type by the first bytes."""

from __future__ import annotations

import struct
from typing import Any

from frazil.extract import Item, extractor
from frazil.extract.types import containers
from frazil.extract.types.signatures import BINARY_NAMES, EXTENSIONS, signature
from frazil.extract.types.texts import decode_head, text_type

UNKNOWN = "application/octet-stream"
_TIFFS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_MOVIE_BOXES = (b"moov", b"mdat", b"wide", b"pnot")


@extractor(
    "type",
    version="1",
    fields={
        "media_type": "for example image/jpeg; application/octet-stream if unknown",
        "extension": "usual file extension of this type; null: there is none",
        "by": "content, or name if the content is inconclusive",
    },
)
def TYPE(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes an Extractor
    """Detects the media type from the first bytes, regardless of the name."""
    media, by_content = media_type(item)
    return {
        "media_type": media,
        "extension": EXTENSIONS.get(media) or (_extension(item.key) if media != UNKNOWN else None) or None,
        "by": "content" if by_content else "name",
    }


def media_type(item: Item) -> tuple[str, bool]:
    """Returns the media type, and whether the content decided it."""
    head = item.head(4096)
    if not head:
        return "application/x-empty", True
    extension = _extension(item.key)
    found = signature(head) or _container(head, item, extension) or _checked(head)
    if found:
        return found, True
    text = decode_head(head)
    if text is not None:
        return text_type(text, extension, len(head) >= item.size)
    if (found := _late(head)) is not None:
        return found, True
    return (BINARY_NAMES[extension], False) if extension in BINARY_NAMES else (UNKNOWN, True)


def _extension(key: str) -> str:
    name = key.rsplit("/", 1)[-1]
    return name.rpartition(".")[2].lower() if "." in name[1:] else ""


def _container(head: bytes, item: Item, extension: str) -> str | None:
    first = head[:4]
    if first in _TIFFS and len(head) >= 8:
        return containers.tiff(head, extension)
    if first == b"PK\x03\x04":
        return containers.zipped(head, item)
    if first == b"PK\x05\x06":
        return "application/zip"
    if head[4:8] == b"ftyp":
        return containers.boxes(head)
    if first in (b"RIFF", b"FORM"):
        return containers.riff(head)
    if first == b"\xd0\xcf\x11\xe0" and len(head) >= 80:
        return containers.ole(head, item, extension)
    if first == b"\x1a\x45\xdf\xa3":
        return containers.ebml(head, extension)
    if first == b"OggS":
        return containers.ogg(head)
    if head.startswith(b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"):
        return containers.asf(head)
    return None


def _checked(head: bytes) -> str | None:
    """Verifies types with short signatures by further bytes."""
    first = head[:2]
    if first == b"BM" and len(head) >= 18 and struct.unpack_from("<I", head, 14)[0] in (12, 40, 52, 56, 64, 108, 124):
        return "image/bmp"
    if first == b"MZ" and (len(head) < 64 or struct.unpack_from("<I", head, 60)[0] < 1 << 20):
        return "application/vnd.microsoft.portable-executable"
    if head[0] == 0x50 and head[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6") and head[2:3].isspace():
        return "image/x-portable-anymap"
    if head[0] == 0xFF:
        return containers.frames(head)
    if head[0] == 0x47 and len(head) > 376 and head[188] == 0x47 and head[376] == 0x47:
        return "video/mp2t"
    if head[4:8] in _MOVIE_BOXES:
        return "video/quicktime"
    if head[:4] in (b"\0\1\0\0", b"true") and head[4:5] == b"\0" and head[12:16].strip(b" /").isalnum():
        return "font/ttf"
    if head[:4] == b"\0\0\1\0" and 0 < head[4] < 64 and head[5:6] == b"\0" and head[9:10] == b"\0":
        return "image/vnd.microsoft.icon"
    if head[:4] == b"\xca\xfe\xba\xbe":
        return "application/java-vm" if head[7:8] >= b"\x2d" else "application/x-mach-binary"
    if head[:4] == b"\1\0\0\0" and head[40:44] == b" EMF":
        return "image/emf"
    return None


def _late(head: bytes) -> str | None:
    """Detects a PDF with data before its first line."""
    return "application/pdf" if b"%PDF-" in head[:1024] else None
