"""Pages of messages, their JSON, and where `from` leads."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.api.models import Message
from frazil.api.reading import Page, as_arrow, as_json, as_ndjson, offset_of, read_page
from frazil.errors import UsageError
from frazil.log import Batch, Log
from frazil.log.columns import MESSAGE
from frazil.topics.reading.reader import TopicReader
from frazil.topics.reading.seek import parse_seek_target

NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path) as opened:
        opened.create_topic("t")
        yield opened


def page(log: Log, start: int, limit: int = 100, max_bytes: int = 1 << 20) -> Page:
    return read_page(TopicReader(log, "t"), start, limit, max_bytes)


def offsets(found: Page) -> list[int]:
    return found.messages.column("offset").to_pylist()


def test_a_page_goes_on_where_the_last_one_ended(log):
    log.append("t", Batch.of_messages([b"x"] * 3))
    log.append("t", Batch.of_messages([b"x"] * 3))
    first = page(log, 0, limit=4)
    assert offsets(first) == [0, 1, 2, 3] and first.next == 4 and first.end == 6
    rest = page(log, first.next, limit=4)
    assert offsets(rest) == [4, 5] and rest.next == 6


def test_a_page_has_about_the_bytes_that_were_asked_for_and_one_message_at_least(log):
    log.append("t", Batch.of_messages([b"x" * 1000] * 5))
    assert offsets(page(log, 0, max_bytes=2300)) == [0, 1]
    assert offsets(page(log, 0, max_bytes=1)) == [0]


def test_pages_over_many_chunks_have_every_message_once(log):
    for _ in range(3):
        log.append("t", Batch.of_messages([b"x" * 100_000] * 30))  # a chunk has 4 MiB
    seen, at = [], 0
    while at < 90:
        found = page(log, at, max_bytes=1_700_000)
        seen += offsets(found)
        at = found.next
    assert seen == list(range(90))


def test_a_place_beyond_the_end_is_refused_and_the_end_itself_is_not(log):
    log.publish("t", b"x")
    empty = page(log, 1)
    assert empty.next == 1 and empty.messages.column_names == MESSAGE.names
    with pytest.raises(UsageError, match="beyond the end, 1"):
        page(log, 2)


def test_a_message_is_json_with_the_documented_fields(log):
    sent = pa.record_batch(
        {"payload": [b"text", b"\xff"], "price": [1.5, None], "raw": [b"\x00", None], "bad": [float("nan"), 1.0]}
    )
    log.append("t", Batch.of_arrow(sent))
    answer = json.loads(as_json(page(log, 0), "t", "text"))
    first, second = answer["messages"]
    assert set(first) | set(second) == set(Message.model_fields)
    assert (first["offset"], first["payload"]) == (0, "text")
    assert datetime.datetime.fromisoformat(first["publish_time"]).tzinfo == datetime.UTC
    assert first["columns"] == {"price": 1.5, "raw": "AA==", "bad": None}
    assert second["payload_base64"] == "/w==" and "payload" not in second
    assert second["columns"] == {"bad": 1.0}


def test_base64_can_be_asked_for(log):
    log.publish("t", b"text", headers={"k": "v"})
    line = json.loads(as_ndjson(page(log, 0), "base64"))
    assert line["payload_base64"] == "dGV4dA==" and "payload" not in line and line["headers"] == {"k": "v"}


def test_arrow_has_all_columns(log):
    log.publish("t", b"a")
    with pa.ipc.open_stream(as_arrow(page(log, 0))) as reader:
        assert reader.read_all().column_names == MESSAGE.names


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", "start"),
        ("end", "end"),
        ("0", 0),
        ("12", 12),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31T13:00:00+01:00", NOON),
        ("2026-01-31T12:00", NOON),
        ("2026-01-31 12:00", NOON),
    ],
)
def test_a_place_is_an_offset_a_time_or_an_end(text, place):
    assert parse_seek_target(text) == place


@pytest.mark.parametrize("text", ["", "-1", "1.5", "yesterday", "2026-13-01T00:00", str(2**63)])
def test_anything_else_is_no_place(text):
    with pytest.raises(UsageError, match="not a position"):
        parse_seek_target(text)


def test_times_and_ends_lead_to_offsets(log):
    log.append("t", Batch.of_messages([b"x"] * 3))
    reader = TopicReader(log, "t")
    assert [offset_of(reader, text) for text in ("start", "end", "2")] == [0, 3, 2]
    assert offset_of(reader, "2026-01-01T00:00:00Z") == 0
    assert offset_of(reader, "2999-01-01T00:00:00Z") == 3
    assert offset_of(reader, "2999-01-01T00:00:00 01:00") == 3, "a plus sign that the query has made a space"
