"""Partitions of data files, as manifests say them, against PyIceberg's own plan."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest

from frazil.tables import ensure_table
from frazil.tables.metadata.file_partitions import FilePartitions
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows
from tests.sink_kit import SinkKit, sink_kit

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),
        ("date", pa.date32()),
        ("text", pa.string()),
        ("number", pa.int64()),
        ("amount", pa.decimal128(9, 2)),
        ("data", pa.binary()),
    ]
)
ROWS = [
    {"time": NOW, "date": NOW.date(), "text": "a", "number": 1, "amount": decimal.Decimal("1.25"), "data": b"a"},
    {"time": NOW + datetime.timedelta(40), "text": "b", "amount": decimal.Decimal("-1.25"), "data": b"b"},
    {},
]
SPECS = (
    ("day(time)",), ("month(time)",), ("year(time)",), ("time",), ("date",), ("text",), ("bucket(4, text)", "number"),
    ("truncate(1, text)",), ("amount",), ("data",),
)  # fmt: skip


def append(kit: SinkKit, name: str, *terms: str):
    table = ensure_table(kit.store, name, SCHEMA, partition=terms)
    writer = TableWriter(WriteTarget.of(table), "rows")
    writer.add(convert_rows(pa.Table.from_pylist(ROWS, schema=SCHEMA), writer.schema).rows)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for file in writer.finish():
            update.append_data_file(file)
    return kit.store.load(table.name())


@pytest.mark.parametrize("terms", SPECS, ids=" ".join)
def test_each_file_has_the_partition_that_a_plan_says(tmp_path, terms):
    with sink_kit(tmp_path) as kit:
        partitions = FilePartitions(kit.store)
        for _ in range(2):
            table = append(kit, "own.rows", *terms)
            found = partitions.find(table)
            tasks = table.scan().plan_files()
            assert found == {task.file.file_path: (task.file.spec_id, task.file.partition) for task in tasks}
        table.delete("text = 'a'")
        found = partitions.find(kit.store.load(table.name()))
        assert found is not None and found.keys() == {
            task.file.file_path for task in kit.store.load(table.name()).scan().plan_files()
        }


def test_a_table_that_never_had_partitions_needs_none(tmp_path):
    with sink_kit(tmp_path) as kit:
        assert FilePartitions(kit.store).find(append(kit, "own.rows")) is None
