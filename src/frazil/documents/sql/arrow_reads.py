"""Reads the history of a store as Arrow tables, without an object for each revision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

import orjson
import pyarrow as pa
from sqlalchemy import Connection, Select, select

from frazil.documents.arrow import REVISION_SCHEMA, TAGS, TIME
from frazil.documents.sql.schema import REVISION_COLUMNS, document_history

_ID = REVISION_COLUMNS.index("document_id")


def read_history_table(connection: Connection, after: str | None, limit: int) -> pa.Table:
    """Returns about so many revisions of the documents that follow an id, in `REVISION_SCHEMA`, by id and revision.

    No document is split. Without rows: nothing follows.
    """
    history = document_history.c
    query = select(*(history[name] for name in REVISION_COLUMNS)).order_by(history.document_id, history.revision)
    rows = fetch_rows(connection, (query if after is None else query.where(history.document_id > after)).limit(limit))
    if len(rows) == limit:
        cut = rows[-1][_ID]  # more of its revisions may follow
        whole = len(rows)
        while whole and rows[whole - 1][_ID] == cut:
            whole -= 1
        rows = rows[:whole] or fetch_rows(connection, query.where(history.document_id == cut))
    return to_table(rows)


def fetch_rows(connection: Connection, query: Select[Any]) -> Sequence[tuple[Any, ...]]:
    if connection.dialect.name != "sqlite":
        return list(map(tuple, connection.execute(query)))
    # SQLAlchemy's rows would double the time.
    made = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
    cursor = connection.connection.cursor()
    try:
        cursor.execute(str(made))
        found: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return found
    finally:
        cursor.close()


def to_table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Returns rows with `REVISION_COLUMNS` in `REVISION_SCHEMA`."""
    values = dict(
        zip(REVISION_COLUMNS, zip(*rows, strict=True) if rows else ((),) * len(REVISION_COLUMNS), strict=True)
    )
    arrays = []
    for field in REVISION_SCHEMA:
        found = values.get(field.name)
        if found is None:
            arrays.append(pa.nulls(len(rows), field.type))
        elif field.name == "tags":
            arrays.append(_tags(found))
        elif field.type == TIME:
            arrays.append(pa.array(found, pa.int64()).cast(TIME))
        else:
            arrays.append(pa.array(found, field.type))
    return pa.table(arrays, schema=REVISION_SCHEMA)


def _tags(texts: Sequence[str]) -> pa.MapArray:
    pairs = list(map(_pairs_of, texts))
    offsets = pa.array([0, *accumulate(len(names) for names, _ in pairs)], pa.int32())
    names = pa.array(chain.from_iterable(names for names, _ in pairs), TAGS.key_type)
    values = pa.array(chain.from_iterable(values for _, values in pairs), TAGS.item_type)
    return pa.MapArray.from_arrays(offsets, names, values)


@lru_cache(maxsize=10_000)
def _pairs_of(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Few combinations of tags make up an archive."""
    tags = orjson.loads(text)
    return tuple(tags), tuple(tags.values())
