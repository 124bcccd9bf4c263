"""Batches: what producers may send, and what comes back at read, against an oracle in plain Python."""

from __future__ import annotations

import datetime
import decimal
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.errors import IntegrityError, UsageError
from frazil.log.batch import HAS_REQUEST_IDS, IMPORTED, MAX_COUNT, Batch, batch_with_headers
from frazil.log.columns import MESSAGE, extra_columns, merge_columns, normalize_batch
from frazil.log.frame import Header, Kind, pack_header, padding
from frazil.log.messages import decode_chunk, message_schema
from frazil.log.protocol import Chunk, TopicView

LIMIT = 1 << 20
TIME_US = 1_750_000_000_000_000
SEGMENT = 90
IDS = st.integers(-(2**63) + 1, 2**63 - 1)
HEADERS = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=8)


def frame_of(batch: Batch, base: int, number: int = 0) -> bytes:
    header = Header(
        batch.kind, batch.flags, 1, 1, batch.count, base, base, TIME_US + number, batch.producer_id, batch.sequence,
        batch.producer_epoch, len(batch.body), batch.crc,
    )  # fmt: skip
    return pack_header(header) + bytes(batch.body) + padding(len(batch.body))


def state_frame(base: int) -> bytes:
    return pack_header(Header(Kind.state, 0, 1, 1, 0, base, 0, 0, 0, -1, 0, 2, zlib.crc32(b"{}"))) + b"{}" + bytes(6)


def chunk_of(batches: list[Batch], base: int = 100, producers: dict[int, str] | None = None) -> Chunk:
    frames = [state_frame(base)]
    for number, batch in enumerate(batches):
        frames.append(frame_of(batch, base, number))
        base += batch.count
    return Chunk(SEGMENT, pa.py_buffer(b"".join(frames)), producers or {})


def row(**given: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(MESSAGE.names)
    fixed = {"topic_name": "orders", "broker_addr": "here", "segment_id": SEGMENT, "partition": 0}
    return nothing | fixed | given


@st.composite
def packed(draw: st.DrawFn) -> tuple[Batch, list[dict[str, Any]]]:
    payloads = draw(PAYLOADS)
    ids = draw(st.none() | st.lists(st.none() | IDS, min_size=len(payloads), max_size=len(payloads)))
    producer = draw(st.sampled_from([{}, {"producer_id": 7, "sequence": 3}, {"producer_id": 8, "sequence": 0}]))
    rows = [{"payload": p, "request_id": ids and ids[i]} for i, p in enumerate(payloads)]
    return Batch.of_messages(payloads, ids, **producer), rows


@st.composite
def arrow(draw: st.DrawFn) -> tuple[Batch, list[dict[str, Any]]]:
    """An old producer, or a new one with columns of its own, of which `price` has been widened meanwhile."""
    payloads = draw(PAYLOADS)
    size = {"min_size": len(payloads), "max_size": len(payloads)}
    columns: dict[str, pa.Array] = {"payload": pa.array(payloads, pa.binary())}
    if draw(st.booleans()):
        columns["request_id"] = pa.array(draw(st.lists(st.none() | IDS, **size)), pa.int64())
    if draw(st.booleans()):
        given = draw(st.lists(HEADERS, **size))
        columns["headers"] = pa.array([h and list(h.items()) for h in given], pa.map_(pa.string(), pa.string()))
    if draw(st.booleans()):
        kind = draw(st.sampled_from([pa.int32(), pa.int64()]))
        columns["price"] = pa.array(draw(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), **size)), kind)
    if draw(st.booleans()):
        columns["tags"] = pa.array(draw(st.lists(st.none() | st.lists(st.text(max_size=3), max_size=2), **size)))
        if pa.types.is_null(columns["tags"].type) or pa.types.is_null(columns["tags"].type.value_type):
            columns["tags"] = columns["tags"].cast(pa.list_(pa.string()))
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*(c.to_pylist() for c in columns.values()))]  # noqa: B905
    if draw(st.booleans()):
        columns["publish_time"] = pa.array([10**15] * len(payloads), pa.timestamp("us", tz="UTC"))
        columns["producer_name"] = pa.array(["old one"] * len(payloads))
        when = datetime.datetime.fromtimestamp(10**9, datetime.UTC)
        rows = [r | {"publish_time": when, "producer_name": "old one"} for r in rows]
        return Batch.of_arrow(pa.record_batch(columns), flags=IMPORTED), rows
    return Batch.of_arrow(pa.record_batch(columns), producer_id=7, sequence=1), rows


