"""Cursors: opaque, signed, and bound to one listing."""

from __future__ import annotations

import random

import pytest

from frazil.documents.cursors import decode_cursor, encode_cursor
from frazil.errors import UsageError

KEY, LISTING = b"k" * 32, {"conditions": {"provider": "aws"}, "sort": "created_at", "as_of": None}


@pytest.mark.parametrize("place", [[1, "d"], [None, "d"], ["é\U0001f600'--", "d"], ["d"]])
def test_a_cursor_comes_back_as_it_was_made(place):
    cursor = encode_cursor(KEY, LISTING, place)
    assert decode_cursor(KEY, dict(reversed(LISTING.items())), cursor) == place
    assert cursor.isascii()
    assert "=" not in cursor


@pytest.mark.parametrize(
    "listing", [{}, {**LISTING, "as_of": 5}, {**LISTING, "conditions": {}}, {**LISTING, "sort": "filename"}]
)
def test_a_cursor_of_another_listing_is_refused(listing):
    with pytest.raises(UsageError, match="cursor is invalid"):
        decode_cursor(KEY, listing, encode_cursor(KEY, LISTING, [1, "d"]))


def test_a_cursor_of_another_store_is_refused():
    with pytest.raises(UsageError):
        decode_cursor(b"other" * 8, LISTING, encode_cursor(KEY, LISTING, [1, "d"]))


def test_every_change_of_a_character_is_noticed():
    cursor = encode_cursor(KEY, LISTING, [1_700_000_000_000_000, "doc-1"])
    chance = random.Random(7)
    for place in range(len(cursor) - 1):  # the last character has bits that mean nothing
        other = chance.choice([c for c in "ABCDabcd0189-_" if c != cursor[place]])
        with pytest.raises(UsageError):
            decode_cursor(KEY, LISTING, cursor[:place] + other + cursor[place + 1 :])


@pytest.mark.parametrize("cursor", ["", "x", "é", "=" * 9, "A" * 100_000, "null", None, 5, b"abc", "' OR 1=1 --", "\0"])
def test_what_is_no_cursor_is_refused(cursor):
    with pytest.raises(UsageError):
        decode_cursor(KEY, LISTING, cursor)
