"""Extracts text from documents: PDF, OOXML, OpenDocument, EPUB. Reads only as much as is stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from xml.etree.ElementTree import ParseError

from frazil.extract import Item, TooMuch, Unsupported
from frazil.extract.documents.markup import strip_markup
from frazil.extract.documents.package import ENTITIES, Package
from frazil.extract.window import Damaged

#: Maximum decompressed bytes of XML or HTML of one document, and characters of its text.
MOST: Final = 4 << 20
CHARACTERS: Final = 1 << 20
PAGES: Final = 50
PARTS: Final = 200


def pdf_text(item: Item) -> tuple[str, bool]:
    """Returns the text of the first pages, and whether there are more.

    Raises:
        Unsupported: it is password-protected.
    """
    from frazil.extract.documents.pdf import first_pages, open_pdf, page_count, unlock

    until = time.monotonic() + item.limits.timeout_s / 3
    found: list[str] = []
    pages = length = 0
    with open_pdf(item) as reader:
        if reader.is_encrypted and not unlock(reader):
            raise Unsupported("it is password-protected")
        total = page_count(item, reader)
        try:
            for page in first_pages(reader, PAGES):
                found.append(page.extract_text())
                pages, length = pages + 1, length + len(found[-1])
                if length > CHARACTERS or time.monotonic() > until:
                    break
        except Exception:
            if not pages:
                raise
            return "\n".join(found), True  # what could be read is worth more than what could not
    return "\n".join(found), pages < total


def package_text(item: Item) -> tuple[str, bool]:
    """Returns the text of an office document or a book, and whether there is more.

    Raises:
        Unsupported: it is password-protected, or is no document.
    """
    from frazil.extract.documents.ole import MAGIC

    if item.head(8)[:8] == MAGIC:
        raise Unsupported("it is password-protected, or older than 2007")
    package = Package(item)
    if package.kind == "epub":
        return _gathered(package, _chapters(package), lambda data: strip_markup(data.decode("utf-8", "replace")))
    names, ends, all_data = _places(package)
    return _gathered(package, names, lambda data: _xml_text(data, ends, all_data))


def _chapters(package: Package) -> list[str]:
    from frazil.extract.documents.office import list_chapters, read_book

    return list_chapters(*read_book(package))


def _places(package: Package) -> tuple[list[str], frozenset[str], bool]:
    """Returns the parts with text, the elements that end a line, and whether only characters in `t` count."""
    if package.kind == "docx":
        return ["word/document.xml"], frozenset(("p", "br", "tr")), False
    if package.kind == "pptx":
        return package.numbered(r"ppt/slides/slide(\d{1,6})\.xml"), frozenset(("p", "br")), False
    if package.kind == "xlsx":
        return ["xl/sharedStrings.xml"], frozenset(("si",)), False
    if package.kind is None:
        raise Unsupported("a zip file, but not a document: neither OOXML nor OpenDocument nor EPUB")
    return ["content.xml"], frozenset(("p", "h", "line-break", "table-row")), True


def _gathered(package: Package, names: list[str], text_of: Callable[[bytes], str]) -> tuple[str, bool]:
    found: list[str] = []
    left, more = MOST, len(names) > PARTS
    for name in names[:PARTS]:
        data = package.start(name, left)
        if data is None:
            continue
        left -= len(data)
        found.append(text_of(data))
        if left <= 0:
            return "\n".join(found), True
    return "\n".join(found), more


class _Texts:
    """Collects characters while XML is parsed."""

    def __init__(self, ends: frozenset[str], everything: bool) -> None:
        self.made: list[str] = []
        self._ends = ends
        self._everything = everything
        self._inside = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition("}")[2]
        if name == "t" or (self._everything and name == "body"):
            self._inside += 1
        elif name in ("tab", "s"):
            self.made.append(" ")

    def data(self, text: str) -> None:
        if self._inside:
            self.made.append(text)

    def end(self, tag: str) -> None:
        name = tag.rpartition("}")[2]
        if name == "t" or (self._everything and name == "body"):
            self._inside -= 1
        elif name in self._ends:
            self.made.append("\n")


def _xml_text(data: bytes, ends: frozenset[str], everything: bool) -> str:
    """Returns the text of XML that may be truncated."""
    from defusedxml import DefusedXmlException  # type: ignore[import-untyped]
    from defusedxml.ElementTree import XMLParser  # type: ignore[import-untyped]

    texts: Any = _Texts(ends, everything)
    parser = XMLParser(target=texts)
    try:
        for piece in _pieces(data):
            parser.feed(piece)
            if len(texts.made) > CHARACTERS:
                raise TooMuch("more pieces of text than a document has")
    except DefusedXmlException as error:
        raise Unsupported(ENTITIES) from error
    except (ParseError, ValueError, LookupError) as error:
        if not texts.made:
            raise Damaged(f"its text is not XML: {str(error)[:200]}") from error
    return "".join(texts.made)


def _pieces(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), 64 * 1024):
        yield data[at : at + 64 * 1024]
