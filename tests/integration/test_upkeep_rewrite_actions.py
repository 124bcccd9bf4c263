"""Deletes, manifests, statistics, retention, metadata and partitions: each changes what it says, and no row."""

from __future__ import annotations

import datetime
import json

import pytest

from frazil.errors import UnsupportedError, UsageError
from frazil.upkeep.model import Step
from frazil.upkeep.rewrite import compact, deletes, manifests, metadata, partition, retention, statistics
from frazil.upkeep.rewrite.partition_plan import plan
from tests.rewrite_kit import COMPACT, MIB, Bench, delete_equal, striking

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def bench(lane_settings, spark) -> Bench:
    return Bench(lane_settings, "sql", spark)


def do(action, bench: Bench, name: str, **options: object):
    kind = {"statistics": "stats"}.get(short := action.__name__.rpartition(".")[2], short)
    return action.run(bench.care, bench.load(name), Step(kind, "a test", options=options))


MERGE_ON_READ = {"write__delete__mode": "merge-on-read", "write__delete__granularity": "partition"}


# Deletes.


def test_position_deletes_are_merged(bench):
    name = bench.table(**MERGE_ON_READ)
    bench.insert(name, 0, rows=100)
    for i in range(3):
        bench.sql(f"DELETE FROM {name} WHERE id = {i}")
    assert len(bench.files(name, content=1)) == 3
    outcome = do(deletes, bench, name, min_files=2)
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", 3, 1)
    assert bench.ids(name) == list(range(3, 100))
    assert do(deletes, bench, name, min_files=2).result == "nothing"


@pytest.mark.deep
def test_deletes_merged_while_others_compact_are_a_conflict_and_leave_nothing(bench):
    name = bench.table(**MERGE_ON_READ)
    bench.insert(name, 0, 100, rows=100)
    for i in range(3):
        bench.sql(f"DELETE FROM {name} WHERE id = {i}")

    def merge_first() -> None:
        assert do(deletes, bench, name, min_files=2).result == "done"

    with striking("upkeep.deletes.commit.before", merge_first):
        assert do(deletes, bench, name, min_files=2).result == "conflict"
    assert bench.ids(name) == list(range(3, 200))
    assert bench.on_disk(name) == bench.known(name)


def test_deletes_without_a_data_file_go(bench):
    name = bench.table(partition="part", columns=", part INT", **MERGE_ON_READ)
    bench.insert(name, 0, rows=100, select="1 AS part")
    bench.insert(name, 100, rows=100, select="2 AS part")
    bench.sql(f"DELETE FROM {name} WHERE id IN (1, 150)")
    do(compact, bench, name, **{**COMPACT, "delete_ratio": 0.005, "below": 1})
    dangling = len(bench.files(name, content=1))
    outcome = do(deletes, bench, name)
    assert bench.files(name, content=1) == []
    assert outcome.files_before == dangling
    assert bench.ids(name) == [i for i in range(200) if i not in (1, 150)]


def test_old_position_deletes_become_vectors_in_v3(bench):
    name = bench.table(**MERGE_ON_READ)
    bench.insert(name, 0, rows=100)
    bench.sql(f"DELETE FROM {name} WHERE id = 1")
    bench.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version'='3')")
    outcome = do(deletes, bench, name, min_files=1)
    assert outcome.result == "done"
    assert bench.sql(f"SELECT file_format FROM {name}.delete_files") == [("PUFFIN",)]
    assert bench.ids(name) == [0, *range(2, 100)]
    assert do(deletes, bench, name, min_files=1).result == "nothing"


def crowded(bench: Bench, parts: int) -> str:
    """A table of v2 whose partitions have three files each of deletes for two data files, the last one four."""
    name = bench.table(partition="part", columns=", part INT", **MERGE_ON_READ)
    rows = 5 * parts
    bench.insert(name, 0, rows, rows=rows, select=f"CAST(id % {parts} AS INT) AS part")
    for i in range(3):
        bench.sql(f"DELETE FROM {name} WHERE id % {rows} >= {i * parts} AND id % {rows} < {(i + 1) * parts}")
    bench.sql(f"DELETE FROM {name} WHERE id % {rows} = {4 * parts - 1}")
    return name


