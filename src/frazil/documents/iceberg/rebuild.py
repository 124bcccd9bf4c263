"""Builds a projection from the history table: sorted by DuckDB, then inserted in the order of the primary key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import HISTORY_SCHEMA, TIME, encode_added
from frazil.documents.iceberg.projection import Projection
from frazil.documents.iceberg.sorting import sort_rows
from frazil.documents.model import Column, from_micros
from frazil.documents.sql.bulk import insert_rows
from frazil.documents.sql.records import insert_column, write_clock
from frazil.documents.sql.rows import search_text
from frazil.documents.sql.schema import FOREVER, document_counts, document_history, documents
from frazil.documents.tables import added_columns

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from sqlalchemy import Connection

_AT_ONCE: Final = 20_000

_COPY_CURRENT: Final = f"""
INSERT INTO documents SELECT {", ".join(column.name for column in documents.columns)} FROM document_history
WHERE valid_to = {FOREVER} AND operation <> 'delete'"""  # noqa: S608 - constants of ours
_COUNT: Final = """
SELECT coalesce(provider, ''), storage_tier, restore_status, count(*),
       sum(size_bytes >> 32), sum(size_bytes & 4294967295)
FROM documents GROUP BY 1, 2, 3"""


def fill_projection(projection: Projection, table: Table | None) -> int:
    """Fills an empty projection with all rows of a history table, and returns how many there are.

    Args:
        projection: as `Projection.create` has made it; it gets its indexes by this.
        table: the history table; None: it does not exist yet.
    """
    rows = 0
    if table is not None:
        columns = added_columns(table)
        with projection.write() as connection:
            for column in columns:
                insert_column(connection, column)
            latest = None
            for batch in _read_sorted(table, columns, projection.file.parent):
                insert_rows(connection, document_history, _to_rows(batch, columns))
                rows += batch.num_rows
                found = pc.max(batch.column("valid_from")).as_py()
                latest = found if latest is None else max(latest, found)
            connection.exec_driver_sql(_COPY_CURRENT)
            _count(connection)
            if latest is not None:
                write_clock(connection, from_micros(latest))
    projection.complete()
    return rows


def _read_sorted(table: Table, columns: list[Column], folder: Path) -> Iterator[pa.Table]:
    """The rows by id and revision, each once, with `valid_to`."""
    names = (*HISTORY_SCHEMA.names, *(column.name for column in columns))
    rows = table.scan(selected_fields=names).to_arrow_batch_reader()
    yield from _with_ends(sort_rows([rows], 'document_id, revision, "offset"', folder, _AT_ONCE))


def _with_ends(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Adds `valid_to`, which the next row says, and leaves out repeated rows."""
    before: pa.Table | None = None
    for batch in batches:
        rows = _plain_times(batch)
        if before is not None:
            rows = pa.concat_tables([before, rows])
        rows = _without_repeats(rows)
        before = rows.slice(rows.num_rows - 1)
        if rows.num_rows > 1:
            yield _ended(rows)
    if before is not None:
        yield before.append_column("valid_to", pa.array([FOREVER], pa.int64()))


def _without_repeats(rows: pa.Table) -> pa.Table:
    ids, revisions = rows.column("document_id"), rows.column("revision")
    same = pc.and_(pc.equal(ids.slice(1), ids.slice(0, len(ids) - 1)), pc.equal(revisions.slice(1), revisions[:-1]))
    if not pc.any(same, min_count=0).as_py():
        return rows
    return rows.filter(pa.array([True, *pc.invert(same).to_pylist()]))


def _ended(rows: pa.Table) -> pa.Table:
    """All rows but the last, each with the moment of the next one of its document."""
    ids = rows.column("document_id")
    continues = pc.equal(ids.slice(1), ids.slice(0, len(ids) - 1))
    ends = pc.if_else(continues, rows.column("valid_from").slice(1), FOREVER)
    return rows.slice(0, rows.num_rows - 1).append_column("valid_to", ends)


def _plain_times(rows: pa.Table) -> pa.Table:
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(at, field.name, rows.column(at).cast(TIME).cast(pa.int64()))
    return rows


def _to_rows(batch: pa.Table, columns: list[Column]) -> list[tuple[Any, ...]]:
    """Returns rows of `document_history`."""
    read = {name: batch.column(name).to_pylist() for name in batch.column_names if name != "tags"}
    tags = [_texts_of_tags(tuple(found) if found else ()) for found in batch.column("tags").to_pylist()]
    read["tags"] = [json for json, _ in tags]
    read["attributes"] = [text or "{}" for text in read["attributes"]]
    read["columns"] = _added_values(read, columns, batch.num_rows)
    names = map(str.casefold, read["filename"])
    read["search_text"] = [name + searched for name, (_, searched) in zip(names, tags, strict=True)]
    return list(zip(*(read[column.name] for column in document_history.columns), strict=True))


@lru_cache(maxsize=10_000)
def _texts_of_tags(tags: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """Returns tags as JSON, and what `search_text` has of them after the name. Few combinations make up an archive."""
    found = dict(tags)
    return orjson.dumps(found).decode(), search_text("", found)


def _added_values(read: dict[str, list[Any]], columns: list[Column], count: int) -> list[str | None]:
    if not columns:
        return [None] * count
    values = [
        [None if value is None else from_micros(value) for value in read[c.name]]
        if c.type == "timestamp"
        else read[c.name]
        for c in columns
    ]
    names = [column.name for column in columns]
    return [encode_added(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)]


def _count(connection: Connection) -> None:
    groups = connection.exec_driver_sql(_COUNT).all()
    rows = [(*group, n, str((int(high or 0) << 32) + int(low or 0))) for *group, n, high, low in groups]
    insert_rows(connection, document_counts, rows)
