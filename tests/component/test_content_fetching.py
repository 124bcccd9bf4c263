"""Rows by file and position: those that are asked for, in that order, whatever their columns are called by now."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import StringType

from frazil.tables.reading.rows_by_position import fetch_rows
from frazil.tables.writing.data_files import WriteTarget
from tests.upkeep_files import care_of

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.map_(pa.string(), pa.string()))])


@pytest.fixture
def table(tmp_path):
    care = care_of(tmp_path / "home")
    with care.store:
        care.store.catalog.create_namespace("ns")
        made = care.store.catalog.create_table("ns.t", SCHEMA, properties={"write.parquet.row-group-limit": "10"})
        for start in (0, 100):
            rows = {"id": range(start, start + 35), "name": [f"n{i}" for i in range(start, start + 35)]}
            made.append(pa.table({**rows, "tags": [[("k", str(i))] for i in rows["id"]]}, schema=SCHEMA))
        yield made


def places(table, *ids: int) -> tuple[pa.Array, pa.Array]:
    paths = {}
    for task in table.scan().plan_files():
        first = pq.read_table(task.file.file_path.removeprefix("file://"))["id"][0].as_py()
        paths[first] = task.file.file_path
    return pa.array([paths[i // 100 * 100] for i in ids]), pa.array([i % 100 for i in ids], pa.int64())


def test_the_rows_come_in_the_order_in_which_they_are_asked_for(table):
    wanted = [134, 3, 100, 34, 0, 12, 3]
    found = fetch_rows(WriteTarget.of(table), SCHEMA, *places(table, *wanted))
    assert found["id"].to_pylist() == wanted
    assert found["name"].to_pylist() == [f"n{i}" for i in wanted]
    assert found["tags"].to_pylist() == [[("k", str(i))] for i in wanted]


def test_nothing_is_asked_for(table):
    assert fetch_rows(WriteTarget.of(table), SCHEMA, pa.array([], pa.string()), pa.array([], pa.int64())).num_rows == 0


def test_columns_are_known_by_their_ids_and_new_ones_are_null(table):
    with table.update_schema() as update:
        update.rename_column("name", "title")
    with table.update_schema() as update:
        update.add_column("name", StringType())
    asked = pa.schema([("id", pa.int64()), ("title", pa.string()), ("name", pa.string())])
    found = fetch_rows(WriteTarget.of(table.refresh()), asked, *places(table, 5))
    assert found.to_pylist() == [{"id": 5, "title": "n5", "name": None}]


def test_a_file_without_ids_is_read_by_names(table, tmp_path):
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", "b"]}), foreign)
    found = fetch_rows(WriteTarget.of(table), SCHEMA, pa.array([f"file://{foreign}"]), pa.array([1], pa.int64()))
    assert found.to_pylist() == [{"id": 2, "name": "b", "tags": None}]
