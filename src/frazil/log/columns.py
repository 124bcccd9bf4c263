"""Columns of messages: the common ones, and those of producers."""

from __future__ import annotations

import pyarrow as pa

from frazil.column_rules import check_encoding, check_name, check_values, is_storable, kept_type
from frazil.errors import UsageError, first_line

HEADERS = pa.map_(pa.string(), pa.string())
TIME = pa.timestamp("us", tz="UTC")
#: The only partition of the embedded log.
PARTITION = 0

#: The columns of every message that is read, in this order. Those assigned by the log are not nullable.
MESSAGE = pa.schema(
    [
        pa.field("request_id", pa.int64()),
        pa.field("producer_id", pa.int64()),
        pa.field("topic_name", pa.string(), nullable=False),
        pa.field("broker_addr", pa.string()),
        pa.field("segment_id", pa.int64(), nullable=False),
        pa.field("segment_offset", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("publish_time", TIME, nullable=False),
        pa.field("producer_name", pa.string()),
        pa.field("subscription_name", pa.string()),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("headers", HEADERS),
    ]
)

#: The types that a producer may send under these names; the log assigns all other columns of MESSAGE.
_SENT = {"payload": pa.binary(), "request_id": pa.int64(), "headers": HEADERS}
_IMPORTED = {**_SENT, **{n: MESSAGE.field(n).type for n in ("publish_time", "producer_id", "producer_name")}}
#: Limit of producers' columns per topic: each head of a segment names them all, and so does the table.
MAX_EXTRA = 1000


def normalize_batch(batch: pa.RecordBatch, *, imported: bool = False, stored: bool = False) -> pa.RecordBatch:
    """Returns the batch in the types of the log: `payload` first and never null, the rest in the producer's order.

    Args:
        batch: as it was received.
        imported: it may carry columns that the log otherwise assigns.
        stored: it comes from a table or a log, whose values are valid: they are not checked again.

    Raises:
        UsageError: a column is missing, has a reserved name, or a type or value that tables cannot hold.
    """
    try:
        return _normalize_batch(batch, imported=imported, stored=stored)
    except UnicodeDecodeError as error:
        raise UsageError(
            "the name of a column, or of a field inside one, is not UTF-8", cause=str(error), hint="names in UTF-8"
        ) from error


def _normalize_batch(batch: pa.RecordBatch, *, imported: bool, stored: bool) -> pa.RecordBatch:
    names = batch.schema.names
    if "payload" not in names:
        raise UsageError(
            f"a batch has no column 'payload', only {', '.join(names)[:200] or 'none at all'}",
            hint="the messages themselves, as binary or text, in a column 'payload'",
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"a batch has two columns of the same name, '{twice[:200]}'", hint="one column of each name")
    given = _IMPORTED if imported else _SENT
    fields, columns = [], []
    for name in ["payload", *(n for n in names if n != "payload")]:
        column = _check_column(name, _get_column(batch, name), given.get(name), stored=stored)
        fields.append(pa.field(name, column.type, nullable=name != "payload"))
        columns.append(column)
    if columns[0].null_count:
        raise UsageError("a message's payload is null", hint="an empty payload is allowed: b''")
    if imported and any(n == "publish_time" and c.null_count for n, c in zip(batch.schema.names, batch, strict=True)):
        raise UsageError("the publish_time of an imported message is null", hint="leave the column out")
    return pa.record_batch(columns, schema=pa.schema(fields))


def extra_columns(schema: pa.Schema) -> pa.Schema:
    """Returns the producer's own columns of a batch."""
    return pa.schema([f for f in schema if f.name not in MESSAGE.names])


def storable_columns(extra: pa.Schema) -> pa.Schema:
    """Returns the columns of a topic that its table can have: a log of an older Frazil may contain others."""
    return pa.schema([f for f in extra if is_storable(f, MESSAGE.names)])


def merge_columns(known: pa.Schema, new: pa.Schema, topic: str) -> pa.Schema:
    """Returns a topic's extra columns with those of a new batch; int and float widen, nothing else changes.

    Raises:
        UsageError: a column came before with another type.
    """
    fields = {f.name: f.type for f in known}
    for field in new:
        before = fields.get(field.name, field.type)
        wider = _find_wider_type(before, field.type)
        if wider is None:
            raise UsageError(
                f"column '{field.name}' of topic '{topic}' has type {before}, and a batch brings {field.type}",
                hint=f"send it as {before}, or under another name",
            )
        fields[field.name] = wider
    if len(fields) > max(MAX_EXTRA, len(known)):
        raise UsageError(
            f"topic '{topic}' has {len(known):,} columns of its producers, and at most {MAX_EXTRA:,} are allowed",
            hint="a column of type map for names that are not known before",
        )
    return pa.schema(list(fields.items()))


def _find_wider_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if a == b:
        return a
    for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if {a, b} == {narrow, wide}:
            return wide
    return None


def _get_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    try:
        return batch.column(name)
    except KeyError:  # PyArrow has no class for some types of Arrow, such as SQL intervals
        kind = batch.schema.field(name).type
        raise UsageError(
            f"column '{name[:200]}' has type {kind}, which tables cannot hold", hint="string, or a number type"
        ) from None


def _check_column(name: str, column: pa.Array, given: pa.DataType | None, *, stored: bool) -> pa.Array:
    """Returns a column in the log's type, with values that tables can hold."""
    if given is None:
        check_name(name, MESSAGE.names)
    kind = given or kept_type(name, column.type)
    check_encoding(name, column)  # before the cast, which does not validate
    if column.type != kind:
        column = _cast(name, column, kind)
    if not stored:
        check_values(name, column)
    return column


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise UsageError(
            f"column '{name}' is {column.type} and cannot be made {kind}",
            cause=first_line(error)[:300],
            hint=f"send it as {kind}",
        ) from error
