"""The union reader: table first, then the log, whatever happens to either meanwhile."""

from __future__ import annotations

import random
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.api.reading import read_page
from frazil.errors import IntegrityError, UsageError
from frazil.log.protocol import OffsetGoneError
from frazil.tables import Position, adopt, find_position, remove_files
from frazil.tables.reading.ordered_scan import scan_in_order
from frazil.topics.layout import ARCHIVE
from frazil.topics.positions import ForeignLogError
from frazil.topics.reading.reader import TopicReader
from frazil.topics.reading.subscription import Subscription
from frazil.topics.reading.topic_plan import plan_topic
from tests.topic_kit import FIRST_TIME_US, MemoryLog, TopicTable, files_read, settings_in


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def table(log: MemoryLog, tmp_path: Path) -> TopicTable:
    return TopicTable(log, "orders", settings_in(tmp_path))


def offsets(tables) -> list[int]:
    return [offset for table in tables for offset in table.column("offset").to_pylist()]


def payloads(tables) -> list[bytes]:
    return [payload for table in tables for payload in table.column("payload").to_pylist()]


def at_second(second: float) -> datetime:
    return datetime.fromtimestamp(FIRST_TIME_US / 1_000_000, UTC) + timedelta(seconds=second)


def test_a_read_crosses_from_the_table_into_the_log(log, table):
    log.publish(b"a", b"b")
    table.sink()
    log.publish(b"c")
    log.retain(below=2)
    read = list(table.reader().read(0))
    assert offsets(read) == [0, 1, 2]
    assert payloads(read) == [b"a", b"b", b"c"]
    assert read[0].schema == read[1].schema == table.reader().schema()


def test_a_topic_without_a_table_is_read_from_its_log(log, table):
    log.publish(b"a", b"b")
    assert offsets(table.reader().read()) == [0, 1]
    assert offsets(TopicReader(log, "orders").read(1)) == [1]


def test_a_topic_that_keeps_its_messages_in_the_log_never_asks_the_catalog(log):
    log.storage = "log"
    log.publish(b"a")

    def load():
        raise AssertionError

    assert offsets(TopicReader(log, "orders", load).read(0)) == [0]


def test_following_the_end_needs_no_catalog(log):
    log.publish(b"a")
    stop = threading.Event()
    log.on_wait = lambda: log.publish(b"b") if log.end == 1 else stop.set()

    def load():
        raise AssertionError

    reader = TopicReader(log, "orders", load)
    assert offsets(reader.read(1, follow=True, stop=stop, columns=["offset"])) == [1]


def test_a_range_is_read_exactly(log, table):
    log.publish(*[b"x"] * 5)
    log.publish(*[b"y"] * 5)
    table.sink(7)
    reader = table.reader()
    for start in range(11):
        for end in range(start, 12):
            assert offsets(reader.read(start, end=end)) == list(range(start, min(end, 10)))


class Interrupted:
    """A table; somebody else does something whenever its place has been looked up for the second time."""

    def __init__(self, table, meanwhile):
        self._table, self._meanwhile, self._looks = table, meanwhile, 0

    def __getattr__(self, name):
        return getattr(self._table, name)

    @property
    def metadata_location(self):
        self._looks += 1
        if self._looks == 2:
            self._meanwhile()
        return self._table.metadata_location


def test_a_thread_with_an_older_table_does_not_put_its_plan_in_the_place_of_a_newer_one(log, table):
    loaded = []
    for payload in (b"a", b"b", b"c"):
        log.publish(payload)
        table.sink()
        loaded.append(table.load())
    first, older, newest = loaded
    loads = [first, Interrupted(newest, lambda: reader.plan(reader.info())), older]
    reader = TopicReader(log, "orders", lambda: loads.pop(0) if loads else table.load())
    assert reader.plan(reader.info()).position == 1
    assert reader.plan(reader.info()).position == 3
    assert loads == []
    assert reader.plan(reader.info()).position == 3


