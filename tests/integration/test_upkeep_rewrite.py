"""Compaction: fewer files, the same rows, whoever writes meanwhile."""

from __future__ import annotations

import pytest

from frazil.errors import UsageError
from frazil.upkeep.model import Step
from frazil.upkeep.rewrite import compact
from frazil.upkeep.rewrite.rewrite_commit import ID
from tests.rewrite_kit import COMPACT, MIB, Bench, striking

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def bench(lane_settings, spark) -> Bench:
    return Bench(lane_settings, "sql", spark)


def run(bench: Bench, name: str, **options: object):
    return compact.run(bench.care, bench.load(name), Step("compact", "a test", options={**COMPACT, **options}))


def deletes(mode: str) -> dict[str, str]:
    return {f"write__{kind}__mode": mode for kind in ("delete", "update", "merge")}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_small_files_become_one_and_every_row_stays(bench, version):
    name = bench.table(version=version)
    bench.insert(name, *range(0, 60, 10))
    outcome = run(bench, name)
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", 6, 1)
    assert outcome.bytes_rewritten > 0
    assert bench.ids(name) == list(range(60))
    assert len(bench.files(name)) == 1
    assert outcome.snapshot_id == bench.load(name).metadata.current_snapshot_id
    assert run(bench, name).result == "nothing"
    assert bench.on_disk(name) == bench.known(name), "no file is left that no snapshot has"


def test_each_partition_is_merged_in_itself(bench):
    name = bench.table(partition="bucket(2, id)")
    for start in range(0, 40, 10):
        bench.insert(name, start)
    outcome = run(bench, name)
    assert (outcome.files_before, outcome.files_after) == (8, 2)
    assert bench.ids(name) == list(range(40))


def test_a_condition_chooses_partitions(bench):
    name = bench.table(partition="part", columns=", part INT")
    for part in (1, 2):
        bench.insert(name, *range(0, 30, 10), select=f"{part} AS part")
    assert run(bench, name, partition="part = 2").files_before == 3
    found = bench.sql(f"SELECT partition.part, count(*) FROM {name}.files GROUP BY 1 ORDER BY 1")
    assert found == [(1, 3), (2, 1)]


def test_one_turn_is_bounded_and_the_next_goes_on(bench):
    name = bench.table(columns=", noise STRING")
    bench.insert(name, *range(0, 8000, 1000), rows=1000, select="uuid() AS noise")
    size = bench.sql(f"SELECT max(file_size_in_bytes) FROM {name}.files")[0][0]
    # What was merged is larger than `below`, and stays.
    outcomes = [run(bench, name, target=2 * size + 100, below=size + 1, budget=2 * size + 200) for _ in range(5)]
    assert [o.files_before for o in outcomes] == [2, 2, 2, 2, 0]
    assert outcomes[-1].result == "nothing"
    assert bench.ids(name) == list(range(8000))


def test_files_that_somebody_wants_left_are_left(bench):
    name = bench.table()
    bench.insert(name, 0, 10, 20)
    one, *others = sorted(bench.files(name))
    assert run(bench, name, without=[one]).files_before == 2
    assert one in bench.files(name)
    assert run(bench, name, without=others + bench.files(name)).result == "nothing"
    assert run(bench, name, without=[one]).result == "nothing", "there is one other, and nothing to merge it with"
    assert bench.ids(name) == list(range(30))


def test_a_turn_takes_the_smallest_files_where_not_all_fit(bench):
    name = bench.table(columns=", noise STRING")
    bench.insert(name, *range(0, 4000, 2000), rows=2000, select="uuid() AS noise")
    bench.insert(name, *range(4000, 4040, 10), select="uuid() AS noise")
    size = bench.sql(f"SELECT max(file_size_in_bytes) FROM {name}.files")[0][0]
    # The two large ones together are more than the target, and would be two again.
    target = int(2 * size / 1.3)
    first = run(bench, name, target=target, below=target - 1, budget=target)
    assert first.result == "done" and first.files_before >= 4 and first.files_after == 1
    assert len(bench.files(name)) < 4
    outcomes = [run(bench, name, target=target, below=target - 1, budget=target).result for _ in range(3)]
    assert outcomes[-1] == "nothing"
    assert bench.ids(name) == list(range(4040))


def test_files_that_are_large_enough_are_left(bench):
    name = bench.table()
    bench.insert(name, 0, rows=20_000)
    bench.insert(name, *range(20_000, 20_030, 10))
    large = bench.sql(f"SELECT file_path FROM {name}.files ORDER BY file_size_in_bytes DESC LIMIT 1")[0][0]
    assert run(bench, name, below=10_000).files_before == 3
    assert large in bench.files(name)


