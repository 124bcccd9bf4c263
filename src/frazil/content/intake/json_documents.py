"""Splits a byte stream into JSON documents: one per line, documents over several lines, or an array.

No mode has to be chosen. Brackets and commas between documents are skipped, and a line that is no JSON object is a
message too: it goes to the dead letters, with its bytes, instead of stopping the others.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass

_BETWEEN = frozenset(" \t\r\n,[]")
#: Maximum leading brackets that are kept with a line that is not JSON.
_PREFIX = 64
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class Piece:
    """One message, byte for byte."""

    payload: bytes
    is_json: bool


class Splitter:
    """Splits chunks of any size into messages. Buffers about one message at most.

    Args:
        limit: bytes of the largest message. What is longer is dropped with the rest of its line, and counted.
    """

    def __init__(self, limit: int) -> None:
        self.too_large = 0
        self._limit = limit
        # Invalid UTF-8 stays as it is; a byte order mark is removed.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._text = ""
        self._dropping = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yields the messages that these bytes complete."""
        yield from self._pieces(self._decoder.decode(data), final=False)

    def finish(self) -> Iterator[Piece]:
        """Yields what is left at the end of the input."""
        yield from self._pieces(self._decoder.decode(b"", final=True), final=True)

    def _pieces(self, more: str, *, final: bool) -> Iterator[Piece]:
        text, start = self._text + more, 0
        if self._dropping:
            start = _behind_newline(text, 0)
            self._dropping = not start
            start = start or len(text)
        while True:
            start, at = _skip(text, start)
            if at == len(text):
                break
            end = _end_of_object(text, at, final=final)
            too_long = len(text) - at > self._limit
            if end is None and not too_long:
                break
            if end is not None and end > at:
                yield from self._checked(text[at:end], is_json=True)
                start = end
                continue
            behind = _behind_newline(text, at) or (len(text) if final else 0)
            if not behind:  # the rest of the line is to come
                if too_long:
                    self.too_large += 1
                    self._dropping, start = True, len(text)
                break
            yield from self._checked(text[start:behind].strip(), is_json=False)
            start = behind
        self._text = text[start:]

    def _checked(self, text: str, *, is_json: bool) -> Iterator[Piece]:
        payload = text.encode("utf-8", "surrogateescape")
        if len(payload) > self._limit:
            self.too_large += 1
        else:
            yield Piece(payload, is_json and _is_utf8(text))


def _skip(text: str, start: int) -> tuple[int, int]:
    """Where the next message begins, and before it, where a line begins of which nothing was given out yet."""
    at = start
    while at < len(text) and text[at] in _BETWEEN:
        at += 1
        if text[at - 1] == "\n" or at - start > _PREFIX:
            start = at
    return start, at


def _end_of_object(text: str, at: int, *, final: bool) -> int | None:
    """Where the JSON object ends that begins here; `at` where there is none; None where more text could make it one."""
    if text[at] != "{":
        return at
    try:
        return _decode(text, at)[1]
    except json.JSONDecodeError as error:
        # No token of JSON goes over the end of a line, so what is wrong before one stays wrong.
        return at if final or text.find("\n", error.pos) >= 0 else None
    except (ValueError, RecursionError):  # a number too long for Python, or too many brackets
        return at


def _behind_newline(text: str, at: int) -> int:
    return text.find("\n", at) + 1


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
