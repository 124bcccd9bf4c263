"""The sink reads the log's files where it stands beside them, and asks the broker for all else: the same rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.errors import IntegrityError, UsageError
from frazil.log import reading
from frazil.log.local_reader import LocalFrames, read_local_frames
from frazil.log.log import Log
from frazil.log.protocol import Chunk, OffsetGoneError, Span
from frazil.log.remote.client import Client
from frazil.log.remote.producer import Producer
from frazil.topics.sinks.archive import read_span
from frazil.topics.sinks.jobs import in_process
from frazil.topics.sinks.sink import Work, Written
from tests.log_kit import segments_of
from tests.sink_kit import SinkKit, sink_kit

pytestmark = pytest.mark.timeout(120)
TOPIC = "orders"


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SinkKit]:
    """Messages of all kinds in many small segments, and chunks of a few frames."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", 2000)
    with sink_kit(tmp_path, **{"log.max_file_size": "8192"}) as made:
        made.create(TOPIC)
        with Producer(made.client, TOPIC, name="shop-1") as producer:
            for number in range(40):
                producer.publish(b"%d" % number + os.urandom(400), headers={"n": str(number)} if number % 3 else None)
        for number in range(20):
            made.publish(TOPIC, *(os.urandom(200 * n) for n in range(4)), price=pa.array([number, None, 2, 3]))
        yield made


def read(kit: SinkKit, *, nearby: bool, start: int = 0, end: int | None = None) -> pa.Table:
    info = kit.client.info(TOPIC)
    span = Span(start, info.end if end is None else end, 0)
    return pa.concat_tables(read_span(kit.client.address, info.view, span, nearby=nearby))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets from which on the broker was asked for frames."""
    starts: list[int] = []
    chunks = Log.chunks

    def counting(log: Log, topic: str, start: int, end: int | None = None) -> Iterator[Chunk]:
        starts.append(start)
        return chunks(log, topic, start, end)

    monkeypatch.setattr(Log, "chunks", counting)
    return starts


@pytest.mark.parametrize(("start", "end"), [(0, None), (7, 61), (41, 42), (119, 120)])
def test_files_and_broker_give_the_same_rows(kit: SinkKit, asked: list[int], start: int, end: int | None) -> None:
    near = read(kit, nearby=True, start=start, end=end)
    assert asked == []
    assert near == read(kit, nearby=False, start=start, end=end)
    assert asked == [start]
    assert near["offset"].to_pylist() == list(range(start, end or 120))


@pytest.mark.parametrize(("chosen", "expected"), [("auto", []), ("never", [0])])
def test_the_setting_says_whether_files_are_read(
    tmp_path: Path, asked: list[int], chosen: str, expected: list[int]
) -> None:
    with sink_kit(tmp_path, **{"pipeline.read_segments": chosen}) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"a", b"b")
        kit.engine(TOPIC).catch_up()
        assert asked == expected
        kit.check(TOPIC)


def test_an_older_broker_is_asked_for_the_frames(kit: SinkKit, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise UsageError("there is no action 'places'")

    monkeypatch.setattr(Client, "places", unknown)
    assert read(kit, nearby=True).num_rows == 120


def test_an_executor_on_another_machine_asks_the_broker(kit: SinkKit, asked: list[int], tmp_path: Path) -> None:
    """There, nothing is at the place that the broker names."""
    expected = read(kit, nearby=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kit.log, "directory", tmp_path / "elsewhere")
        assert read(kit, nearby=True) == expected
    assert asked == [0]


def test_what_retention_removes_during_the_read_is_told_as_the_broker_tells_it(kit: SinkKit) -> None:
    info = kit.client.info(TOPIC)
    reader = read_span(kit.client.address, info.view, Span(0, info.end, 0), nearby=True)
    assert next(reader)["offset"][0].as_py() == 0
    kit.log.report(TOPIC, "archive", info.end)
    kit.log.retain(TOPIC, size=1)
    with pytest.raises(OffsetGoneError) as told:
        list(reader)
    assert told.value.start == kit.log.info(TOPIC).start > 0


def test_a_segment_that_cannot_be_read_any_more_is_read_by_the_broker(kit: SinkKit, asked: list[int]) -> None:
    expected = read(kit, nearby=True)
    path = segments_of(kit.log.directory)[2]
    hidden = path.with_suffix(".hidden")

    def then_hidden(found: LocalFrames) -> Iterator[tuple[Chunk, int]]:
        path.rename(hidden)
        yield from read_local_frames(found)
        hidden.rename(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("frazil.topics.sinks.archive.read_local_frames", then_hidden)
        assert read(kit, nearby=True) == expected
    assert asked == [int(path.stem)]


def test_damage_in_a_file_is_told_as_the_broker_tells_it(kit: SinkKit) -> None:
    path = segments_of(kit.log.directory)[1]
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    told = []
    for nearby in (True, False):
        with pytest.raises(IntegrityError) as error:
            read(kit, nearby=nearby)
        told.append(error.value.to_dict())
    assert told[0] == told[1]
    assert path.stem in told[0]["message"]


def test_a_backlog_goes_in_larger_batches_with_more_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MIN_PIECE", 1)
    monkeypatch.setattr("frazil.log.segment.INDEX_STEP", 200)
    with sink_kit(tmp_path, **{"pipeline.target_bytes": "20000", "pipeline.tasks": "2"}) as kit:
        kit.create(TOPIC)
        tasks: list[int] = []

        def counting(work: Work, spans: Sequence[Span]) -> list[Written]:
            tasks.append(len(spans))
            return in_process(work, spans)

        engine = kit.engine(TOPIC, counting)
        for backlog in (20, 60, 200):
            for _ in range(backlog):
                kit.publish(TOPIC, os.urandom(900))
            engine.catch_up()
            kit.check(TOPIC)
        assert tasks == [2, 6, 8, 8, 4]
