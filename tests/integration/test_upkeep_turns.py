"""Upkeep as a whole on Spark: by hand, twice at once, beside other writers, and told to stop."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
import yaml
from pyspark.sql import SparkSession

from frazil.cli.run import run_command
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.upkeep import metrics
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry.verify import verify
from frazil.upkeep.jobs import Jobs
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.pipeline_upkeep import PipelineUpkeep, make_pipeline_upkeep
from frazil.upkeep.runs.run import Limits, Report, run_upkeep
from tests.rewrite_kit import Bench, striking
from tests.sink_kit import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]
MERGE_ON_READ = {f"write__{kind}__mode": "merge-on-read" for kind in ("delete", "update", "merge")}


@pytest.fixture(scope="module")
def bench(lane_settings: Settings, spark: SparkSession) -> Bench:
    return Bench(lane_settings, "sql", spark)


def other(bench: Bench) -> UpkeepContext:
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
    report = run_upkeep(bench.care, short(name), history=history)
    assert "compact" in kinds(report) and not report.errors
    assert len(bench.files(name)) < 10
    assert bench.ids(name) == list(range(200))
    assert sound(bench, name)
    again = run_upkeep(bench.care, short(name), history=history)
    assert not again.changed and not again.errors
    history.flush(now=True)
    kept = history.rows([short(name)])
    assert {row["kind"] for row in kept if row["result"] == "done"} == kinds(report)
    assert sum(row["files_before"] for row in kept) >= 20


@pytest.mark.deep
def test_two_runs_at_once_are_harmless(bench: Bench) -> None:
    name = bench.table(**MERGE_ON_READ)
    for round_ in range(2):
        bench.insert(name, *range(round_ * 1000, round_ * 1000 + 120, 10))
        bench.sql(f"DELETE FROM {name} WHERE id % 7 = {round_}")
        expected = bench.ids(name)
        cares = [other(bench), other(bench)]
        together = threading.Barrier(2)

        def run(care: UpkeepContext, at: threading.Barrier = together) -> Report:
            at.wait(30)
            return run_upkeep(care, short(name))

        with ThreadPoolExecutor() as pool:
            reports = list(pool.map(run, cares))
        assert not [error for report in reports for error in report.errors]
        assert any("compact" in kinds(report) for report in reports)
        assert bench.ids(name) == expected
        assert sound(bench, name)


def test_a_compaction_that_loses_and_uses_up_the_time_keeps_no_snapshot_from_expiring(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`frazil upkeep run --for 20s`, with the session of this process, and a minute that passes with the conflict."""
    name = bench.table(**MERGE_ON_READ)
    bench.insert(name, *range(0, 60, 10))
    sql = bench.care.catalog.model_dump(mode="json", exclude_none=True, include={"kind", "uri", "warehouse"})
    file = tmp_path / "frazil.yaml"
    policy = {"max_snapshots": 2, "min_input_files": 4}
    section = {"name": bench.catalog, **sql}
    file.write_text(yaml.safe_dump({"home": str(tmp_path), "catalog": section, "upkeep": {"policy": policy}}))
    monkeypatch.setattr("frazil.spark.spark_session", lambda _: contextlib.nullcontext(bench.spark))
    late = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late, time=time.time)
    monkeypatch.setattr("frazil.upkeep.runs.run.time", clock)

    def delete() -> None:
        nonlocal late
        late += 60.0
        bench.sql(f"DELETE FROM {name} WHERE id % 10 = 3")

    with striking("upkeep.compact.commit.before", delete):
        command = ["run", short(name), "--for", "20s", "--config", str(file), "--output", "json"]
        assert run_command("upkeep", "upkeep", command) == 11
    structlog.reset_defaults()
    [report] = json.loads(capfd.readouterr().out)
    outcomes = {o["kind"]: o for o in report["outcomes"]}
    assert (outcomes["compact"]["result"], outcomes["compact"]["conflicts"]) == ("conflict", 1)
    assert (outcomes["expire"]["result"], outcomes["expire"]["snapshots_removed"]) == ("done", 4)
    assert len(bench.load(name).metadata.snapshots) == 3, "two, and the delete of the other writer"
    assert bench.ids(name) == [i for i in range(60) if i % 10 != 3]


class Merger:
    """A job that merges into a table, and knows which rows must be there: those of the merges that landed."""

    def __init__(self, bench: Bench, name: str, rows: int) -> None:
        self._bench, self._name, self._chance = bench, name, random.Random(7)
        self.rows, self.merges, self.lost = dict.fromkeys(range(rows), 0), 0, 0

    def merge(self, held: str = "id") -> None:
        """One merge, run anew while it loses against upkeep; `held` is the id in SQL, by which a test can slow it."""
        self.merges += 1
        ids = self._chance.sample(sorted(self.rows), 12)
        rows = ", ".join(f"({i}, {str(i in ids[:4]).lower()})" for i in ids)
        while True:
            try:
                self._bench.sql(
                    f"MERGE INTO {self._name} t USING "
                    f"(SELECT /*+ COALESCE(1) */ {held} AS id, goes FROM VALUES {rows} AS s(id, goes)) s "
                    f"ON t.id = s.id WHEN MATCHED AND s.goes THEN DELETE "
                    f"WHEN MATCHED THEN UPDATE SET t.value = {self.merges}"
                )
                break
            except Exception as error:
                if "ValidationException" not in str(error) and "CommitFailedException" not in str(error):
                    raise
                self.lost += 1
        self.rows |= dict.fromkeys(ids[4:], self.merges)
        for i in ids[:4]:
            del self.rows[i]

    def check(self) -> None:
        assert dict(self._bench.sql(f"SELECT id, value FROM {self._name}")) == self.rows
        assert sound(self._bench, self._name)


