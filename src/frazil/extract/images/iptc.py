"""The extractor `iptc`: the records that news agencies and older software write."""

from __future__ import annotations

import re
from typing import Any

from frazil.extract import Item, extractor
from frazil.extract.images.read_header import read_header

_SHARED = "iptc"
_MAX_BLOCK = 1 << 20
_MAX_RECORDS = 4096
_CHARSET = (1, 90)
_NAMES: dict[tuple[int, int], str] = {
    (2, 3): "ObjectTypeReference", (2, 4): "ObjectAttributeReference", (2, 5): "ObjectName", (2, 7): "EditStatus",
    (2, 8): "EditorialUpdate", (2, 10): "Urgency", (2, 12): "SubjectReference", (2, 15): "Category",
    (2, 20): "SupplementalCategories", (2, 22): "FixtureIdentifier", (2, 25): "Keywords",
    (2, 26): "ContentLocationCode", (2, 27): "ContentLocationName", (2, 30): "ReleaseDate", (2, 35): "ReleaseTime",
    (2, 37): "ExpirationDate", (2, 38): "ExpirationTime", (2, 40): "SpecialInstructions", (2, 55): "DateCreated",
    (2, 60): "TimeCreated", (2, 62): "DigitalCreationDate", (2, 63): "DigitalCreationTime",
    (2, 65): "OriginatingProgram", (2, 70): "ProgramVersion", (2, 75): "ObjectCycle", (2, 80): "By-line",
    (2, 85): "By-lineTitle", (2, 90): "City", (2, 92): "Sub-location", (2, 95): "Province-State",
    (2, 100): "Country-PrimaryLocationCode", (2, 101): "Country-PrimaryLocationName",
    (2, 103): "OriginalTransmissionReference", (2, 105): "Headline", (2, 110): "Credit", (2, 115): "Source",
    (2, 116): "CopyrightNotice", (2, 118): "Contact", (2, 120): "Caption-Abstract", (2, 121): "LocalCaption",
    (2, 122): "Writer-Editor", (2, 131): "ImageOrientation", (2, 135): "LanguageIdentifier",
    (1, 20): "FileFormat", (1, 30): "ServiceIdentifier", (1, 40): "EnvelopeNumber", (1, 70): "DateSent",
    (1, 80): "TimeSent", (1, 100): "UniqueObjectName",
}  # fmt: skip
_LISTS = frozenset({(2, 4), (2, 12), (2, 20), (2, 25), (2, 26), (2, 27), (2, 80), (2, 85), (2, 118), (2, 122)})
_DATES = frozenset({(1, 70), (2, 30), (2, 37), (2, 55), (2, 62)})
_TIMES = frozenset({(1, 80), (2, 35), (2, 38), (2, 60), (2, 63)})
#: Records that are skipped: versions and previews.
_LEFT_OUT = frozenset({(1, 0), (2, 0), (2, 200), (2, 201), (2, 202)})


@extractor(
    "iptc",
    version="1",
    types=["image/*"],
    fields={
        "(name)": "each record under its usual name: ObjectName, City, CopyrightNotice, DateCreated …",
        "Keywords": "a list",
        "By-line": "a list of names",
    },
)
def IPTC(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes an Extractor
    """All IPTC records of an image; empty if it has none."""
    return read_iptc(item)


def read_iptc(item: Item) -> dict[str, Any]:
    """Returns the IPTC records of a picture, parsed once."""
    known = item.shared.get(_SHARED)
    if known is None:
        source = read_header(item).iptc
        known = item.shared[_SHARED] = {} if source is None else parse(source.get(0, min(source.size, _MAX_BLOCK)))
    return dict(known)


def parse(block: bytes) -> dict[str, Any]:
    """Parses IIM records by name; those after a damaged one are left out."""
    found: dict[str, Any] = {}
    utf8 = False
    for number, data in _records(block):
        if number == _CHARSET:
            utf8 = data == b"\x1b%G"
        elif number not in _LEFT_OUT:
            text = _told(number, data, utf8)
            name = _NAMES.get(number) or f"{number[0]}:{number[1]}"
            if not text:
                continue
            if number in _LISTS:
                found.setdefault(name, []).append(text)
            else:
                found.setdefault(name, text)
    return found


def _records(block: bytes) -> list[tuple[tuple[int, int], bytes]]:
    found: list[tuple[tuple[int, int], bytes]] = []
    at = 0
    while at + 5 <= len(block) and block[at] == 0x1C and len(found) < _MAX_RECORDS:
        number, length = (block[at + 1], block[at + 2]), int.from_bytes(block[at + 3 : at + 5], "big")
        at += 5
        if length & 0x8000:
            wide = length & 0x7FFF
            length = int.from_bytes(block[at : at + wide], "big") if wide <= 8 else len(block)
            at += wide
        if at + length > len(block):
            break
        found.append((number, block[at : at + length]))
        at += length
    return found


def _told(number: tuple[int, int], data: bytes, utf8: bool) -> str:
    if number == (1, 20) and len(data) == 2:
        return str(int.from_bytes(data, "big"))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8" if utf8 else "cp1252", "replace")
    text = text.strip("\0 \r\n\t")
    if number in _DATES and (day := re.fullmatch(r"(\d{4})(\d\d)(\d\d)", text)):
        return "-".join(day.groups()) if day.group(1) != "0000" else ""
    if number in _TIMES and (clock := re.fullmatch(r"(\d\d)(\d\d)(\d\d)(?:([+-]\d\d)(\d\d))?", text)):
        zone = f"{clock.group(4)}:{clock.group(5)}" if clock.group(4) else ""
        return ":".join(clock.groups()[:3]) + zone
    return text
