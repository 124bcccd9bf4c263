"""Any value becomes something that JSON, Iceberg and every reader can hold."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.extract.engine.sanitize import DEPTH, sanitize


class Colour(Enum):
    RED = 1


class Awkward:
    """Fails wherever one touches it."""

    def __str__(self) -> str:
        raise ValueError

    def __iter__(self) -> Any:
        raise RuntimeError

    def __float__(self) -> float:
        raise OverflowError


class OddText(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (True, True),
        (2**63 - 1, 2**63 - 1),
        (2**63, "9223372036854775808"),
        (-(2**64), "-18446744073709551616"),
        ("a\ud800b\0c", "a?bc"),
        ("ü\U0001f600", "ü\U0001f600"),
        (b"plain\0\0", "plain"),
        (b"\xff\xfe", "//4="),
        (b"a\0b", "YQBi"),
        (bytearray(b"x"), "x"),
        (datetime(2024, 5, 1, 12, tzinfo=UTC), "2024-05-01T12:00:00+00:00"),
        (date(2024, 5, 1), "2024-05-01"),
        (time(1, 2), "01:02:00"),
        (timedelta(seconds=1.5), 1.5),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        (Decimal("NaN"), None),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.float64("nan"), None),
        ((1, [2, {3}]), [1, [2, [3]]]),
        (range(3), [0, 1, 2]),
        ({1: "a", None: "b", b"k": "c", ("x", 1): "d"}, {"1": "a", "None": "b", "k": "c", "('x', 1)": "d"}),
        (Colour.RED, 1),
        (OddText("x\0"), "x"),
        (Awkward(), "(Awkward)"),
        ([Awkward()], ["(Awkward)"]),
        (object, "<class 'object'>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_become_json(value: Any, cleaned: Any):
    assert sanitize(value) == cleaned
    assert type(sanitize(value)) is type(cleaned)


def test_what_lies_too_deep_or_goes_in_circles_ends_as_text():
    circle: list[Any] = []
    circle.append(circle)
    text = json.dumps(sanitize(circle))
    assert text.count("[") <= DEPTH + 3
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    json.dumps(sanitize(deep))


def test_very_long_numbers_do_not_take_for_ever():
    assert sanitize(1 << 100_000).startswith("0x1")


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)) | st.binary()
    | st.datetimes() | st.dates() | st.times() | st.timedeltas() | st.decimals() | st.fractions() | st.complex_numbers()
    | st.uuids() | st.builds(Awkward)
)  # fmt: skip
KEYS = st.text(st.characters(codec=None)) | st.integers() | st.floats() | st.binary() | st.none() | st.booleans()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner, inner),
    max_leaves=30,
)


def texts(value: Any) -> Any:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_whatever_an_extractor_returns_can_be_written_and_read_by_everybody(value: Any):
    cleaned = sanitize(value)
    text = json.dumps(cleaned, allow_nan=False)
    assert json.loads(text) == cleaned
    assert orjson.loads(orjson.dumps(cleaned)) == cleaned
    assert all("\0" not in t and t.encode() for t in texts(cleaned) if t)
    assert sanitize(cleaned) == cleaned, "once is enough"