def slow_udf(bench: Bench, begun: Path, open_: Path) -> str:
    """A function in SQL that gives back its number, but says that it has begun, and waits until it may."""
    first, last = str(begun), str(open_)

    def hold(number: int) -> int:
        Path(first).touch()
        while not Path(last).exists():
            time.sleep(0.05)
        return number

    name = f"hold_{uuid.uuid4().hex[:8]}"
    bench.spark.udf.register(name, hold, "bigint")
    return name


@pytest.mark.slow
def test_upkeep_beside_a_writer_that_merges_all_the_time_brings_no_row_back(bench: Bench, tmp_path: Path) -> None:
    name = bench.table(columns=", value BIGINT", **MERGE_ON_READ)
    bench.insert(name, *range(0, 300, 10), select="0L AS value")
    merger, care = Merger(bench, name, 300), other(bench)

    # A merge lands between what upkeep has written and its commit: upkeep loses, and the rows stay deleted.
    with striking("upkeep.compact.commit.before", merger.merge):
        report = run_upkeep(care, short(name), Limits(tries=1))
    assert "compact" in kinds(report, "conflict") and not report.errors
    merger.check()

    # Upkeep lands while a merge is under way: the merge loses, and lands when it is run anew.
    begun, open_ = tmp_path / "begun", tmp_path / "open"
    slow = slow_udf(bench, begun, open_)
    with ThreadPoolExecutor() as pool:
        merging = pool.submit(merger.merge, f"{slow}(id)")
        try:
            until(lambda: begun.exists() or merging.done())
            report = run_upkeep(care, short(name), Limits(tries=1))
        finally:
            open_.touch()
        merging.result()
    assert "compact" in kinds(report) and not report.errors
    assert merger.lost == 1
    merger.check()

    # Both as they come.
    stop, reports = threading.Event(), []
    with ThreadPoolExecutor() as pool:

        def write() -> None:
            while not stop.is_set() and len(merger.rows) > 40:
                merger.merge()

        writing = pool.submit(write)
        try:
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline and not writing.done():
                reports.append(run_upkeep(care, short(name), Limits(tries=1)))
        finally:
            stop.set()
        writing.result()
    assert not [error for report in reports for error in report.errors]
    assert merger.merges > 3
    merger.check()


def new_caretaker(bench: Bench) -> PipelineUpkeep:
    care = other(bench)
    jobs = Jobs(lambda: bench.spark)
    return PipelineUpkeep(replace(care, spark=jobs), jobs, History(care.store, ""))


def nap(spark: SparkSession) -> None:
    """A job that takes a minute."""
    spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: time.sleep(60))


def test_a_turn_that_is_told_to_end_cancels_its_job_and_changes_nothing(bench: Bench) -> None:
    wide = "concat_ws(' ', uuid(), uuid(), uuid(), uuid()) AS text"
    tracker, step = bench.spark.sparkContext.statusTracker(), "upkeep.compact.rewrite.before"
    for _ in range(3):
        name = bench.table()
        bench.sql(f"ALTER TABLE {name} ADD COLUMN text STRING")
        bench.insert(name, *range(0, 1_200_000, 100_000), rows=100_000, select=wide)
        before = bench.load(name).metadata.current_snapshot_id
        taker = new_caretaker(bench)
        with ThreadPoolExecutor() as pool, striking(step, lambda: None) as seen:
            turn = pool.submit(taker.run_turn, [short(name)], lambda: 0.0)
            until(lambda at=seen, it=turn: (step in at and bool(tracker.getActiveJobsIds())) or it.done())  # type: ignore[misc]
            began = time.monotonic()
            taker.stop()
            changed = turn.result()
            took = time.monotonic() - began
        if not changed:
            break  # else this thread was too slow, and the commit was under way
    assert changed is False
    assert took < 30
    assert bench.load(name).metadata.current_snapshot_id == before
    assert bench.sql(f"SELECT count(*), count(DISTINCT id) FROM {name}") == [(1_200_000, 1_200_000)]
    assert bench.on_disk(name) == bench.known(name), "what it wrote is gone"


def test_a_turn_that_takes_too_long_is_cut_off_and_leaves_the_table_as_it_was(bench: Bench) -> None:
    name = bench.table()
    bench.insert(name, 0, 10)
    run_upkeep(bench.care, short(name), Limits(kinds=["metadata"]))
    upkeep = bench.care.settings.model.upkeep
    policy = upkeep.policy.model_copy(update={"statistics": True})
    model = bench.care.settings.model.model_copy(
        update={"upkeep": upkeep.model_copy(update={"turn_s": 60.0, "policy": policy})}
    )
    jobs = Jobs(lambda: bench.spark)
    care = replace(other(bench), settings=replace(bench.care.settings, model=model), spark=jobs)
    now = 0.0
    taker = PipelineUpkeep(care, jobs, History(care.store, ""), clock=lambda: now)
    before = bench.load(name).metadata_location
    counted = metrics.STEPS.labels(short(name), "stats", "stopped")

    def take_long() -> None:
        nonlocal now
        now += 200.0  # by the caretaker's clock the turn has taken too long before the job begins
        nap(bench.spark)

    began = time.monotonic()
    with striking("upkeep.stats.commit.before", take_long) as seen:
        assert taker.run_turn([short(name)], lambda: 0.0) is False
    assert "upkeep.stats.commit.before" in seen
    assert time.monotonic() - began < 45
    assert counted._value.get() == 1
    assert bench.load(name).metadata_location == before
    assert bench.ids(name) == list(range(20)), "jobs of others go on"
    assert taker.run_turn([short(name)], lambda: 0.0) is False
    assert counted._value.get() == 1, "it rests"


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
    with make_pipeline_upkeep(settings, bench.spark, "sql") as taker:
        assert taker is None
