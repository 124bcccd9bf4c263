"""JSON of requests: what two parsers could read in two ways is refused."""

from __future__ import annotations

import time

import pytest

from frazil.api.strict_json import MAX_DEPTH, parse_json, parse_object
from frazil.errors import UsageError


def nested(levels: int, inner: str = "") -> bytes:
    return b"[" * levels + inner.encode() + b"]" * levels


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b' {"a": [1, -2.5, true, null, "\\u00fc\\ud83d\\ude00"]} ', {"a": [1, -2.5, True, None, "ü😀"]}),
        (b"18446744073709551615", 2**64 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"1e308", 1e308),
        (b'{"a": {"x": 1}, "b": {"x": 2}}', {"a": {"x": 1}, "b": {"x": 2}}),
        (nested(MAX_DEPTH), None),
    ],
)
def test_good_json_is_read(body, value):
    found = parse_json(body)
    assert value is None or found == value


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"", "it is empty"),
        (b"  \n", "it is empty"),
        (b"{", "line 1, column 2"),
        (b'{"a": 1,}', "line 1"),
        (b"{'a': 1}", "line 1"),
        (b'{"a": 1} x', "Extra data"),
        (b'{"a": NaN}', "NaN is no number"),
        (b"[Infinity]", "Infinity is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"1e999", "too large"),
        (b"18446744073709551616", "64 bits"),
        (b"-9223372036854775809", "64 bits"),
        (b"7" * 5000, "64 bits"),
        (b'{"a": 1, "b": 2, "a": 1}', "'a' stands in one object more than once"),
        (b'[{"x": {"a": 1, "a": 2}}]', "'a' stands"),
        (b'"\\ud800"', "lone surrogate"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b'"\xff"', "byte 1 is not UTF-8"),
        ('{"a": "ü"}'.encode("utf-16"), "not UTF-8"),
        (b'"a\tb"', "control character"),
        (nested(MAX_DEPTH + 1), f"deeper than {MAX_DEPTH}"),
        (nested(100_000), f"deeper than {MAX_DEPTH}"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, f"deeper than {MAX_DEPTH}"),
    ],
)
def test_bad_json_is_refused_and_the_cause_is_named(body, cause):
    with pytest.raises(UsageError, match="the body is no valid JSON") as told:
        parse_json(body)
    assert cause in str(told.value.cause)
    assert len(str(told.value.to_dict())) < 500


@pytest.mark.parametrize("body", [b"[]", b"1", b'"text"', b"null"])
def test_a_body_is_an_object(body):
    with pytest.raises(UsageError, match="no JSON object"):
        parse_object(body)


def test_many_names_with_a_repeated_one_take_no_long_time():
    names = ",".join(f'"{n}": 1' for n in range(200_000))
    begun = time.monotonic()
    with pytest.raises(UsageError):
        parse_json(f'{{{names}, "199999": 2}}'.encode())
    assert time.monotonic() - begun < 20
