"""The extractor `text`: the beginning of a text, for search, its language and counts."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from frazil.extract import Item, Unsupported, extractor
from frazil.extract.documents.office import PACKAGES
from frazil.extract.normalize import drop_empty

#: Maximum characters that are examined, and minimum letters.
SAMPLE: Final = 16_384
LEAST: Final = 24
#: Minimum confidence: prose is above 0.9, tables and code below 0.2.
SURE: Final = 0.3
#: Languages with three-letter codes → the two-letter code that includes them.
_WITHIN: Final = {"ary": "ar", "arz": "ar", "yue": "zh", "wuu": "zh", "uzs": "uz", "crh": "tr"}


def language(text: str) -> str | None:
    """Detects the language as ISO 639-1; None if the text is too short, or not prose."""
    sample = text[:SAMPLE]
    letters = sum(2 if c >= "\u2e80" else 1 for c in sample if c.isalpha())  # an ideograph says more
    if letters < LEAST:
        return None
    code, sure = _identifier().classify(sample)
    code = _WITHIN.get(code, code)
    return code if len(code) == 2 and sure >= SURE else None


@lru_cache(maxsize=1)
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


#: Maximum bytes of a text that are read, and of its UTF-8 that are stored.
READ: Final = 1 << 20
KEPT: Final = 64 * 1024

_APPLICATIONS: Final = (
    "json",
    "ld+json",
    "geo+json",
    "x-ndjson",
    "jsonl",
    "xml",
    "xhtml+xml",
    "rss+xml",
    "atom+xml",
    "gpx+xml",
    "vnd.google-earth.kml+xml",
    "javascript",
    "x-javascript",
    "yaml",
    "x-yaml",
    "toml",
    "sql",
    "x-sh",
    "x-subrip",
)
_MARKUP: Final = ("html", "xml")
#: Types for machines, whose words say little about a language.
_DATA: Final = re.compile(r"json|csv|tab-separated|javascript|css|yaml|toml|sql|text/x-(?!markdown)|x-sh\b")
_WORD: Final = re.compile(r"\S+")


@extractor(
    "text",
    types=(
        "text/*",
        *(f"application/{name}" for name in _APPLICATIONS),
        "message/rfc822",
        "image/svg+xml",
        "application/pdf",
        *PACKAGES,
    ),
    alone=True,
    fields={
        "text": "its first 64 KiB, without tags",
        "language": "ISO 639-1, if there is enough text",
        "encoding": "of a plain text",
        "characters": "in the part that was read",
        "words": "in the part that was read",
        "lines": "in the part that was read",
        "truncated": "whether there is more than was read: a megabyte of plain text, 50 pages of a PDF",
    },
)
def TEXT(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes a constant: the decorator makes an Extractor of it
    """Text of text files, web pages, PDF and office documents, and its language."""
    from frazil.extract.documents import body_text

    if item.size == 0:
        raise Unsupported("the object is empty")
    encoding = None
    if item.detected_type == "application/pdf":
        text, more = body_text.pdf_text(item)
    elif item.detected_type in PACKAGES:
        text, more = body_text.package_text(item)
    else:
        text, more, encoding = _plain(item)
    text = text.replace("\0", "")
    return drop_empty(
        text=text.encode("utf-8", "replace")[:KEPT].decode("utf-8", "ignore"),
        language=None if _DATA.search(item.detected_type) else language(text),
        encoding=encoding,
        characters=len(text),
        words=sum(1 for _ in _WORD.finditer(text)),
        lines=text.count("\n") + (not text.endswith("\n") if text else 0),
        truncated=more,
    )


def _plain(item: Item) -> tuple[str, bool, str]:
    from frazil.extract.documents.encodings import decode_text
    from frazil.extract.documents.markup import strip_markup

    if item.detected_type == "text/rtf":
        raise Unsupported("RTF is not read")
    text, encoding = decode_text(item.read(0, READ))
    if any(kind in item.detected_type for kind in _MARKUP):
        text = strip_markup(text)
    return text.replace("\r\n", "\n").replace("\r", "\n"), item.size > READ, encoding
