"""Arrow columns of every type with extreme values and odd names, and the log that an older Frazil has written."""

from __future__ import annotations

import zlib
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from frazil.errors import UsageError
from frazil.log.batch import Batch
from frazil.log.columns import HEADERS, MESSAGE
from frazil.log.frame import Kind
from frazil.log.protocol import Ack
from frazil.topics.dead_letters.json_values import python_values
from tests.sink_kit import SinkKit

NAMES = (
    *(
        "a",
        "b",
        "own",
        "c1",
        "select",
        "null",
        "key",
        "value",
        "element",
        "list",
        "map",
        "rowid",
        "filename",
        "x" * 128,
    ),
    *("_own", "file_row_number", "file_path", "pos", "row", "partition_id", "timestamp", "day", "payload_day", "a_b"),
    *("", "A", "a.b", "a b", "ä", "_pos", "_file", "_row_id", "publish_time_day", "offset", "x" * 129, "__row_id"),
)
INNER = (
    *("a", "b", "A", "own", "key", "value", "element", "list", "key_value", "a b", "ä", "Ä", "ß", "SS", "日本", "a-b"),
    *("", "a.b", "a.", "`", '"', "'", "s", "\u017f", "i", "\u0131", "\u0130", "x" * 128, "x" * 129, "\n", "😀", "_pos"),
    *("1", "a/b", "a=b", "%41", "a,b", "a;b", "(a)", "{a}", "<a>", "\\", "$", "@", "#", "*", "\u212a", "k", "null"),
)
_TEXTS = (
    "",
    "a",
    "\x00",
    "é",
    "😀",
    "\U0010ffff" * 20,
    "a" * 15 + "\ud7ff" + "b",
    "x" * 300,
    "'\"`\\\n",
    "\ufeff",
    "\u202e",
)
_INTS = (0, 1, -1, 2**7 - 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 253402300799_999999, 253402300800_000000)
_INTS += (-62135596800_000000, -62135596800_000001, -719162, -719163, 2932896, 2932897, 1_700_000_000_000_000)
_FLOATS = (0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 5e-324, 1.7e308, 3.4e38)
_UNITS = ("s", "ms", "us", "ns")
_ZONES = (None, "UTC", "Europe/Berlin", "+05:30", "Nowhere/At-All")


def odd_type(random: Random, depth: int = 0) -> pa.DataType:
    """Any type; more often one that a table can hold than another."""
    if depth < 3 and random.random() < 0.4:
        return _odd_nested(random, depth)
    if random.random() < 0.7:
        return random.choice(
            [
                pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(),
                pa.timestamp("us", random.choice(_ZONES)), pa.decimal128(9, 2), pa.decimal128(38, 0),
                pa.decimal128(38, 38),
            ]
        )  # fmt: skip
    return random.choice(
        [
            pa.null(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(),
            pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view(), pa.binary(3), pa.binary(0),
            pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
            pa.month_day_nano_interval(), pa.timestamp(random.choice(_UNITS), random.choice(_ZONES)),
            pa.duration(random.choice(_UNITS)),
            pa.decimal128(random.choice([1, 5, 38]), random.choice([-3, -1, 0, 1, 5, 39])),
            pa.decimal256(50, 3), pa.decimal32(5, 2), pa.decimal64(10, 2), pa.json_(), pa.uuid(), pa.bool8(),
        ]
    )  # fmt: skip


def _odd_nested(random: Random, depth: int) -> pa.DataType:
    def inner() -> pa.DataType:
        return odd_type(random, depth + 1)

    def not_null() -> pa.DataType:
        kind = inner()
        return pa.float64() if pa.types.is_null(kind) else kind

    def struct() -> pa.DataType:
        pool = INNER if random.random() < 0.6 else ("a", "b", "c", "d")
        return pa.struct([pa.field(random.choice(pool), inner()) for _ in range(random.choice([0, 1, 1, 2, 2, 3]))])

    kind = random.choice(["list", "list", "struct", "struct", "struct", "map", "map", "large", "view", "fixed", *_RARE])
    if kind == "struct":
        return struct()
    if kind == "map":
        return pa.map_(random.choice([pa.string(), pa.int64(), pa.binary(), pa.timestamp("us"), not_null()]), inner())
    if kind == "dictionary":
        return pa.dictionary(pa.int8(), random.choice([pa.string(), pa.int64(), pa.timestamp("us")]))
    if kind == "ree":
        return pa.run_end_encoded(pa.int32(), random.choice([pa.string(), pa.int64()]))
    if kind == "union":
        return pa.sparse_union([pa.field("a", pa.int64()), pa.field("b", pa.string())])
    made = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view, "fixed": lambda t: pa.list_(t, 2)}
    return made[kind](inner())


