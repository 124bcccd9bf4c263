"""Office documents before 2007: OLE files with two streams of properties.

The properties are parsed here: `olefile.get_metadata` runs through a list of four billion nothings if one is declared.
"""

from __future__ import annotations

import contextlib
import struct
from datetime import UTC, datetime
from typing import Any, Final

from frazil.extract import Item, Unsupported, normalize
from frazil.extract.documents.guarded_file import GuardedFile
from frazil.extract.window import Damaged

MAGIC: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
KINDS: Final = {"WordDocument": "doc", "Workbook": "xls", "Book": "xls", "PowerPoint Document": "ppt"}
#: Maximum bytes of properties, and properties of one set.
MOST: Final = 1 << 20
PROPERTIES: Final = 1_000
EPOCH: Final = datetime(1601, 1, 1, tzinfo=UTC)

SUMMARY: Final = {
    2: "title",
    3: "subject",
    4: "author",
    5: "keywords",
    8: "modified_by",
    12: "created_at",
    13: "modified_at",
    14: "pages",
    15: "words",
    18: "application",
}
DOCUMENT: Final = {7: "slides", 15: "company"}


def read_ole(item: Item) -> dict[str, Any]:
    """Reads the properties.

    Raises:
        Unsupported: it is a newer document behind a password.
        Damaged: it breaks the rules of OLE.
    """
    import olefile  # type: ignore[import-untyped]

    if item.head(512)[30:32] not in (b"\x09\0", b"\x0c\0"):
        raise Damaged("invalid OLE file: impossible size of sectors")

    watched = GuardedFile(item.open(), item.size)
    try:
        with olefile.OleFileIO(watched) as file:
            names = {"/".join(path) for path in file.listdir()}
            told = {
                **_stream(file, "\x05DocumentSummaryInformation", DOCUMENT),
                **_stream(file, "\x05SummaryInformation", SUMMARY),
            }
    except MemoryError:
        raise
    except Exception as error:
        if watched.failure is not None:
            raise watched.failure from None
        raise Damaged(f"invalid OLE file: {str(error)[:200] or type(error).__name__}") from error
    if "EncryptedPackage" in names:
        raise Unsupported("it is password-protected")
    kind = next((kind for name, kind in KINDS.items() if name in names), "ole")
    pages, slides = told.pop("pages", None), told.pop("slides", None)
    return normalize.drop_empty(kind=kind, page_count=(slides if kind == "ppt" else pages) or None, **told)


def _stream(file: Any, name: str, wanted: dict[int, str]) -> dict[str, Any]:
    if not file.exists(name) or file.get_size(name) > MOST:
        return {}
    return parse_properties(file.openstream(name).read(MOST), wanted)


def parse_properties(data: bytes, wanted: dict[int, str]) -> dict[str, Any]:
    """Parses the wanted properties of the first section. Unreadable ones are left out."""
    if len(data) < 48:
        return {}
    start = int.from_bytes(data[44:48], "little")
    section = data[start:]
    count = min(int.from_bytes(section[4:8], "little"), PROPERTIES, max(0, len(section) - 8) // 8)
    places = dict(struct.unpack("<II", section[8 + 8 * i : 16 + 8 * i]) for i in range(count))
    encoding = _encoding(_value(section, places.get(1), "cp1252"))
    found = {name: _value(section, places.get(number), encoding) for number, name in wanted.items()}
    return {name: value for name, value in found.items() if value not in (None, 0)}


def _value(section: bytes, at: int | None, encoding: str) -> Any:
    if at is None or at + 8 > len(section):
        return None
    kind, length = struct.unpack("<II", section[at : at + 8])
    body = section[at + 8 :][: normalize.LONGEST * 4]
    if kind == 2:
        return length & 0xFFFF
    if kind == 3:
        return normalize.count(length)
    if kind == 30:
        return normalize.text(body[:length].decode(encoding, "replace").split("\0")[0])
    if kind == 31:
        return normalize.text(body[: length * 2].decode("utf-16-le", "replace").split("\0")[0])
    if kind == 64 and at + 12 <= len(section):
        return _time(int.from_bytes(section[at + 4 : at + 12], "little"))
    return None


def _encoding(page: Any) -> str:
    number = page if isinstance(page, int) else 1252
    name = {65001: "utf-8", 1200: "utf-16-le", 10000: "mac-roman"}.get(number, f"cp{number}")
    with contextlib.suppress(LookupError):
        b"".decode(name)
        return name
    return "cp1252"


def _time(ticks: int) -> str | None:
    """Converts a Windows time: tenths of microseconds since 1601."""
    told = normalize.time_since(EPOCH, ticks // 10_000_000)
    return told.isoformat() if told else None
