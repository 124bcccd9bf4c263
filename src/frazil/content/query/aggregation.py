"""DuckDB for aggregation over streamed rows: it spills to disk, and errors of the stream are raised unchanged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.errors import FrazilError, first_line

if TYPE_CHECKING:
    import duckdb

_MEMORY = "512MB"


@contextmanager
def aggregate(name: str, schema: pa.Schema, tables: Iterator[pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with a relation that is read once.

    Raises:
        FrazilError: DuckDB fails. What `tables` raises is raised as it is.
    """
    import duckdb

    failed: list[Exception] = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for table in tables:
                yield from table.to_batches()
        except Exception as error:
            failed.append(error)  # DuckDB would tell it in its own words
            raise

    with tempfile.TemporaryDirectory(prefix="frazil-search-") as spill, duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"SET memory_limit = '{_MEMORY}'")
        connection.execute(f"SET temp_directory = '{spill.replace(chr(39), chr(39) * 2)}'")
        connection.register(name, pa.RecordBatchReader.from_batches(schema, batches()))
        try:
            yield connection
        except duckdb.Error as error:
            if failed:
                raise failed[0] from None
            raise FrazilError(f"objects cannot be added up: {first_line(error)}", cause="") from error
