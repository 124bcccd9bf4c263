"""ETags, conditions and idempotency keys in headers."""

from __future__ import annotations

import pytest
from fastapi import Request

from frazil.api.preconditions import EntityTags, etag_of, read_idempotency_key, read_tags
from frazil.errors import UsageError


def request(name: str, *values: str) -> Request:
    headers = [(name.lower().encode(), value.encode("latin-1")) for value in values]
    return Request({"type": "http", "method": "PUT", "path": "/", "headers": headers})


def tags(*values: str) -> EntityTags | None:
    return read_tags(request("If-Match", *values), "If-Match")


def test_the_tag_of_a_revision_matches_it_and_no_other():
    found = tags(etag_of(7))
    assert found is not None
    assert found.match_strongly(7) and found.match_weakly(7)
    assert not found.match_strongly(6) and not found.match_weakly(77)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), None),
        (("*",), EntityTags(True, frozenset(), frozenset())),
        ((' "7" ',), EntityTags(False, frozenset({7}), frozenset())),
        (('"7", "8",,"9"',), EntityTags(False, frozenset({7, 8, 9}), frozenset())),
        (('"7"', '"8"'), EntityTags(False, frozenset({7, 8}), frozenset())),
        (('W/"7", "8"',), EntityTags(False, frozenset({8}), frozenset({7}))),
        (('"a,b", "", "7"',), EntityTags(False, frozenset({7}), frozenset())),
        (('"0"',), EntityTags(False, frozenset(), frozenset())),
        (('"07"',), EntityTags(False, frozenset(), frozenset())),
        (('"-7", "7.0", "' + "7" * 5000 + '"',), EntityTags(False, frozenset(), frozenset())),
    ],
)
def test_lists_of_tags_are_read_and_foreign_tags_match_nothing(values, expected):
    assert tags(*values) == expected


@pytest.mark.parametrize(
    "value", ["", "7", '"7', '7"', '"7" "8"', "*, *", '*, "7"', 'w/"7"', '"a b"', ",", '"7",' * 101]
)
def test_anything_else_is_refused_with_an_example(value):
    with pytest.raises(UsageError, match="If-Match is no list of entity tags") as told:
        tags(value)
    assert '"7"' in str(told.value.hint)


@pytest.mark.parametrize(("value", "key"), [("abc", "abc"), (' "abc" ', "abc"), ("a:1", "a:1"), ("x" * 200, "x" * 200)])
def test_a_key_is_read_with_and_without_quotes(value, key):
    assert read_idempotency_key(request("Idempotency-Key", value)) == key


@pytest.mark.parametrize("values", [("",), ('""',), ("a b",), ("x" * 201,), ("ü",), ("a", "b")])
def test_a_key_that_is_none_is_refused(values):
    with pytest.raises(UsageError, match="Idempotency-Key"):
        read_idempotency_key(request("Idempotency-Key", *values))


def test_without_a_key_there_is_none():
    assert read_idempotency_key(request("Other", "x")) is None


@pytest.mark.timeout(20)
def test_a_header_of_blanks_takes_no_more_time_than_its_length():
    with pytest.raises(UsageError, match="no list of entity tags"):
        tags('"1",' + " " * 400_000 + "x")  # hours, if each blank were tried with each other one