@pytest.mark.parametrize("first", ["table", "log"])
def test_a_table_that_has_not_changed_is_not_planned_again(log, table, first):
    for _ in range(5):
        log.publish(b"x", b"y")
        table.sink()
    log.retain(below=8)
    reader = table.reader(first=first)
    with files_read() as opened:
        assert offsets(reader.read(0)) == list(range(10))
    assert (opened["lists"], opened["manifests"]) == (1, 5)
    again = {
        "all": lambda: offsets(reader.read(0)) == list(range(10)),
        "a range": lambda: offsets(reader.read(3, end=6)) == [3, 4, 5],
        "from a time on": lambda: offsets(reader.read(since=at_second(1))) == list(range(2, 10)),
        "a page": lambda: read_page(reader, 2, 3, 1 << 20).next == 5,
        "bounds": lambda: reader.bounds().start == 0,
        "schema": lambda: "offset" in reader.schema().names,
    }
    for name, ask in again.items():
        with files_read() as opened:
            assert ask(), name
        assert (opened["lists"], opened["manifests"]) == (0, 0), name
        # The catalog reads this one when it is asked whether the table has changed: once for each time.
        assert opened["metadata"] <= 3, name
    log.publish(b"z")
    table.sink()
    log.retain(below=11)
    with files_read() as opened:
        assert offsets(reader.read(0)) == list(range(11))
        assert offsets(reader.read(0)) == list(range(11))
    assert (opened["lists"], opened["manifests"]) == (1, 6), "once for the new snapshot"


def test_offsets_that_the_log_skipped_are_no_gap(log, table):
    log.publish(b"a")
    log.skip(5)
    log.publish(b"b")
    table.sink()
    log.skip(3)
    log.publish(b"c")
    log.retain(below=7)
    assert offsets(table.reader().read(0)) == [0, 6, 10]
    assert offsets(table.reader().read(3)) == [6, 10]


def test_a_read_that_does_not_follow_ends_where_the_topic_ended_when_it_began(log, table):
    log.publish(b"a")
    log.publish(b"b")
    reading = table.reader().read()
    first = next(reading)
    log.publish(b"late")
    assert offsets([first, *reading]) == [0, 1]


def test_a_follower_goes_back_to_the_table_when_retention_overtakes_it(log, table):
    log.publish(b"a")
    stop = threading.Event()
    reading = table.reader().read(0, follow=True, stop=stop)
    assert offsets([next(reading)]) == [0]
    log.publish(b"b", b"c")
    log.publish(b"d")
    table.sink()
    log.retain(below=4)
    log.on_wait = stop.set
    assert offsets(reading) == [1, 2, 3]


def test_a_range_that_is_in_neither_says_from_where_on_it_can_be_read(log, table):
    log.publish(b"a")
    log.publish(b"b")
    log.retain(below=1)
    with pytest.raises(OffsetGoneError) as caught:
        list(table.reader().read(0))
    assert caught.value.start == 1
    assert "offset 1 on" in (caught.value.hint or "")


def test_retention_of_the_table_says_so_too_and_the_oldest_is_what_is_left(log, table):
    for _ in range(3):
        log.publish(b"x", b"y")
        table.sink()
    log.retain(below=6)
    first = plan_topic(table.load(), "orders").files[0]
    remove_files(table.store, table.load(), [first.path])
    reader = table.reader()
    assert (reader.bounds().start, reader.bounds().end) == (2, 6)
    assert offsets(reader.read()) == [2, 3, 4, 5]
    with pytest.raises(OffsetGoneError) as caught:
        list(reader.read(0))
    assert caught.value.start == 2


def test_what_the_table_no_longer_has_is_read_from_the_log_if_that_still_has_it(log, table):
    log.publish(b"x", b"y")
    table.sink()
    remove_files(table.store, table.load(), [plan_topic(table.load(), "orders").files[0].path])
    assert offsets(table.reader().read(0)) == [0, 1]


