"""A long read of a table outlives moments in which its storage does not answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from frazil.errors import UnavailableError
from frazil.observe.backoff import Backoff
from frazil.settings import NetworkSettings
from frazil.topics.reading.reader import TopicReader
from tests.faulty_storage import Fault, FaultyIO, every_third, on_faulty_storage
from tests.topic_kit import MemoryLog, TopicTable, settings_in

QUICK = NetworkSettings(retry_timeout=60.0, retry_attempts=6)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.observe.resilience._BACKOFF", Backoff(first=0.0, longest=0.0))


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def table(log: MemoryLog, tmp_path: Path) -> TopicTable:
    return TopicTable(log, "orders", settings_in(tmp_path))


class Faulty:
    """Loads a topic's table on storage that fails; one count of reads for all loads."""

    def __init__(self, table: TopicTable, fault: Fault) -> None:
        self._table, self._fault = table, fault
        self.ios: list[FaultyIO] = []

    def load(self) -> Table:
        loaded = self._table.load()
        before = sum(io.reads for io in self.ios)
        self.ios.append(on_faulty_storage(loaded, lambda number: self._fault(before + number)))
        return loaded

    @property
    def failed(self) -> int:
        return sum(io.failed for io in self.ios)


def offsets(tables: Any) -> list[int]:
    return [offset for table in tables for offset in table.column("offset").to_pylist()]


@pytest.mark.parametrize("overlapping", [False, True])
def test_a_replay_on_storage_that_fails_every_third_read_has_no_gap_and_no_duplicate(log, table, overlapping):
    for _ in range(12):
        log.publish(*[b"x" * 100] * 10)
        table.sink()
    if overlapping:
        table.rewrite(shuffle=random.Random(3), rows_per_group=20)
    log.publish(b"only in the log")
    log.retain(below=120)
    faulty = Faulty(table, every_third)
    reader = TopicReader(log, "orders", faulty.load, network=QUICK)
    assert offsets(reader.read(0)) == list(range(121))
    assert faulty.failed >= 4
    assert reader.offset_at(log.frames[-1][0].time_us) == 120


def test_what_was_delivered_is_not_read_again(log, table):
    """Only the look that failed is repeated: two faults cost two reads, wherever they come."""
    for _ in range(6):
        log.publish(*[b"x"] * 10)
        table.sink()
    log.retain(below=60)
    sound = Faulty(table, lambda _number: None)
    assert offsets(TopicReader(log, "orders", sound.load, network=QUICK).read(0)) == list(range(60))
    reads = sum(io.reads for io in sound.ios)
    late = {reads - 3, reads - 1}
    faulty = Faulty(table, lambda number: OSError("cut") if number in late else None)
    assert offsets(TopicReader(log, "orders", faulty.load, network=QUICK).read(0)) == list(range(60))
    assert faulty.failed == 2
    assert sum(io.reads for io in faulty.ios) <= reads + 2 * 3  # a look is three reads at most


def test_patience_ends(log, table):
    log.publish(*[b"x"] * 10)
    table.sink()
    log.retain(below=10)
    faulty = Faulty(table, lambda _number: OSError("AWS Error NETWORK_CONNECTION"))
    with pytest.raises(UnavailableError, match="the files of topic 'orders' cannot be read"):
        list(TopicReader(log, "orders", faulty.load, network=QUICK).read(0))
    assert faulty.failed == QUICK.retry_attempts


def test_a_refusal_is_no_moment(log, table):
    log.publish(b"x")
    table.sink()
    log.retain(below=1)
    faulty = Faulty(table, lambda _number: PermissionError("AWS Error ACCESS_DENIED"))
    with pytest.raises(UnavailableError):
        list(TopicReader(log, "orders", faulty.load, network=QUICK).read(0))
    assert faulty.failed == 1