_RARE = ("dictionary", "ree", "union")


def odd_array(random: Random, kind: pa.DataType, count: int) -> pa.Array:
    """Values of a type, among them nulls and extremes."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, odd_array(random, kind.storage_type, count))
    if pa.types.is_union(kind):
        codes = pa.array([random.randrange(2) for _ in range(count)], pa.int8())
        return pa.UnionArray.from_sparse(codes, [odd_array(random, f.type, count) for f in kind], ["a", "b"])
    if pa.types.is_dictionary(kind):
        indices = pa.array([random.choice([None, 0, 1]) for _ in range(count)], pa.int8())
        return pa.DictionaryArray.from_arrays(indices, odd_array(random, kind.value_type, 2))
    if pa.types.is_run_end_encoded(kind):
        ends = pa.array([count] if count else [], pa.int32())
        return pa.RunEndEncodedArray.from_arrays(ends, odd_array(random, kind.value_type, len(ends)))
    if pa.types.is_nested(kind):
        return _odd_nested_array(random, kind, count)
    values = [None if random.random() < 0.2 else _odd_value(random, kind) for _ in range(count)]
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid:  # digits that PyArrow cannot bring to the scale of a decimal
        return pa.nulls(count, kind)


def _odd_nested_array(random: Random, kind: pa.DataType, count: int) -> pa.Array:
    mask = pa.array([random.random() < 0.2 for _ in range(count)], pa.bool_())
    if pa.types.is_struct(kind):
        children = [odd_array(random, f.type, count) for f in kind]
        if not children:
            return pa.array([{}] * count, kind)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(odd_array(random, kind.value_type, 2 * count), type=kind)
    ends = [0]
    for _ in range(count):
        ends.append(ends[-1] + random.choice([0, 0, 1, 2]))
    if pa.types.is_map(kind):
        keys = odd_array(random, kind.key_type, ends[-1])
        if keys.null_count:  # no key may be null
            ends, keys = [0] * (count + 1), keys.slice(0, 0)
        items = odd_array(random, kind.item_type, ends[-1])
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, items, type=kind)
    values = odd_array(random, kind.value_type, ends[-1])
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=kind, mask=mask)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values, type=kind)
    sizes = pa.array([b - a for a, b in pairwise(ends)], pa.int32())
    return pa.ListViewArray.from_arrays(pa.array(ends[:-1], pa.int32()), sizes, values, type=kind)


def _odd_value(random: Random, kind: pa.DataType) -> Any:
    number, kinds = random.choice(_INTS), pa.types
    if kinds.is_null(kind):
        return None
    if kinds.is_boolean(kind):
        return bool(number % 2)
    if kinds.is_floating(kind):
        value = random.choice(_FLOATS)
        return pa.scalar(value, kind).as_py() if kind != pa.float16() else 1.5
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return random.choice(_TEXTS)
    if kinds.is_fixed_size_binary(kind):
        return b"\xff" * kind.byte_width
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return random.choice([b"", b"\x00", b"\xff" * 40, b"a" * 300])
    if kinds.is_decimal(kind):
        if kind.scale > kind.precision:
            return None
        digits = random.choice([(0,), (1,), (9,) * kind.precision])
        return Decimal((random.randrange(2), digits, -kind.scale))
    if kinds.is_interval(kind):
        return pa.MonthDayNano([1, 2, 3])
    width = 32 if kind in (pa.int32(), pa.date32(), pa.time32("s"), pa.time32("ms")) else kind.bit_width
    if kinds.is_time(kind) or kinds.is_date64(kind):
        return 0
    low, high = (0, 2**width - 1) if kinds.is_unsigned_integer(kind) else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    return number if low <= number <= high else random.choice([0, low, high])


def odd_batch(random: Random, mark: str) -> pa.RecordBatch:
    """Some messages with one or two odd columns. Their payloads are unique."""
    count = random.randint(1, 3)
    columns = [pa.array([f"{mark}-{n}".encode() for n in range(count)], pa.binary())]
    names = ["payload"]
    for _ in range(random.randint(1, 2)):
        names.append(random.choice(NAMES if random.random() < 0.5 else ("a", "b", "own", mark.replace("-", "_"))))
        columns.append(odd_array(random, odd_type(random), count))
    return pa.RecordBatch.from_arrays(columns, names=names)


def sent_values(column: pa.Array) -> list[Any]:
    """The values as a reader is to get them: dictionaries and runs written out, times in UTC."""
    return python_values(column.cast(_plain(column.type)))


def _plain(kind: pa.DataType) -> pa.DataType:
    kinds = pa.types
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    if kinds.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC" if kind.tz else None)
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if kinds.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    if kinds.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


# -- an older log ------------------------------------------------------------------------------------------------------


def append_unchecked(kit: SinkKit, topic: str, batch: pa.RecordBatch) -> Ack | None:
    """Writes messages that the log would refuse today, as an older Frazil did; None where that refused them too."""
    names = batch.schema.names
    if len(set(names)) != len(names) or any(n in MESSAGE.names and n != "payload" for n in names):
        return None
    fields, columns = [], []
    for name, column in zip(names, batch.columns, strict=True):
        kind = {"payload": pa.binary(), "headers": HEADERS}.get(name) or _kept_before(column.type)
        if kind is None or not name.isidentifier() or not name.isascii() or not name.islower():
            return None
        try:
            columns.append(column.cast(kind))
        except pa.ArrowException:
            return None
        fields.append(pa.field(name, kind, nullable=name != "payload"))
    made = pa.record_batch(columns, schema=pa.schema(fields))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_batch(made)
    body = memoryview(sink.getvalue())
    try:
        with patch.object(Batch, "check", lambda *_, **__: None):
            return kit.log.append(topic, Batch(Kind.arrow, made.num_rows, body, zlib.crc32(body)))
    except UsageError:  # a column came before with another type
        return None


def _kept_before(given: pa.DataType) -> pa.DataType | None:
    """The types that the log kept before there were rules."""
    kinds = pa.types
    if given in (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()):
        return given
    if kinds.is_decimal128(given):
        return given
    if kinds.is_integer(given) and given.bit_width < 32:
        return pa.int32()
    if kinds.is_uint32(given):
        return pa.int64()
    if kinds.is_timestamp(given):
        return pa.timestamp("us", tz="UTC" if given.tz else None)
    if kinds.is_large_string(given) or kinds.is_string_view(given):
        return pa.string()
    if kinds.is_large_binary(given) or kinds.is_binary_view(given) or kinds.is_fixed_size_binary(given):
        return pa.binary()
    if kinds.is_dictionary(given):
        return _kept_before(given.value_type)
    if kinds.is_list(given) or kinds.is_large_list(given):
        inner = _kept_before(given.value_type)
        return inner and pa.list_(pa.field("element", inner))
    if kinds.is_map(given):
        key, item = _kept_before(given.key_type), _kept_before(given.item_type)
        return pa.map_(key, item) if key and item else None
    if kinds.is_struct(given):
        inners = [(f.name, _kept_before(f.type)) for f in given]
        return pa.struct(inners) if inners and all(kind for _, kind in inners) else None
    return None
