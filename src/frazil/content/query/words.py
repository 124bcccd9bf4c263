"""Words in titles, notes, keys and extracted texts; and glob patterns of keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from frazil.content.query.column_tests import contains, evaluate_test, matches
from frazil.content.query.json_values import extract_texts
from frazil.tables.reading.column_blocks import Block

_COLUMNS = ("key", "title", "author", "note")


class WordsInside:
    """Whether all words are somewhere in an object, in whatever case.

    `metadata` is long: it is read where a row has not all words without it.
    """

    def __init__(self, words: tuple[str, ...], schema: pa.Schema) -> None:
        self._words = words
        self._columns = [name for name in _COLUMNS if name in schema.names]
        self._has_metadata = "metadata" in schema.names

    def of(self, block: Block, at: Any) -> Any:
        """The rows that have them, out of some."""
        has = self._in(block.rows_of(self._columns, at), len(at))
        if self._has_metadata:
            rest = np.flatnonzero(~has.all(axis=0))
            for inside, local, texts in block.derived("metadata", "texts", extract_texts, _size, at[rest]):
                has[:, rest[inside]] |= self._in([texts], len(texts))[:, local]
        return at[has.all(axis=0)]

    def _in(self, columns: Sequence[Any], count: int) -> Any:
        """For each word and row, whether it is in one of the columns."""
        has = np.zeros((len(self._words), count), bool)
        for number, word in enumerate(self._words):
            for column in columns:
                has[number] |= evaluate_test(column, contains(word))
        return has


def _size(texts: Any) -> int:
    return int(texts.get_total_buffer_size())


def key_pattern(glob: str) -> str:
    """A pattern of keys as a regular expression. `*` and `?` stay inside a folder, `**` does not.

    Without a slash it is about the name alone, in whatever folder.
    """
    made, at = "", 0
    while at < len(glob):
        if glob.startswith("**/", at):
            made, at = made + "(?:.*/)?", at + 3
        elif glob.startswith("**", at):
            made, at = made + ".*", at + 2
        elif glob[at] == "*":
            made, at = made + "[^/]*", at + 1
        elif glob[at] == "?":
            made, at = made + "[^/]", at + 1
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inner = glob[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            made, at = made + f"[{'^' + inner[1:] if inner[0] == '!' else inner}]", end + 1
        else:
            made, at = made + re.escape(glob[at]), at + 1
    return f"(?s)^{made}$" if "/" in glob else f"(?s)(?:^|/){made}$"


def is_pattern(glob: str) -> bool:
    """Whether it is one: ranges in brackets may be none."""
    try:
        evaluate_test(pa.array([""]), matches(key_pattern(glob)))
    except pa.ArrowInvalid:
        return False
    return True


def literal_prefix(glob: str) -> str | None:
    """How every key begins that a pattern is true of; None: that cannot be said."""
    return (re.split(r"[*?\[]", glob, maxsplit=1)[0] or None) if "/" in glob else None
