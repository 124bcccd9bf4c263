"""Detects text encodings, without a library that guesses among fifty."""

from __future__ import annotations

import codecs
import re
from typing import Final

from frazil.extract import Unsupported

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: The encoding that XML and HTML declare.
_DECLARED: Final = re.compile(rb"""(?:encoding|charset)\s*=\s*["']?([A-Za-z0-9_.:-]{1,40})""")


def decode_text(data: bytes) -> tuple[str, str]:
    """Decodes text, and returns the name of its encoding. The data may end inside a character.

    Raises:
        Unsupported: it is no text.
    """
    for mark, marked in _MARKS:
        if data.startswith(mark):
            return _checked(_cut(data[len(mark) :], marked, "replace")), marked
    sixteen = _sixteen(data[:4096])
    if sixteen:
        return _checked(_cut(data, sixteen, "replace")), sixteen
    if b"\0" in data:
        raise Unsupported("not text: it contains NUL bytes")
    if data.isascii():
        return _checked(data.decode("ascii")), "ascii"
    for name in filter(None, ("utf-8", _declared(data))):
        try:
            return _checked(_cut(data, name, "strict")), name
        except UnicodeDecodeError:
            continue
    return _checked(_cut(data, "windows-1252", "replace")), "windows-1252"


def _cut(data: bytes, name: str, errors: str) -> str:
    return codecs.getincrementaldecoder(name)(errors).decode(data, final=False)


def _declared(data: bytes) -> str | None:
    found = _DECLARED.search(data[:1024])
    try:
        name = codecs.lookup(found[1].decode("ascii")).name if found else None
    except LookupError:
        return None
    # lookup also finds codecs that are not text encodings (base64, zlib)
    return name if name and codecs.lookup(name)._is_text_encoding else None


def _sixteen(data: bytes) -> str | None:
    """Detects UTF-16 without a byte order mark: every second byte of western text is zero."""
    pairs = len(data) // 2
    if pairs < 8:
        return None
    low, high = data[0 : pairs * 2 : 2].count(0), data[1 : pairs * 2 : 2].count(0)
    if high > pairs * 0.4 and low < pairs * 0.05:
        return "utf-16-le"
    if low > pairs * 0.4 and high < pairs * 0.05:
        return "utf-16-be"
    return None


def _checked(text: str) -> str:
    sample = text[:8192]
    odd = sum(1 for c in sample if (c < " " and c not in "\t\n\r\f\x1b") or "\x7f" <= c < "\xa0" or c == "\ufffd")
    if odd > len(sample) * 0.1:
        raise Unsupported("not text: too many unprintable characters")
    return text
