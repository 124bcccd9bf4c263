"""Builds a projection from the history table: sorted, then inserted in the order of the primary key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import HISTORY_SCHEMA
from frazil.documents.iceberg.projection import Projection
from frazil.documents.iceberg.sorting import TableSource, sort_rows
from frazil.documents.model import Column, from_micros
from frazil.documents.sql.arrow_rows import copy_present, insert_history, with_ends
from frazil.documents.sql.records import drop_old_keys, insert_column, write_clock
from frazil.documents.tables import added_columns

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import TableStore


def fill_projection(projection: Projection, store: TableStore, table: Table | None) -> int:
    """Fills an empty projection with all rows of a history table, and returns how many there are.

    Idempotency keys that are too old are left out.

    Args:
        projection: as `Projection.create` has made it.
        store: the catalog.
        table: the history table; None: it does not exist yet.
    """
    rows = 0
    if table is not None:
        columns = added_columns(table)
        with projection.write() as connection:
            for column in columns:
                insert_column(connection, column)
            latest, has_keys = None, False
            for batch in _read_sorted(store, table, columns, projection.file.parent):
                insert_history(connection, batch, columns)
                rows += batch.num_rows
                has_keys = has_keys or batch.column("idempotency_key").null_count < batch.num_rows
                found = pc.max(batch.column("valid_from")).as_py()
                latest = found if latest is None else max(latest, found)
            copy_present(connection)
            if latest is not None:
                write_clock(connection, from_micros(latest))
                if has_keys:
                    drop_old_keys(connection, from_micros(latest))
    return rows


def _read_sorted(store: TableStore, table: Table, columns: list[Column], folder: Path) -> Iterator[pa.Table]:
    """The rows by id and revision, each once, with `valid_to`."""
    from pyiceberg.expressions import AlwaysTrue

    names = (*HISTORY_SCHEMA.names, *(column.name for column in columns))
    source = TableSource(store, table, AlwaysTrue(), names)
    return with_ends(sort_rows([source], ("document_id", "revision", "offset"), folder))
