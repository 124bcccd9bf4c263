"""The extractor `office`: properties of Word, Excel, PowerPoint, LibreOffice and EPUB documents."""

from __future__ import annotations

import posixpath
from typing import Any, Final
from urllib.parse import unquote

from frazil.extract import Item, Unsupported, extractor, normalize
from frazil.extract.documents.package import Package, element_texts, local_name
from frazil.extract.window import Damaged

_OOXML = "application/vnd.openxmlformats-officedocument."
_ODF = "application/vnd.oasis.opendocument."
#: Documents in zip files.
PACKAGES: Final = (
    *(f"{_OOXML}wordprocessingml.{kind}" for kind in ("document", "template")),
    *(f"{_OOXML}spreadsheetml.{kind}" for kind in ("sheet", "template")),
    *(f"{_OOXML}presentationml.{kind}" for kind in ("presentation", "slideshow", "template")),
    "application/vnd.ms-word.document.macroenabled.12",
    "application/vnd.ms-excel.sheet.macroenabled.12",
    "application/vnd.ms-powerpoint.presentation.macroenabled.12",
    *(_ODF + kind for kind in ("text", "text-template", "spreadsheet", "presentation", "graphics")),
    "application/epub+zip",
)
TYPES: Final = (
    *PACKAGES,
    "application/msword",
    "application/vnd.ms-excel",
    "application/vnd.ms-powerpoint",
    "application/x-ole-storage",
)


@extractor(
    "office",
    types=TYPES,
    fields={
        "kind": "docx, xlsx, pptx, odt, ods, odp, odg, epub, doc, xls, ppt",
        "page_count": "pages, slides or sheets",
        "title": "from the document's metadata",
        "author": "from the document's metadata",
        "subject": "from the document's metadata",
        "keywords": "from the document's metadata",
        "language": "from the document's metadata",
        "created_at": "when it was first saved",
        "modified_at": "when it was last saved",
        "modified_by": "who saved it last",
        "company": "from the document's metadata",
        "publisher": "of a book",
        "application": "the program that made it",
        "words": "as counted by the program",
        "chapters": "parts of a book, in reading order",
    },
)
def OFFICE(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes a constant: the decorator makes an Extractor of it
    """Title, author, pages and dates of office documents and books."""
    from frazil.extract.documents import ole

    if item.head(8)[:8] == ole.MAGIC:
        return ole.read_ole(item)
    package = Package(item)
    if package.kind in ("docx", "xlsx", "pptx"):
        return _ooxml(package)
    if package.kind == "epub":
        return _epub(package)
    if package.kind is not None:
        return _odf(package)
    raise Unsupported("a zip file, but not a document: neither OOXML nor OpenDocument nor EPUB")


def _ooxml(package: Package) -> dict[str, Any]:
    core, app = element_texts(package.xml("docProps/core.xml")), element_texts(package.xml("docProps/app.xml"))
    pages = {
        "docx": normalize.count(app.get("Pages")),
        "pptx": len(package.numbered(r"ppt/slides/slide(\d{1,6})\.xml")),
        "xlsx": len(package.numbered(r"xl/worksheets/sheet(\d{1,6})\.xml")),
    }
    return normalize.drop_empty(
        kind=package.kind,
        page_count=pages[package.kind or "docx"] or None,
        title=normalize.text(core.get("title")),
        author=normalize.text(core.get("creator")),
        subject=normalize.text(core.get("subject")),
        keywords=normalize.text(core.get("keywords")),
        language=normalize.text(core.get("language")),
        created_at=normalize.date(core.get("created")),
        modified_at=normalize.date(core.get("modified")),
        modified_by=normalize.text(core.get("lastModifiedBy")),
        company=normalize.text(app.get("Company")),
        application=normalize.text(app.get("Application")),
        words=normalize.count(app.get("Words")),
    )


def _odf(package: Package) -> dict[str, Any]:
    root = package.xml("meta.xml")
    meta = element_texts(root)
    statistic: dict[str, str] = {}
    for element in root.iter() if root is not None else ():
        if local_name(element) == "document-statistic":
            statistic = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    return normalize.drop_empty(
        kind=package.kind,
        page_count=normalize.count(statistic.get("page-count", statistic.get("table-count"))),
        title=normalize.text(meta.get("title")),
        author=normalize.text(meta.get("initial-creator") or meta.get("creator")),
        subject=normalize.text(meta.get("subject")),
        keywords=normalize.text(meta.get("keyword")),
        language=normalize.text(meta.get("language")),
        created_at=normalize.date(meta.get("creation-date")),
        modified_at=normalize.date(meta.get("date")),
        modified_by=normalize.text(meta.get("creator")),
        application=normalize.text(meta.get("generator")),
        words=normalize.count(statistic.get("word-count")),
    )


def read_book(package: Package) -> tuple[str, Any]:
    """Returns the name of a book's package document, and its XML.

    Raises:
        Damaged: there is none.
    """
    container = package.xml("META-INF/container.xml")
    name = next(
        (
            e.attrib.get("full-path", "")
            for e in (container.iter() if container is not None else ())
            if local_name(e) == "rootfile"
        ),
        "",
    )
    root = package.xml(name)
    if root is None:
        raise Damaged("the book has no package document (OPF)")
    return name, root


def list_chapters(name: str, root: Any) -> list[str]:
    """Returns the names of a book's chapters in reading order."""
    items = {e.attrib.get("id"): e.attrib.get("href", "") for e in root.iter() if local_name(e) == "item"}
    order = [items.get(e.attrib.get("idref")) for e in root.iter() if local_name(e) == "itemref"]
    folder = posixpath.dirname(name)
    return [posixpath.normpath(posixpath.join(folder, unquote(href))) for href in order if href]


def _epub(package: Package) -> dict[str, Any]:
    name, root = read_book(package)
    meta = element_texts(root)
    authors = [e.text.strip() for e in root.iter() if local_name(e) == "creator" and e.text and e.text.strip()]
    modified = next((e.text for e in root.iter() if e.attrib.get("property") == "dcterms:modified"), None)
    return normalize.drop_empty(
        kind="epub",
        title=normalize.text(meta.get("title")),
        author=normalize.text(", ".join(authors[:20])),
        subject=normalize.text(meta.get("subject")),
        language=normalize.text(meta.get("language")),
        created_at=normalize.date(meta.get("date")),
        modified_at=normalize.date(modified),
        publisher=normalize.text(meta.get("publisher")),
        chapters=len(list_chapters(name, root)) or None,
    )
