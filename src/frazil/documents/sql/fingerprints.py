"""Reads the fingerprint of a store from its tables: whole rows as they are, without making documents of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from sqlalchemy import Connection, select

from frazil.documents.fingerprint import Fingerprint, hash_record
from frazil.documents.sql.bulk import stream_rows
from frazil.documents.sql.schema import FOREVER, REVISION_COLUMNS, document_history, documents

_OPERATION = REVISION_COLUMNS.index("operation")
_JSON = tuple(REVISION_COLUMNS.index(name) for name in ("tags", "attributes", "columns"))


def read_fingerprint(
    connection: Connection,
    progress: Callable[[int], None] = lambda _: None,
    *,
    canonical: bool = False,
    lists: bool = True,
) -> Fingerprint:
    """Reads all revisions, and all documents that exist.

    Args:
        connection: to a database with the tables of a store.
        progress: is told again and again how many rows were read.
        canonical: sort the keys of tags, attributes and added values, which mean the same in any order.
        lists: read `listed` too.
    """
    made = Fingerprint()
    history = document_history.c
    for rows in stream_rows(connection, select(*(history[name] for name in REVISION_COLUMNS), history.valid_to)):
        hashes = [hash_record(_sort_keys(row[:-1]) if canonical else row[:-1]) for row in rows]
        made.revisions.add(hashes)
        made.documents.add(
            [
                hashed
                for hashed, row in zip(hashes, rows, strict=True)
                if row[-1] == FOREVER and row[_OPERATION] != "delete"
            ]
        )
        progress(made.revisions.count)
    if not lists:
        return made
    for rows in stream_rows(connection, select(*(documents.c[name] for name in REVISION_COLUMNS))):
        made.listed.add([hash_record(_sort_keys(row) if canonical else row) for row in rows])
        progress(made.revisions.count + made.listed.count)
    return made


def _sort_keys(row: tuple[Any, ...]) -> tuple[Any, ...]:
    values = list(row)
    for place in _JSON:
        text = values[place]
        if text is not None and text != "{}":
            values[place] = orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS).decode()
    return tuple(values)
