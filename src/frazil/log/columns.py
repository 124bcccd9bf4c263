"""Columns of messages: those that every message has, and those that producers bring."""

from __future__ import annotations

import re

import pyarrow as pa

from frazil.errors import UsageError

HEADERS = pa.map_(pa.string(), pa.string())
TIME = pa.timestamp("us", tz="UTC")

#: What every message has at read, in this order. Not nullable: what the log itself knows.
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

#: What a producer may send under these names; all other names of MESSAGE are given by the log.
_SENT = {"payload": pa.binary(), "request_id": pa.int64(), "headers": HEADERS}
_IMPORTED = {**_SENT, **{n: MESSAGE.field(n).type for n in ("publish_time", "producer_id", "producer_name")}}
#: Columns that the producers of a topic may bring: each head of a segment names them all, and so does the table.
MAX_EXTRA = 1000
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,127}")


def normalised(batch: pa.RecordBatch, *, imported: bool = False) -> pa.RecordBatch:
    """The batch in the types that the log keeps: `payload` first and never null, the rest as the producer ordered it.

    Raises:
        UsageError: a column is missing, has a name that is Frazil's own, or a type that tables cannot hold.
    """
    names = batch.schema.names
    if "payload" not in names:
        raise UsageError(f"a batch has no column 'payload', only {', '.join(names) or 'none at all'}")
    if len(set(names)) != len(names):
        raise UsageError("a batch has two columns of the same name")
    given = _IMPORTED if imported else _SENT
    fields, columns = [], []
    for name in ["payload", *(n for n in names if n != "payload")]:
        column = batch.column(name)
        kind = given.get(name) or _kept_type(name, column.type)
        fields.append(pa.field(name, kind, nullable=name != "payload"))
        columns.append(column if column.type == kind else _cast(name, column, kind))
    if columns[0].null_count:
        raise UsageError("a message's payload is null", hint="an empty payload is allowed: b''")
    if imported and any(n == "publish_time" and c.null_count for n, c in zip(batch.schema.names, batch, strict=True)):
        raise UsageError("the publish_time of an imported message is null", hint="leave the column out")
    return pa.record_batch(columns, schema=pa.schema(fields))


def extra_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of a batch that are the producer's own."""
    return pa.schema([f for f in schema if f.name not in MESSAGE.names])


def merged(known: pa.Schema, new: pa.Schema, topic: str) -> pa.Schema:
    """The extra columns of a topic, with those of a new batch added; int and float widen, nothing else changes.

    Raises:
        UsageError: a column came before with another type.
    """
    fields = {f.name: f.type for f in known}
    for field in new:
        before = fields.get(field.name, field.type)
        wider = _wider(before, field.type)
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


def _wider(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if a == b:
        return a
    for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if {a, b} == {narrow, wide}:
            return wide
    return None


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise UsageError(f"column '{name}' is {column.type} and cannot be made {kind}") from error


def _kept_type(name: str, given: pa.DataType) -> pa.DataType:
    if name in MESSAGE.names:
        raise UsageError(f"column '{name}' is given by the log, not by producers", hint="send it under another name")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no column's name", hint="lower-case letters, digits and '_'")
    kept = _keep(given)
    if kept is None:
        raise UsageError(f"column '{name}' has type {given}, which tables cannot hold", hint="string, or a number type")
    return kept


_SAME = (
    pa.types.is_boolean, pa.types.is_int32, pa.types.is_int64, pa.types.is_float32, pa.types.is_float64,
    pa.types.is_string, pa.types.is_binary, pa.types.is_date32, pa.types.is_decimal128,
)  # fmt: skip
_INT32 = (pa.types.is_int8, pa.types.is_int16, pa.types.is_uint8, pa.types.is_uint16)


def _keep(given: pa.DataType) -> pa.DataType | None:
    """The type in which a table will hold values of a type, or None."""
    if any(test(given) for test in _SAME):
        return given
    if any(test(given) for test in _INT32):
        return pa.int32()
    if pa.types.is_uint32(given):
        return pa.int64()
    if pa.types.is_timestamp(given):
        return pa.timestamp("us", tz="UTC" if given.tz else None)
    if pa.types.is_large_string(given) or pa.types.is_string_view(given):
        return pa.string()
    if pa.types.is_large_binary(given) or pa.types.is_binary_view(given) or pa.types.is_fixed_size_binary(given):
        return pa.binary()
    if pa.types.is_dictionary(given):
        return _keep(given.value_type)
    if pa.types.is_list(given) or pa.types.is_large_list(given):
        inner = _keep(given.value_type)
        return inner and pa.list_(pa.field("element", inner))
    if pa.types.is_map(given):
        key, item = _keep(given.key_type), _keep(given.item_type)
        return pa.map_(key, item) if key and item else None
    if pa.types.is_struct(given):
        inners = [(f.name, _keep(f.type)) for f in given]
        return pa.struct(inners) if inners and all(kind for _, kind in inners) else None
    return None