EXTRA = pa.schema([("price", pa.int64()), ("tags", pa.list_(pa.string()))])
VIEW = TopicView("orders", "here", EXTRA)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(packed() | arrow(), min_size=1, max_size=6), st.data())
def test_what_is_read_is_what_was_sent_whatever_the_mix_and_wherever_it_is_cut(given: list[Any], data: st.DataObject):
    producers = {7: "billing"}
    expected = []
    for number, (batch, rows) in enumerate(given):
        batch.check(LIMIT)
        when = datetime.datetime.fromtimestamp(TIME_US // 10**6, datetime.UTC) + datetime.timedelta(microseconds=number)
        for sent in rows:
            offset = 100 + len(expected)
            own = {"price": None, "tags": None, "publish_time": when, "producer_name": producers.get(batch.producer_id)}
            known = {"offset": offset, "segment_offset": offset - SEGMENT, "producer_id": batch.producer_id or None}
            made = row(**known) | own | sent
            made["headers"] = made["headers"] and dict(made["headers"])
            expected.append(made)
    start = data.draw(st.integers(98, 102 + len(expected)))
    end = data.draw(st.none() | st.integers(start, 103 + len(expected)))
    chunk = chunk_of([b for b, _ in given], producers=producers)
    table = decode_chunk(chunk, VIEW, start, end)
    assert table.schema == message_schema(VIEW)
    table.validate(full=True)
    read = [r | {"headers": None if r["headers"] is None else dict(r["headers"])} for r in table.to_pylist()]
    wanted = [r for r in expected if r["offset"] >= start and (end is None or r["offset"] < end)]
    for one in (*read, *wanted):  # an empty map of headers is no header
        one["headers"] = one["headers"] or None
    assert read == wanted
    some = decode_chunk(chunk, VIEW, start, end, columns=["offset", "payload", "price"])
    assert some.schema.names == ["payload", "offset", "price"]
    assert some["payload"].to_pylist() == [r["payload"] for r in wanted]


def test_many_tiny_frames_come_back_in_order():
    batches = [Batch.of_messages([b"%d" % i]) for i in range(3000)]
    table = decode_chunk(chunk_of(batches, 0), TopicView("orders", "here", pa.schema([])))
    assert table["payload"].to_pylist() == [b"%d" % i for i in range(3000)]
    assert table["offset"].to_pylist() == list(range(3000))


def test_a_single_frame_is_read_without_a_copy_of_its_payloads():
    batch = Batch.of_messages([b"a" * 100, b"b" * 100])
    chunk = Chunk(0, pa.py_buffer(frame_of(batch, 0)), {})
    payload = decode_chunk(chunk, VIEW)["payload"].chunk(0)
    begin = chunk.data.address
    assert begin <= payload.buffers()[2].address < begin + chunk.data.size


def test_every_flipped_bit_of_a_chunk_is_an_error_that_names_the_place_or_does_no_harm():
    batches = [Batch.of_messages([b"first", b"second"], [1, None]), Batch.of_messages([b"third"])]
    chunk = chunk_of(batches)
    right = decode_chunk(chunk, VIEW)
    found = 0
    for bit in range(8 * chunk.data.size):
        flipped = bytearray(chunk.data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            read = decode_chunk(Chunk(SEGMENT, pa.py_buffer(bytes(flipped)), {}), VIEW)
        except IntegrityError as error:
            found += 1
            assert "00000000000000000090" in error.message
            continue
        assert read == right  # it was in the padding
    assert found > 8 * chunk.data.size * 0.9


def test_a_damaged_body_is_named_by_its_offsets():
    chunk = chunk_of([Batch.of_messages([b"first", b"second"]), Batch.of_messages([b"third"])])
    flipped = bytearray(chunk.data)
    flipped[flipped.index(b"third")] ^= 1
    with pytest.raises(IntegrityError, match="offsets 102 to 103"):
        decode_chunk(Chunk(SEGMENT, pa.py_buffer(bytes(flipped)), {}), VIEW)


# -- what is refused before it is acknowledged ---------------------------------------------------------------------


def remade(batch: Batch, **changes: Any) -> Batch:
    fields = {name: getattr(batch, name) for name, f in batch.__dataclass_fields__.items() if f.init} | changes
    if "body" in changes and "crc" not in changes:
        fields["crc"] = zlib.crc32(fields["body"])
    return Batch(**fields)


def stream(*batches: pa.RecordBatch, schema: pa.Schema | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema or batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


GOOD = Batch.of_messages([b"abc", b""], [1, None])
GOOD_ARROW = Batch.of_arrow(pa.record_batch({"payload": pa.array([b"abc", b""])}))


@pytest.mark.parametrize(
    ("batch", "error", "says"),
    [
        (remade(GOOD, crc=GOOD.crc ^ 1), IntegrityError, "CRC"),
        (remade(GOOD_ARROW, crc=1), IntegrityError, "CRC"),
        (remade(GOOD, count=3), IntegrityError, "length"),
        (remade(GOOD, count=1), IntegrityError, "length"),
        (remade(GOOD, flags=0), IntegrityError, "length"),
        (remade(GOOD, body=bytes(GOOD.body)[:-1]), IntegrityError, "length"),
        (remade(GOOD, body=bytes(GOOD.body) + b"x"), IntegrityError, "length"),
        (remade(GOOD, body=b""), IntegrityError, "length"),
        (remade(GOOD, count=0), UsageError, "messages"),
        (remade(GOOD, count=-1), UsageError, "messages"),
        (remade(GOOD, count=MAX_COUNT + 1), UsageError, "messages"),
        (Batch.of_messages([]), UsageError, "messages"),
        (Batch.of_messages([b"x" * (LIMIT + 1)]), UsageError, "over the limit"),
        (Batch.of_arrow(pa.record_batch({"payload": pa.array([b"x" * (LIMIT + 1)])})), UsageError, "over the limit"),
        (remade(GOOD_ARROW, count=3), IntegrityError, "says 3"),
        (remade(GOOD_ARROW, body=b"not Arrow at all, but long enough"), IntegrityError, "Arrow"),
        (remade(GOOD_ARROW, body=b""), IntegrityError, "Arrow"),
        (remade(GOOD_ARROW, body=bytes(GOOD_ARROW.body)[:-40]), IntegrityError, "Arrow"),
        (remade(GOOD_ARROW, body=stream(schema=GOOD_ARROW.arrow.schema)), IntegrityError, "Arrow"),
        (remade(GOOD_ARROW, body=stream(GOOD_ARROW.arrow, GOOD_ARROW.arrow)), IntegrityError, "Arrow"),
        (remade(GOOD_ARROW, body=stream(pa.record_batch({"payload": ["a", "b"]}))), UsageError, "types"),
        (remade(GOOD_ARROW, body=stream(pa.record_batch({"other": [b"a", b"b"]}))), UsageError, "payload"),
        (remade(GOOD, kind=Kind.state), UsageError, "kind"),
        (remade(GOOD, flags=HAS_REQUEST_IDS | 4), UsageError, "flags"),
        (remade(GOOD, producer_id=2**63), UsageError, "producer"),
        (remade(GOOD, producer_id=-1), UsageError, "producer"),
        (remade(GOOD, producer_epoch=2**32), UsageError, "producer"),
        (remade(GOOD, sequence=-2), UsageError, "producer"),
    ],
)  # fmt: skip
def test_a_batch_that_is_not_right_is_refused_with_the_reason(batch: Batch, error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        batch.check(LIMIT)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_no_damage_to_an_arrow_body_gets_past_the_check_as_anything_but_an_error_of_ours(data: st.DataObject):
    """Its CRC was made by the same broken client, so that the check has to look inside."""
    body = bytearray(GOOD_ARROW.body)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    batch = remade(GOOD_ARROW, body=bytes(body[: data.draw(st.integers(0, len(body)))]))
    try:
        batch.check(LIMIT)
    except (IntegrityError, UsageError):
        return
    assert decode_chunk(chunk_of([batch]), VIEW).num_rows == batch.count


@pytest.mark.parametrize(
    ("payloads", "ids"),
    [([b"a"], [1, 2]), ([b"a", b"b"], [1]), (["text"], None), ([b"a"], [2**63]), ([b"a"], ["one"]), ([None], None)],
)
def test_what_cannot_be_packed_is_the_callers_mistake(payloads: list[Any], ids: list[Any] | None):
    with pytest.raises(UsageError):
        Batch.of_messages(payloads, ids)


def test_a_batch_at_the_limit_is_taken():
    Batch.of_messages([b"x" * LIMIT]).check(LIMIT)


# -- columns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.array([1], pa.int8()), pa.int32()),
        (pa.array([1], pa.uint16()), pa.int32()),
        (pa.array([1], pa.uint32()), pa.int64()),
        (pa.array([1], pa.int64()), pa.int64()),
        (pa.array([1.5], pa.float32()), pa.float32()),
        (pa.array([True]), pa.bool_()),
        (pa.array(["a"], pa.large_string()), pa.string()),
        (pa.array(["a"], pa.string_view()), pa.string()),
        (pa.array(["a"]).dictionary_encode(), pa.string()),
        (pa.array([b"a"], pa.large_binary()), pa.binary()),
        (pa.array([b"ab"], pa.binary(2)), pa.binary()),
        (pa.array([decimal.Decimal("1.50")]), pa.decimal128(3, 2)),
        (pa.array([datetime.date(2026, 1, 2)]), pa.date32()),
        (pa.array([1], pa.timestamp("ms", "Europe/Berlin")), pa.timestamp("us", "UTC")),
        (pa.array([1000], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([["a"]], pa.large_list(pa.large_string())), pa.list_(pa.string())),
        (pa.array([{"x": 1}], pa.struct([("x", pa.int16())])), pa.struct([("x", pa.int32())])),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int16())), pa.map_(pa.string(), pa.int32())),
    ],
)
def test_columns_are_kept_in_types_that_a_table_can_hold(given: pa.Array, kept: pa.DataType):
    batch = Batch.of_arrow(pa.record_batch({"payload": pa.array([b"x"]), "own": given}))
    batch.check(LIMIT)
    assert batch.extra.field("own").type == kept
    read = decode_chunk(chunk_of([batch]), TopicView("orders", "here", batch.extra))
    expected = given.to_pylist() if not pa.types.is_timestamp(kept) else given.cast(kept).to_pylist()
    assert read["own"].to_pylist() == expected


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"other": ["a"]}, "payload"),
        ({"payload": pa.array([None], pa.binary())}, "null"),
        ({"payload": [b"a"], "offset": [1]}, "given by the log"),
        ({"payload": [b"a"], "publish_time": [1]}, "given by the log"),
        ({"payload": [b"a"], "producer_name": ["x"]}, "given by the log"),
        ({"payload": [b"a"], "Own": [1]}, "no column's name"),
        ({"payload": [b"a"], "own-er": [1]}, "no column's name"),
        ({"payload": [b"a"], "own": pa.array([1], pa.uint64())}, "cannot hold"),
        ({"payload": [b"a"], "own": pa.nulls(1)}, "cannot hold"),
        ({"payload": [b"a"], "own": pa.array([1], pa.duration("s"))}, "cannot hold"),
        ({"payload": [b"a"], "own": pa.array([[]], pa.list_(pa.null()))}, "cannot hold"),
        ({"payload": [b"a"], "own": pa.array([1], pa.timestamp("ns"))}, "cannot be made"),
        ({"payload": [b"a"], "headers": ["x"]}, "cannot be made"),
        ({"payload": [b"a"], "request_id": ["x"]}, "cannot be made"),
    ],
)
def test_columns_that_no_table_could_hold_are_refused(columns: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        Batch.of_arrow(pa.record_batch(columns))


def test_two_columns_of_one_name_are_refused():
    twice = pa.record_batch([pa.array([b"a"]), pa.array([1]), pa.array([2])], names=["payload", "own", "own"])
    with pytest.raises(UsageError, match="same name"):
        normalize_batch(twice)


def test_an_imported_batch_may_say_when_and_by_whom_it_was_published_but_not_leave_that_open():
    when = pa.array([None], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"payload": pa.array([b"a"]), "publish_time": when})
    with pytest.raises(UsageError, match="publish_time"):
        Batch.of_arrow(batch, flags=IMPORTED)


