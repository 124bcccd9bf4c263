"""Upkeep's history on a real table, and its place in a lane, without a JVM."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from frazil.errors import FrazilError
from frazil.observe.faultpoints import handled
from frazil.tables import TableStore
from frazil.topics.sinks.jobs import in_process
from frazil.topics.sinks.pipeline import Pipeline
from frazil.topics.sinks.sink_runner import SinkRunner
from frazil.upkeep.model import Outcome
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.pipeline_upkeep import make_pipeline_upkeep
from tests.sink_kit import SinkKit, sink_kit, until
from tests.tables import embedded, make_table, open_store
from tests.upkeep_files import DAY, age, files_in, folder, litter

NAME = "frazil.upkeep_history"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TableStore]:
    with open_store(embedded(tmp_path / "home")) as made:
        yield made


def test_history_is_gathered_and_read_back_newest_first(store: TableStore) -> None:
    clock = [0.0]
    history = History(store, NAME, clock=lambda: clock[0])
    now = time.time()
    assert history.rows() == [], "there is no table yet"
    for i in range(5):
        history.add("run", f"a.t{i % 2}", Outcome("compact", files_before=i, seconds=1.5, snapshot_id=i), now - 100 + i)
    history.add("run", "a.t0", Outcome("compact", "nothing"), now)
    history.flush()
    assert history.rows() == [], "not before a minute is over"
    clock[0] += 61
    history.flush()
    rows = history.rows()
    assert [row["files_before"] for row in rows] == [4, 3, 2, 1, 0], "and what did nothing is not kept"
    assert rows[0]["host"] and rows[0]["process"] and rows[0]["seconds"] == 1.5
    assert len(store.load(NAME).metadata.snapshots) == 1, "appended together"
    assert [r["files_before"] for r in history.rows(["a.t1"], limit=1)] == [3]
    since = datetime.datetime.fromtimestamp(now - 97.5, datetime.UTC)
    assert [r["files_before"] for r in history.rows(since=since)] == [4, 3]


def test_when_something_was_last_done_is_known_after_a_restart(store: TableStore) -> None:
    history, now = History(store, NAME), time.time()
    history.add("run", "a.b", Outcome("orphans", "nothing"), now - 50)
    history.add("run", "a.b", Outcome("stats", "failed"), now - 40)
    history.add("run", "a.c", Outcome("stats"), now - 30)
    assert set(history.last("a.b")) == {"orphans"}
    history.flush(now=True)
    restarted = History(store, NAME)
    assert restarted.last("a.b") == {"orphans": pytest.approx(now - 50)}, "a look counts though it found nothing"
    restarted.add("run", "a.b", Outcome("orphans"), now)
    assert restarted.last("a.b") == {"orphans": now}


def test_a_history_that_cannot_be_written_fails_nobody_and_is_written_later(store: TableStore) -> None:
    history = History(store, NAME)
    history.add("run", "a.b", Outcome("compact"), time.time())

    def fail(step: str) -> None:
        if step == "upkeep.history.append.before":
            raise OSError("no space left")

    with handled(fail):
        history.flush(now=True)
    assert history.rows() == []
    history.flush(now=True)
    assert len(history.rows()) == 1


def test_a_table_that_is_no_history_is_left_alone_and_told(store: TableStore) -> None:
    make_table(store, "a.clicks")
    history = History(store, "a.clicks")
    history.add("run", "a.b", Outcome("compact"), time.time())
    history.flush(now=True)
    assert store.load("a.clicks").metadata.snapshots == []
    with pytest.raises(FrazilError, match="no history of upkeep"):
        history.rows()


def test_without_a_name_no_history_is_kept(store: TableStore) -> None:
    history = History(store, "")
    history.add("run", "a.b", Outcome("compact"), time.time())
    history.flush(now=True)
    assert history.rows() == []


# -- in a lane ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path / "home", **{"pipeline.max_lag_ms": "0"}) as made:
        made.create("orders")
        yield made


class Meddler:
    """A caretaker that commits to the table itself."""

    def __init__(self, kit: SinkKit) -> None:
        self._kit = kit
        self.turns: list[tuple[list[str], float]] = []

    def run_turn(self, tables: Sequence[str], lag: Callable[[], float]) -> bool:
        self.turns.append((list(tables), lag()))
        with self._kit.table("orders").transaction() as change:
            change.set_properties(touched=str(len(self.turns)))
        return True

    def stop(self) -> None: ...


def test_a_lane_gives_upkeep_its_turn_after_each_batch_and_looks_at_the_table_again(kit: SinkKit) -> None:
    meddler = Meddler(kit)
    engine = kit.engine("orders")
    lane = SinkRunner(engine, meddler)
    for i in range(5):
        kit.publish("orders", f"{i}".encode())
        assert lane.run_batch().rows == 1
        assert lane.error is None
    assert len(meddler.turns) == 5
    assert meddler.turns[0][0] == ["topics.dead_letters", "topics.orders"]
    assert engine._table is None, "it asks the table where it is"
    assert lane.run_batch(at_once=True).rows == 0
    assert len(meddler.turns) == 5, "nobody waits for upkeep in a drain"
    kit.check("orders")


def test_a_lane_knows_of_messages_that_come_while_its_tables_are_cared_for(kit: SinkKit) -> None:
    lags: list[float] = []
    engine = kit.engine("orders")

    class Asking(Meddler):
        def run_turn(self, tables: Sequence[str], lag: Callable[[], float]) -> bool:
            lane.observe(kit.client.info("orders"))
            lags.append(lag())
            kit.publish("orders", b"late")
            lane.observe(kit.client.info("orders"))
            time.sleep(0.3)
            lags.append(lag())
            return False

    lane = SinkRunner(engine, Asking(kit))
    kit.publish("orders", b"first")
    lane.run_batch()
    before, after = lags
    assert before == 0.0 and after >= 0.3
    assert lane.run_batch(at_once=True).rows == 1
    kit.check("orders")


class Slow:
    """A caretaker whose turn takes until it is told to end."""

    def __init__(self) -> None:
        self.inside, self.ended = threading.Event(), threading.Event()

    def run_turn(self, tables: Sequence[str], lag: Callable[[], float]) -> bool:
        self.inside.set()
        assert self.ended.wait(50)
        return False

    def stop(self) -> None:
        self.ended.set()


def test_a_pipeline_that_is_told_to_stop_ends_a_turn_of_upkeep_and_takes_what_is_left(kit: SinkKit) -> None:
    slow, stop = Slow(), threading.Event()
    kit.publish("orders", b"a")
    pipeline = Pipeline(kit.settings, kit.client, None, kit.client.address, run=in_process, upkeep=slow)
    with pipeline, ThreadPoolExecutor() as pool:
        running = pool.submit(pipeline.run, stop)
        assert slow.inside.wait(30)
        kit.publish("orders", b"b")
        began = time.monotonic()
        stop.set()
        assert running.result() is None
        assert time.monotonic() - began < 40, "the turn would take 50 seconds"
    kit.check("orders")


def test_a_plain_pipeline_keeps_the_files_of_a_table_whose_folder_is_a_link(kit: SinkKit, tmp_path: Path) -> None:
    """The worst that upkeep has done: with default settings it deleted every old file of such a table."""
    kit.publish("orders", b"a", b"b")
    kit.engine("orders").catch_up()
    table = kit.table("orders")
    litter(table, "data/lost.parquet")
    place, elsewhere = folder(table), tmp_path / "big_disk" / "orders"
    elsewhere.parent.mkdir()
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    age(table, 4 * DAY)
    before = files_in(table)
    stop, cores = threading.Event(), SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    with make_pipeline_upkeep(kit.settings, cores) as caretaker, ThreadPoolExecutor() as pool:  # type: ignore[arg-type]
        pipeline = Pipeline(kit.settings, kit.client, None, kit.client.address, run=in_process, upkeep=caretaker)
        with pipeline:
            running = pool.submit(pipeline.run, stop)
            kit.publish("orders", b"c")
            until(lambda: "data/lost.parquet" not in files_in(table) or running.done())
            stop.set()
            assert running.result() is None
    assert files_in(table) >= before - {"data/lost.parquet"}
    kit.check("orders")
