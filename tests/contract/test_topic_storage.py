"""What every storage of a topic promises: the log alone, and the log with a table behind it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from frazil.errors import NotFoundError
from frazil.log import Batch, OffsetGoneError
from frazil.tables.store import find_table
from frazil.topics.storage import IcebergStorage, LogStorage, PersistentStorage, open_storage
from tests.sink_kit import SinkKit, sink_kit

KINDS: dict[str, type[LogStorage]] = {"log": LogStorage, "iceberg": IcebergStorage}


@pytest.fixture
def kit(tmp_path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as found:
        yield found


@pytest.fixture(params=["log", "iceberg", "iceberg, frozen in part", "iceberg, frozen"])
def filled(kit, request) -> Callable[[int], PersistentStorage]:
    """Makes a topic with that many messages; with a table it has none, half or all of them."""
    kind = request.param.partition(",")[0]

    def fill(count: int) -> PersistentStorage:
        kit.create("orders", kind)
        storage = open_storage(kit.log, kit.settings, "orders", kit.tables)
        for number in range(count):
            storage.append(Batch.of_messages([f"message {number} {'x' * 200}".encode()]))
            if (request.param.endswith("part") and number == count // 2) or (
                request.param.endswith("frozen") and number == count - 1
            ):
                kit.engine("orders").catch_up()
        return storage

    return fill


def offsets(tables: Iterator[Any]) -> list[int]:
    return [o for t in tables for o in t.column("offset").to_pylist()]


def test_a_topic_says_which_storage_it_has(kit, filled):
    storage = filled(1)
    kind = kit.log.info("orders").storage
    assert storage.kind == kind and type(storage) is KINDS[kind]


def test_what_is_appended_is_read_back_in_order(filled):
    storage = filled(50)
    rows = [r for t in storage.read(columns=["offset", "payload"]) for r in t.to_pylist()]
    assert [r["offset"] for r in rows] == list(range(50))
    assert all(r["payload"].startswith(f"message {r['offset']} ".encode()) for r in rows)


def test_an_acknowledgement_names_offset_and_level(filled):
    storage = filled(3)
    ack = storage.append(Batch.of_messages([b"a", b"b"]))
    assert (ack.offset, ack.count, ack.level) == (3, 2, "disk")


@pytest.mark.parametrize(("start", "end"), [(0, 1), (10, 30), (24, 26), (49, 50), (50, None), (7, 7)])
def test_a_range_has_its_start_and_not_its_end(filled, start, end):
    storage = filled(50)
    assert offsets(storage.read(start, end=end)) == list(range(start, 50 if end is None else end))


def test_bounds_are_the_oldest_offset_and_the_end(filled):
    storage = filled(20)
    bounds = storage.bounds()
    assert (bounds.start, bounds.end) == (0, 20)


def test_a_time_leads_to_the_first_message_from_then_on(filled):
    storage = filled(10)
    times = [t for table in storage.read(columns=["publish_time"]) for t in table.column(0).to_pylist()]
    assert storage.offset_at(times[4]) == times.index(times[4])
    assert storage.offset_at(times[-1] + datetime.timedelta(seconds=1)) == 10
    assert offsets(storage.read(since=times[6])) == list(range(times.index(times[6]), 10))


def test_retention_is_planned_before_it_is_done(filled):
    storage = filled(60)
    planned = storage.retain(age_s=0.0, dry_run=True)
    assert storage.bounds().start == 0
    assert storage.retain(age_s=0.0) == planned


def test_after_retention_the_oldest_is_told_and_what_is_left_can_be_read(filled):
    storage = filled(60)
    storage.retain(age_s=0.0)
    start = storage.bounds().start
    assert offsets(storage.read()) == list(range(start, 60))
    if start:
        with pytest.raises(OffsetGoneError) as gone:
            list(storage.read(0))
        assert gone.value.start == start


def test_nothing_is_removed_that_a_sink_has_not_committed(kit, filled):
    storage = filled(60)
    storage.retain(age_s=0.0)
    if storage.kind == "iceberg":
        kit.engine("orders").catch_up()
        known = set(offsets(storage.read()))
        assert set(range(max(known, default=0) + 1)) - known <= set(range(60)), "only what the table had is gone"


def test_appending_goes_on_after_retention(filled):
    storage = filled(60)
    storage.retain(age_s=0.0)
    assert storage.append(Batch.of_messages([b"next"])).offset == 60
    assert offsets(storage.read(60)) == [60]


def test_a_deleted_topic_is_gone_with_all_that_was_kept(kit, filled):
    storage = filled(5)
    storage.delete()
    with pytest.raises(NotFoundError):
        list(storage.read())
    with pytest.raises(NotFoundError):
        storage.append(Batch.of_messages([b"late"]))
    assert find_table(kit.store, "topics.orders") is None
    kit.create("orders", storage.kind)
    assert open_storage(kit.log, kit.settings, "orders", kit.tables).append(Batch.of_messages([b"anew"])).offset == 0
