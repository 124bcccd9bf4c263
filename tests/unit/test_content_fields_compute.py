"""From stored JSON to custom columns: what is found, what it becomes, and that nothing in JSON can end it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonpath import JSONPathEnvironment

from frazil.content.fields import Computed, Fields, FieldSpec, compute
from frazil.content.fields.paths import compile_path
from frazil.content.fields.types import array_of, select_values

ID = "0b22db02-0af2-4a05-aef7-4afceeac5836"
TYPES = (
    "BOOLEAN", "INTEGER", "LONG", "FLOAT", "DOUBLE", "DECIMAL(9,2)", "DECIMAL(38,20)", "STRING", "DATE", "TIMESTAMP",
    "TIMESTAMPTZ", "UUID", "FIXED(4)", "BINARY",
)  # fmt: skip


def computed(document: Any, kind: str, jpath: str = "$.x", cast: Any = "lenient") -> tuple[Any, str | None]:
    text = document if isinstance(document, str) else json.dumps(document)
    made = compute(pa.array([text]), Fields((FieldSpec.of("f", kind, jpath),), cast))
    return made.columns["f"].to_pylist()[0], (made.errors[0] or {}).get("f")


# -- what is found -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jpath", "found"),
    [
        ("$.exif.ISO", 200),
        ("$['exif']['Exposure Time']", 0.5),
        ("$.labels[0].Name", "cat"),
        ("$.labels[-1].Name", "pet"),
        ("$.labels[*].Name", "cat"),  # the first
        ("$.labels[?@.Confidence > 95].Name", "pet"),
        ("$..Confidence", 93.1),
        ("$.labels[9].Name", None),
        ("$.labels.Name", None),
        ("$.exif.nothing", None),
        ("$.exif.empty", None),
        ("$.exif.ISO.deeper", None),
        ("$.nowhere[*]", None),
    ],
)
def test_a_scalar_is_the_first_thing_that_is_found(jpath, found):
    document = {
        "exif": {"ISO": 200, "Exposure Time": 0.5, "empty": None},
        "labels": [{"Name": "cat", "Confidence": 93.1}, {"Name": "pet", "Confidence": 97}],
    }
    assert computed(document, "STRING", jpath) == (None if found is None else str(found), None)


@pytest.mark.parametrize(
    ("document", "jpath", "found"),
    [
        ({"x": ["a", "b"]}, "$.x", ["a", "b"]),
        ({"x": ["a", "b"]}, "$.x[*]", ["a", "b"]),
        ({"x": "a"}, "$.x", ["a"]),
        ({"x": []}, "$.x", []),
        ({"x": []}, "$.x[*]", None),
        ({"x": None}, "$.x", None),
        ({"x": ["a", None]}, "$.x", ["a", None]),
        ({"x": [{"n": "a"}, {"m": "b"}, {"n": "c"}]}, "$.x[*].n", ["a", "c"]),
        ({"x": {"a": "1", "b": "2"}}, "$.x[*]", ["1", "2"]),
        ({"x": [["a"], ["b", "c"]]}, "$.x[*][*]", ["a", "b", "c"]),
        ({}, "$.x", None),
    ],
)
def test_an_array_is_all_that_is_found(document, jpath, found):
    assert computed(document, "ARRAY<STRING>", jpath) == (found, None)


def test_strictly_one_value_is_no_array():
    assert computed({"x": "a"}, "ARRAY<STRING>", cast="strict") == (None, '"a" is not an array')
    assert computed({"x": ["a"]}, "ARRAY<STRING>", "$.x[*]", cast="strict") == (["a"], None)


def test_elements_that_do_not_fit_are_null_and_told():
    assert computed({"x": [1, "two", 3]}, "ARRAY<INTEGER>") == ([1, None, 3], '[1]: "two" is not a valid INTEGER')


def test_rows_without_metadata_have_nothing_and_lack_nothing():
    made = compute(pa.chunked_array([[None], ['{"x": 1}']], pa.string()), Fields((FieldSpec.of("f", "INT", "$.x"),)))
    assert made.columns["f"].to_pylist() == [None, 1]
    assert made.errors == [None, None]
    assert made.marks == [FieldSpec("f", "INTEGER", "$.x").mark("lenient")]


def test_without_fields_there_is_nothing_to_compute():
    assert compute(pa.array(["{"]), Fields()) == Computed({}, [None], [])


# -- what it becomes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "becomes"),
    [
        ("BOOLEAN", "True", True),
        ("BOOLEAN", 0, False),
        ("INTEGER", "12", 12),
        ("INTEGER", 1.0, 1),
        ("INTEGER", " -3.0 ", -3),
        ("LONG", "1e3", 1000),
        ("DOUBLE", "0.5", 0.5),
        ("DOUBLE", 3, 3.0),
        ("FLOAT", 1.5, 1.5),
        ("DECIMAL(5,2)", 1.239, Decimal("1.24")),
        ("DECIMAL(5,2)", "7", Decimal("7.00")),
        ("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)),
        ("STRING", 12, "12"),
        ("STRING", True, "true"),
        ("STRING", {"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
        ("DATE", "2024:05:01 12:34:56", date(2024, 5, 1)),
        ("DATE", "2024-05-01", date(2024, 5, 1)),
        ("DATE", 1714566896, date(2024, 5, 1)),
        ("TIMESTAMP", "2024:05:01 12:34:56", datetime(2024, 5, 1, 12, 34, 56)),
        ("TIMESTAMP", "2024-05-01T12:34:56+02:00", datetime(2024, 5, 1, 12, 34, 56)),
        ("TIMESTAMP", 1714566896789, datetime(2024, 5, 1, 12, 34, 56, 789000)),
        ("TIMESTAMPTZ", "2024-05-01T12:34:56+02:00", datetime(2024, 5, 1, 10, 34, 56, tzinfo=UTC)),
        ("TIMESTAMPTZ", "2024:05:01 12:34:56.5", datetime(2024, 5, 1, 12, 34, 56, 500000, tzinfo=UTC)),
        ("TIMESTAMPTZ", 1714566896, datetime(2024, 5, 1, 12, 34, 56, tzinfo=UTC)),
        ("UUID", "{" + ID.upper() + "}", UUID(ID)),
        ("FIXED(4)", "deadbeef", b"\xde\xad\xbe\xef"),
        ("FIXED(4)", "3q2+7w", b"\xde\xad\xbe\xef"),
        ("BINARY", "3q2-7w==", b"\xde\xad\xbe\xef"),
        ("ARRAY<UUID>", [ID, None], [UUID(ID), None]),
        ("ARRAY<TIMESTAMPTZ>", [0], [datetime(1970, 1, 1, tzinfo=UTC)]),
    ],
)
def test_lenient_takes_what_plainly_means_the_same(kind, value, becomes):
    assert computed({"x": value}, kind) == (becomes, None)


@pytest.mark.parametrize(
    ("kind", "value", "becomes"),
    [
        ("BOOLEAN", True, True),
        ("INTEGER", 12, 12),
        ("DOUBLE", 12, 12.0),
        ("DECIMAL(5,2)", 1.25, Decimal("1.25")),
        ("STRING", "x", "x"),
        ("DATE", "2024-05-01", date(2024, 5, 1)),
        ("TIMESTAMP", "2024-05-01T12:34:56", datetime(2024, 5, 1, 12, 34, 56)),
        ("TIMESTAMPTZ", "2024-05-01T12:34:56Z", datetime(2024, 5, 1, 12, 34, 56, tzinfo=UTC)),
        ("UUID", ID, UUID(ID)),
        ("BINARY", "3q2+7w==", b"\xde\xad\xbe\xef"),
    ],
)
def test_strict_takes_what_json_calls_so(kind, value, becomes):
    assert computed({"x": value}, kind, cast="strict") == (becomes, None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BOOLEAN", "true"), ("BOOLEAN", 1), ("INTEGER", "12"), ("INTEGER", 1.0), ("INTEGER", True), ("DOUBLE", "0.5"),
        ("DECIMAL(5,2)", 1.255), ("DECIMAL(5,2)", "1"), ("STRING", 1), ("STRING", {}), ("DATE", "2024:05:01"),
        ("DATE", 1714566896), ("TIMESTAMP", "2024-05-01T12:34:56Z"), ("TIMESTAMP", 0), ("TIMESTAMP", "2024-05-01"),
        ("TIMESTAMPTZ", "2024-05-01T12:34:56"), ("UUID", "{" + ID + "}"), ("BINARY", "3q2-7w=="), ("BINARY", "3q2+7w"),
    ],
)  # fmt: skip
def test_strict_takes_nothing_else(kind, value):
    found, error = computed({"x": value}, kind, cast="strict")
    assert found is None and error is not None and kind in error


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("INTEGER", "wide", '"wide" is not a valid INTEGER'),
        ("INTEGER", 1.5, "1.5 is not a valid INTEGER"),
        ("INTEGER", True, "true is not a valid INTEGER"),
        ("INTEGER", 2**31, "2147483648 is not a valid INTEGER: out of range"),
        ("LONG", "1e9999", '"1e9999" is not a valid LONG: out of range'),
        ("LONG", 2**70, "out of range"),
        ("FLOAT", 1e300, "out of range"),
        ("DOUBLE", "1e999", "out of range"),
        ("DECIMAL(5,2)", 1000, "too many digits"),
        ("DECIMAL(5,2)", 999.999, "too many digits"),
        ("DECIMAL(38,0)", 1e20, "is not a valid DECIMAL(38,0)"),
        ("DATE", "0000:00:00 00:00:00", "is not a valid DATE"),
        ("DATE", "2024", "is not a valid DATE"),
        ("TIMESTAMP", 1e300, "is not a valid TIMESTAMP"),
        ("TIMESTAMPTZ", "0001-01-01T00:00:00+14:00", "out of range"),
        ("UUID", "x", "is not a valid UUID"),
        ("FIXED(4)", "3q2+", "3 bytes"),
        ("BINARY", "no base64!", "base64 is expected"),
        ("DOUBLE", [1], "[1] is not a valid DOUBLE"),
        ("INTEGER", "x" * 1000, '"' + "x" * 40 + '"… is not a valid INTEGER'),
        ("INTEGER", "a\n\x1b[31m", '"a  [31m" is not a valid INTEGER'),
    ],
)
def test_what_does_not_fit_is_null_and_says_why(kind, value, told):
    found, error = computed({"x": value}, kind)
    assert found is None and error is not None and told in error and len(error) <= 200


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ('{"x": NaN}', "DOUBLE", (None, "nan is not a valid DOUBLE")),
        ('{"x": "\\ud800!"}', "STRING", ("?!", None)),
        ('{"x": 1', "INTEGER", (None, "metadata is no JSON that can be read")),
        ("[" * 100_000, "INTEGER", (None, "metadata is no JSON that can be read")),
        ('"x"', "INTEGER", (None, None)),
        ("7", "INTEGER", (None, None)),
        ('{"x": ' + "9" * 5000 + "}", "LONG", (None, None)),
    ],
)
def test_odd_json(text, kind, expected):
    found, error = computed(text, kind)
    if text.startswith('{"x": 9'):
        assert found is None and error is not None
    else:
        assert (found, error) == expected


def test_a_path_that_fails_costs_only_its_own_value():
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    made = compute(
        pa.array([json.dumps({"x": 1, "deep": deep})]),
        Fields((FieldSpec.of("f", "INT", "$..nothing"), FieldSpec.of("g", "INT", "$.x"))),
    )
    assert made.columns["g"].to_pylist() == [1]
    assert made.errors[0] is not None and list(made.errors[0]) == ["f"]


# -- whatever comes ----------------------------------------------------------------------------------------------------

NUMBERS = st.from_regex(r"-?\d+(\.\d+)?(e\d+)?")
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["x", "y", "0"]), inner, max_size=3),
    max_leaves=12,
)
PATHS = ("$", "$.x", "$.x[*]", "$.x[0]", "$[-1].y", "$.x.y", "$[*][*]", "$..y", "$[?@.x > 1]", "$['0']")


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(st.one_of(st.none(), anything.map(json.dumps), st.text(max_size=10)), max_size=4),
    kind=st.sampled_from(TYPES),
    is_array=st.booleans(),
    jpath=st.sampled_from(PATHS),
    cast=st.sampled_from(["lenient", "strict"]),
)
def test_no_json_can_end_it(rows, kind, is_array, jpath, cast):
    spec = FieldSpec.of("f", f"ARRAY<{kind}>" if is_array else kind, jpath)
    texts = pa.array([None if row is None else row.encode("utf-8", "replace").decode() for row in rows], pa.string())
    made = compute(texts, Fields((spec,), cast))
    column = made.columns["f"]
    assert column.type == spec.arrow and len(column) == len(made.errors) == len(rows)
    column.validate(full=True)
    for value, error in zip(column.to_pylist(), made.errors, strict=True):
        if error is not None and not is_array:
            assert value is None
        assert error is None or (list(error) == ["f"] and 0 < len(error["f"]) <= 200 and error["f"].isprintable())


@settings(max_examples=300, deadline=None)
@given(document=anything, jpath=st.sampled_from([p for p in PATHS if ".." not in p and "?" not in p]))
def test_plain_paths_find_what_the_library_finds(document, jpath):
    path = compile_path(jpath)
    assert path.is_plain
    if not isinstance(document, str):
        library = JSONPathEnvironment(strict=True).compile(jpath).findall(document)
        assert repr(path.find(document)) == repr(library)


@settings(max_examples=200, deadline=None)
@given(value=st.integers(-(2**31), 2**31 - 1))
def test_numbers_come_through_as_numbers_and_as_texts(value):
    assert computed({"x": value}, "INTEGER") == computed({"x": str(value)}, "INTEGER") == (value, None)
    assert computed({"x": value}, "STRING") == (str(value), None)


@settings(max_examples=200, deadline=None)
@given(value=st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)))
def test_times_come_through(value):
    assert computed({"x": value.isoformat()}, "TIMESTAMP") == (value, None)
    exif = value.replace(microsecond=0)
    assert computed({"x": f"{exif.year:04}" + exif.strftime(":%m:%d %H:%M:%S")}, "TIMESTAMP") == (exif, None)


@settings(max_examples=100, deadline=None)
@given(value=st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**7) + 1, max_value=10**7 - 1, places=2))
def test_decimals_come_through(value):
    assert computed({"x": str(value)}, "DECIMAL(9,2)") == (value, None)
    assert computed({"x": float(value)}, "DECIMAL(9,2)") == (value, None)


# -- arrays of every type ----------------------------------------------------------------------------------------------


def test_either_knows_uuids():
    other = UUID(int=1)
    lists = [(made(pa.uuid()), [UUID(ID), None], [other]) for made in (pa.list_, pa.large_list)]
    for kind, yes, no in ((pa.uuid(), UUID(ID), other), *lists):
        first, second = array_of([yes, yes, None], kind), array_of([no, no, no], kind)
        chosen = select_values(pa.array([True, False, True]), first, pa.chunked_array([second]))
        assert chosen.to_pylist() == [yes, no, None]
