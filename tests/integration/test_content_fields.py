"""Custom columns of every type through the real sink: written by us, read by PyIceberg, Spark and DuckDB."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from frazil.content.annotations.messages import edit, extraction, fields
from frazil.content.names import objects_name
from frazil.query.engine import run_sql
from frazil.settings import Settings
from tests.content_sink_kit import ContentKit, body, content_kit
from tests.content_truth import Told

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
ID = "0b22db02-0af2-4a05-aef7-4afceeac5836"
NOON = datetime.datetime(2024, 5, 1, 12, 34, 56)
#: Type → what JSON has, the value in the table, and how Spark has it where that is another.
TYPES: dict[str, tuple[Any, ...]] = {
    "BOOLEAN": (True, True),
    "INTEGER": (7, 7),
    "LONG": (2**40, 2**40),
    "FLOAT": (1.5, 1.5),
    "DOUBLE": (0.1, 0.1),
    "DECIMAL(9,2)": (1.25, Decimal("1.25")),
    "DECIMAL(38,10)": ("0.0000000001", Decimal("0.0000000001")),
    "STRING": ("ü", "ü"),
    "DATE": ("2024-05-01", datetime.date(2024, 5, 1)),
    "TIMESTAMP": ("2024:05:01 12:34:56", NOON),
    "TIMESTAMPTZ": ("2024-05-01T12:34:56Z", NOON.replace(tzinfo=datetime.UTC), NOON),
    "UUID": (ID, ID),
    "FIXED(4)": ("deadbeef", b"\xde\xad\xbe\xef"),
    "BINARY": ("3q2+7w==", b"\xde\xad\xbe\xef"),
}
NAMES = {kind: f"c{number}" for number, kind in enumerate(TYPES)}


@pytest.fixture
def kit(lane_settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[ContentKit]:
    with content_kit(lane_settings, spark, tmp_path) as made:
        yield made


def put(key: str) -> Told:
    return Told(key=key, etag="e1", size=5, sequence="1", second=1.0)


def result(key: str, data: Any) -> dict[str, Any]:
    states = {"mine": {"version": "1", "status": "ok", "reason": None, "data": data}}
    return {"key": key, "version_id": "", "etag": "e1", "created": None, "extractors": states}


def order(made: list[tuple[str, str, str]], **given: Any) -> bytes:
    listed = [dict(zip(("name", "type", "jpath"), entry, strict=True)) for entry in made]
    return fields(listed, **{"cast": "lenient", "include_raw_metadata": True, **given})


def wanted(kind: str, *, of_spark: bool) -> Any:
    return TYPES[kind][-1 if of_spark else 1]


def plain(value: Any) -> Any:
    """UUIDs as texts: Spark and DuckDB give them so."""
    return str(value) if isinstance(value, UUID) else value


@pytest.mark.deep
def test_every_type_and_arrays_of_it_are_written_filled_edited_and_read(kit):
    data = {NAMES[kind]: values[0] for kind, values in TYPES.items()}
    kit.drain(body(put("a"), put("b")), extraction("b", [result("a", data)], NOW))
    made = [(name, kind, f"$.mine.{name}") for kind, name in NAMES.items()]
    made += [(f"{name}_list", f"ARRAY<{kind}>", f"$.mine['{name}','none','{name}']") for kind, name in NAMES.items()]
    names = [name for name, _, _ in made]
    # Those of "a" are filled, those of "b" come with its result; then both are rewritten for another reason.
    kit.drain(order(made, backfill=names), extraction("b", [result("b", data)], NOW))
    kit.drain(edit("b", [{"key": key, "version_id": "", "add": ["x"]} for key in "ab"], NOW))
    by_engine = {
        "pyiceberg": kit.objects(),
        "spark": [row.asDict() for row in kit.spark.table(f"`{kit.catalog}`.{objects_name(kit.settings)}").collect()],
        "duckdb": run_sql(
            f"SELECT * FROM {objects_name(kit.settings)}", kit.settings, engine="duckdb", catalog=kit.catalog
        ).table.to_pylist(),
    }
    for engine, rows in by_engine.items():
        assert [row["user_tags"] for row in rows] == [["x"], ["x"]]
        for row in rows:
            for kind, name in NAMES.items():
                value = wanted(kind, of_spark=engine == "spark")
                assert plain(row[name]) == value, (engine, kind)
                assert [plain(item) for item in row[f"{name}_list"]] == [value, value], (engine, kind)
            assert not row["field_errors"]


def test_columns_and_arrays_are_widened_and_older_files_still_read(kit):
    narrow = [("n", "INTEGER", "$.mine.n"), ("f", "FLOAT", "$.mine.f"), ("d", "DECIMAL(5,2)", "$.mine.d")]
    narrow += [("l", "ARRAY<INTEGER>", "$.mine.l"), ("m", "ARRAY<DECIMAL(5,2)>", "$.mine.m")]
    wide = {"n": "LONG", "f": "DOUBLE", "d": "DECIMAL(20,2)", "l": "ARRAY<LONG>", "m": "ARRAY<DECIMAL(20,2)>"}
    kit.drain(order(narrow), body(put("a")))
    kit.drain(extraction("b", [result("a", {"n": 1, "f": 0.5, "d": 1.5, "l": [1, 2], "m": [1.5]})], NOW))
    large = {"n": 2**40, "f": 1e300, "d": 10**12, "l": [2**40], "m": [10**12]}
    kit.drain(order([(name, wide[name], path) for name, _, path in narrow]), body(put("b")))
    kit.drain(extraction("b", [result("b", large)], NOW))
    kinds = {f.name: str(f.field_type) for f in kit.kit.store.load(objects_name(kit.settings)).schema().fields}
    assert [kinds[name] for name in wide] == ["long", "double", "decimal(20, 2)", "list<long>", "list<decimal(20, 2)>"]
    for rows in (
        kit.objects(),
        sorted(
            (row.asDict() for row in kit.spark.table(f"`{kit.catalog}`.{objects_name(kit.settings)}").collect()),
            key=lambda row: row["key"],
        ),
    ):
        first, second = rows
        assert [first[name] for name in wide] == [1, 0.5, Decimal("1.50"), [1, 2], [Decimal("1.50")]]
        assert [second[name] for name in wide] == [2**40, 1e300, Decimal(10**12), [2**40], [Decimal(10**12)]]
        assert not first["field_errors"] and not second["field_errors"]


def test_labels_are_computed_as_the_settings_of_the_sample_say(kit):
    labels = [{"Name": "Nature", "Confidence": 99.9}, {"Name": "Outdoors", "Confidence": 99.8}]
    states = {"labels": {"version": "1", "status": "ok", "reason": None, "data": labels}}
    found = {"key": "a", "version_id": "", "etag": "e1", "created": None, "extractors": states}
    kit.drain(body(put("a")), extraction("b", [found], NOW))
    assert kit.row("a")["labels"] == ["Nature", "Outdoors"]
    sure = "$.labels[?@.Confidence > 99.85].Name"
    kit.drain(order([("labels", "ARRAY<STRING>", sure)], backfill=["labels"]))
    assert kit.row("a")["labels"] == ["Nature"]
    assert json.loads(kit.row("a")["metadata"])["labels"] == labels
