"""What is said about a table."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from pyiceberg.transforms import MonthTransform

from frazil.catalogs import open_catalog
from frazil.catalogs.describe import file_rows
from frazil.settings import load_settings


@pytest.fixture
def table(tmp_path):
    """By month of a day that was later dropped."""
    catalog = open_catalog(load_settings(flags={"home": str(tmp_path)}, environ={}).catalog())
    catalog.create_namespace("demo")
    rows = pa.table({"day": [datetime.date(2025, 3, 7)], "n": [1]})
    made = catalog.create_table("demo.days", rows.schema)
    with made.update_spec() as spec:
        spec.add_field("day", MonthTransform(), "month")
    made.append(rows)
    with made.update_spec() as spec:
        spec.remove_field("month")
    with made.update_schema() as schema:
        schema.delete_column("day")
    return catalog.load_table("demo.days")


def test_a_file_tells_its_partition_though_the_column_was_dropped(table):
    assert [row["partition"] for row in file_rows(table)] == [{"month": "2025-03"}]


def test_a_partition_by_a_column_that_no_schema_knows_is_told_as_it_is_stored(table):
    table.metadata.schemas[:] = [s for s in table.metadata.schemas if s.find_column_name(1) is None]
    assert [row["partition"] for row in file_rows(table)] == [{"month": "662"}]
