"""The log's format, byte by byte, as it stands in docs/log-format.md. Nothing here comes out of the encoder."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from frazil.log import producers, writer
from frazil.log.batch import Batch
from frazil.log.maintenance.verify import verify_log
from tests.log_kit import crash, open_log, table_of

#: Fields in the order of the table in docs/log-format.md; then the body, without its padding.
FIRST_SEGMENT = [
    (  # state, base offset 0
        (
            "46525a4c 01 03 0000 7766554433221100 80e14e68 00000000"
            "0000000000000000 0000000000000000 00605ba09d370600"
            "0000000000000000 ffffffffffffffff 00000000 ba000000 491939e0 401e64b7"
        ),
        (
            b'{"previous":null,"full":true,"producers":[],"extra":"ffffffff300000001000000000000a000c000'
            b'600050008000a000000000104000c0000000800080000000400080000000400000000000000","subscription'
            b's":{}}'
        ),
    ),
    (  # state, base offset 0
        (
            "46525a4c 01 03 0000 7766554433221100 80e14e68 00000000"
            "0000000000000000 0000000000000000 00605ba09d370600"
            "0000000000000000 ffffffffffffffff 00000000 37000000 f3ccadf2 38e94360"
        ),
        b'{"producers":[[42,"billing",0,1750000000000000,-1,[]]]}',
    ),
    (  # packed, base offset 0
        (
            "46525a4c 01 01 0000 7766554433221100 80e14e68 01000000"
            "0000000000000000 0000000000000000 00605ba09d370600"
            "0000000000000000 ffffffffffffffff 00000000 0d000000 dbec0846 c3f06e44"
        ),
        bytes.fromhex("05000000000000006669727374"),
    ),
    (  # packed, base offset 1
        (
            "46525a4c 01 01 0100 7766554433221100 80e14e68 02000000"
            "0100000000000000 0100000000000000 00605ba09d370600"
            "2a00000000000000 0000000000000000 00000000 1f000000 68316556 db2daada"
        ),
        bytes.fromhex("07000000000000000700000000000000000000000000008077697468206964"),
    ),
    (  # state, base offset 3
        (
            "46525a4c 01 03 0000 7766554433221100 80e14e68 00000000"
            "0300000000000000 0300000000000000 00605ba09d370600"
            "0000000000000000 ffffffffffffffff 00000000 21000000 c0f57df0 46b0a8b8"
        ),
        b'{"subscriptions":{"dashboard":1}}',
    ),
]
SECOND_SEGMENT = [
    (  # state, base offset 10
        (
            "46525a4c 01 03 0000 7766554433221100 81e14e68 00000000"
            "0a00000000000000 0a00000000000000 00605ba09d370600"
            "0000000000000000 ffffffffffffffff 00000000 02010000 736dd1f4 dc82bc6b"
        ),
        (
            b'{"previous":3,"full":true,"producers":[[42,"billing",0,1750000000000000,0,[[0,1,2,17500000'
            b'00000000]]]],"extra":"ffffffff300000001000000000000a000c000600050008000a000000000104000c00'
            b'00000800080000000400080000000400000000000000","subscriptions":{"dashboard":1}}'
        ),
    ),
    (  # state, base offset 10
        (
            "46525a4c 01 03 0000 7766554433221100 81e14e68 00000000"
            "0a00000000000000 0a00000000000000 00605ba09d370600"
            "0000000000000000 ffffffffffffffff 00000000 0c010000 ee94ba68 cb8cb9f4"
        ),
        (
            b'{"extra":"ffffffff780000001000000000000a000c000600050008000a000000000104000c00000008000800'
            b"0000040008000000040000000100000014000000100014000800060007000c0000001000100000000000010310"
            b'00000020000000040000000000000006000000616d6f756e74000000000600080006000600000000000200"}'
        ),
    ),
    (  # arrow, base offset 10
        (
            "46525a4c 01 02 0000 7766554433221100 81e14e68 01000000"
            "0a00000000000000 0a00000000000000 00605ba09d370600"
            "0000000000000000 ffffffffffffffff 00000000 b0010000 aeda0a32 b96c273c"
        ),
        bytes.fromhex(
            "ffffffffb80000001000000000000a000c000600050008000a000000000104000c000000080008000000040008000000"
            "04000000020000005c00000014000000100014000800060007000c000000100010000000000001031000000020000000"
            "040000000000000006000000616d6f756e74000000000600080006000600000000000200100014000800000007000c00"
            "000010001000000000000004100000001c0000000400000000000000070000007061796c6f6164000400040004000000"
            "ffffffffc800000014000000000000000c0016000600050008000c000c00000000030400180000001800000000000000"
            "00000a0018000c00040008000a0000006c00000010000000010000000000000000000000050000000000000000000000"
            "000000000000000000000000000000000800000000000000080000000000000005000000000000001000000000000000"
            "000000000000000010000000000000000800000000000000000000000200000001000000000000000000000000000000"
            "0100000000000000000000000000000000000000050000006172726f77000000000000000000f83fffffffff00000000"
        ),
    ),
]
INDEX = (
    "46525a49 01000000"  # FRZI, version
    "e002000000000000 0300000000000000 80e14e6800000000"  # size, end offset, epoch
    "00605ba09d370600 00605ba09d370600"  # first time, last time
    "0100000000000000 0100000000000000"  # one entry, one producer
    "0000000000000000 0000000000000000 00605ba09d370600"  # offset, position, time
    "2a00000000000000 9eb3c1a8"  # producer 42, CRC
)
#: Turn, log id, segment id, position, offset, CRC, zeros. The even turn stands at 0, the odd one at 4096.
SLOTS = (
    "0800000000000000 7766554433221100 0a00000000000000 b804000000000000 0b00000000000000 285f07d2 00000000",
    "0700000000000000 7766554433221100 0a00000000000000 5801000000000000 0a00000000000000 e6f3d8c8 00000000",
)
TOPIC = """{
  "log_id": "00112233445566778899aabbccddeeff",
  "storage": "log",
  "created_at": "2026-11-18T10:00:00+00:00",
  "sinks": [],
  "retention_age_s": null,
  "retention_bytes": 3000000,
  "format": 1,
  "crc": 1557090475
}"""
NOW = 1_750_000_000


def segment(frames: list[tuple[str, bytes]]) -> bytes:
    return b"".join(bytes.fromhex(header) + body + bytes(-len(body) % 8) for header, body in frames)


def put_topic(folder: Path) -> Path:
    topic = folder / "topics" / "orders"
    topic.mkdir(parents=True)
    (topic / "topic.json").write_text(TOPIC)
    return topic


def put_log(folder: Path) -> None:
    topic = put_topic(folder)
    (topic / f"{0:020d}.seg").write_bytes(segment(FIRST_SEGMENT))
    (topic / f"{0:020d}.idx").write_bytes(bytes.fromhex(INDEX))
    (topic / f"{10:020d}.seg").write_bytes(segment(SECOND_SEGMENT) + bytes(512))
    even, odd = map(bytes.fromhex, SLOTS)
    (topic / "synced").write_bytes(even + bytes(4096 - len(even)) + odd)


def test_these_bytes_are_read_as_these_messages(tmp_path: Path) -> None:
    put_log(tmp_path)
    assert verify_log(tmp_path, "orders").findings == []
    with open_log(tmp_path) as log:
        rows = table_of(log).select(
            ["offset", "payload", "request_id", "producer_id", "producer_name", "segment_id", "amount"]
        )
        assert [tuple(row.values()) for row in rows.to_pylist()] == [
            (0, b"first", None, None, None, 0, None),
            (1, b"with id", 7, 42, "billing", 0, None),
            (2, b"", None, 42, "billing", 0, None),
            (10, b"arrow", None, None, None, 10, 1.5),
        ]
        info = log.info("orders")
        assert (info.log_id, info.start, info.end, info.gaps) == ("00112233445566778899aabbccddeeff", 0, 11, [(3, 10)])
        assert (info.subscriptions, info.retention_bytes, info.first_time_us) == (
            {"dashboard": 1},
            3_000_000,
            NOW * 10**6,
        )
        again = log.register("orders", "billing")
        assert (again.producer_id, again.producer_epoch, again.before) == (42, 1, [[0, 1, 2, NOW * 10**6]])


@pytest.mark.parametrize("without", ["synced", f"{0:020d}.idx"])
def test_what_can_be_made_again_may_be_missing(tmp_path: Path, without: str) -> None:
    put_log(tmp_path)
    (tmp_path / "topics" / "orders" / without).unlink()
    with open_log(tmp_path) as log:
        assert table_of(log)["payload"].to_pylist() == [b"first", b"with id", b"", b"arrow"]


def test_these_messages_are_written_as_these_bytes(tmp_path: Path) -> None:
    topic = put_topic(tmp_path)
    with (
        patch.object(writer.time, "time", lambda: float(NOW)),
        patch.object(writer.time, "time_ns", lambda: NOW * 10**9),
        patch.object(producers.secrets, "randbits", lambda _bits: 41),
    ):
        log = open_log(tmp_path)
        log.register("orders", "billing")
        log.publish("orders", b"first")
        log.append("orders", Batch.of_messages([b"with id", b""], [7, None]).with_sequence(42, 0, 0))
        log.commit("orders", "dashboard", 1)
        log._open["orders"].raise_floor(10)
        log.append("orders", Batch.of_arrow(pa.record_batch({"payload": pa.array([b"arrow"]), "amount": [1.5]})))
        crash(log)
    assert (topic / f"{0:020d}.seg").read_bytes() == segment(FIRST_SEGMENT)
    assert (topic / f"{0:020d}.idx").read_bytes() == bytes.fromhex(INDEX)
    written = (topic / f"{10:020d}.seg").read_bytes()
    assert written[: len(segment(SECOND_SEGMENT))] == segment(SECOND_SEGMENT)
    assert not written[len(segment(SECOND_SEGMENT)) :].strip(b"\0")
    even, odd = map(bytes.fromhex, SLOTS)
    mark = (topic / "synced").read_bytes()
    assert (mark[: len(even)], mark[4096:]) == (even, odd)