def test_files_that_vanish_in_the_middle_of_a_scan_are_read_from_the_next_snapshot(log, table):
    for _ in range(20):
        log.publish(b"x")
        table.sink()
    log.retain(below=20)
    reading = table.reader().read(0)
    seen = offsets([next(reading)])
    table.rewrite()
    table.expire()
    assert seen + offsets(reading) == list(range(20))


def test_a_file_that_the_current_snapshot_needs_is_missed_loudly(log, table):
    log.publish(b"x")
    table.sink()
    log.retain(below=1)
    Path(plan_topic(table.load(), "orders").files[0].path.removeprefix("file://")).unlink()
    with pytest.raises(IntegrityError, match="is missing although its table needs it"):
        list(table.reader().read(0))


@pytest.mark.parametrize("budget", [1, 10_000_000])
def test_files_that_overlap_are_merged_within_any_budget(log, table, budget):
    chance = random.Random(7)
    for _ in range(4):
        log.publish(*[b"%d" % i for i in range(10)])
        table.sink()
    table.rewrite(shuffle=chance)
    plan = plan_topic(table.load(), "orders")
    wanted = table.reader().schema()
    found = list(scan_in_order(plan, wanted, 3, 38, budget=budget))
    assert offsets([s.table for s in found]) == list(range(3, 38))
    assert [s.reached for s in found] == sorted(s.reached for s in found)


def test_an_offset_that_a_foreign_writer_doubled_is_delivered_once(log, table):
    log.publish(b"a", b"b")
    table.sink()
    loaded = table.load()
    loaded.append(loaded.scan().to_arrow())
    assert offsets(table.reader().read(0)) == [0, 1]


def test_rows_beyond_the_position_are_not_taken_from_the_table(log, table):
    log.publish(b"a", b"b")
    table.sink(1)
    loaded = table.load()
    foreign = loaded.scan().to_arrow()
    at = foreign.schema.get_field_index("offset")
    loaded.append(foreign.set_column(at, foreign.schema.field(at), pa.array([1], pa.int64())))
    assert payloads(table.reader().read(0)) == [b"a", b"b"]


def test_columns_that_came_later_are_null_in_older_files_and_found_by_their_id(log, table):
    log.publish(b"a")
    table.sink()
    log.publish(b"b", price=[7])
    table.sink()
    log.publish(b"c", price=[8], note=["new"])
    log.retain(below=2)
    read = pa.concat_tables(table.reader().read(0, columns=["offset", "price", "note"]))
    assert read.to_pydict() == {"offset": [0, 1, 2], "price": [None, 7, 8], "note": [None, None, "new"]}
    with table.load().update_schema() as change:
        change.rename_column("price", "cost")
    assert pa.concat_tables(table.reader().read(0, end=2, columns=["cost"]))["cost"].to_pylist() == [None, 7]


def test_only_the_wanted_columns_come_in_the_wanted_order(log, table):
    log.publish(b"a")
    table.sink()
    log.publish(b"b")
    read = list(table.reader().read(0, columns=["payload", "publish_time"]))
    assert [t.column_names for t in read] == [["payload", "publish_time"]] * 2
    with pytest.raises(UsageError, match="no column 'paylod'"):
        table.reader().read(0, columns=["paylod"])


def test_a_read_can_begin_at_a_time(log, table):
    for _ in range(6):
        log.publish(b"x", b"y")
    table.sink(8)
    log.retain(below=8)
    reader = table.reader()
    assert offsets(reader.read(since=at_second(-1))) == list(range(12))
    assert offsets(reader.read(since=at_second(1.5))) == list(range(4, 12))
    assert offsets(reader.read(since=at_second(2))) == list(range(4, 12))
    assert offsets(reader.read(since=at_second(4.5))) == [10, 11]
    assert offsets(reader.read(since=at_second(99))) == []
    assert reader.offset_at(at_second(3).replace(tzinfo=None)) == 6


