"""Another writer commits between the plan and the commit of each kind of upkeep: it is counted, and nothing is lost.

And an answer that is lost after the commit has landed: it is looked up, and nothing is done twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyspark.sql import SparkSession

from frazil.errors import ConflictError
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.settings.model import PolicySettings
from frazil.tables import CommitUnknownError
from frazil.upkeep import metrics
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import expire, expired_file_lists, orphans
from frazil.upkeep.expiry.verify import verify
from frazil.upkeep.model import Kind, Outcome
from frazil.upkeep.rewrite import partition
from frazil.upkeep.runs.run import Limits, Report, run_upkeep
from tests.rewrite_kit import Bench, striking
from tests.tiers import in_tiers
from tests.upkeep_files import old_ids, step

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

MERGE_ON_READ = {"write__delete__mode": "merge-on-read", "write__delete__granularity": "partition"}
YOUNG = "current_timestamp() AS at"
OLD = "current_timestamp() - INTERVAL 10 DAYS AS at"
#: The first half of the rows of a file is old.
MIXED = "current_timestamp() - CASE WHEN id % 10 < 5 THEN INTERVAL '10' DAY ELSE INTERVAL '0' DAY END AS at"
RETENTION = {"retention_column": "at", "retention_age_s": 86400.0}


@pytest.fixture(scope="module")
def bench(lane_settings: Settings, spark: SparkSession) -> Bench:
    return Bench(lane_settings, "sql", spark)


# Tables that want one kind of upkeep each.


def small_files(bench: Bench) -> str:
    name = bench.table(**MERGE_ON_READ)
    bench.insert(name, 0, 10, 20, 30)
    return name


def ordered_files(bench: Bench) -> str:
    """Made with an order: a table that does not know order 0, which a Z-order needs."""
    from frazil.tables import ensure_table

    name = small_files(bench) + "_ordered"
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    properties = {"write.delete.mode": "merge-on-read"}
    ensure_table(bench.care.store, name.split(".", 1)[1], schema, sort=["id"], properties=properties)
    bench.insert(name, 0, 10, 20, 30)
    return name


def crowded_deletes(bench: Bench) -> str:
    name = bench.table(**MERGE_ON_READ)
    bench.insert(name, 0, rows=40)
    for i in range(3):
        bench.sql(f"DELETE FROM {name} WHERE id = {i}")
    return name


def dangling_deletes(bench: Bench) -> str:
    """Their data was written anew without them."""
    name = bench.table(**MERGE_ON_READ)
    bench.insert(name, 0, rows=40)
    bench.sql(f"DELETE FROM {name} WHERE id < 2")
    options = "map('rewrite-all', 'true', 'remove-dangling-deletes', 'false')"
    bench.sql(f"CALL {bench.catalog}.system.rewrite_data_files(table => '{name}', options => {options})")
    assert len(bench.files(name, content=1)) == 1
    return name


def old_files(bench: Bench) -> str:
    name = bench.table(columns=", at TIMESTAMP", partition="days(at)")
    bench.insert(name, 0, 10, select=OLD)
    bench.insert(name, 20, 30, select=YOUNG)
    return name


def old_rows(bench: Bench) -> str:
    name = bench.table(columns=", at TIMESTAMP", **MERGE_ON_READ)
    bench.insert(name, 0, 10, 20, 30, select=MIXED)
    return name


def small_manifests(bench: Bench) -> str:
    name = bench.table(columns=", part INT", partition="part", commit__manifest_merge__enabled="false")
    for part in range(4):
        bench.insert(name, part * 10, select=f"{part} AS part")
    return name


# What others do meanwhile.


def delete_five(bench: Bench, name: str) -> None:
    bench.sql(f"DELETE FROM {name} WHERE id = 35")


def append(bench: Bench, name: str) -> None:
    bench.insert(name, 100)


def merge_deletes(bench: Bench, name: str) -> None:
    options = "map('rewrite-all', 'true')"
    bench.sql(f"CALL {bench.catalog}.system.rewrite_position_delete_files(table => '{name}', options => {options})")


def rewrite_all(bench: Bench, name: str) -> None:
    options = "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"
    bench.sql(f"CALL {bench.catalog}.system.rewrite_data_files(table => '{name}', options => {options})")


def drop_a_partition(bench: Bench, name: str) -> None:
    bench.sql(f"DELETE FROM {name} WHERE part = 3")


def tag_second(bench: Bench, name: str) -> None:
    second = bench.load(name).metadata.snapshots[1].snapshot_id
    bench.sql(f"ALTER TABLE {name} CREATE TAG late AS OF VERSION {second}")


@dataclass(frozen=True)
class Case:
    """One commit of upkeep, and somebody who is faster.

    Attributes:
        kind: of the step.
        make: a table that needs it.
        at: where the other commits.
        meanwhile: what the other does.
        rows: that are left in the end.
        policy: that asks for the step.
        loses: whether Iceberg refuses it; else it takes both.
        left: files of metadata.json that Iceberg leaves in this catalog when it loses, as orphans.
        done: steps that the next try has to do: none where the other has done the same.
    """

    kind: Kind
    make: Callable[[Bench], str]
    at: str
    meanwhile: Callable[[Bench, str], object]
    rows: list[int]
    policy: dict[str, Any] = field(default_factory=dict)
    loses: bool = True
    left: int = 0
    done: int = 1


CASES = {
    "compact": Case(
        "compact", small_files, "compact.commit.before", delete_five, [i for i in range(40) if i != 35],
        {"min_input_files": 2},
    ),
    "compact in another order": Case(
        "compact", ordered_files, "compact.order.before", append, [*range(40), *range(100, 110)],
        {"min_input_files": 2, "strategy": "zorder", "sort_by": ["id", "name"]}, left=1,
    ),
    "deletes": Case(
        "deletes", crowded_deletes, "deletes.commit.before", merge_deletes, list(range(3, 40)),
        {"delete_files": 2}, done=0,
    ),
    "deletes that dangle": Case(
        "deletes", dangling_deletes, "deletes.dangling.before", rewrite_all, list(range(2, 40)), done=0,
    ),
    "retention of files": Case(
        "retention", old_files, "retention.commit.before", rewrite_all, list(range(20, 40)), RETENTION,
    ),
    "manifests": Case(
        "manifests", small_manifests, "manifests.plan.after", drop_a_partition, list(range(30)), {"manifests": 2},
    ),
    "expire": Case(
        "expire", small_files, "expire.commit.before", tag_second, list(range(40)), {"max_snapshots": 1},
    ),
    "stats": Case(
        "stats", small_files, "stats.commit.before", append, [*range(40), *range(100, 110)], {"statistics": True},
        loses=False,
    ),
    "metadata": Case(
        "metadata", small_files, "metadata.commit.before", append, [*range(40), *range(100, 110)], loses=False,
    ),
}  # fmt: skip


def caring(bench: Bench, **policy: Any) -> UpkeepContext:
    upkeep = bench.settings.model.upkeep.model_copy(update={"policy": PolicySettings(**policy)})
    return replace(bench.care, settings=Settings(bench.settings.model.model_copy(update={"upkeep": upkeep})))


def cared(care: UpkeepContext, name: str, kind: Kind, tries: int = 3) -> Report:
    return run_upkeep(care, name.split(".", 1)[1], Limits(kinds=(kind,), tries=tries))


def counted(name: str) -> float:
    return float(metrics.CONFLICTS.labels(name.split(".", 1)[1])._value.get())


def check(bench: Bench, name: str, rows: list[int], left: int = 0) -> None:
    """The rows are right, no file is missing, and only some metadata.json are there that nothing refers to."""
    assert bench.ids(name) == rows
    table = bench.load(name)
    verdict = verify(bench.care, table)
    assert verdict.sound, verdict.findings
    found = orphans.find(bench.care, table, -60.0)
    assert [orphan.kind for orphan in found.orphans] == ["metadata.json"] * left, found.orphans
    assert found.unknown == ()


@pytest.mark.deep
@pytest.mark.parametrize("case", in_tiers(CASES, "compact", "deletes"))
def test_a_commit_of_somebody_else_is_counted_and_the_next_try_lands(bench: Bench, case: Case) -> None:
    name = case.make(bench)
    care, before = caring(bench, **case.policy), counted(name)
    others: list[str | None] = []

    def meanwhile() -> None:
        case.meanwhile(bench, name)
        others.append(bench.load(name).metadata_location)

    with striking(f"upkeep.{case.at}", meanwhile):
        report = cared(care, name, case.kind, tries=1)
    assert not report.errors
    (outcome,) = report.outcomes[:1]
    assert (outcome.result, outcome.conflicts) == (("conflict", 1) if case.loses else ("done", 0)), outcome
    assert counted(name) - before == int(case.loses)
    if case.loses:
        assert outcome.reason
        assert bench.load(name).metadata_location == others[0], "all that has happened is what the other did"
        again = cared(care, name, case.kind)
        assert [o.result for o in again.outcomes] == ["done"] * case.done
        assert counted(name) - before == 1
    check(bench, name, case.rows, case.left)
    assert not cared(care, name, case.kind).changed, "nothing is left to do"


# Rows that leave by a statement of Spark's: it plans and commits by itself, so the other must be there all the time.


@contextmanager
def always_appending(bench: Bench, name: str) -> Iterator[Callable[[], list[int]]]:
    """Somebody who appends one old and one young row, again and again; called, it ends that and tells the young ids."""
    stop, young = threading.Event(), []

    def write() -> None:
        now = datetime.now(UTC)
        for i in range(1000, 10_000, 2):
            if stop.is_set():
                return
            rows = {"id": [i, i + 1], "name": ["x", "y"], "at": [now - timedelta(days=10), now]}
            table = bench.load(name)
            try:
                table.append(pa.Table.from_pydict(rows, schema=table.schema().as_arrow()))
            except CommitFailedException:  # upkeep was faster this time
                continue
            young.append(i + 1)

    def end() -> list[int]:
        stop.set()
        thread.join()
        return young

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield end
    finally:
        end()


def retained_beside(bench: Bench, name: str) -> tuple[Outcome, list[int]]:
    """Old rows leave, and others come until the second try; what came of it, and the young ids that came."""
    with always_appending(bench, name) as end:
        tries: list[str] = []

        def second(here: str) -> None:
            if here == "upkeep.retention.rows.before":
                tries.append(here)
                if len(tries) == 2:
                    end()

        with handled(second):
            report = cared(caring(bench, **RETENTION), name, "retention")
        return report.outcomes[0], end()


@pytest.mark.deep
def test_old_rows_that_come_while_old_rows_leave_are_a_conflict_and_leave_with_the_second_try(bench: Bench) -> None:
    for _ in range(5):
        name = old_rows(bench)
        before = counted(name)
        outcome, young = retained_beside(bench, name)
        if outcome.conflicts:
            break  # else no commit of the other came while the first try ran
    assert (outcome.result, outcome.conflicts) == ("done", 1), outcome
    assert counted(name) - before == 1
    # What PyIceberg has left behind where it lost is not upkeep's.
    assert bench.ids(name) == [i for i in range(40) if i % 10 >= 5] + young
    assert verify(bench.care, bench.load(name)).sound


# The spec of a table: it is changed without a step of its own.


def appends_before(monkeypatch: pytest.MonkeyPatch, bench: Bench, name: str, times: int) -> None:
    """Others commit after the table was loaded for its new spec, so many times."""
    real, done = partition._java_term, []

    def late(*args: Any) -> Any:
        if len(done) < times:
            done.append(True)
            bench.insert(name, 100 * len(done))
        return real(*args)

    monkeypatch.setattr(partition, "_java_term", late)


def test_a_new_spec_that_loses_against_a_commit_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    name = small_files(bench)
    appends_before(monkeypatch, bench, name, times=1)
    with striking("upkeep.partition.commit.before", lambda: None) as seen:
        applied = partition.apply(bench.care, bench.load(name), "bucket(2, id)", rewrite=True)
    assert seen.count("upkeep.partition.commit.before") == 2
    assert (applied.changed, applied.after, applied.left) == (True, "bucket(2, id)", 0)
    check(bench, name, [*range(40), *range(100, 110)], left=1)


def test_a_new_spec_that_always_loses_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    name = small_files(bench)
    appends_before(monkeypatch, bench, name, times=5)
    with pytest.raises(ConflictError):
        partition.apply(bench.care, bench.load(name), "bucket(2, id)")
    assert bench.load(name).spec().is_unpartitioned()
    check(bench, name, [*range(40), *(i for start in range(100, 600, 100) for i in range(start, start + 10))], left=5)


def test_the_same_spec_from_somebody_else_at_the_same_time_is_no_fault(bench: Bench) -> None:
    name = small_files(bench)
    other = f"ALTER TABLE {name} ADD PARTITION FIELD bucket(2, id)"
    with striking("upkeep.partition.commit.before", lambda: bench.sql(other)):
        applied = partition.apply(bench.care, bench.load(name), "bucket(2, id)", rewrite=True)
    assert (applied.before, applied.after, applied.changed, applied.left) == ("none", "bucket(2, id)", True, 0)
    check(bench, name, list(range(40)))


# An answer that is lost.


LOST: dict[str, tuple[Kind, Callable[[Bench], str], str, list[int], dict[str, Any]]] = {
    "compact in z-order": (
        "compact", small_files, "compact.commit", list(range(40)),
        {"min_input_files": 2, "strategy": "zorder", "sort_by": ["id", "name"]},
    ),
    "deletes": ("deletes", crowded_deletes, "deletes.commit", list(range(3, 40)), {"delete_files": 2}),
    "deletes that dangle": ("deletes", dangling_deletes, "deletes.dangling", list(range(2, 40)), {}),
    "retention of files": ("retention", old_files, "retention.commit", list(range(20, 40)), RETENTION),
    "retention of rows": (
        "retention", old_rows, "retention.rows", [i for i in range(40) if i % 10 >= 5], RETENTION,
    ),
    "manifests": ("manifests", small_manifests, "manifests.commit", list(range(40)), {"manifests": 2}),
}  # fmt: skip


def lose() -> None:
    raise CommitUnknownError("no answer")


@pytest.mark.parametrize("case", in_tiers(LOST, "deletes", "manifests"))
def test_a_commit_whose_answer_is_lost_is_looked_up(
    bench: Bench,
    case: tuple[Kind, Callable[[Bench], str], str, list[int], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, make, at, rows, policy = case
    monkeypatch.setattr("frazil.upkeep.rewrite.rewrite_commit._LOOKS", (0.0,))
    name = make(bench)
    care = caring(bench, **policy)
    with striking(f"upkeep.{at}.after", lose):
        report = cared(care, name, kind, tries=1)
    assert not report.errors
    (outcome,) = report.outcomes[:1]
    assert (outcome.result, outcome.conflicts) == ("done", 0), outcome
    assert outcome.snapshot_id in {s.snapshot_id for s in bench.load(name).metadata.snapshots}
    check(bench, name, rows)
    assert not cared(care, name, kind).changed


@dataclass
class Operation:
    """Iceberg's expiry, whose answer is lost."""

    real: Any
    lands: bool

    def commit(self) -> None:
        if self.lands:
            self.real.commit()
        lose()