def per_partition(bench: Bench, name: str) -> list[int]:
    return [n for (n,) in bench.sql(f"SELECT count(*) FROM {name}.delete_files GROUP BY partition ORDER BY 1")]


@pytest.mark.deep
def test_one_turn_of_deletes_is_bounded_and_the_next_goes_on(bench):
    name = crowded(bench, 5)
    left = bench.ids(name)
    found = []
    for _ in range(10):
        outcome = do(deletes, bench, name, min_files=3, budget=1)
        if outcome.result == "nothing":
            break
        found.append((outcome.result, outcome.files_before, outcome.files_after))
        assert bench.ids(name) == left
    assert found == [("done", 4, 1), *[("done", 3, 1)] * 4], "a partition each, the one with most files first"
    assert per_partition(bench, name) == [1] * 5
    assert bench.on_disk(name) == bench.known(name)


@pytest.mark.deep
def test_delete_files_that_stay_as_many_do_not_keep_others_from_their_turn(bench):
    """As Spark writes them by default, each data file has its own; one in another partition has three."""
    name = bench.table(partition="part", columns=", part INT", write__delete__mode="merge-on-read")
    bench.insert(name, *range(0, 40, 10), select="1 AS part")
    bench.sql(f"DELETE FROM {name} WHERE id % 10 = 0")
    bench.insert(name, 100, select="2 AS part")
    bench.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.granularity'='partition')")
    for i in range(3):
        bench.sql(f"DELETE FROM {name} WHERE id = {100 + i}")
    bench.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('write.delete.granularity')")
    left = bench.ids(name)
    before = per_partition(bench, name)
    outcome = do(deletes, bench, name, min_files=2, budget=1)
    assert (before, outcome.files_before, outcome.files_after) == ([3, 4], 3, 1)
    assert do(deletes, bench, name, min_files=2, budget=1).result == "nothing"
    assert (per_partition(bench, name), bench.ids(name)) == ([1, 4], left)


@pytest.mark.deep
def test_within_its_budget_a_turn_of_deletes_takes_several_partitions(bench):
    name = crowded(bench, 5)
    left = bench.ids(name)
    turns = [do(deletes, bench, name, min_files=3, budget=13 * MIB) for _ in range(3)]
    assert [(o.result, o.files_before) for o in turns] == [("done", 10), ("done", 6), ("nothing", 0)]
    assert bench.ids(name) == left


@pytest.mark.deep
def test_old_position_deletes_become_vectors_one_partition_after_the_other(bench):
    name = crowded(bench, 3)
    bench.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version'='3')")
    bench.sql(f"DELETE FROM {name} WHERE id IN (12, 13)")  # vectors beside files, in two of the partitions
    left = bench.ids(name)
    for turn in range(3):
        assert do(deletes, bench, name, budget=1).result == "done", turn
        assert bench.ids(name) == left
        old = bench.sql(f"SELECT DISTINCT partition FROM {name}.delete_files WHERE file_format <> 'PUFFIN'")
        assert len(old) == 2 - turn
    assert do(deletes, bench, name, budget=1).result == "nothing"
    assert per_partition(bench, name) == [2, 2, 2], "one vector for each data file"


@pytest.mark.deep
def test_a_turn_of_deletes_that_fails_leaves_no_file(bench):
    name = crowded(bench, 3)

    def fail() -> None:
        raise UnsupportedError("struck")

    with striking("upkeep.deletes.rewrite.after", fail):
        assert do(deletes, bench, name, min_files=3).result == "unsupported"
    assert per_partition(bench, name) == [3, 3, 4]
    assert bench.on_disk(name) == bench.known(name)


def test_a_table_of_v1_has_no_deletes(bench):
    name = bench.table(version=1)
    bench.insert(name, 0)
    assert do(deletes, bench, name).result == "nothing"


@pytest.mark.parametrize("version", [2, 3])
def test_compaction_applies_equality_deletes(bench, version):
    name = bench.table(version=version)
    bench.insert(name, 0, 10)
    for i in (3, 14):
        delete_equal(bench, name, f"person {i}")
    left = [i for i in range(20) if i not in (3, 14)]
    assert bench.ids(name) == left
    outcome = do(compact, bench, name, **{**COMPACT, "delete_files": 1, "below": 1, "min_files": 100})
    assert outcome.result == "done", "no file is small; they are taken for their deletes"
    assert bench.ids(name) == left
    assert bench.sql(f"SELECT sum(record_count) FROM {name}.data_files") == [(18,)]
    do(deletes, bench, name)
    assert bench.files(name, content=2) == []


