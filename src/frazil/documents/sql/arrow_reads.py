"""Reads the history of a store as Arrow tables, without an object for each revision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Select, select

from frazil.documents.arrow import REVISION_SCHEMA, TAGS, TIME
from frazil.documents.sql.bulk import stream_rows
from frazil.documents.sql.schema import REVISION_COLUMNS, document_history


def read_history_table(connection: Connection, after: str | None, limit: int) -> pa.Table:
    """Returns about so many revisions of the documents that follow an id, in `REVISION_SCHEMA`, by id and revision.

    No document is split. Without rows: nothing follows.
    """
    history = document_history.c
    query = select(*(history[name] for name in REVISION_COLUMNS)).order_by(history.document_id, history.revision)
    found = _read(connection, (query if after is None else query.where(history.document_id > after)).limit(limit))
    if found.num_rows < limit:
        return found
    ids = found.column("document_id")
    cut = pc.index(ids, ids[-1]).as_py()  # more revisions of this document may follow
    return found.slice(0, cut) if cut else _read(connection, query.where(history.document_id == ids[-1].as_py()))


def _read(connection: Connection, query: Select[Any]) -> pa.Table:
    return pa.concat_tables([REVISION_SCHEMA.empty_table(), *map(to_table, stream_rows(connection, query))])


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


def _tags(texts: Sequence[str]) -> pa.Array:
    """Few combinations of tags make up an archive: each is read once."""
    encoded = pa.array(texts, pa.string()).dictionary_encode()
    distinct = [list(orjson.loads(text).items()) for text in encoded.dictionary.to_pylist()]
    return pa.array(distinct, TAGS).take(encoded.indices)
