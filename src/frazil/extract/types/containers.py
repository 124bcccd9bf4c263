"""Media types of container formats, which share their first bytes: their contents decide."""

from __future__ import annotations

import re
import struct

from frazil.extract import Item

_OOXML = "application/vnd.openxmlformats-officedocument."
_PARTS = (
    (b"word/", _OOXML + "wordprocessingml.document"),
    (b"xl/", _OOXML + "spreadsheetml.sheet"),
    (b"ppt/", _OOXML + "presentationml.presentation"),
)
_OFFICE_NAMES = {"docx": _PARTS[0][1], "xlsx": _PARTS[1][1], "pptx": _PARTS[2][1]}
_DOCUMENT = re.compile(rb"application/(?:epub|vnd\.)[\w.+-]{3,90}")
_OFFICE_STARTS = (b"[Content_Types].xml", b"_rels/", b"docProps/", b"customXml/", b"word/", b"xl/", b"ppt/")

_BRANDS = {
    b"crx ": "image/x-canon-cr3", b"avif": "image/avif", b"avis": "image/avif",
    b"heic": "image/heic", b"heix": "image/heic", b"hevc": "image/heic", b"hevx": "image/heic", b"heim": "image/heic",
    b"heis": "image/heic", b"mif1": "image/heif", b"msf1": "image/heif",
    b"qt  ": "video/quicktime", b"M4A ": "audio/mp4", b"M4B ": "audio/mp4", b"M4V ": "video/x-m4v",
}  # fmt: skip
_MAKERS = (
    (b"NIKON", "image/x-nikon-nef", "nef"), (b"SONY", "image/x-sony-arw", "arw"),
    (b"PENTAX", "image/x-pentax-pef", "pef"), (b"SAMSUNG", "image/x-samsung-srw", "srw"),
)  # fmt: skip


def boxes(head: bytes) -> str:
    """Detects the type of a file that starts with an `ftyp` box."""
    major = head[8:12]
    found = _BRANDS.get(major)
    if found == "image/heif":
        end = min(int.from_bytes(head[:4], "big"), 256)
        others = [_BRANDS.get(head[at : at + 4]) for at in range(16, end, 4)]
        return next((media for media in others if media in ("image/heic", "image/avif")), found)
    if found:
        return found
    return "video/3gpp" if major[:2] == b"3g" else "video/mp4"


def riff(head: bytes) -> str | None:
    """Detects the type of a file that starts with RIFF or FORM."""
    kinds = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
    if head[:4] == b"FORM":
        kinds = {b"AIFF": "audio/aiff", b"AIFC": "audio/aiff"}
    return kinds.get(head[8:12])


def tiff(head: bytes, extension: str) -> str:
    """Detects the type of a TIFF: RAW formats are TIFF as well, with a certain tag or camera maker."""
    if head[8:10] == b"CR" and head[:2] == b"II":
        return "image/x-canon-cr2"
    order = "<" if head[:2] == b"II" else ">"
    (at,) = struct.unpack_from(order + "I", head, 4)
    if at + 2 > len(head):
        return "image/tiff"
    (count,) = struct.unpack_from(order + "H", head, at)
    maker, nested = b"", False
    for entry in range(at + 2, min(at + 2 + 12 * count, len(head) - 11), 12):
        tag, _, length, where = struct.unpack_from(order + "HHII", head, entry)
        if tag == 0xC612:
            return "image/x-adobe-dng"
        if tag == 0x010F and length > 4:
            maker = head[where : where + min(length, 40)].upper()
        nested = nested or tag == 0x014A
    for name, media, usual in _MAKERS:
        if maker.startswith(name) and (nested or extension == usual):
            return media
    return "image/tiff"


def _zip_names(head: bytes) -> tuple[list[bytes], bytes]:
    """Returns the names of the entries in the first bytes, and the content of the first one if it is stored."""
    names, first, at = [], b"", 0
    while head[at : at + 4] == b"PK\x03\x04" and at + 30 <= len(head):
        flags, method = struct.unpack_from("<HH", head, at + 6)
        packed, _, length, extra = struct.unpack_from("<IIHH", head, at + 18)
        names.append(head[at + 30 : at + 30 + length])
        start = at + 30 + length + extra
        if at == 0 and method == 0:
            first = head[start : start + packed]
        if flags & 8 and not packed:
            break
        at = start + packed
    return names, first