def expired(bench: Bench, name: str) -> Outcome:
    table = bench.load(name)
    return expire.run(bench.care, table, step("expire", snapshots=old_ids(table)))


@pytest.mark.parametrize("lands", [True, False])
def test_an_expiry_whose_answer_is_lost_is_looked_up(
    bench: Bench, lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = small_files(bench)
    real = expire._prepared

    def prepared(*args: Any) -> tuple[Any, set[int]]:
        operation, going = real(*args)
        return Operation(operation, lands), going

    monkeypatch.setattr(expire, "_prepared", prepared)
    if lands:
        outcome = expired(bench, name)
        assert (outcome.result, outcome.snapshots_removed, outcome.conflicts) == ("done", 3, 0)
    else:
        with pytest.raises(CommitUnknownError):
            expired(bench, name)
    table = bench.load(name)
    (waits,) = expired_file_lists.waiting(bench.care.storage_of(table), table)
    assert waits.committed == lands, "where nobody knows, the list stays until somebody does"
    assert len(table.metadata.snapshots) == (1 if lands else 4)
    check(bench, name, list(range(40)))
    monkeypatch.setattr(expire, "_prepared", real)
    if not lands:
        assert expired(bench, name).snapshots_removed == 3
        check(bench, name, list(range(40)))


# What is told of it.


def test_metrics_have_what_was_done(bench: Bench) -> None:
    name = small_files(bench)
    (before,) = bench.sql(f"SELECT sum(file_size_in_bytes) FROM {name}.files")[0]
    report = run_upkeep(caring(bench, min_input_files=4, max_snapshots=1, file_grace_s=0.0), name.split(".", 1)[1])
    assert not report.errors
    (after,) = bench.sql(f"SELECT sum(file_size_in_bytes) FROM {name}.files")[0]

    def told(metric: Any, *labels: str) -> float:
        return float(metric.labels(name.split(".", 1)[1], *labels)._value.get())

    assert (told(metrics.FILES_BEFORE), told(metrics.FILES_AFTER)) == (4, 1)
    assert told(metrics.BYTES_REWRITTEN) == after
    assert told(metrics.BYTES_RECLAIMED) == sum(o.bytes_reclaimed for o in report.outcomes) > before
    assert told(metrics.CONFLICTS) == 0
    assert told(metrics.SECONDS) == report.seconds > 0
    for kind in ("compact", "expire", "reclaim", "metadata"):
        assert told(metrics.STEPS, kind, "done") == 1, kind
    assert (told(metrics.FILES), told(metrics.SNAPSHOTS)) == (1, 1)