def test_extra_columns_grow_and_widen_and_nothing_else():
    known = pa.schema([("a", pa.int32()), ("b", pa.string())])
    new = pa.schema([("c", pa.float32()), ("a", pa.int64())])
    assert merge_columns(known, new, "orders") == pa.schema(
        [("a", pa.int64()), ("b", pa.string()), ("c", pa.float32())]
    )
    assert (
        merge_columns(pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int32())]), "o").field("a").type == pa.int64()
    )
    assert (
        merge_columns(pa.schema([("c", pa.float32())]), pa.schema([("c", pa.float64())]), "o").field("c").type
        == pa.float64()
    )
    for other in (pa.int32(), pa.binary(), pa.list_(pa.string())):
        with pytest.raises(UsageError, match="'b' of topic 'orders' has type string"):
            merge_columns(known, pa.schema([("b", other)]), "orders")


def test_headers_that_differ_from_message_to_message_are_kept():
    batch = batch_with_headers([b"a", b"b", b"c"], [1, None, 3], [{"k": "v"}, None, {}])
    batch.check(LIMIT)
    read = decode_chunk(chunk_of([batch]), TopicView("orders", "here", pa.schema([])))
    assert read["headers"].to_pylist() == [[("k", "v")], None, []]
    assert read["request_id"].to_pylist() == [1, None, 3]
    assert extra_columns(batch.arrow.schema) == pa.schema([])


def test_the_widest_request_ids_survive():
    ids = [2**63 - 1, -(2**63) + 1, None, 0]
    read = decode_chunk(chunk_of([Batch.of_messages([b""] * 4, ids)]), VIEW)
    assert read["request_id"].to_pylist() == ids


def test_lengths_beyond_32_bits_do_not_wrap_round_in_the_check():
    lengths = np.array([2**32 - 1, 2**32 - 1, 2], "<u4").tobytes() + bytes(4)
    with pytest.raises(IntegrityError, match="length"):
        remade(GOOD, count=3, flags=0, body=lengths).check(2**40)
