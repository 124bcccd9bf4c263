"""Media types of texts by their content, with the name as a hint."""

from __future__ import annotations

import codecs
import json
import re

from frazil.extract.types.signatures import TEXT_NAMES

_TEXT_BYTES = bytes({7, 8, 9, 10, 11, 12, 13, 27} | set(range(0x20, 0x100)) - {0x7F})
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip

_HTML = re.compile(
    r"(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body|title|script|table|div|h1|p)\b", re.IGNORECASE | re.DOTALL
)
_ROOT = re.compile(r"<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)[\s>/]")
_JSON = re.compile(r'\s*(?:\{\s*(?:"|\}\s*$)|\[\s*(?:["\[{\]\d-]|true|false|null))')
_JSON_START = re.compile(r'\s*(?:[\[{"\d-]|true|false|null)')
_NAME = re.compile(r'\s*"?[^\W\d][^"]{0,60}"?\s*')
_ROOTS = {
    "svg": "image/svg+xml", "html": "application/xhtml+xml", "rss": "application/rss+xml",
    "feed": "application/atom+xml", "gpx": "application/gpx+xml", "kml": "application/vnd.google-earth.kml+xml",
}  # fmt: skip
_STARTS = (
    ("-----BEGIN ", "application/x-pem-file"), ("BEGIN:VCALENDAR", "text/calendar"), ("BEGIN:VCARD", "text/vcard"),
    ("diff --git ", "text/x-diff"), ("WEBVTT", "text/vtt"),
)  # fmt: skip
_MAIL = re.compile(
    r"^(?:Return-Path|Received|Delivered-To|Message-ID|MIME-Version|From|Date|Subject): .*\n",
    re.IGNORECASE | re.MULTILINE,
)


def decode_head(head: bytes) -> str | None:
    """Decodes the first bytes, which may end within a character; None if they are not text."""
    for bom, encoding in _BOMS:
        if head.startswith(bom):
            return codecs.getincrementaldecoder(encoding)("replace").decode(head)
    if head.translate(None, _TEXT_BYTES):
        return _wide(head)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        high = len(head.translate(None, bytes(range(0x80))))
        return head.decode("latin-1") if high * 3 < len(head) else None


def _wide(head: bytes) -> str | None:
    """Decodes UTF-16 without a byte order mark: every other byte of western text is zero."""
    for zeros, others, encoding in ((head[1::2], head[::2], "utf-16-le"), (head[::2], head[1::2], "utf-16-be")):
        if len(head) >= 8 and zeros.count(0) * 10 > len(zeros) * 9 and not others.translate(None, _TEXT_BYTES):
            return head[: len(head) // 2 * 2].decode(encoding, "replace")
    return None


def _markup(text: str) -> str | None:
    if _HTML.match(text):
        return "text/html"
    if text.startswith(("<?xml", "<svg", "<!--", "<!DOCTYPE")):
        plain = re.sub(r"<!--.*?(?:-->|$)|<\?.*?\?>|<!DOCTYPE[^>\[]*(?:\[.*?\])?\s*>", "", text, flags=re.DOTALL)
        root = _ROOT.search(plain)
        return _ROOTS.get(root.group(1).lower(), "text/xml") if root else "text/xml"
    return None


def _jsons(text: str, complete: bool) -> str | None:
    if not _JSON.match(text):
        return None
    lines = text.split("\n", 3)
    whole = lines[:2] if len(lines) > 2 or complete else []
    if len(whole) == 2 and all(_parses(line) and line[:1] in "{[" for line in whole if line):
        return "application/x-ndjson" if whole[1] else "application/json"
    if complete:
        return "application/json" if _parses(text) else None
    return "application/json"


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _table(text: str, complete: bool) -> str | None:
    """Detects tables: a row of names, then rows with as many separators. Sentences have a space after a comma."""
    lines = text.split("\n")
    lines = [line for line in (lines if complete else lines[:-1])[:10] if line.strip()]
    if len(lines) < 3:
        return None
    rows = [re.sub(r'"[^"]*"', "", line) for line in lines]
    for separator, media in ((",", "text/csv"), (";", "text/csv"), ("\t", "text/tab-separated-values")):
        counts = {row.count(separator) for row in rows}
        spaced = sum(row.count(separator + " ") for row in rows)
        if len(counts) == 1 and 0 not in counts and spaced * 2 < sum(row.count(separator) for row in rows):
            return media if all(_NAME.fullmatch(name) for name in lines[0].split(separator)) else None
    return None


def text_type(text: str, extension: str, complete: bool) -> tuple[str, bool]:
    """Returns the media type of a text, and whether its content decided it (else its name).

    Args:
        text: its beginning.
        extension: the end of the name, without the dot.
        complete: whether `text` is all of it.
    """
    start = text.lstrip("\ufeff \t\r\n")
    found = _markup(start) if start.startswith("<") else None
    if found and not (found == "text/html" and extension == "md"):
        return found, True
    named = TEXT_NAMES.get(extension)
    if named and _believable(named, start):
        return named, False
    for prefix, media in _STARTS:
        if start.startswith(prefix):
            return media, True
    if len(_MAIL.findall(text[:1000])) >= 3:
        return "message/rfc822", True
    if start.startswith("#!"):
        line = start.split("\n", 1)[0]
        return ("text/x-python" if "python" in line else "text/x-shellscript"), True
    return _jsons(start, complete) or _table(start, complete) or "text/plain", True


def _believable(named: str, start: str) -> bool:
    """Whether a text can be what its name says."""
    if named.endswith("json"):
        return _JSON_START.match(start) is not None
    if named in ("text/html", "text/xml", "application/xhtml+xml"):
        return start.startswith("<")
    return True
