"""Ranges, spans and times, against an oracle that looks at every message."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.errors import IntegrityError, NotFoundError
from frazil.log import Batch, Log, OffsetGoneError, decode_chunk, reading
from frazil.log import segment as segment_module
from frazil.log.messages import walk
from tests.log_kit import messages_of, new_log, open_log, segments_of, table_of

pytestmark = pytest.mark.timeout(180)
MANY = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 20, 300, 1500]), st.booleans()), max_size=25)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Index entries, chunks and pieces so small that every border occurs."""
    monkeypatch.setattr(segment_module, "INDEX_STEP", 200)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 500)
    monkeypatch.setattr(reading, "MIN_PIECE", 1)
    return


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with new_log(tmp_path / "log") as opened:
        yield opened


def fill(log: Log, shape: list[tuple[int, int, bool]], first_us: int = 0) -> list[int]:
    """Batches of a shape, one per microsecond of a clock of our own; the time of each message."""
    clock = [first_us]
    opened = log._topic("orders")
    opened.writer.now = lambda: clock[0]  # type: ignore[method-assign]
    times: list[int] = []
    for number, (count, size, commits) in enumerate(shape):
        clock[0] = first_us + 10 * (number // 2)
        log.append("orders", Batch.of_messages([b"%d" % number + bytes(size)] * count))
        times += [clock[0]] * count
        if commits:
            log.commit("orders", "reader", number)
    return times


@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(MANY, st.data())
def test_ranges_spans_and_times_are_what_a_look_at_every_message_says(
    small: None, shape: list[tuple[int, int, bool]], data: st.DataObject
):
    with tempfile.TemporaryDirectory() as folder, new_log(Path(folder) / "log") as log:
        times = fill(log, shape, first_us=1000)
        if data.draw(st.booleans()):
            log.close()
            log = open_log(Path(folder) / "log")
        total = len(times)
        info = log.info("orders")
        assert (info.start, info.end) == (0, total)
        everything = table_of(log)
        assert everything["offset"].to_pylist() == list(range(total))
        start = data.draw(st.integers(0, total + 2), "start")
        end = data.draw(st.none() | st.integers(0, total + 3), "end")
        check_range(log, everything["payload"].to_pylist(), start, end)
        check_spans(log, total, start, data.draw(st.integers(1, 5000), "bytes"), data.draw(st.integers(1, 5), "pieces"))
        for time_us in data.draw(st.lists(st.integers(990, 1200), max_size=5), "times"):
            expected = next((o for o, t in enumerate(times) if t >= time_us), total)
            assert log.offset_at("orders", time_us) == expected
        log.close()


def check_range(log: Log, payloads: list[bytes], start: int, end: int | None) -> None:
    """The range is all there, whole frames, in order, and not more frames than overlap it by an index entry."""
    read = messages_of(log, start=start, end=end)
    wanted = range(start, len(payloads) if end is None else min(end, len(payloads)))
    assert read == {o: payloads[o] for o in wanted}
    frames = [h for c in log.chunks("orders", start, end) for _, h in walk(c)]
    for before, after in pairwise(frames):
        assert before.end_offset == after.base_offset


def check_spans(log: Log, total: int, start: int, size: int, pieces: int) -> None:
    spans = log.spans("orders", start, size, pieces)
    if start >= total:
        assert spans == []
        return
    assert spans[0].start == start
    assert all(a.end == b.start for a, b in pairwise(spans))
    assert all(s.start < s.end <= total and s.size > 0 for s in spans)
    assert len(spans) <= pieces + 1
    assert spans[-1].end > start, "there is always a step ahead"
    assert sum(s.size for s in spans) <= size + 2 * 8000, "not more than asked for, but for one frame and index entry"
    first = table_of(log, start=start, end=start + 1)["publish_time"][0].value
    assert spans[0].time_us == first
    parts = [messages_of(log, start=s.start, end=s.end) for s in spans]
    assert {o: p for part in parts for o, p in part.items()} == messages_of(log, start=start, end=spans[-1].end)


def test_spans_taken_one_after_the_other_cover_the_topic_once(small: None, log: Log):
    fill(log, [(3, 100, n % 3 == 0) for n in range(60)])
    at, seen = 0, []
    while spans := log.spans("orders", at, 700, 2):
        for span in spans:
            seen += list(messages_of(log, start=span.start, end=span.end))
        at = spans[-1].end
    assert seen == list(range(180))


def test_a_topic_without_messages_has_nothing_to_take(log: Log):
    assert log.spans("orders", 0, 100, 1) == []
    assert list(log.chunks("orders", 0)) == []
    assert log.offset_at("orders", 0) == 0
    log.register("orders", "billing")
    assert log.spans("orders", 0, 100, 1) == []
    assert log.offset_at("orders", 0) == 0


def test_a_range_that_retention_has_removed_says_from_where_it_can_be_read(log: Log):
    for _ in range(6):
        log.publish("orders", bytes(3500))
    start = log.retain("orders", size=8000).start
    assert start == log.info("orders").start > 0
    for call in (
        lambda: list(log.chunks("orders", 0)),
        lambda: list(log.chunks("orders", start - 1, start + 1)),
        lambda: log.spans("orders", start - 1, 100, 1),
    ):
        with pytest.raises(OffsetGoneError, match=f"begins at {start}") as gone:
            call()
        assert gone.value.start == start
    assert list(messages_of(log, start=start)) == list(range(start, 6))


def test_a_reader_in_the_middle_of_what_retention_removes_is_told_the_right_start(log: Log):
    for _ in range(6):
        log.publish("orders", bytes(3500))
    chunks = log.chunks("orders", 0)
    view = log.info("orders").view
    assert decode_chunk(next(chunks), view)["offset"].to_pylist() == [0]
    start = log.retain("orders", size=0).start
    with pytest.raises(OffsetGoneError) as gone:
        list(chunks)
    assert gone.value.start == start == 5


def test_a_reader_of_a_topic_that_is_deleted_meanwhile_is_told(log: Log):
    for _ in range(3):
        log.publish("orders", bytes(3500))
    chunks = log.chunks("orders", 0)
    next(chunks)
    log.delete_topic("orders")
    with pytest.raises(NotFoundError):
        list(chunks)


def test_readers_keep_up_with_writers_rotation_and_retention_at_once(log: Log):
    """A reader follows from the start; what it sees is every offset, in order, with the right payload."""
    count, seen, failures = 400, [], []

    def follow() -> None:
        try:
            at = 0
            while at < count:
                log.wait("orders", at, 1)
                end = log.info("orders").end
                for offset, payload in messages_of(log, start=at, end=end).items():
                    assert payload == b"%d" % offset * 50
                    seen.append(offset)
                at = end
                log.report("orders", "content", at)
                log.retain("orders", size=0)
        except BaseException as error:  # noqa: BLE001 - told in the main thread
            failures.append(error)

    log.configure("orders", {"sinks": ["content"]})
    reader = threading.Thread(target=follow)
    reader.start()
    for number in range(count):
        log.publish("orders", b"%d" % number * 50, level="disk" if number % 5 == 0 else "os")
    log.sync("orders")
    reader.join(150)
    assert not failures
    assert seen == list(range(count))


def test_damage_in_a_sealed_segment_is_found_at_read_also_by_time_and_spans(small: None, log: Log, tmp_path: Path):
    fill(log, [(1, 300, False)] * 40)
    sealed = segments_of(tmp_path / "log")[0]
    content = sealed.read_bytes()
    for at in range(0, len(content), 41):
        with sealed.open("r+b") as file:
            file.seek(at)
            file.write(bytes([content[at] ^ 0x10]))
        for look in (
            lambda: messages_of(log),
            lambda: log.offset_at("orders", 60),
            lambda: log.spans("orders", 5, 100, 1),
        ):
            try:
                look()
            except IntegrityError:
                continue
        with sealed.open("r+b") as file:
            file.seek(at)
            file.write(content[at : at + 1])
    assert len(messages_of(log)) == 40


# -- retention -----------------------------------------------------------------------------------------------------


def sizes(log: Log) -> tuple[int, int]:
    info = log.info("orders")
    return info.start, info.segments


def on_disk(log: Log) -> int:
    """Bytes of the files, but for the zeros that lie ready behind the last frame."""
    *sealed, active = (p.read_bytes() for p in segments_of(log.directory))
    return sum(map(len, sealed)) + len(active[: log._topic("orders").files.active.size])


def test_a_log_alone_keeps_everything_by_default(log: Log):
    for _ in range(8):
        log.publish("orders", bytes(3500))
    assert log.retain("orders").segments == 0
    assert sizes(log) == (0, 8)


def test_retention_never_goes_beyond_the_slowest_sink(log: Log):
    for _ in range(8):
        log.publish("orders", bytes(3500))
    log.configure("orders", {"sinks": ["documents", "content"]})
    assert log.retain("orders", size=0).segments == 0, "nobody has reported"
    log.report("orders", "documents", 8)
    assert log.retain("orders", size=0, age_s=0).segments == 0, "one has not reported"
    for reached in (0, 3, 2):
        log.report("orders", "content", reached)
        log.retain("orders", size=0, age_s=0)
        assert log.info("orders").start == (0 if reached == 0 else 3)
    log.report("orders", "content", 100)
    log.retain("orders", size=0)
    assert sizes(log) == (7, 1), "the one that is written to stays"


def test_retention_by_size_removes_just_enough(log: Log):
    for _ in range(8):
        log.publish("orders", bytes(3500))
    size = log.info("orders").size
    one = size // 8
    planned = log.retain("orders", size=size - 2 * one, dry_run=True)
    assert sizes(log) == (0, 8), "a dry run removes nothing"
    assert planned.segments in (2, 3)
    assert log.retain("orders", size=size - 2 * one) == planned
    assert log.info("orders").start == planned.start
    assert log.info("orders").size == size - planned.size
    assert on_disk(log) == log.info("orders").size


def test_retention_by_age_removes_what_is_older(log: Log, monkeypatch: pytest.MonkeyPatch):
    now = time.time_ns()
    for age_s in (300, 200, 100, 0):
        monkeypatch.setattr(time, "time_ns", lambda age_s=age_s: now - age_s * 10**9)
        log.publish("orders", bytes(3500))
    assert log.retain("orders", age_s=250).start == 1
    log.configure("orders", {"retention_age_s": 150})
    assert log.retain("orders").start == 2
    assert log.retain("orders", age_s=1000).segments == 0


@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
def test_offsets_that_a_table_knows_are_skipped_when_a_topic_gets_it(tmp_path: Path, mode: str):
    with new_log(tmp_path / "log", floor=10, sync_mode=mode) as log:
        log.publish("orders", b"a", level="os")
        assert log.configure("orders", {"storage": "iceberg"}).end == 10
        assert log.publish("orders", b"b", level="disk").offset == 10
    with open_log(tmp_path / "log", floor=10) as log:
        assert messages_of(log) == {0: b"a", 10: b"b"}
        assert log.publish("orders", b"c").offset == 11


def test_a_topic_with_a_table_falls_back_on_the_settings(tmp_path: Path):
    with new_log(tmp_path / "log", retention_bytes=0, retention_age_s=None, floor=None) as log:
        log.configure("orders", {"storage": "iceberg"})
        for _ in range(4):
            log.publish("orders", bytes(3500))
        assert log.retain("orders").segments == 0
        log.report("orders", "archive", 4)
        assert log.retain("orders").start == 3


def test_two_who_retain_at_once_remove_no_more_than_one_would(log: Log):
    for _ in range(12):
        log.publish("orders", bytes(3500))
    log.configure("orders", {"sinks": ["content"]})
    log.report("orders", "content", 5)
    threads = [threading.Thread(target=lambda: log.retain("orders", size=0)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.info("orders").start == 5
    assert log.info("orders").size == on_disk(log)


def test_offsets_go_on_after_everything_but_the_last_segment_is_gone(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        for _ in range(4):
            log.publish("orders", bytes(3500))
        log.retain("orders", size=0)
    with open_log(tmp_path / "log") as log:
        assert log.info("orders").start == 3
        assert log.publish("orders", b"x").offset == 4


@pytest.mark.parametrize("sizes", [[20, 20, 20], [20, 1500, 20], [3000, 3000, 3000]])
def test_the_epoch_below_an_offset_is_that_of_the_message_before_it(small: None, tmp_path: Path, sizes: list[int]):
    """Also where state stands between messages, or between two opens, and where a new open has skipped offsets."""
    with new_log(tmp_path / "log") as log:
        assert log.epoch_below("orders", 5) == 0
        log._files["orders"] = replace(log._files["orders"], storage="iceberg")
        log._files["orders"]._write(log._folder("orders"), log._disk)
    epochs: dict[int, int] = {}
    for size, floor in zip(sizes, (0, 3, 9), strict=True):
        with open_log(tmp_path / "log", floor=floor) as log:
            for _ in range(3):
                log.commit("orders", "reader", 1)
                epochs[log.publish("orders", bytes(size)).offset] = log.info("orders").epoch
            log.commit("orders", "reader", 2)
            for offset in range(14):
                expected = max((e for o, e in epochs.items() if o < offset), default=0)
                assert log.epoch_below("orders", offset) == expected, offset
    assert len(set(epochs.values())) == 3 and max(epochs) == 11
    with open_log(tmp_path / "log", floor=15) as log:
        assert log.info("orders").gaps == [(6, 9)]
        log.sync("orders")
        assert log.info("orders").gaps == [(6, 9), (12, 15)], "it goes on behind what a table knows"
        log.publish("orders", b"x")
        assert log.info("orders").gaps == [(6, 9), (12, 15)]
