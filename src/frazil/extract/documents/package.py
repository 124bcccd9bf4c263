"""Documents that are zip files of XML: OOXML, OpenDocument, EPUB. Reads parts by name, within limits."""

from __future__ import annotations

import re
from typing import Any, Final
from xml.etree.ElementTree import Element

from frazil.extract import Item, Unsupported
from frazil.extract.archives.zip import Entry, Zip
from frazil.extract.window import Damaged

#: Maximum parts of a document.
MOST: Final = 20_000
#: Maximum bytes of XML that are parsed as a whole.
WHOLE: Final = 1 << 20
ENTITIES: Final = "its XML declares entities, as XML bombs do"


class Package:
    """A document in a zip file.

    Attributes:
        names: all its parts, in the order of the directory.
        kind: docx, xlsx, pptx, odt, ods, odp, odg, epub; None: some other zip.
    """

    def __init__(self, item: Item) -> None:
        """Reads the directory.

        Raises:
            Damaged: not a zip file, or truncated.
            Unsupported: empty, or has too many parts.
        """
        if item.size == 0:
            raise Unsupported("the object is empty")
        self._zip = Zip(item)
        if self._zip.total > MOST:
            raise Unsupported(f"{self._zip.total:,} parts are not a document")
        self._entries: dict[str, Entry] = {}
        for entry in self._zip.entries(MOST):
            self._entries.setdefault(entry.name, entry)
        self.names = list(self._entries)
        self.kind = self._kind()

    def _kind(self) -> str | None:
        for folder, kind in (("word/", "docx"), ("xl/", "xlsx"), ("ppt/", "pptx")):
            if any(name.startswith(folder) for name in self.names):
                return kind
        told = (self.start("mimetype", 256) or b"").decode("latin-1").strip()
        if told == "application/epub+zip" or "META-INF/container.xml" in self._entries:
            return "epub"
        found = re.match(r"application/vnd\.oasis\.opendocument\.(text|spreadsheet|presentation|graphics)", told)
        return (
            {"text": "odt", "spreadsheet": "ods", "presentation": "odp", "graphics": "odg"}[found[1]] if found else None
        )

    def numbered(self, pattern: str) -> list[str]:
        """Returns names that contain one number, sorted by it."""
        found = [(int(m[1]), name) for name in self.names if (m := re.fullmatch(pattern, name))]
        return [name for _, name in sorted(found)]

    def start(self, name: str, most: int) -> bytes | None:
        """Returns the first bytes of a part; None if it does not exist."""
        entry = self._entries.get(name)
        return None if entry is None else self._zip.part(entry, most)

    def xml(self, name: str) -> Element | None:
        """Returns a part as XML; None if it does not exist.

        Raises:
            Damaged: it is no XML.
            Unsupported: it is too large, or declares entities.
        """
        entry = self._entries.get(name)
        if entry is None:
            return None
        data = self._zip.part(entry, WHOLE + 1)
        if len(data) > WHOLE:
            raise Unsupported(f"its {name} has more than {WHOLE:,} bytes")
        return parse_xml(data, name)


def parse_xml(data: bytes, name: str) -> Element:
    """Parses XML without entities.

    Raises:
        Damaged: it is no XML.
        Unsupported: it declares entities.
    """
    from xml.etree.ElementTree import ParseError

    from defusedxml import DefusedXmlException  # type: ignore[import-untyped]
    from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

    try:
        root: Element = fromstring(data)
    except DefusedXmlException as error:
        raise Unsupported(ENTITIES) from error
    except (ParseError, ValueError, LookupError) as error:
        raise Damaged(f"{name} is not XML: {str(error)[:200]}") from error
    return root


def local_name(element: Any) -> str:
    """Returns the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def element_texts(root: Element | None) -> dict[str, str]:
    """Returns the texts of all elements by local name; the first of each counts."""
    found: dict[str, str] = {}
    for element in root.iter() if root is not None else ():
        if element.text and element.text.strip():
            found.setdefault(local_name(element), element.text)
    return found
