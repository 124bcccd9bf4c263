"""Extracts text from HTML and XML.

Written as one walk from left to right: `html.parser` takes quadratic time for some broken pages, and an XML parser has
entities to blow up. Here no entity is ever looked up but those of HTML itself.
"""

from __future__ import annotations

import html
import re
from typing import Final

#: Elements that end a line.
_BLOCKS: Final = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6"
        " header hr li main nav ol option p pre section table td th title tr ul",
    )
)
#: The content of these elements is not text.
_HIDDEN: Final = ("script", "style", "template", "noscript")
_NAME: Final = re.compile(r"/?([A-Za-z][A-Za-z0-9:_.-]{0,40})")
_BLANKS: Final = re.compile(r"[ \t\r\f\v]+")
_LINES: Final = re.compile(r"\s*\n\s*")


def strip_markup(source: str) -> str:
    """Returns the visible text."""
    made: list[str] = []
    lower = source.lower()
    at, end = 0, len(source)
    gone: set[str] = set()
    while at < end:
        start = source.find("<", at)
        if start < 0:
            made.append(source[at:])
            break
        made.append(source[at:start])
        at, name = _behind(source, lower, start, gone)
        if name == "<":
            made.append("&lt;")
        elif name in _BLOCKS:
            made.append("\n")
    text = html.unescape("".join(made))
    return _LINES.sub("\n", _BLANKS.sub(" ", text)).strip()


def _behind(source: str, lower: str, start: int, gone: set[str]) -> tuple[int, str]:
    """Returns the offset after a tag or comment, and the tag's name. `gone` has end marks that do not follow."""
    if source.startswith("<!--", start):
        return _after(source, "-->", start + 4, gone), ""
    if source.startswith("<![CDATA[", start):
        return start + 9, ""
    found = _NAME.match(source, start + 1)
    if not found and source[start + 1 : start + 2] not in ("!", "?", "/"):
        return start + 1, "<"  # a sign, no tag
    name = found[1].lower() if found else ""
    at = _after(source, ">", start + 1, gone)
    if name in _HIDDEN and source[start + 1] != "/" and source[at - 2 : at] != "/>":
        at = _after(lower, f"</{name}", at, gone)
        at = _after(source, ">", at, gone)
    return at, name


def _after(source: str, mark: str, at: int, gone: set[str]) -> int:
    if mark not in gone:
        found = source.find(mark, at)
        if found >= 0:
            return found + len(mark)
        gone.add(mark)
    return len(source)
