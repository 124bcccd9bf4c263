"""What the log says of itself by its metrics, as who scrapes them sees it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.errors import UnavailableError
from frazil.log import Log
from frazil.log.files import LogShutError
from frazil.observe.faultpoints import handled
from frazil.observe.metrics import REGISTRY
from tests.faulty_disk import FaultyDisk
from tests.log_kit import crash, messages_of, new_log, open_log, segments_of
from tests.sink_kit import until

QUARANTINED = "frazil_log_quarantined_bytes_total"


def value(metric: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(metric, labels)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test has: metrics outlive a log."""
    return f"m{zlib.crc32(request.node.name.encode())}"


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path)


@pytest.fixture
def log(tmp_path: Path, disk: FaultyDisk, topic: str) -> Iterator[Log]:
    with new_log(tmp_path / "log", topic=topic, disk=disk) as opened:
        opened.create_topic(f"{topic}_other")
        yield opened


# -- failed --------------------------------------------------------------------------------------------------------


def failed(topic: str) -> float | None:
    return value("frazil_log_failed", topic=topic)


def test_a_topic_counts_as_failed_from_a_failed_sync_until_it_is_opened_again(
    tmp_path: Path, disk: FaultyDisk, log: Log, topic: str
):
    log.publish(topic, b"x")
    log.publish(f"{topic}_other", b"x")
    assert (failed(topic), failed(f"{topic}_other")) == (0, 0)
    disk.fail("sync", match=".seg")
    with pytest.raises(LogShutError):
        log.publish(topic, b"y")
    assert (failed(topic), failed(f"{topic}_other")) == (1, 0)
    log.publish(f"{topic}_other", b"y")
    with pytest.raises(LogShutError):
        log.publish(topic, b"z")
    assert (failed(topic), failed(f"{topic}_other")) == (1, 0)
    log.close()
    assert failed(topic) == 1
    with open_log(tmp_path / "log", disk=disk) as again:
        again.publish(topic, b"after")
        assert failed(topic) == 0


def test_a_full_disk_is_no_failure_but_a_commit_that_breaks_off_is(disk: FaultyDisk, log: Log, topic: str):
    disk.space = 10
    with pytest.raises(UnavailableError):
        log.publish(topic, b"x")
    disk.repair()
    assert failed(topic) == 0
    log.publish(topic, b"x")

    def break_off(step: str) -> None:
        if step == "log.write.after":
            raise RuntimeError(step)

    with handled(break_off), pytest.raises(RuntimeError):
        log.publish(topic, b"y")
    assert failed(topic) == 1


# -- quarantined ---------------------------------------------------------------------------------------------------


def test_torn_bytes_count_when_they_are_put_aside_and_zeros_do_not(tmp_path: Path, topic: str):
    log = new_log(tmp_path / "log", topic=topic)
    log.publish(topic, b"x")
    crash(log)
    (segment,) = segments_of(tmp_path / "log", topic)
    whole = segment.read_bytes().rstrip(b"\0")
    whole += bytes(-len(whole) % 8)
    for torn, counted in ((bytes(5000), 0), (b"\0\0torn" * 7, 42), (b"", 0), (b"more", 4)):
        segment.write_bytes(whole + torn)
        before = value(QUARANTINED)
        with open_log(tmp_path / "log") as again:
            assert messages_of(again, topic) == {0: b"x"}
        assert value(QUARANTINED) - before == counted, torn
    kept = (tmp_path / "log" / "topics" / topic / "quarantine").iterdir()
    assert sorted(path.stat().st_size for path in kept) == [4, 42]


def test_a_segment_that_was_only_begun_counts_whole(tmp_path: Path, topic: str):
    log = new_log(tmp_path / "log", topic=topic)
    log.publish(topic, b"x")
    crash(log)
    half_begun = segments_of(tmp_path / "log", topic)[0].with_name(f"{1:020d}.seg")
    half_begun.write_bytes(b"FRZ1 and no more")
    before = value(QUARANTINED)
    with open_log(tmp_path / "log") as again:
        assert messages_of(again, topic) == {0: b"x"}
    assert value(QUARANTINED) - before == 16


# -- size ----------------------------------------------------------------------------------------------------------


def test_the_size_follows_growth_and_retention_and_is_that_of_the_files(tmp_path: Path, topic: str):
    def size() -> float | None:
        return value("frazil_log_size_bytes", topic=topic)

    def on_disk() -> int:
        return sum(path.stat().st_size for path in segments_of(tmp_path / "log", topic))

    log = new_log(tmp_path / "log", topic=topic, sync_interval_ms=10)  # so often it is brought up to date
    until(lambda: size() == 0)
    for _ in range(10):
        log.publish(topic, bytes(1000))
    until(lambda: size() == log.info(topic).size > 10_000)
    log.close()  # cuts off the zeros that stand ready for the next frames
    assert size() == on_disk()

    with open_log(tmp_path / "log", sync_interval_ms=10) as again:
        before = again.info(topic).size
        gone = again.retain(topic, size=5000)
        assert 0 < gone.size < before
        until(lambda: size() == before - gone.size)
        assert value("frazil_log_retention_bytes_total", topic=topic) == gone.size
        assert value("frazil_log_start_offset", topic=topic) == gone.start
    assert size() == on_disk() == before - gone.size


def test_a_topic_that_was_deleted_is_not_told_of_any_more(log: Log, topic: str):
    log.publish(topic, b"x")
    log._topic(topic).show_metrics()
    names = ["frazil_log_size_bytes", "frazil_log_end_offset", "frazil_log_start_offset", "frazil_log_failed"]
    assert [value(name, topic=topic) is None for name in names] == [False] * 4
    log.delete_topic(topic)
    assert [value(name, topic=topic) for name in names] == [None] * 4