@pytest.mark.parametrize("version", [2, 3])
def test_deleted_rows_leave_with_a_file_that_has_lost_many(bench, version):
    name = bench.table(version=version, **deletes("merge-on-read"))
    bench.insert(name, 0, rows=100)
    bench.sql(f"DELETE FROM {name} WHERE id % 2 = 0")
    assert len(bench.files(name, content=1)) == 1
    outcome = run(bench, name, below=1, min_files=5)
    assert (outcome.result, outcome.files_after) == ("done", 1)
    assert bench.ids(name) == list(range(1, 100, 2))
    assert bench.sql(f"SELECT sum(record_count) FROM {name}.data_files") == [(50,)]


def test_rows_keep_their_ids_in_v3(bench):
    name = bench.table(version=3)
    bench.insert(name, 0, 10, 20)
    before = bench.sql(f"SELECT id, _row_id, _last_updated_sequence_number FROM {name} ORDER BY id")
    assert run(bench, name).result == "done"
    assert bench.sql(f"SELECT id, _row_id, _last_updated_sequence_number FROM {name} ORDER BY id") == before


# Rows that another writer deletes while a compaction is under way must never come back.


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("step", ["plan.after", "commit.before"])
def test_rows_deleted_by_a_merge_meanwhile_do_not_come_back(bench, version, mode, step):
    name = bench.table(version=version, **deletes(mode))
    bench.insert(name, *range(0, 30, 10))

    def merge() -> None:
        bench.sql(f"MERGE INTO {name} t USING (SELECT id FROM range(5, 15)) s ON t.id = s.id WHEN MATCHED THEN DELETE")

    with striking(f"upkeep.compact.{step}", merge):
        outcome = run(bench, name)
    assert (outcome.result, outcome.conflicts, outcome.snapshot_id) == ("conflict", 1, None)
    assert outcome.reason
    left = [*range(5), *range(15, 30)]
    assert bench.ids(name) == left
    assert bench.on_disk(name) == bench.known(name), "the new files were removed"
    assert run(bench, name).result == "done"
    assert bench.ids(name) == left


def test_rows_appended_meanwhile_are_no_conflict(bench):
    name = bench.table()
    bench.insert(name, 0, 10, 20)
    with striking("upkeep.compact.commit.before", lambda: bench.insert(name, 30)):
        outcome = run(bench, name)
    assert outcome.result == "done"
    assert bench.ids(name) == list(range(40))


def test_two_compactions_at_once_are_one_and_a_conflict(bench):
    name = bench.table()
    bench.insert(name, 0, 10, 20)
    inner = []
    with striking("upkeep.compact.commit.before", lambda: inner.append(run(bench, name))):
        outer = run(bench, name)
    assert (inner[0].result, outer.result) == ("done", "conflict")
    assert bench.ids(name) == list(range(30))
    assert bench.on_disk(name) == bench.known(name)


@pytest.mark.parametrize("step", ["rewrite.after", "commit.before"])
def test_a_failure_before_the_commit_leaves_no_file(bench, step):
    name = bench.table()
    bench.insert(name, 0, 10, 20)

    def fail() -> None:
        raise OSError("struck")

    with pytest.raises(OSError, match="struck"), striking(f"upkeep.compact.{step}", fail):
        run(bench, name)
    assert bench.on_disk(name) == bench.known(name)
    assert run(bench, name).result == "done"


def test_a_reply_that_was_lost_is_looked_up(bench, monkeypatch):
    from frazil.tables import CommitUnknownError
    from frazil.upkeep.rewrite import compact as module

    name = bench.table()
    bench.insert(name, 0, 10, 20)
    real = module.commit

    def commit_and_lose(turn, groups):
        real(turn, groups)
        raise CommitUnknownError("no answer")

    monkeypatch.setattr(module, "commit", commit_and_lose)
    monkeypatch.setattr("frazil.upkeep.rewrite.rewrite_commit._LOOKS", (0.0,))
    outcome = run(bench, name)
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", 3, 1)

    def lose(turn, groups):
        with turn.step("commit"):
            raise CommitUnknownError("no answer")

    bench.insert(name, 30, 40)
    monkeypatch.setattr(module, "commit", lose)
    outcome = run(bench, name)
    assert (outcome.result, outcome.snapshot_id) == ("failed", None)
    assert bench.on_disk(name) > bench.known(name), "the new files stay: the commit may still arrive"