def test_an_equality_delete_that_comes_while_files_are_merged_still_applies(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    with striking("upkeep.compact.commit.before", lambda: delete_equal(bench, name, "person 7")):
        assert do(compact, bench, name, **COMPACT).result == "done"
    assert bench.ids(name) == [i for i in range(20) if i != 7]


# Manifests.


@pytest.mark.parametrize("version", [1, 2, 3])
def test_small_manifests_become_one(bench, version):
    name = bench.table(version=version, commit__manifest_merge__enabled="false")
    bench.insert(name, *range(0, 50, 10))
    outcome = do(manifests, bench, name, small=5)
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", 5, 1)
    assert outcome.bytes_rewritten > 0
    assert bench.ids(name) == list(range(50))
    assert do(manifests, bench, name, small=2).result == "nothing"


def test_large_manifests_are_left(bench):
    name = bench.table(commit__manifest_merge__enabled="false")
    bench.insert(name, *range(0, 30, 10))
    bench.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('commit.manifest.target-size-bytes'='1000')")
    before = bench.load(name).metadata_location
    assert do(manifests, bench, name, small=2).result == "nothing"
    assert bench.load(name).metadata_location == before


def metadata_files(bench: Bench, name: str) -> set[str]:
    from pathlib import Path

    folder = Path(bench.load(name).location().removeprefix("file:")) / "metadata"
    return {p.name for p in folder.glob("*.avro")}


def test_manifests_that_lose_the_race_are_removed(bench, monkeypatch):
    name = bench.table(commit__manifest_merge__enabled="false", commit__retry__num_retries="0")
    bench.insert(name, *range(0, 30, 10))
    from frazil.upkeep.rewrite import manifests as module

    real, begun, after = module._chosen, [], []

    def stale(turn):
        found = real(turn)
        # Another one is faster, after this one has chosen.
        if not begun:
            begun.append(True)
            after.extend((do(manifests, bench, name, small=2), metadata_files(bench, name)))
        return found

    monkeypatch.setattr(module, "_chosen", stale)
    outcome = do(manifests, bench, name, small=2)
    assert (after[0].result, outcome.result) == ("done", "conflict")
    assert metadata_files(bench, name) == after[1], "no file of the loser is left"
    assert bench.ids(name) == list(range(30))


# Statistics.


def test_statistics_are_computed_once_per_snapshot(bench):
    name = bench.table()
    bench.insert(name, 0, rows=100)
    outcome = do(statistics, bench, name, columns=["id"])
    assert (outcome.result, outcome.files_after, outcome.snapshot_id) == ("done", 1, None)
    found = bench.load(name).metadata.statistics
    assert [b.properties["ndv"] for s in found for b in s.blob_metadata] == ["100"]
    assert do(statistics, bench, name).result == "nothing"
    bench.insert(name, 100)
    assert do(statistics, bench, name).result == "done"


def test_statistics_are_kept_though_rows_come_in_meanwhile(bench):
    name = bench.table()
    bench.insert(name, 0)
    with striking("upkeep.stats.commit.after", lambda: bench.insert(name, 10)):
        assert do(statistics, bench, name).result == "done"


def test_statistics_of_an_unknown_column_are_refused(bench):
    name = bench.table()
    bench.insert(name, 0)
    with pytest.raises(UsageError, match="nix"):
        do(statistics, bench, name, columns=["nix"])


def test_a_catalog_that_takes_no_statistics_is_told_as_such(bench):
    name = bench.table()
    bench.insert(name, 0)

    def refuse() -> None:
        raise UnsupportedError("no Puffin files here")

    with striking("upkeep.stats.commit.before", refuse):
        outcome = do(statistics, bench, name)
    assert (outcome.result, outcome.reason) == ("unsupported", "no Puffin files here")


# Retention.


def at(day: int) -> int:
    return int(datetime.datetime(2026, 1, day, tzinfo=datetime.UTC).timestamp() * 1_000_000)


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_NTZ", "DATE"])
def test_files_with_only_old_rows_leave_without_being_read(bench, kind):
    name = bench.table(columns=f", day {kind}")
    for day in (1, 2, 3):
        bench.insert(name, day * 10, select=f"CAST('2026-01-0{day}' AS {kind}) AS day")
    outcome = do(retention, bench, name, column="day", before_us=at(3))
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", 2, 0)
    assert bench.ids(name) == list(range(30, 40))
    assert do(retention, bench, name, column="day", before_us=at(3)).result == "nothing"


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_old_rows_in_a_file_with_younger_ones_leave_when_asked(bench, mode):
    name = bench.table(columns=", at TIMESTAMP", write__delete__mode=mode)
    bench.insert(name, 0, rows=48, select="timestamp_seconds(1767225600 + id * 3600) AS at")
    whole = do(retention, bench, name, column="at", before_us=at(2))
    assert whole.result == "nothing", "the file has younger rows"
    outcome = do(retention, bench, name, column="at", before_us=at(2), exact=True)
    assert outcome.result == "done"
    assert bench.ids(name) == list(range(24, 48))
    assert bench.load(name).current_snapshot().summary["frazil.upkeep"] == "retention"
    assert do(retention, bench, name, column="at", before_us=at(2), exact=True).result == "nothing"


@pytest.mark.parametrize("column", ["nix", "name"])
def test_retention_needs_a_time_column(bench, column):
    name = bench.table()
    bench.insert(name, 0)
    with pytest.raises(UsageError, match=column):
        do(retention, bench, name, column=column, before_us=0)
    assert bench.ids(name) == list(range(10))


# Metadata.


def test_a_table_is_told_how_many_metadata_files_to_keep(bench):
    name = bench.table()
    bench.insert(name, 0)
    outcome = do(metadata, bench, name, versions=3)
    assert (outcome.result, outcome.snapshot_id) == ("done", None)
    properties = bench.load(name).metadata.properties
    assert properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert properties["write.metadata.previous-versions-max"] == "3"
    assert do(metadata, bench, name, versions=3).result == "nothing"
    with pytest.raises(UsageError):
        do(metadata, bench, name, versions=0)


# Partitions.


def specs(bench: Bench, name: str) -> list[tuple]:
    return bench.sql(f"SELECT spec_id, count(*), sum(record_count) FROM {name}.data_files GROUP BY 1 ORDER BY 1")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_new_spec_is_for_new_files_and_old_ones_follow_when_asked(bench, version):
    name = bench.table(version=version, columns=", at TIMESTAMP")
    hour = "timestamp_seconds(1767225600 + id * 3600) AS at"
    bench.insert(name, 0, 48, rows=48, select=hour)
    applied = partition.apply(bench.care, bench.load(name), "day(at), bucket(2, id)")
    assert (applied.before, applied.after, applied.changed, applied.left) == (
        "none", "day(at), bucket(2, id)", True, 2,
    )  # fmt: skip
    bench.insert(name, 96, rows=2, select=hour)
    assert len(specs(bench, name)) == 2
    again = partition.apply(bench.care, bench.load(name), "day(at), bucket(2, id)", rewrite=True, budget=1)
    assert (again.changed, again.left) == (False, 0)
    assert [o.result for o in again.outcomes] == ["done"]
    assert [row[2] for row in specs(bench, name)] == [98]
    assert bench.ids(name) == list(range(98))
    per_day = bench.sql(f"SELECT partition.at_day, sum(record_count) FROM {name}.files GROUP BY 1 ORDER BY 1")
    assert [row[1] for row in per_day] == [24, 24, 24, 24, 2]


def test_fields_of_a_spec_come_and_go(bench):
    name = bench.table(partition="bucket(4, id)", columns=", at DATE")
    bench.insert(name, 0, select="DATE '2026-01-01' AS at")
    assert partition.apply(bench.care, bench.load(name), "month(at), bucket(4, id)").after.startswith("bucket(4, id)")
    assert partition.apply(bench.care, bench.load(name), "bucket(8, id)").after == "bucket(8, id)"
    gone = partition.apply(bench.care, bench.load(name), "none", rewrite=True)
    assert (gone.after, gone.left) == ("none", 0)
    assert bench.ids(name) == list(range(10))
    bench.insert(name, 10, select="DATE '2026-01-02' AS at")
    assert bench.ids(name) == list(range(20))


@pytest.mark.parametrize("spec", ["day(nix)", "day(name)", "week(id)", "bucket(id)", "id, id", "", "id,,name"])
def test_a_spec_that_does_not_fit_changes_nothing(bench, spec):
    name = bench.table()
    bench.insert(name, 0)
    before = bench.load(name).metadata_location
    with pytest.raises(UsageError):
        partition.apply(bench.care, bench.load(name), spec)
    assert bench.load(name).metadata_location == before


def test_rows_deleted_while_a_table_is_repartitioned_do_not_come_back(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    strike = striking("upkeep.compact.commit.before", lambda: bench.sql(f"DELETE FROM {name} WHERE id = 5"))
    with strike:
        applied = partition.apply(bench.care, bench.load(name), "bucket(2, id)", rewrite=True)
    assert [o.result for o in applied.outcomes] == ["conflict"]
    assert applied.left > 0
    assert bench.ids(name) == [i for i in range(20) if i != 5]
    assert partition.apply(bench.care, bench.load(name), "bucket(2, id)", rewrite=True).left == 0
    assert bench.ids(name) == [i for i in range(20) if i != 5]


def test_a_small_table_needs_no_partitions(bench):
    name = bench.table()
    bench.insert(name, 0)
    proposal = plan(bench.care, bench.load(name))
    assert not proposal.change
    assert proposal.reasons


# By hand.


def frazil(capsys, *args: str) -> tuple[int, str, str]:
    from frazil.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main([*args, "--output", "json"])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture
def by_hand(bench, monkeypatch, tmp_path):
    """The commands on this catalog and session: a process has one."""
    import contextlib

    from frazil.upkeep.runs import open_context

    @contextlib.contextmanager
    def opened(*_args, **_options):
        yield bench.care

    monkeypatch.setattr(open_context, "open_context", opened)
    return bench


def test_the_commands_do_what_they_say(by_hand, capsys):
    name = by_hand.table(columns=", day DATE", commit__manifest_merge__enabled="false")
    short = name.split(".", 1)[1]
    by_hand.insert(name, *range(0, 40, 10), select="DATE '2026-01-01' AS day")
    code, out, _ = frazil(capsys, "table", "compact", short, "--min-files", "2", "--dry-run")
    assert (code, json.loads(out)["files"], json.loads(out)["becoming"]) == (0, 4, 1)
    assert len(by_hand.files(name)) == 4
    code, out, _ = frazil(capsys, "table", "manifests", short, "--dry-run")
    assert (code, json.loads(out)["files"]) == (0, 4)
    code, out, _ = frazil(capsys, "table", "manifests", short)
    assert (code, json.loads(out)["files_before"], json.loads(out)["files_after"]) == (0, 4, 1)
    code, out, _ = frazil(capsys, "table", "compact", short, "--min-files", "2", "--sort-by", "id desc")
    told = json.loads(out)
    assert (code, told["result"], told["commits"], told["files_before"], told["files_after"]) == (0, "done", 1, 4, 1)
    code, out, _ = frazil(capsys, "table", "compact", short)
    assert (code, json.loads(out)["result"]) == (0, "nothing")
    code, out, _ = frazil(capsys, "table", "stats", short)
    assert (code, json.loads(out)["result"]) == (0, "done")
    code, out, _ = frazil(capsys, "table", "partition", "plan", short)
    assert (code, json.loads(out)["change"]) == (0, False)
    code, out, _ = frazil(capsys, "table", "partition", "apply", short, "month(day)", "--dry-run")
    assert (code, json.loads(out)["after"]) == (0, "month(day)")
    code, out, _ = frazil(capsys, "table", "partition", "apply", short, "month(day)", "--rewrite")
    assert (code, json.loads(out)["left"]) == (0, 0)
    assert by_hand.ids(name) == list(range(40))


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.deep), 2])
@pytest.mark.parametrize(
    "strategy",
    [("sort", "id"), *(pytest.param(s, marks=pytest.mark.deep) for s in (("zorder", "id", "name"), ("binpack",)))],
    ids=lambda s: s[0],
)
def test_what_a_command_has_written_is_not_written_again(by_hand, capsys, monkeypatch, strategy, version):
    monkeypatch.setattr("frazil.upkeep.runs.rewrite_table._MOST_COMMITS", 5)
    name = by_hand.table(version=version, columns=", noise STRING")
    by_hand.insert(name, *range(0, 10_000, 1000), rows=1000, select="uuid() AS noise")
    total = by_hand.sql(f"SELECT sum(file_size_in_bytes) FROM {name}.files")[0][0]
    args = ["--strategy", strategy[0], *(arg for column in strategy[1:] for arg in ("--sort-by", column))]
    args += ["--min-files", "2", "--target", str(int(total / 1.3))]
    short = name.split(".", 1)[1]
    code, out, _ = frazil(capsys, "table", "compact", short, *args, "--dry-run")
    assert (code, json.loads(out)["files"], json.loads(out)["becoming"]) == (0, 10, 2)
    code, out, _ = frazil(capsys, "table", "compact", short, *args)
    told = json.loads(out)
    assert (code, told["result"], told["commits"], told["files_before"], told["files_after"]) == (0, "done", 1, 10, 2)
    code, out, _ = frazil(capsys, "table", "compact", short, *args, "--dry-run")
    assert (code, json.loads(out)["files"]) == (0, 0)
    code, out, _ = frazil(capsys, "table", "compact", short, *args)
    assert (code, json.loads(out)["result"]) == (0, "nothing")
    assert by_hand.ids(name) == list(range(10_000))


