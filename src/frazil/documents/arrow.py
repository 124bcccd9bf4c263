"""Revisions as Arrow tables: the columns of `document_history`, of `document_metadata`, and of staged bulk files.

Between processes the values of added columns travel as one JSON text, `columns`. In the tables each added column is a
column of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from frazil.documents.model import FIELD_NAMES, Column, Document, Revision, from_micros, to_micros

if TYPE_CHECKING:
    from frazil.documents.sql.records import StoredRevision

TIME = pa.timestamp("us", tz="UTC")
TAGS = pa.map_(pa.string(), pa.string())
#: The Arrow type of each type of added columns.
COLUMN_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": TIME,
}

#: The fields of the record, in the order of the model: the columns of `document_metadata`.
DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("document_id", pa.string(), nullable=False),
        pa.field("filename", pa.string(), nullable=False),
        pa.field("content_type", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("checksum", pa.string()),
        pa.field("provider", pa.string()),
        pa.field("bucket", pa.string()),
        pa.field("object_key", pa.string()),
        pa.field("version_id", pa.string()),
        pa.field("storage_tier", pa.string(), nullable=False),
        pa.field("restore_status", pa.string(), nullable=False),
        pa.field("restore_requested_at", TIME),
        pa.field("restore_expiry", TIME),
        pa.field("created_at", TIME, nullable=False),
        pa.field("updated_at", TIME, nullable=False),
        pa.field("tags", TAGS),
        pa.field("attributes", pa.string(), metadata={"doc": "JSON object"}),
        pa.field("revision", pa.int64(), nullable=False),
    ]
)
#: What a revision has besides the record.
STAMP_SCHEMA = pa.schema(
    [
        pa.field("operation", pa.string(), nullable=False),
        pa.field("valid_from", TIME, nullable=False),
        pa.field("idempotency_key", pa.string()),
        pa.field("digest", pa.string()),
    ]
)
#: Values of added columns as JSON, see `encode_added`; null: none.
ADDED = pa.field("columns", pa.string())
#: Where in the log the message lies that brought a revision.
OFFSET = pa.field("offset", pa.int64())
#: Revisions between processes: what `decode_messages` returns, with `OFFSET`, and the schema of staged bulk files.
REVISION_SCHEMA = pa.schema([*DOCUMENT_SCHEMA, *STAMP_SCHEMA, ADDED])
#: The columns of `document_history`, before those that were added.
HISTORY_SCHEMA = pa.schema([*DOCUMENT_SCHEMA, *STAMP_SCHEMA, OFFSET])

_TIMES = tuple(f.name for f in REVISION_SCHEMA if f.type == TIME)
_PLAIN = tuple(n for n in FIELD_NAMES if n not in _TIMES and n not in ("tags", "attributes"))


def revisions_to_table(revisions: Sequence[StoredRevision]) -> pa.Table:
    """Returns revisions in `REVISION_SCHEMA`, in their order."""
    documents = [stored.revision.document for stored in revisions]
    made: dict[str, Any] = {name: [getattr(d, name) for d in documents] for name in _PLAIN}
    for name in _TIMES:
        if name != "valid_from":
            made[name] = _micros(getattr(d, name) for d in documents)
    made["tags"] = [list(d.tags.items()) for d in documents]
    made["attributes"] = [orjson.dumps(dict(d.attributes)).decode() for d in documents]
    made["operation"] = [stored.revision.operation for stored in revisions]
    made["valid_from"] = _micros(stored.revision.valid_from for stored in revisions)
    made["idempotency_key"] = [stored.idempotency_key for stored in revisions]
    made["digest"] = [stored.digest for stored in revisions]
    made[ADDED.name] = [encode_added(d.columns) if d.columns else None for d in documents]
    return pa.table([pa.array(made[f.name], f.type) for f in REVISION_SCHEMA], schema=REVISION_SCHEMA)


def table_to_revisions(rows: pa.Table) -> list[StoredRevision]:
    """Returns the revisions of a table with the columns of `REVISION_SCHEMA` or of `document_history`, in its order.

    Columns that are in neither are added ones. An added column without a value is left out.
    """
    from frazil.documents.sql.records import StoredRevision

    read = {name: _read(rows, name) for name in (*FIELD_NAMES, *STAMP_SCHEMA.names)}
    read["tags"] = [dict(tags) if tags else {} for tags in read["tags"]]
    read["attributes"] = [orjson.loads(text) if text else {} for text in read["attributes"]]
    added = _read_added(rows)
    documents = zip(*(read[name] for name in FIELD_NAMES), added, strict=True)
    stamps = zip(*(read[name] for name in STAMP_SCHEMA.names), strict=True)
    return [
        StoredRevision(Revision(Document(*values), operation, valid_from), key, digest)
        for values, (operation, valid_from, key, digest) in zip(documents, stamps, strict=True)
    ]


def encode_added(values: Mapping[str, Any]) -> str | None:
    """Returns values of added columns as JSON; times as `{"micros": …}`. Without any value: None."""
    plain = {
        name: {"micros": to_micros(value)} if isinstance(value, datetime) else value
        for name, value in values.items()
        if value is not None
    }
    return orjson.dumps(plain).decode() if plain else None


def decode_added(text: str | None) -> dict[str, Any]:
    """Returns what `encode_added` was given, without values of None."""
    if not text:
        return {}
    values: dict[str, Any] = orjson.loads(text)
    return {n: from_micros(v["micros"]) if isinstance(v, dict) else v for n, v in values.items()}


def added_fields(columns: Iterable[Column]) -> list[pa.Field]:
    """Returns added columns as Arrow fields, for `evolve_schema`."""
    return [pa.field(column.name, COLUMN_TYPES[column.type]) for column in columns]


def _micros(times: Iterable[datetime | None]) -> pa.Array:
    return pa.array([None if t is None else to_micros(t) for t in times], pa.int64()).cast(TIME)


def _read(rows: pa.Table, name: str) -> list[Any]:
    if name not in rows.column_names:
        return [None] * rows.num_rows
    column = rows.column(name)
    if pa.types.is_timestamp(column.type):
        return [None if t is None else from_micros(t) for t in column.cast(TIME).cast(pa.int64()).to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _read_added(rows: pa.Table) -> list[dict[str, Any]]:
    made = [decode_added(text) for text in _read(rows, ADDED.name)]
    known = {*REVISION_SCHEMA.names, *HISTORY_SCHEMA.names}
    for name in rows.column_names:
        if name not in known:
            for values, value in zip(made, _read(rows, name), strict=True):
                if value is not None:
                    values[name] = value
    return made
