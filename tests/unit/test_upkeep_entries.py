"""Reading parts of manifests, and saying in SQL which partition is meant."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from frazil.catalogs import open_catalog
from frazil.errors import IntegrityError
from frazil.settings import load_settings
from frazil.tables.metadata import manifest_entries as read
from frazil.tables.metadata.avro import long
from frazil.upkeep.plans.conditions import condition_of
from tests.avro_files import entry_of, manifest_file, manifest_schema

SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "price", DecimalType(12, 3)),
    NestedField(4, "day", DateType()),
    NestedField(5, "word", StringType()),
    NestedField(6, "sure", BooleanType()),
)
ROWS = pa.table(
    {
        "n": pa.array([7, 7, None], pa.int64()),
        "price": pa.array([decimal.Decimal("-1.250"), decimal.Decimal("99.000"), None], pa.decimal128(12, 3)),
        "day": pa.array([datetime.date(2026, 1, 1)] * 3, pa.date32()),
        "word": ["a", "ü", None],
        "sure": [True, False, None],
    }
)


def make_table(folder: Path, version: int):
    """Partitioned by every column, so that values of every type stand in the manifests."""
    catalog = open_catalog(load_settings(flags={"home": str(folder)}, environ={}).catalog())
    catalog.create_namespace("demo")
    spec = PartitionSpec(*(PartitionField(f.field_id, 1000 + f.field_id, "identity", f.name) for f in SCHEMA.fields))
    table = catalog.create_table("demo.all", SCHEMA, partition_spec=spec, properties={"format-version": str(version)})
    table.append(ROWS)
    table.delete("n = 7 and sure = true")
    return table


@pytest.fixture(scope="module", params=[1, 2])
def table(request, tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("entries"), request.param)


def test_what_is_read_in_parts_is_what_pyiceberg_reads(table):
    fields = (
        read.STATUS, read.PATH, read.SIZE, read.ROWS, read.CONTENT, read.FORMAT, read.LOWER, read.UPPER,
        read.SNAPSHOT_ID, read.PARTITION,
    )  # fmt: skip
    seen = 0
    for manifest in table.current_snapshot().manifests(table.io):
        data = Path(manifest.manifest_path.removeprefix("file://")).read_bytes()
        theirs = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        ours = list(read.read_entries(data, fields))
        assert len(ours) == len(theirs)
        for mine, entry in zip(ours, theirs, strict=True):
            file = entry.data_file
            assert mine[:4] == (entry.status.value, file.file_path, file.file_size_in_bytes, file.record_count)
            assert (mine[4] or 0, mine[5]) == (int(file.content), file.file_format.value)
            assert (mine[6], mine[7]) == (file.lower_bounds, file.upper_bounds)
            assert mine[8] in (None, entry.snapshot_id)
            assert mine[9] == tuple(file.partition[i] for i in range(len(SCHEMA.fields)))
            seen += 1
    assert seen >= 2


def test_fields_that_a_manifest_does_not_have_are_nothing(table):
    manifest = table.current_snapshot().manifests(table.io)[0]
    data = Path(manifest.manifest_path.removeprefix("file://")).read_bytes()
    assert set(read.read_entries(data, (read.REFERENCED, 9999))) == {(None, None)}


def test_a_partition_by_two_columns_of_one_named_type_is_read():
    """Java's writers define the type of UUIDs once, and refer to it by name later."""
    uuids = {"type": "fixed", "size": 16, "name": "uuid_fixed", "logicalType": "uuid"}
    full = manifest_schema(2, [("a", uuids), ("b", uuids)])
    first, second = (json.dumps(full).split(json.dumps(uuids), 1)[i] for i in (0, 1))
    short = json.loads(first + json.dumps(uuids) + second.replace(json.dumps(uuids), '"uuid_fixed"'))
    one, two = uuid.uuid4(), uuid.uuid4()
    entry = entry_of(full, file_path="f", partition={"a": one.bytes, "b": two.bytes})
    texts = [json.dumps(schema).encode() for schema in (full, short)]
    before, after = (long(len(text)) + text for text in texts)
    assert before != after
    data = manifest_file(full, [entry], 2).replace(before, after)
    assert list(read.read_entries(data, (read.PATH, read.PARTITION))) == [("f", (one, two))]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_manifest_that_was_cut_off_is_damaged(table, share: float):
    manifest = table.current_snapshot().manifests(table.io)[0]
    whole = Path(manifest.manifest_path.removeprefix("file://")).read_bytes()
    with pytest.raises(IntegrityError, match=r"^m\.avro cannot be read$"):
        list(read.read_entries(whole[: int(share * len(whole))], (read.STATUS, read.PATH, read.SIZE), "m.avro"))