def test_a_dry_run_counts_what_is_taken_for_its_deletes(by_hand, capsys):
    name = by_hand.table(**MERGE_ON_READ)
    short = name.split(".", 1)[1]
    by_hand.insert(name, 0, 100, rows=100)
    by_hand.sql(f"DELETE FROM {name} WHERE id < 40")
    delete_equal(by_hand, name, "person 150")
    for options in (("--min-files", "9"), ("--min-files", "2")):
        code, out, _ = frazil(capsys, "table", "compact", short, *options, "--dry-run")
        told = json.loads(out)
        assert (code, told["files"], told["becoming"]) == (0, 2, 1), "the one with its deletes, and what lies beside it"
    code, out, _ = frazil(capsys, "table", "compact", short, "--min-files", "9")
    assert (code, json.loads(out)["files_before"], json.loads(out)["files_after"]) == (0, 3, 1), "and a delete file"
    code, out, _ = frazil(capsys, "table", "compact", short, "--min-files", "9", "--dry-run")
    assert (code, json.loads(out)["files"]) == (0, 0)
    assert by_hand.ids(name) == [i for i in range(40, 200) if i != 150]


def test_a_dry_run_tells_what_a_condition_holds_of(by_hand, capsys):
    name = by_hand.table(partition="day", columns=", day DATE")
    short = name.split(".", 1)[1]
    for day in ("2026-01-01", "2026-01-02"):
        by_hand.insert(name, *range(0, 30, 10), select=f"DATE '{day}' AS day")
    args = ["table", "compact", short, "--min-files", "2", "--where"]
    code, out, _ = frazil(capsys, *args, "day = '2026-01-01'", "--dry-run")
    assert (code, json.loads(out)["files"], json.loads(out)["becoming"]) == (0, 3, 1)
    for condition in ("day = DATE '2026-01-01'", "month(day) = 1", "nix = 1"):
        code, _, err = frazil(capsys, *args, condition, "--dry-run")
        told = json.loads(err.splitlines()[-1])
        assert code == 2 and "--dry-run" in told["hint"], condition
    code, out, _ = frazil(capsys, *args, "day = '2026-01-01'")
    assert (code, json.loads(out)["files_before"]) == (0, 3)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("compact", "--sort-by", "nix"), 2),
        (("compact", "--target", "big"), 2),
        (("compact", "--strategy", "sort"), 2),
        (("stats", "--column", "nix"), 2),
    ],
    ids=str,
)
def test_bad_input_has_its_exit_code_and_a_hint(by_hand, capsys, args, expected):
    name = by_hand.table()
    by_hand.insert(name, 0)
    code, _, err = frazil(capsys, "table", args[0], name.split(".", 1)[1], *args[1:])
    assert code == expected
    assert json.loads(err.splitlines()[-1])["hint"]
    code, _, _ = frazil(capsys, "table", args[0], f"{by_hand.namespace}.nix")
    assert code == 10
