"""Bodies of `POST /topics/{topic}/messages` become batches, or are refused with words that say what is wrong."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from frazil.api.models import MAX_MESSAGES
from frazil.api.publishing import ARROW, RAW, Publication, batch_of
from frazil.api.request_body import JSON, NDJSON
from frazil.errors import FrazilError, IntegrityError, UsageError
from frazil.log.batch import Batch
from frazil.log.frame import Header, Kind, pack_header, padding
from frazil.log.messages import decode_chunk
from frazil.log.protocol import Chunk, TopicView


def read(batch: Batch) -> pa.Table:
    """The messages as a reader gets them."""
    batch.check(1 << 20)
    header = Header(
        batch.kind, batch.flags, 1, 1, batch.count, 0, 0, 0, 0, -1, 0, len(batch.body), batch.crc
    )  # fmt: skip
    data = pack_header(header) + bytes(batch.body) + padding(len(batch.body))
    return decode_chunk(Chunk(0, pa.py_buffer(data), {}), TopicView("t", "here", batch.extra))


def posted(*messages: object) -> Publication:
    return Publication(json.dumps({"messages": messages}).encode())


def payloads(kind: str, given: Publication) -> list[bytes]:
    return read(batch_of(kind, given)).column("payload").to_pylist()


def test_a_payload_is_text_or_json_or_base64():
    given = posted({"payload": "grüße"}, {"payload_json": {"a": [1, "ü"]}}, {"payload_base64": "AP8="}, {"payload": ""})
    assert payloads(JSON, given) == ["grüße".encode(), '{"a":[1,"ü"]}'.encode(), b"\x00\xff", b""]


def test_a_payload_may_be_json_null():
    assert payloads(JSON, posted({"payload_json": None})) == [b"null"]


def test_plain_messages_are_packed_and_only_headers_or_columns_need_arrow():
    assert batch_of(JSON, posted({"payload": "a", "request_id": 7})).kind == Kind.packed
    assert batch_of(JSON, posted({"payload": "a", "headers": {"k": "v"}})).kind == Kind.arrow
    assert batch_of(JSON, posted({"payload": "a", "columns": {"price": 1.5}})).kind == Kind.arrow


def test_request_ids_and_headers_stay_with_their_message():
    table = read(batch_of(JSON, posted({"payload": "a", "request_id": 7}, {"payload": "b", "headers": {"k": "v"}})))
    assert table.column("request_id").to_pylist() == [7, None]
    assert table.column("headers").to_pylist() == [None, [("k", "v")]]


def test_columns_take_the_types_that_the_topic_has():
    known = pa.schema([("price", pa.float64()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int32())])
    message = {"payload": "a", "columns": {"price": 3, "at": "2026-01-31T12:00:00Z", "n": 5, "new": True}}
    batch = batch_of(JSON, Publication(json.dumps({"messages": [message]}).encode(), known))
    assert {f.name: f.type for f in batch.extra} == {f.name: f.type for f in known} | {"new": pa.bool_()}


def test_a_column_without_any_value_is_no_column():
    assert batch_of(JSON, posted({"payload": "a", "columns": {"price": None}})).kind == Kind.packed


def test_lines_are_messages_and_empty_lines_are_nothing():
    assert payloads(NDJSON, Publication(b'{"payload": "a"}\n\n{"payload": "b"}\r\n')) == [b"a", b"b"]


def test_a_raw_body_is_one_message_with_headers_from_the_request():
    table = read(batch_of(RAW, Publication(b"\x00\xff", headers={"kind": "x"}, request_id=9)))
    assert table.column("payload").to_pylist() == [b"\x00\xff"]
    assert table.column("headers").to_pylist() == [[("kind", "x")]]
    assert table.column("request_id").to_pylist() == [9]


def arrow(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_all_record_batches_of_an_arrow_body_become_one_batch():
    parts = [pa.record_batch({"payload": [b"a", b"b"], "n": [1, 2]}), pa.record_batch({"payload": [b"c"], "n": [3]})]
    batch = batch_of(ARROW, Publication(arrow(*parts)))
    assert batch.count == 3 and read(batch).column("payload").to_pylist() == [b"a", b"b", b"c"]


def test_who_the_producer_is_comes_with_the_batch():
    given = Publication(b"a", producer={"producer_id": 3, "producer_epoch": 2, "sequence": 5})
    for kind, body in ((RAW, b"a"), (JSON, b'{"messages":[{"payload":"a"}]}')):
        batch = batch_of(kind, Publication(body, producer=given.producer))
        assert (batch.producer_id, batch.producer_epoch, batch.sequence) == (3, 2, 5)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not valid"),
        (b"{", "not valid"),
        (b"[]", "not valid"),
        (b"\xff\xfe", "not valid"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": [{}]}', "message 0 has no payload"),
        (b'{"messages": [{"payload": "a"}, {"payload": "a", "payload_json": 1}]}', "message 1 has payload and"),
        (b'{"messages": [{"payload": 1}]}', "messages.0.payload"),
        (b'{"messages": [{"payload": null}]}', "null"),
        (b'{"messages": [{"payload": "a", "header": {}}]}', "messages.0.header"),
        (b'{"messages": [{"payload": "a", "headers": {"k": 1}}]}', "messages.0.headers.k"),
        (b'{"messages": [{"payload": "a", "request_id": 9223372036854775808}]}', "messages.0.request_id"),
        (b'{"messages": [{"payload": "a", "request_id": "7"}]}', "messages.0.request_id"),
        (b'{"messages": [{"payload_base64": "a"}]}', "message 0 is no base64"),
        (b'{"messages": [{"payload_json": NaN}]}', ""),
        (b'{"messages": [{"payload_json": 1e999}]}', ""),
        (b'{"messages": [{"payload": "\\ud800"}]}', ""),
        (b'{"messages": [{"payload": "a", "columns": {"offset": 1}}]}', "'offset' is given by the log"),
        (b'{"messages": [{"payload": "a", "columns": {"Bad Name": 1}}]}', "no column's name"),
        (
            b'{"messages": [{"payload": "a", "columns": {"c": 1}}, {"payload": "a", "columns": {"c": "x"}}]}',
            "column 'c'",
        ),
    ],
)
def test_a_wrong_json_body_is_refused_and_says_where(body, told):
    with pytest.raises(UsageError) as raised:
        batch_of(JSON, Publication(body))
    assert told in raised.value.message and raised.value.http_status == 400


def test_a_wrong_line_is_named_by_its_number():
    with pytest.raises(UsageError, match="line 3"):
        batch_of(NDJSON, Publication(b'{"payload": "a"}\n\n{"payload": \n'))


def test_too_many_messages_are_refused():
    for kind, body in (
        (NDJSON, b'{"payload":""}\n' * (MAX_MESSAGES + 1)),
        (JSON, b'{"messages":[%b]}' % b",".join([b'{"payload":""}'] * (MAX_MESSAGES + 1))),
    ):
        with pytest.raises(UsageError):
            batch_of(kind, Publication(body))


GOOD = arrow(pa.record_batch({"payload": [b"abcdefgh", b"ijkl"]}))


@pytest.mark.parametrize("body", [b"", b"no arrow", GOOD[:50], b"ARROW1\0\0" + GOOD])
def test_what_is_no_arrow_stream_is_refused(body):
    with pytest.raises(IntegrityError):
        batch_of(ARROW, Publication(body))


def test_no_flipped_byte_of_an_arrow_body_makes_anything_but_messages_or_an_error():
    for position in range(len(GOOD)):
        body = bytearray(GOOD)
        body[position] ^= 0xFF
        try:
            batch_of(ARROW, Publication(bytes(body))).check(1 << 20)
        except FrazilError:
            continue


def test_arrow_without_a_payload_is_refused():
    with pytest.raises(UsageError, match="payload"):
        batch_of(ARROW, Publication(arrow(pa.record_batch({"other": [1]}))))