def test_a_manifest_with_a_block_that_does_not_end_where_it_should_is_damaged(table):
    manifest = table.current_snapshot().manifests(table.io)[0]
    whole = Path(manifest.manifest_path.removeprefix("file://")).read_bytes()
    with pytest.raises(IntegrityError, match=r"^m\.avro cannot be read$"):
        list(read.read_entries(whole[:-1] + bytes([whole[-1] ^ 1]), (read.STATUS, read.PATH), "m.avro"))


def _between(kind: str, begin: str, end: str) -> str:
    return f"`c` >= {kind} '{begin}' AND `c` < {kind} '{end}'"


@pytest.mark.parametrize(
    ("kind", "transform", "value", "expected"),
    [
        (LongType(), "identity", 5, "`c` = 5L"),
        (IntegerType(), "identity", -5, "`c` = -5"),
        (StringType(), "identity", "it's \\", "`c` = 'it\\'s \\\\'"),
        (StringType(), "identity", None, "`c` IS NULL"),
        (BooleanType(), "identity", False, "`c` = false"),
        (BinaryType(), "identity", b"\x00\xff", "`c` = X'00ff'"),
        (FixedType(2), "identity", b"\x01\x02", "`c` = X'0102'"),
        (DateType(), "identity", 20454, "`c` = DATE '2026-01-01'"),
        (TimestampType(), "identity", 1_000_001, "`c` = TIMESTAMP_NTZ '1970-01-01 00:00:01.000001'"),
        (DecimalType(9, 2), "identity", decimal.Decimal("1.50"), "`c` = CAST('1.50' AS DECIMAL(9, 2))"),
        (DateType(), "month", 672, "`c` >= DATE '2026-01-01' AND `c` < DATE '2026-02-01'"),
        (DateType(), "month", -1, "`c` >= DATE '1969-12-01' AND `c` < DATE '1970-01-01'"),
        (
            TimestamptzType(),
            "hour",
            -1,
            _between("TIMESTAMP_LTZ", "1969-12-31 23:00:00.000000+00:00", "1970-01-01 00:00:00.000000+00:00"),
        ),
        (
            TimestampType(),
            "year",
            56,
            _between("TIMESTAMP_NTZ", "2026-01-01 00:00:00.000000", "2027-01-01 00:00:00.000000"),
        ),
        (LongType(), "bucket[16]", 3, "system.bucket(16, `c`) = 3"),
        (StringType(), "truncate[2]", "ab", "system.truncate(2, `c`) = 'ab'"),
        (UUIDType(), "identity", uuid.UUID(int=1), None),
        (DoubleType(), "identity", 1.5, None),
        (LongType(), "void", None, None),
        (DateType(), "year", 20_000, None),
    ],
)
def test_a_partition_in_words_of_sql(kind: IcebergType, transform: str, value: object, expected: str | None):
    schema = Schema(NestedField(1, "c", kind))
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p"))
    assert condition_of(schema, spec, (value,)) == expected


def test_a_partition_of_two_columns_one_of_them_inside_another():
    inner = NestedField(2, "b`", IntegerType())
    schema = Schema(NestedField(1, "a", StructType(inner)), NestedField(3, "c", LongType()))
    spec = PartitionSpec(PartitionField(2, 1000, "identity", "x"), PartitionField(3, 1001, "bucket[4]", "y"))
    assert condition_of(schema, spec, (1, 2)) == "`a`.`b``` = 1 AND system.bucket(4, `c`) = 2"


def test_a_partition_by_a_column_that_is_gone_cannot_be_said():
    spec = PartitionSpec(PartitionField(9, 1000, "identity", "p"))
    assert condition_of(Schema(NestedField(1, "c", LongType())), spec, (1,)) is None