def test_nothing_begins_once_it_shall_stop(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    bench.care.stop.set()
    try:
        assert run(bench, name).result == "nothing"
    finally:
        bench.care.stop.clear()
    with striking("upkeep.compact.plan.after", bench.care.stop.set):
        outcome = run(bench, name)
    bench.care.stop.clear()
    assert (outcome.result, outcome.reason) == ("nothing", "asked to stop")
    assert len(bench.files(name)) == 2


def test_an_empty_table_has_nothing_to_do(bench):
    assert run(bench, bench.table()).result == "nothing"


# Order.


def rows_in_files(bench: Bench, name: str, column: str = "id") -> list[list]:
    """The values of a column as they lie in each data file."""
    import pyarrow.parquet as pq

    paths = [path.removeprefix("file:") for path in bench.files(name)]
    return [pq.read_table(path, columns=[column])[column].to_pylist() for path in paths]


@pytest.mark.deep
@pytest.mark.parametrize("order", ["id", "id DESC", "id, name", "name"])
def test_files_of_a_sorted_table_stay_sorted(bench, order):
    name = bench.table(order=order)
    bench.insert(name, 40, 0, 20, 60, rows=20)
    outcome = run(bench, name)
    assert (outcome.result, outcome.files_after) == ("done", 1)
    key = "name" if order == "name" else "id"
    found = rows_in_files(bench, name, key)
    assert found == [sorted(found[0], reverse="DESC" in order)]
    assert bench.sql(f"SELECT DISTINCT sort_order_id FROM {name}.files") == [(1,)]


def test_files_that_overlap_are_sorted_anew_across_all_new_files(bench):
    name = bench.table(order="id")
    for shift in range(4):
        bench.spark.range(0, 40_000, 1, 1).selectExpr(f"id * 4 + {shift} AS id", "'x' AS name").writeTo(name).append()
    size = bench.sql(f"SELECT max(file_size_in_bytes) FROM {name}.files")[0][0]
    outcome = run(bench, name, target=2 * size, below=2 * size - 1)
    found = sorted(rows_in_files(bench, name))
    assert outcome.files_after == len(found) > 1
    assert [i for part in found for i in part] == list(range(160_000))


def test_another_order_than_the_tables_own(bench):
    name = bench.table(order="id", partition="bucket(2, id)")
    bench.insert(name, 0, 20, rows=20)
    assert run(bench, name, strategy="sort", sort_by=["name desc"]).result == "done"
    for names in rows_in_files(bench, name, "name"):
        assert names == sorted(names, reverse=True)
    assert bench.sql(f"SELECT DISTINCT sort_order_id FROM {name}.files") == [(0,)]


def test_z_order_works_on_a_table_that_was_made_with_an_order(bench, tmp_path):
    import pyarrow as pa

    from frazil.tables import ensure_table

    short = f"{bench.namespace}.z_ordered"
    made = ensure_table(bench.care.store, short, pa.schema([("id", pa.int64()), ("name", pa.string())]), sort=["id"])
    assert [o.order_id for o in made.metadata.sort_orders] == [1], "it does not know order 0, which Iceberg 1.12 wants"
    name = f"{bench.catalog}.{short}"
    bench.insert(name, 0, 10, 20)
    outcome = run(bench, name, strategy="zorder", sort_by=["id", "name"])
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", 3, 1)
    assert bench.ids(name) == list(range(30))
    assert bench.load(name).sort_order().order_id == 1, "the table's own order stays"
    assert run(bench, name, strategy="zorder", sort_by=["id", "name"]).result == "nothing"


# Bad input.


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "sort"},
        {"strategy": "zorder"},
        {"strategy": "by hand"},
        {"sort_by": ["nix"]},
        {"sort_by": ["id sideways"]},
        {"delete_ratio": 2.0},
        {"target": -1},
    ],
    ids=str,
)
def test_options_that_do_not_fit_change_nothing(bench, options):
    name = bench.table()
    bench.insert(name, 0, 10)
    before = bench.load(name).metadata_location
    with pytest.raises(UsageError):
        run(bench, name, **options)
    assert bench.load(name).metadata_location == before
    assert bench.on_disk(name) == bench.known(name)


def test_its_snapshot_says_what_it_is(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    assert run(bench, name, target=2 * MIB, below=MIB).result == "done"
    summary = bench.load(name).current_snapshot().summary
    assert summary["frazil.upkeep"] == "compact"
    assert summary[ID]


def test_what_it_added_is_on_disk_when_it_says_that_it_is_done(bench, monkeypatch):
    name = bench.table()
    bench.insert(name, 0, 10)
    synced: set[str] = set()
    monkeypatch.setattr("frazil.upkeep.rewrite.rewrite_commit.sync_files", synced.update)
    monkeypatch.setattr(
        "frazil.upkeep.rewrite.rewrite_commit.sync_metadata", lambda table: synced.add(table.metadata_location)
    )
    assert run(bench, name).result == "done"
    table = bench.load(name)
    snapshot = table.current_snapshot()
    added = [m.manifest_path for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
    assert synced == {*bench.files(name), *added, snapshot.manifest_list, table.metadata_location}
