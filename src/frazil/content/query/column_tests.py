"""Tests of columns: plain values, dictionary codes, or lists of either become one boolean per row."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Plain values → truths, as Arrow has them; null is false.
Test = Callable[[Any], Any]

#: What may stand beside a word: no letter and no digit, of any script.
_EDGE = r"[^\pL\pN]"


def evaluate_test(column: Any, test: Test) -> Any:
    """Which rows have a value, or of a list any value, of which the test is true. Each code is evaluate_test once."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        truths = np.zeros(len(column), bool)
        if len(column):
            parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
            truths[parents[evaluate_test(column.flatten(), test)]] = True
        return truths
    if pa.types.is_dictionary(column.type):
        of_code = np.append(evaluate_test(column.dictionary, test), False)  # the last is for null
        return of_code[pc.fill_null(column.indices, -1).to_numpy(zero_copy_only=False)]
    if pa.types.is_null(column.type) or not len(column):
        return np.zeros(len(column), bool)
    return pc.fill_null(test(column), False).to_numpy(zero_copy_only=False)


def filled(column: Any) -> Any:
    """Which rows have a value; an empty list is none."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_map(column.type):
        return pc.fill_null(pc.greater(pc.list_value_length(column), 0), False).to_numpy(zero_copy_only=False)
    return column.is_valid().to_numpy(zero_copy_only=False)


def numbers(column: Any, missing: Any) -> Any:
    """A column of numbers or times for NumPy."""
    if pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    return pc.fill_null(column, missing).to_numpy(zero_copy_only=False)


def contains(part: str) -> Test:
    """Whether texts have a part, in whatever case."""
    return lambda texts: pc.match_substring(pc.utf8_lower(texts), part.lower())


def same_text(text: str) -> Test:
    """Whether texts are this one, in whatever case."""
    return lambda texts: pc.equal(pc.utf8_lower(texts), text.lower())


def has_words(words: str) -> Test:
    """Whether texts have these words side by side: `cat` is in `tabby cat`, not in `caterpillar`. `*` is anything."""
    inner = ".*".join(re.escape(part.lower()) for part in words.split("*"))
    pattern = f"^{inner}$" if "*" in words else f"(^|{_EDGE}){inner}($|{_EDGE})"
    return lambda texts: pc.match_substring_regex(pc.utf8_lower(texts), pattern)


def matches(pattern: str) -> Test:
    return lambda texts: pc.match_substring_regex(texts, pattern)


def first_valid(columns: Sequence[Any]) -> Any:
    """Each row's first value that there is, out of several columns of texts."""
    plain = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns]
    return pc.coalesce(*(c.cast(pa.string()) for c in plain))