def zipped(head: bytes, item: Item) -> str:
    """Detects the type of a zip archive: the names of its entries distinguish documents from archives."""
    names, first = _zip_names(head)
    if not names:
        return "application/zip"
    if names[0] == b"mimetype" and _DOCUMENT.fullmatch(first.strip()):
        return first.decode().strip()
    if names[0].startswith(_OFFICE_STARTS):
        # The list of all names is at the end; the main part may come late.
        listed = head + item.read(max(0, item.size - 8192), 8192) if item.size > len(head) else head
        if b"[Content_Types].xml" in listed:
            inside = [name for name in names if not name.startswith(_OFFICE_STARTS[:4])]
            for part, media in _PARTS:
                if any(name.startswith(part) for name in inside) or b"\0" + part in listed:
                    return media
            return next((media for part, media in _PARTS if part in listed), "application/zip")
    if any(name.startswith(b"META-INF/") for name in names[:2]):
        return "application/java-archive"
    if b"AndroidManifest.xml" in names:
        return "application/vnd.android.package-archive"
    return "application/vnd.google-earth.kmz" if names[0] == b"doc.kml" else "application/zip"


def _ole_names(head: bytes, item: Item) -> list[str]:
    """Returns the names in the directory of an OLE file: the first sectors of its chain."""
    shift, sector = struct.unpack_from("<H", head, 30)[0], struct.unpack_from("<I", head, 48)[0]
    if shift not in (9, 12) or len(head) < 512:
        return []
    size, names = 1 << shift, []
    for _ in range(8):
        block = item.read((sector + 1) * size, size)
        for at in range(0, len(block) - 127, 128):
            length = min(struct.unpack_from("<H", block, at + 64)[0], 64)
            names.append(block[at : at + max(length - 2, 0)].decode("utf-16-le", "replace"))
        part, index = divmod(sector, size // 4)
        if part >= 109:
            break
        (table,) = struct.unpack_from("<I", head, 76 + 4 * part)
        following = item.read((table + 1) * size + 4 * index, 4)
        if len(following) < 4 or (sector := struct.unpack("<I", following)[0]) >= 0xFFFFFFFA:
            break
    return names


def ole(head: bytes, item: Item, extension: str) -> str:
    """Detects the type of an OLE file: older Office documents, Outlook messages, installers."""
    names = set(_ole_names(head, item))
    for name, media in (
        ("WordDocument", "application/msword"),
        ("Workbook", "application/vnd.ms-excel"),
        ("Book", "application/vnd.ms-excel"),
        ("PowerPoint Document", "application/vnd.ms-powerpoint"),
        ("__properties_version1.0", "application/vnd.ms-outlook"),
    ):
        if name in names:
            return media
    if "EncryptedPackage" in names:
        return _OFFICE_NAMES.get(extension, "application/x-ole-storage")
    return "application/x-msi" if extension == "msi" else "application/x-ole-storage"


def ebml(head: bytes, extension: str) -> str:
    """Detects the type of a Matroska file."""
    if b"webm" in head[:64]:
        return "video/webm"
    return "audio/x-matroska" if extension == "mka" else "video/x-matroska"


def ogg(head: bytes) -> str:
    """Detects the type of an Ogg file by its first packet."""
    first = head[28:36]
    return "video/ogg" if first.startswith((b"\x80theora", b"BBCD", b"fishead")) else "audio/ogg"


def asf(head: bytes) -> str:
    """Detects the type of a Windows Media file by its streams."""
    if b"\xc0\xef\x19\xbc\x4d\x5b\xcf\x11\xa8\xfd\x00\x80\x5f\x5c\x44\x2b" in head:
        return "video/x-ms-wmv"
    if b"\x40\x9e\x69\xf8\x4d\x5b\xcf\x11\xa8\xfd\x00\x80\x5f\x5c\x44\x2b" in head:
        return "audio/x-ms-wma"
    return "video/x-ms-asf"


_RATES = (44100, 48000, 32000)
_MP3_KBIT = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}


def _mp3_frame(head: bytes, at: int) -> int:
    """Returns the length of a Layer III frame; 0 if there is none."""
    if at + 4 > len(head) or head[at] != 0xFF or head[at + 1] & 0xE6 != 0xE2:
        return 0
    version, rate, kbit = head[at + 1] >> 3 & 3, head[at + 2] >> 2 & 3, head[at + 2] >> 4
    if version == 1 or rate == 3 or kbit in (0, 15):
        return 0
    full = version == 3
    hertz = _RATES[rate] // (1 if full else 2 if version == 2 else 4)
    return (144 if full else 72) * _MP3_KBIT[full][kbit] * 1000 // hertz + (head[at + 2] >> 1 & 1)


def _adts_frame(head: bytes, at: int) -> int:
    if at + 7 > len(head) or head[at] != 0xFF or head[at + 1] & 0xF6 != 0xF0:
        return 0
    return (head[at + 3] & 3) << 11 | head[at + 4] << 3 | head[at + 5] >> 5


def frames(head: bytes) -> str | None:
    """Detects audio without a header: two frames in a row, or one at the end of the file."""
    for measure, media in ((_mp3_frame, "audio/mpeg"), (_adts_frame, "audio/aac")):
        length = measure(head, 0)
        if length and (length >= len(head) or measure(head, length)):
            return media
    return None
