"""Bounds of columns as manifests record them."""

from __future__ import annotations

from decimal import Decimal

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestamptzType

from frazil.tables.metadata.bounds import HIGHEST, LOWEST, decode_bound, decode_bounds, decode_integer_bounds

OFFSET = NestedField(1, "offset", LongType(), required=True)
NAME = NestedField(2, "name", StringType(), required=False)
TIME = NestedField(3, "at", TimestamptzType(), required=False)


def file_of(lower: dict[int, bytes] | None, upper: dict[int, bytes] | None) -> DataFile:
    facts = {"content": DataFileContent.DATA, "file_path": "a", "file_format": FileFormat.PARQUET}
    return DataFile.from_args(**facts, lower_bounds=lower, upper_bounds=upper)


def test_bounds_are_decoded_by_the_type_of_the_column():
    lower = {1: to_bytes(LongType(), -7), 2: b"a", 3: to_bytes(TimestamptzType(), 1_000_000)}
    upper = {1: to_bytes(LongType(), 7), 2: "ä".encode(), 3: to_bytes(TimestamptzType(), 2_000_000)}
    file = file_of(lower, upper)
    assert decode_bounds(file, OFFSET) == (-7, 7)
    assert decode_bounds(file, NAME) == ("a", "ä")
    assert decode_integer_bounds(file, TIME) == (1_000_000, 2_000_000)
    assert decode_bound({9: b"\xff\x85"}, 9, DecimalType(5, 2)) == Decimal("-1.23")


def test_a_file_without_statistics_may_have_any_value():
    for file in (file_of(None, None), file_of({}, {}), file_of({2: b"a"}, {2: b"b"})):
        assert decode_bounds(file, OFFSET) == (None, None)
        assert decode_integer_bounds(file, OFFSET) == (LOWEST, HIGHEST)
    half = file_of({1: to_bytes(LongType(), 5)}, None)
    assert decode_integer_bounds(half, OFFSET) == (5, HIGHEST)
