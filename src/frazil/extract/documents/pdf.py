"""The extractor `pdf`: reads the index at the end by ranges, then the few objects that matter."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from frazil.extract import Item, TooMuch, Unsupported, extractor, normalize
from frazil.extract.documents.guarded_file import GuardedFile
from frazil.extract.window import Damaged

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader

#: Maximum decompressed bytes of one stream: an index, a page.
STREAM: Final = 16 << 20
#: The last bytes, in which the end mark must be. Servers and mailers append data.
TAIL: Final = 16 * 1024
#: Maximum depth of the tree of pages.
TREE: Final = 100
#: Maximum size of a PDF that is read at once, because its objects are scattered.
SMALL: Final = 256 * 1024


@contextmanager
def open_pdf(item: Item) -> Iterator[PdfReader]:
    """Opens a PDF, with limits against malicious ones.

    Raises:
        Damaged: no PDF, cut off, or against the rules.
        Unsupported: empty, or locked in a way that is not known.
        TooMuch: a limit.
    """
    _checked(item)
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, LimitReachedError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of each oddity; the result tells
    source = io.BytesIO(item.read(0, item.size)) if item.size <= SMALL else item.open()
    file: Any = GuardedFile(source, item.size)
    try:
        with _limited(), contextlib.closing(PdfReader(file, strict=False)) as reader:
            yield reader
    except (Unsupported, TooMuch, MemoryError):
        raise
    except (NotImplementedError, DependencyError) as error:
        raise Unsupported(f"encrypted by an unsupported method: {_line(error)}") from error
    except LimitReachedError as error:
        raise TooMuch(_line(error)) from error
    except RecursionError as error:
        raise Damaged("its objects are nested too deep") from error
    except Exception as error:
        if file.failure is not None:
            raise file.failure from None
        raise Damaged(f"invalid PDF: {_line(error)}") from error
    if file.failure is not None and not isinstance(file.failure, TooMuch):
        raise file.failure  # what is known up to a limit is true; of an object that changes nothing is


def _checked(item: Item) -> None:
    if item.size == 0:
        raise Unsupported("the object is empty")
    if b"%PDF-" not in item.head(1024):
        raise Damaged("not a PDF: it does not start like one")
    tail = item.read(max(0, item.size - TAIL), TAIL)
    if b"startxref" not in tail or b"%%EOF" not in tail:
        raise Damaged("the file is truncated: its end is missing")


@contextmanager
def _limited() -> Iterator[None]:
    from pypdf import apply_configuration

    with apply_configuration(
        maximum_declared_stream_length=STREAM,
        array_based_stream_maximum_output_length=STREAM,
        lzw_maximum_output_length=STREAM,
        run_length_maximum_output_length=STREAM,
        zlib_maximum_output_length=STREAM,
        brotli_maximum_output_length=STREAM,
        zlib_maximum_recovery_input_length=1 << 20,
        stream_decoding_work_maximum_length=4 * STREAM,
        stream_parsing_work_maximum_count=500_000,
        xmp_maximum_input_length=1 << 20,
        xform_maximum_invocations_per_extraction=500,
        jbig2dec_binary=None,
        disable_legacy_handling=True,
    ):
        yield


def _line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__


@extractor(
    "pdf",
    types=("application/pdf",),
    alone=True,
    fields={
        "version": "of the format",
        "page_count": "pages",
        "encrypted": "whether it is encrypted",
        "locked": "whether a password is required to read more",
        "title": "from the document's metadata",
        "author": "from the document's metadata",
        "subject": "from the document's metadata",
        "keywords": "from the document's metadata",
        "creator": "the program in which it was written",
        "producer": "the program that created the PDF",
        "created_at": "from the document's metadata",
        "modified_at": "from the document's metadata",
    },
)
def PDF(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes a constant: the decorator makes an Extractor of it
    """Pages, title, author and dates of PDF documents."""
    with open_pdf(item) as reader:
        encrypted = reader.is_encrypted
        told: dict[str, Any] = {"version": _version(item, reader), "encrypted": encrypted}
        if encrypted and not unlock(reader):
            return normalize.drop_empty(**told, locked=True)
        return normalize.drop_empty(**told, page_count=page_count(item, reader), **_info(reader))


def unlock(reader: PdfReader) -> bool:
    """Decrypts a PDF without a password, as most that only forbid printing allow. Returns whether that works."""
    from pypdf import PasswordType

    return reader.decrypt("") != PasswordType.NOT_DECRYPTED


def _version(item: Item, reader: PdfReader) -> str | None:
    head = item.head(1024)
    at = head.find(b"%PDF-") + 5
    told = head[at : at + 3].decode("latin-1")
    with contextlib.suppress(Exception):  # the catalog of a locked one may not be readable
        newer = reader.root_object.get("/Version")
        told = max(told, str(newer).strip("/")[:3]) if newer else told
    return told if told.replace(".", "").isdigit() else None


def _declared(item: Item, reader: PdfReader) -> int | None:
    """Returns the declared number of pages; None if it is impossible."""
    count = reader.root_object["/Pages"].get("/Count")  # type: ignore[attr-defined]
    return int(count) if isinstance(count, int) and 0 < count <= item.size else None


def page_count(item: Item, reader: PdfReader) -> int:
    """Returns the declared number of pages; counts them if it is impossible."""
    return _declared(item, reader) or len(reader.pages)


def _info(reader: PdfReader) -> dict[str, Any]:
    info: Any = reader.metadata or {}

    def told(name: str) -> str | None:
        with contextlib.suppress(Exception):  # one broken string does not hide the others
            value = info.get(name)
            return normalize.text(value.get_object()) if value is not None else None
        return None

    fields = {
        name.lower(): told(f"/{name}") for name in ("Title", "Author", "Subject", "Keywords", "Creator", "Producer")
    }
    fields["created_at"], fields["modified_at"] = (
        normalize.pdf_date(told("/CreationDate")),
        normalize.pdf_date(told("/ModDate")),
    )
    return fields


def first_pages(reader: PdfReader, most: int) -> Iterator[PageObject]:
    """Yields the first pages. Unlike `reader.pages`, reads only the branches of the tree that lead to them."""
    from pypdf import PageObject
    from pypdf.generic import ArrayObject, DictionaryObject

    inherited = ("/Resources", "/MediaBox", "/CropBox", "/Rotate")
    todo: list[tuple[Any, dict[str, Any], int]] = [(reader.root_object["/Pages"], {}, 0)]
    seen = 0
    while todo and seen < most * TREE and most:
        node, passed, depth = todo.pop()
        seen += 1
        page = node.get_object()
        if not isinstance(page, DictionaryObject) or depth > TREE:
            continue
        kids = page.get("/Kids")
        kids = kids.get_object() if kids is not None else None
        if isinstance(kids, ArrayObject):
            mine = {**passed, **{name: page[name] for name in inherited if name in page}}
            todo += [(kid, mine, depth + 1) for kid in reversed(kids[: most * TREE])]
            continue
        most -= 1
        made = PageObject(reader)
        made.update({**passed, **page})
        yield made