def test_a_table_of_another_log_is_refused(log, table):
    log.publish(b"a")
    table.sink()
    loaded = table.load()
    known = find_position(loaded, ARCHIVE, "orders")
    assert known is not None
    adopt(table.store, loaded, Position(ARCHIVE, "orders", known.offsets, "another", 0, "adopted"))
    with pytest.raises(ForeignLogError):
        list(table.reader().read(0))


def test_a_rolled_back_table_counts_as_far_as_its_rows_reach(log, table):
    log.publish(b"a")
    table.sink()
    log.publish(b"b")
    table.sink()
    loaded = table.load()
    first = loaded.history()[0].snapshot_id
    loaded.manage_snapshots().set_current_snapshot(first).commit()
    assert payloads(table.reader().read(0)) == [b"a", b"b"]


def test_a_follower_stops_soon_after_it_is_told_to(log, table):
    log.publish(b"a")
    stop = threading.Event()
    log.on_wait = stop.set
    assert offsets(table.reader().read(0, follow=True, stop=stop)) == [0]
    assert log.waits == 1, "it waited for the log instead of asking again and again"


def test_a_subscription_goes_on_at_its_last_commit(log, table):
    log.publish(b"a", b"b")
    table.sink()
    billing = Subscription(table.reader(), "billing")
    with pytest.raises(UsageError, match="nothing was read"):
        billing.commit()
    assert payloads(billing.read(columns=["payload"])) == [b"a", b"b"]
    assert billing.commit() == 2
    log.publish(b"c")
    later = Subscription(table.reader(), "billing")
    assert later.position == 2
    assert payloads(later.read()) == [b"c"]
    assert payloads(Subscription(table.reader(), "billing").read()) == [b"c"], "not committed: it comes again"


class Schedule:
    """What happens to a topic while somebody reads it."""

    def __init__(self, log: MemoryLog, table: TopicTable, steps: list[tuple[str, int]]) -> None:
        self.log, self.table = log, table
        self.steps = list(steps)
        self.published: list[int] = []

    def step(self) -> None:
        if self.steps:
            name, amount = self.steps.pop(0)
            getattr(self, f"_{name}")(amount)

    def step_or_end(self) -> None:
        if not self.steps:
            raise IdleError
        self.step()

    def _publish(self, amount: int) -> None:
        self.published += self.log.publish(*[b"x" * amount] * amount)

    def _publish_columns(self, amount: int) -> None:
        extra = {f"column_{amount % 3}": list(range(amount))}
        self.published += self.log.publish(*[b"y"] * amount, **extra)

    def _skip(self, amount: int) -> None:
        self.log.skip(amount)

    def _sink(self, amount: int) -> None:
        self.table.sink(self.table.position + 3 * amount)

    def _retain(self, amount: int) -> None:
        self.log.retain(below=self.table.position)

    def _rewrite(self, amount: int) -> None:
        if self.table.position:
            self.table.rewrite(shuffle=random.Random(amount) if amount % 2 else None, rows_per_group=amount)

    def _expire(self, _: int) -> None:
        if self.table.position:
            self.table.expire()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["publish"] * 3 + ["publish_columns", "skip", "retain", "rewrite", "expire"] + ["sink"] * 3),
        st.integers(1, 6),
    ),
    max_size=16,
)


class IdleError(Exception):
    """The schedule is over, and the reader has come to wait for more."""


@pytest.mark.deep
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=STEPS, during=STEPS, columns=st.sampled_from([None, ["offset"]]))
def test_whatever_happens_each_offset_comes_once_and_in_order(before, during, columns):
    """One step after each table that the reader gives, and one each time when it comes to wait."""
    with tempfile.TemporaryDirectory() as folder:
        log = MemoryLog()
        schedule = Schedule(log, TopicTable(log, "orders", settings_in(Path(folder))), before + during)
        for _ in before:
            schedule.step()
        log.on_wait = schedule.step_or_end
        seen: list[int] = []
        with pytest.raises(IdleError):
            for part in schedule.table.reader().read(follow=True, columns=columns):
                seen += part.column("offset").to_pylist()
                schedule.step()
        assert seen == schedule.published
