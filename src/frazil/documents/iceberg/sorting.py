"""Sorts rows of tables by DuckDB, on disk where they do not fit into memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

_MEMORY: Final = "256MB"


def sort_rows(
    sources: Sequence[pa.Table | pa.RecordBatchReader], order: str, folder: Path, at_once: int
) -> Iterator[pa.Table]:
    """Yields the rows of all sources in one order. Columns that a source lacks are null in its rows.

    Args:
        sources: read once, in any order.
        order: as in SQL, after ORDER BY. Texts are compared by code point.
        folder: where temporary files may lie.
        at_once: rows of each table that is yielded.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix=".sorting-", dir=folder) as scratch, duckdb.connect(":memory:") as duck:
        duck.execute(f"SET memory_limit = '{_MEMORY}'; SET temp_directory = '{scratch}'")
        duck.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
        for number, source in enumerate(sources):
            duck.register(f"source_{number}", source)
        union = " UNION ALL BY NAME ".join(f"SELECT * FROM source_{number}" for number in range(len(sources)))  # noqa: S608
        for batch in duck.execute(f"SELECT * FROM ({union}) ORDER BY {order}").to_arrow_reader(at_once):  # noqa: S608
            yield pa.Table.from_batches([batch])
