"""docs/log-format.md says what the code writes."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from frazil.log import batch, frame, producers, segment, topic_file
from frazil.log.frame import HEADER, Header, Kind, pack_header

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "log-format.md").read_text()
_ROW = re.compile(r"^\| (\d+) \| (\d+) \| ([a-z ]+?) \| (.*) \|$", re.MULTILINE | re.IGNORECASE)
_FIELDS = {
    "log id": "log_id",
    "base offset": "base_offset",
    "append time": "time_us",
    "producer id": "producer_id",
    "producer epoch": "producer_epoch",
    "body size": "body_size",
    "body crc": "body_crc",
}


def rows() -> list[tuple[int, int, str]]:
    return [(int(at), int(size), name.lower()) for at, size, name, _ in _ROW.findall(PAGE)]


def test_the_fields_of_the_page_fill_the_header_without_a_gap():
    at = 0
    for begins, size, _ in rows():
        assert begins == at
        at += size
    assert at == HEADER.size == 80
    assert f"a header of {HEADER.size} bytes" in PAGE


def test_each_field_stands_where_the_page_says():
    values = {name: number for number, name in enumerate(Header._fields, start=1)}
    packed = pack_header(Header(**values))
    seen = set()
    for at, size, name in rows():
        field = _FIELDS.get(name, name)
        if field in values:
            assert int.from_bytes(packed[at : at + size], "little") == values[field], name
            seen.add(field)
    assert seen == set(values)


def test_magic_version_and_kinds_are_those_of_the_code():
    assert f"`{frame.MAGIC.decode()}`" in PAGE
    assert re.search(rf"\| version \| {frame.VERSION};", PAGE)
    for kind in Kind:
        assert f"{int(kind)} {kind.name}" in PAGE
    assert f"{batch.HAS_REQUEST_IDS}: packed with request ids; {batch.IMPORTED}: imported from a table" in PAGE


def test_the_header_s_own_crc_covers_what_the_page_says():
    packed = pack_header(Header(1, 0, 2, 1, 1, 0, 0, 0, 0, -1, 0, 8, 5))
    import zlib

    assert struct.unpack("<I", packed[76:])[0] == zlib.crc32(packed[:76])


def test_index_step_and_topic_file_are_those_of_the_code():
    assert f"{segment.INDEX_STEP // 1024} KiB" in PAGE
    for name in topic_file.TopicFile.__dataclass_fields__:
        assert f"`{name}`" in PAGE
    assert f"than {topic_file.FORMAT} is refused" in PAGE


def test_a_producer_in_the_state_is_a_list_of_as_many_values_as_the_page_says():
    known = producers.Producers()
    for sends in (True, False):
        producer = known.make_registered("billing", 1)
        known.put(producer)
        if sends:
            known.take(producer.id, producers.TakenBatch(0, 7, 1, 1))
            assert len(known.to_json()[0]) == 6
    assert known.to_json()[0][6:] == [(0, 0, ((0, 7, 1, 1),))]
    assert "has sent nothing since has a seventh value: epoch, last sequence\nand batches of the" in PAGE


def test_the_guarantees_name_the_numbers_of_the_code():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    assert f"the last {producers.REMEMBERED}\nbatches" in page or f"the last {producers.REMEMBERED} batches" in page
    assert f"{producers.MAX_PRODUCERS:,} producers" in page
