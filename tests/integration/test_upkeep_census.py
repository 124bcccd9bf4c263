"""The census of tables that Spark and Iceberg's Java writers made, held against what Spark says of them."""

from __future__ import annotations

import pytest

from frazil.settings import load_settings
from frazil.upkeep.model import Step
from frazil.upkeep.plans.census import Census, take
from frazil.upkeep.plans.conditions import condition_of
from frazil.upkeep.plans.plan import plan
from frazil.upkeep.policy import Policy, policy_for
from frazil.upkeep.rewrite import compact
from tests.rewrite_kit import Bench, delete_equal

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ON_READ = {f"write__{kind}__mode": "merge-on-read" for kind in ("delete", "update", "merge")}


@pytest.fixture(scope="module")
def bench(lane_settings, spark) -> Bench:
    return Bench(lane_settings, "sql", spark)


def look(bench: Bench, name: str, **flags: str) -> tuple[Census, Policy]:
    table = bench.load(name)
    policy = policy_for(load_settings(flags={f"upkeep.policy.{k}": v for k, v in flags.items()}, environ={}), table)
    return take(bench.care, table, policy), policy


def told_by_spark(bench: Bench, name: str) -> tuple[int, int, int]:
    """Data files, their bytes, their rows."""
    ((files, size, rows),) = bench.sql(
        f"SELECT count(*), sum(file_size_in_bytes), sum(record_count) FROM {name}.data_files"
    )
    return files, size, rows


@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_are_counted_as_spark_counts_them(bench: Bench, version: int):
    name = bench.table(version=version, partition="bucket(3, id)")
    bench.insert(name, 0, 10, 20)
    found, _ = look(bench, name)
    assert (found.files, found.bytes, found.rows) == told_by_spark(bench, name)
    per_bucket = bench.sql(f"SELECT partition.id_bucket, count(*) FROM {name}.data_files GROUP BY 1 ORDER BY 1")
    assert sorted((g.partition[0], sum(g.files)) for g in found.groups) == per_bucket
    assert [(found.manifests.count,)] == bench.sql(f"SELECT count(*) FROM {name}.manifests")
    assert found.metadata.format_version == version


def test_position_deletes_are_known_by_their_file(bench: Bench):
    name = bench.table(version=2, **ON_READ)
    bench.insert(name, 0, 10)
    bench.sql(f"DELETE FROM {name} WHERE id < 4")
    bench.sql(f"DELETE FROM {name} WHERE id = 12")
    found, policy = look(bench, name)
    assert (found.deletes.position_files, found.deletes.vectors, found.deletes.rows) == (2, 0, 5)
    (group,) = found.groups
    assert (group.dirty_files, group.deleted_rows, group.position_files) == (1, 5, 0)
    step = next(s for s in plan(found, policy) if s.kind == "compact")
    assert (step.cost, step.options["below"]) == (group.dirty_bytes, 1)
    assert compact.run(bench.care, bench.load(name), step).files_before >= 1
    after, policy = look(bench, name)
    assert (after.files, after.groups[0].dirty_files) == (2, 0)
    assert "compact" not in [s.kind for s in plan(after, policy)]


def test_deletion_vectors_are_known_by_their_file(bench: Bench):
    name = bench.table(version=3, **ON_READ)
    bench.insert(name, 0, 10)
    bench.sql(f"DELETE FROM {name} WHERE id < 4")
    bench.sql(f"DELETE FROM {name} WHERE id IN (5, 12)")
    found, _ = look(bench, name)
    assert (found.deletes.position_files, found.deletes.vectors, found.deletes.rows) == (0, 2, 6)
    assert found.deletes.vector_bytes > 0
    (group,) = found.groups
    assert (group.dirty_files, group.deleted_rows, found.deletes.dangling) == (1, 6, 0)
    assert found.rows == 20


def test_equality_deletes_are_applied_by_what_is_planned(bench: Bench):
    name = bench.table(version=2)
    bench.insert(name, 0, 10)
    for number in range(3):
        delete_equal(bench, name, f"person {number}")
    bench.insert(name, 20)
    found, policy = look(bench, name, delete_files="3")
    assert (found.deletes.equality_files, found.deleted_rows) == (3, 0)
    (group,) = found.groups
    assert (group.equality_files, group.burdened_files) == (3, 1), "only the first file can have such names"
    step = next(s for s in plan(found, policy) if s.kind == "compact")
    assert step.why == "many delete files apply to 1 file"
    compact.run(bench.care, bench.load(name), step)
    after, policy = look(bench, name, delete_files="3")
    assert after.rows == 27
    assert [s.kind for s in plan(after, policy) if s.kind in ("compact", "deletes")] == []
    assert bench.ids(name) == list(range(3, 30))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("partition", "columns", "select"),
    [
        ("part", ", part STRING", ["IF(id % 2 = 0, 'it\\'s', NULL) AS part"]),
        ("bucket(2, id)", "", []),
        ("truncate(5, id)", "", []),
        ("days(at)", ", at TIMESTAMP", ["timestampadd(HOUR, id, TIMESTAMP '2026-01-01 20:00:00') AS at"]),
        ("hours(at)", ", at TIMESTAMP_NTZ", ["timestampadd(MINUTE, id, TIMESTAMP_NTZ '2026-01-01 23:55:00') AS at"]),
        ("months(at), part", ", at DATE, part INT", ["date_add('2026-01-28', CAST(id AS INT)) AS at", "1 AS part"]),
    ],
)
@pytest.mark.parametrize("strategy", ["binpack", "sort", "zorder"])
def test_a_step_is_kept_to_the_partitions_that_it_names(
    bench: Bench, partition: str, columns: str, select: list[str], strategy: str
):
    name = bench.table(partition=partition, columns=columns)
    for _ in range(3):
        frame = bench.spark.range(0, 10, 1, 1).selectExpr("id", "'a' AS name", *select)
        frame.writeTo(name).append()
    found, _ = look(bench, name)
    assert len(found.groups) > 1
    chosen = found.groups[0]
    metadata = found.metadata
    condition = condition_of(metadata.schema(), metadata.specs()[metadata.default_spec_id], chosen.partition)
    assert condition is not None
    options = {"target": 2**24, "below": 2**23, "min_files": 2, "partition": condition, "strategy": strategy}
    options |= {"sort_by": {"sort": ["name"], "zorder": ["id", "name"]}.get(strategy, [])}
    outcome = compact.run(bench.care, bench.load(name), Step("compact", "a test", options=options))
    assert (outcome.files_before, outcome.files_after) == (sum(chosen.files), 1)
    after, _ = look(bench, name)
    counts = {group.partition: sum(group.files) for group in after.groups}
    assert counts == {g.partition: 1 if g is chosen else sum(g.files) for g in found.groups}


def test_what_is_planned_is_done_and_then_there_is_nothing_to_plan(bench: Bench):
    name = bench.table(partition="bucket(2, id)")
    for start in range(0, 120, 10):
        bench.insert(name, start)
    found, policy = look(bench, name)
    step = next(s for s in plan(found, policy) if s.kind == "compact")
    assert (step.gain["files"], step.cost) == (22, found.bytes)
    outcome = compact.run(bench.care, bench.load(name), step)
    assert (outcome.files_before, outcome.files_after) == (24, 2)
    after, policy = look(bench, name)
    assert "compact" not in [s.kind for s in plan(after, policy)]
    assert bench.ids(name) == list(range(120))
