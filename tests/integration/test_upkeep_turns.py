"""Upkeep as a whole on Spark: by hand, twice at once, beside other writers, and told to stop."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.upkeep.care import Care
from frazil.upkeep.expiry.verify import verify
from frazil.upkeep.jobs import Jobs
from frazil.upkeep.runs.caretaker import TableCaretaker, caretaking
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.run import Limits, Report, care_for
from tests.rewrite_kit import Bench, striking

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]
MERGE_ON_READ = {f"write__{kind}__mode": "merge-on-read" for kind in ("delete", "update", "merge")}


@pytest.fixture(scope="module")
def bench(lane_settings: Settings, spark: SparkSession) -> Bench:
    return Bench(lane_settings, "sql", spark)


def other(bench: Bench) -> Care:
    """As another process has it: nothing in common but catalog and storage."""
    store = TableStore(bench.care.store.catalog, bench.care.catalog, bench.settings.model.network)
    return replace(bench.care, store=store, stop=threading.Event())


def short(name: str) -> str:
    return name.split(".", 1)[1]


def sound(bench: Bench, name: str) -> bool:
    return verify(bench.care, bench.load(name)).sound


def kinds(report: Report, result: str = "done") -> set[str]:
    return {o.kind for o in report.outcomes if o.result == result}


def test_a_table_of_many_tiny_commits_is_brought_into_shape_and_a_second_run_finds_nothing(bench: Bench) -> None:
    name = bench.table()
    bench.insert(name, *range(0, 200, 10))
    history = History(bench.care.store, f"{bench.namespace}.upkeep_history")
    report = care_for(bench.care, short(name), history=history)
    assert "compact" in kinds(report) and not report.errors
    assert len(bench.files(name)) < 10
    assert bench.ids(name) == list(range(200))
    assert sound(bench, name)
    again = care_for(bench.care, short(name), history=history)
    assert not again.changed and not again.errors
    history.flush(now=True)
    kept = history.rows([short(name)])
    assert {row["kind"] for row in kept if row["result"] == "done"} == kinds(report)
    assert sum(row["files_before"] for row in kept) >= 20


def test_two_runs_at_once_are_harmless(bench: Bench) -> None:
    name = bench.table(**MERGE_ON_READ)
    for round_ in range(2):
        bench.insert(name, *range(round_ * 1000, round_ * 1000 + 120, 10))
        bench.sql(f"DELETE FROM {name} WHERE id % 7 = {round_}")
        expected = bench.ids(name)
        cares = [other(bench), other(bench)]
        together = threading.Barrier(2)

        def run(care: Care, at: threading.Barrier = together) -> Report:
            at.wait(30)
            return care_for(care, short(name))

        with ThreadPoolExecutor() as pool:
            reports = list(pool.map(run, cares))
        assert not [error for report in reports for error in report.errors]
        assert any("compact" in kinds(report) for report in reports)
        assert bench.ids(name) == expected
        assert sound(bench, name)


def test_upkeep_beside_a_writer_that_merges_all_the_time_brings_no_row_back(bench: Bench) -> None:
    name = bench.table(columns=", value BIGINT", **MERGE_ON_READ)
    bench.insert(name, *range(0, 300, 10), select="0L AS value")
    oracle = dict.fromkeys(range(300), 0)
    stop, wrong = threading.Event(), []

    def write() -> None:
        chance = random.Random(7)
        for number in range(1, 1000):
            if stop.is_set():
                return
            ids = chance.sample(sorted(oracle), 12)
            rows = ", ".join(f"({i}, {str(i in ids[:4]).lower()})" for i in ids)
            try:
                bench.sql(
                    f"MERGE INTO {name} t USING (SELECT * FROM VALUES {rows} AS s(id, goes)) s ON t.id = s.id "
                    f"WHEN MATCHED AND s.goes THEN DELETE WHEN MATCHED THEN UPDATE SET t.value = {number}"
                )
            except Exception as error:  # noqa: BLE001 - Spark's have no base; a conflict is one of them
                if "conflict" not in str(error).lower() and "ValidationException" not in str(error):
                    wrong.append(error)
                    return
                continue
            for i in ids:
                oracle[i] = number
            for i in ids[:4]:
                del oracle[i]

    writer = threading.Thread(target=write)
    writer.start()
    care, reports = other(bench), []
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and len(oracle) > 40:
            reports.append(care_for(care, short(name), Limits(tries=1)))
    finally:
        stop.set()
        writer.join()
    assert not wrong
    assert not [error for report in reports for error in report.errors]
    assert any(report.changed for report in reports)
    found = dict(bench.sql(f"SELECT id, value FROM {name}"))
    assert found == oracle
    assert sound(bench, name)


def until(done: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


@pytest.fixture
def caretaker(bench: Bench) -> Iterator[tuple[TableCaretaker, History]]:
    care = other(bench)
    jobs = Jobs(lambda: bench.spark)
    history = History(care.store, "")
    yield TableCaretaker(replace(care, spark=jobs), jobs, history), history
    jobs.leave()


def test_a_turn_that_is_told_to_end_cancels_its_job_and_changes_nothing(
    bench: Bench, caretaker: tuple[TableCaretaker, History]
) -> None:
    name = bench.table()
    wide = "concat_ws(' ', uuid(), uuid(), uuid(), uuid()) AS text"
    bench.sql(f"ALTER TABLE {name} ADD COLUMN text STRING")
    bench.insert(name, *range(0, 1_200_000, 100_000), rows=100_000, select=wide)
    before = bench.load(name).metadata.current_snapshot_id
    taker, _ = caretaker
    tracker = bench.spark.sparkContext.statusTracker()
    with ThreadPoolExecutor() as pool, striking("upkeep.compact.rewrite.before", lambda: None):
        turn = pool.submit(taker.turn, [short(name)], 0.0)
        until(lambda: bool(tracker.getActiveJobsIds()) or turn.done())
        began = time.monotonic()
        taker.end()
        assert turn.result() is False
        assert time.monotonic() - began < 10
    assert bench.load(name).metadata.current_snapshot_id == before
    assert bench.sql(f"SELECT count(*), count(DISTINCT id) FROM {name}") == [(1_200_000, 1_200_000)]
    assert bench.on_disk(name) == bench.known(name), "what it wrote is gone"


def test_jobs_of_others_in_the_same_thread_are_not_cancelled(bench: Bench) -> None:
    jobs = Jobs(lambda: bench.spark)
    jobs()
    jobs.leave()
    with ThreadPoolExecutor() as pool:
        ended = threading.Event()

        def cancel() -> None:
            while not ended.wait(0.05):
                jobs.cancel()

        cancelling = pool.submit(cancel)
        try:
            assert bench.spark.range(2_000_000).selectExpr("count(DISTINCT id % 1000)").collect()[0][0] == 1000
        finally:
            ended.set()
            cancelling.result()


def test_a_pipelines_caretaker_is_none_where_the_settings_want_none(bench: Bench) -> None:
    upkeep = bench.settings.model.upkeep.model_copy(update={"enabled": False})
    settings = Settings(bench.settings.model.model_copy(update={"upkeep": upkeep}))
    with caretaking(settings, bench.spark, "sql") as taker:
        assert taker is None
