"""A replicated folder of bare Parquet files becomes a table, and stays one; DuckDB says what its rows are."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotsUpdate

from frazil.catalogs import local_path
from frazil.errors import ConflictError, FrazilError, NotAllowedError, NotFoundError, UnsupportedError, UsageError
from frazil.observe.faultpoints import handled
from frazil.replica import data_plan
from frazil.replica.data_files import DataFileTable, is_data_file_replica
from frazil.replica.data_plan import plan_data_sync
from frazil.replica.data_sync import DataSyncReport, run_data_sync
from frazil.replica.failover import run_failover
from frazil.tables.commit_draft import build_draft, read_live_manifests
from frazil.tables.errors import SchemaMismatchError
from frazil.tables.manifest_writer import ManifestWriter
from frazil.tables.registration.partition_values import PartitionError, infer_type
from frazil.tables.relocation.engine import LocalEngine
from frazil.tables.store import find_table
from frazil.upkeep.context import UpkeepContext
from tests.relocation_tables import open_duckdb
from tests.upkeep_files import Crash, care_of, crashing_at

_START = datetime(2026, 3, 1)


def rows(start: int, count: int, **more: Any) -> pa.Table:
    """Ten rows to the day."""
    numbers = range(start, start + count)
    days = [_START + timedelta(days=n // 10, minutes=n % 10) for n in numbers]
    columns = {"id": pa.array(numbers, pa.int64()), "name": [f"name {n}" for n in numbers], "ts": days, **more}
    return pa.table(columns).cast(
        pa.schema([f.with_type(pa.timestamp("us")) if f.name == "ts" else f for f in pa.table(columns).schema])
    )


def numbers(kind: pa.DataType, count: int) -> pa.Array:
    return pa.array(range(count), kind)


@dataclass
class Landing:
    """A folder that a replication writes, and the catalog of the replica."""

    care: UpkeepContext
    root: Path
    warehouse: Path

    @property
    def config(self) -> DataFileTable:
        return DataFileTable(str(self.root), ("ns", "t"), str(self.warehouse))

    def put(self, name: str, table: pa.Table | None = None, **options: Any) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows(0, 10) if table is None else table, path, **options)
        return path

    def sync(self, config: DataFileTable | None = None, **changes: Any) -> DataSyncReport:
        config = replace(config or self.config, **changes)
        with LocalEngine() as engine:
            return run_data_sync(self.care, plan_data_sync(self.care, config), engine)

    @property
    def table(self) -> Table:
        return self.care.store.load("ns.t")

    @property
    def pointer(self) -> str | None:
        found = find_table(self.care.store, "ns.t")
        return found.metadata_location if found is not None else None

    def paths(self) -> set[str]:
        """Files of the table, below the folder."""
        found = {task.file.file_path.removeprefix(f"file://{self.root}/") for task in self.table.scan().plan_files()}
        assert len(found) == len(list(self.table.scan().plan_files())), "a file is in the table twice"
        return found

    def check(self, *, partitioned: bool = False) -> None:
        """The rows of the table are those of the files, whoever reads them."""
        with open_duckdb() as connection:
            files = [str(path) for path in sorted(self.root.rglob("*.parquet"))]
            source = "FROM read_parquet(?, union_by_name=true, hive_partitioning=?)"
            expected = connection.execute(source, [files, partitioned]).to_arrow_table()
            scan = f"FROM iceberg_scan('{local_path(self.table.metadata_location)}')"
            by_duckdb = connection.execute(scan).to_arrow_table()
        assert canonical(self.table.scan().to_arrow()) == canonical(expected)
        assert canonical(by_duckdb) == canonical(expected)


def canonical(table: pa.Table) -> list[str]:
    """Rows without nulls: a column stays in the table when the last file that has it is gone."""
    rows = ({name: value for name, value in row.items() if value is not None} for row in table.to_pylist())
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.fixture
def landing(tmp_path: Path) -> Iterator[Landing]:
    care = care_of(tmp_path / "home")
    (tmp_path / "landed").mkdir()
    with care.store:
        yield Landing(care, tmp_path / "landed", tmp_path / "warehouse")


def test_a_folder_becomes_a_table_grows_and_a_second_sync_changes_nothing(landing: Landing) -> None:
    landing.put("a.parquet")
    landing.put("deep/er/b.parquet", rows(10, 10))
    first = landing.sync()
    assert (first.action, first.files_new, first.rows, first.files) == ("created", 2, 20, 2)
    landing.check()
    pointer = landing.pointer
    assert landing.sync().action == "unchanged"
    assert landing.pointer == pointer
    landing.put("c.parquet", rows(20, 5))
    second = landing.sync()
    assert (second.action, second.files_new, second.rows, second.files) == ("updated", 1, 5, 3)
    landing.check()
    assert landing.table.metadata.properties["gc.enabled"] == "false"
    assert landing.table.location().startswith(f"file://{landing.warehouse}")
    assert {p.name for p in landing.root.iterdir()} == {"a.parquet", "deep", "c.parquet"}, "nothing is written there"


def test_folders_are_partitions(landing: Landing) -> None:
    landing.put("year=2026/month=03/city=S%C3%A3o%20Paulo/a.parquet")
    landing.put("year=2026/month=04/city=a%2Fb/b.parquet", rows(10, 10))
    landing.put("year=__HIVE_DEFAULT_PARTITION__/month=12/city=x%3Dy/c.parquet", rows(20, 10))
    landing.sync()
    found = landing.table.scan().to_arrow()
    assert set(zip(*(found[c].to_pylist() for c in ("year", "month", "city")), strict=True)) == {
        (2026, 3, "São Paulo"), (2026, 4, "a/b"), (None, 12, "x=y"),
    }  # fmt: skip
    assert sorted(found["id"].to_pylist()) == list(range(30))
    assert [f.name for f in landing.table.spec().fields] == ["year", "month", "city"]
    assert len(list(landing.table.scan(row_filter="month = 4").plan_files())) == 1
    with open_duckdb() as connection:
        scan = f"FROM iceberg_scan('{local_path(landing.table.metadata_location)}')"
        assert canonical(connection.execute(scan).to_arrow_table()) == canonical(found)
    landing.put("year=2027/month=1/city=z/d.parquet", rows(30, 10))
    assert landing.sync().files_new == 1
    for place, said in (
        ("year=2026/e.parquet", "month"), ("year=twenty/month=1/city=z/e.parquet", "year=twenty"),
        ("year=2026/month=1/city=z/hour=3/e.parquet", "hour"), ("e.parquet", "year"),
    ):  # fmt: skip
        pointer = landing.pointer
        path = landing.put(place, rows(40, 1))
        with pytest.raises(PartitionError) as refused:
            landing.sync()
        assert str(path) in str(refused.value)
        assert said in refused.value.in_one_line
        assert landing.pointer == pointer
        path.unlink()


def test_a_column_that_is_in_the_file_too_must_agree_with_the_folder(landing: Landing) -> None:
    landing.put("day=2026-03-01/a.parquet", rows(0, 5, day=pa.array([datetime(2026, 3, 1).date()] * 5)))
    landing.sync()
    landing.check(partitioned=True)
    path = landing.put("day=2026-03-02/b.parquet", rows(5, 5, day=pa.array([datetime(2026, 3, 1).date()] * 5)))
    with pytest.raises(PartitionError, match="day=2026-03-02") as refused:
        landing.sync()
    assert str(path) in str(refused.value)


def test_a_rule_takes_partitions_from_the_bounds_of_a_column(landing: Landing) -> None:
    landing.put("a.parquet")
    landing.put("b.parquet", rows(10, 10))
    landing.put("none.parquet", rows(20, 2, ts=pa.array([None, None], pa.timestamp("us"))))
    landing.sync(partition_by=("day(ts)",))
    landing.check()
    assert [f.name for f in landing.table.spec().fields] == ["ts_day"]
    tasks = landing.table.scan(row_filter="ts >= '2026-03-02T00:00:00'").plan_files()
    assert [t.file.file_path.rpartition("/")[2] for t in tasks] == ["b.parquet"]
    for odd, said in (
        (rows(5, 10), "2026-03-02"), (rows(20, 2, ts=pa.array([_START, None], pa.timestamp("us"))), "no value there"),
    ):  # fmt: skip
        path, pointer = landing.put("odd.parquet", odd), landing.pointer
        with pytest.raises(PartitionError) as refused:
            landing.sync()
        assert (str(path) in str(refused.value), said in (refused.value.cause or "")) == (True, True)
        assert landing.pointer == pointer
    landing.put("odd.parquet", rows(30, 3), write_statistics=False)
    with pytest.raises(PartitionError, match=r"odd\.parquet"):
        landing.sync()
    with pytest.raises(UsageError, match="not partitioned by"):
        landing.sync(partition_by=("hour(ts)",))


def test_new_columns_and_wider_types_are_added(landing: Landing) -> None:
    landing.put("a.parquet", rows(0, 3, n=pa.array([1, 2, None], pa.int32()), f=pa.array([1.5] * 3, pa.float32())))
    landing.sync()
    more = {"n": pa.array([2**40, 1], pa.int64()), "f": pa.array([2.5] * 2), "s": [{"x": 1}, None], "l": [["a"], []]}
    landing.put("b.parquet", rows(3, 2, **more))
    landing.put("c.parquet", rows(5, 1, n=pa.array([7], pa.int32()), s=[{"x": 1, "y": "new"}]))
    report = landing.sync()
    assert report.columns_added == ("s", "l")
    landing.check()
    names = landing.table.name_mapping()
    assert names is not None
    (mapped,) = (f for f in names.root if "s" in f.names)
    assert [f.names for f in mapped.fields] == [["x"], ["y"]]
    assert [str(landing.table.schema().find_type(c)) for c in ("n", "f")] == ["long", "double"]
    for text, files in (("n > 100", ["b"]), ("n = 7", ["b", "c"]), ("n = 2", ["a", "b"])):
        assert sorted(t.file.file_path[-9] for t in landing.table.scan(row_filter=text).plan_files()) == files


@pytest.mark.parametrize("is_new", [True, False])
def test_a_conflict_of_types_names_file_and_column_and_changes_nothing(landing: Landing, is_new: bool) -> None:
    landing.put("a.parquet", rows(0, 3))
    if not is_new:
        landing.sync()
    pointer = landing.pointer
    landing.put("b.parquet", rows(3, 3, extra=[1, 2, 3]))
    odd = landing.put("c.parquet", rows(6, 3).set_column(0, "id", pa.array(["6", "7", "8"])))
    with pytest.raises(SchemaMismatchError) as refused:
        landing.sync()
    assert str(odd) in str(refused.value)
    assert "'id' is string, but long" in refused.value.in_one_line
    assert landing.pointer == pointer
    landing.put("c.parquet", pa.table({"t": pa.array([1], pa.timestamp("ns"))}))
    with pytest.raises(SchemaMismatchError, match=r"c\.parquet"):
        landing.sync()
    assert landing.pointer == pointer


def with_ids(table: pa.Table, *ids: int) -> pa.Table:
    fields = [f.with_metadata({"PARQUET:field_id": str(n)}) for f, n in zip(table.schema, ids, strict=True)]
    return table.cast(pa.schema(fields))


def test_field_ids_of_files_are_kept_and_must_agree(landing: Landing) -> None:
    landing.put("a.parquet", with_ids(rows(0, 3), 3, 7, 12))
    landing.put("b.parquet", rows(3, 3))
    landing.sync(partition_by=("day(ts)",))
    landing.check()
    assert [f.field_id for f in landing.table.schema().fields] == [3, 7, 12]
    landing.put("c.parquet", with_ids(rows(6, 3, more=[1, 2, 3]), 3, 7, 12, 13))
    landing.sync()
    landing.check()
    pointer = landing.pointer
    for ids, said in (((7, 3, 12, 13), "'id' has the field id 7"), ((3, 7, 12, 20), "'more' has the field id 20")):
        odd = landing.put("odd.parquet", with_ids(rows(6, 3, more=[1, 2, 3]), *ids))
        with pytest.raises(SchemaMismatchError) as refused:
            landing.sync()
        assert str(odd) in str(refused.value)
        assert said in refused.value.in_one_line
        assert landing.pointer == pointer


def test_files_written_anew_are_registered_anew_and_removed_ones_on_request(landing: Landing) -> None:
    for n in range(4):
        landing.put(f"{n}.parquet", rows(n * 10, 10))
    landing.sync()
    landing.put("1.parquet", rows(100, 25))
    (landing.root / "2.parquet").unlink()
    report = landing.sync()
    assert [p.rpartition("/")[2] for p in report.replaced] == ["1.parquet"]
    assert [p.rpartition("/")[2] for p in report.gone] == ["2.parquet"]
    assert (report.files, report.removed) == (4, ())
    assert "prune-missing" in report.warnings[0]
    assert landing.sync().action == "unchanged"
    config = replace(landing.config, prune_missing=True)
    assert [p.rpartition("/")[2] for p in plan_data_sync(landing.care, config).gone] == ["2.parquet"]
    pruned = landing.sync(config)
    assert ([p.rpartition("/")[2] for p in pruned.removed], pruned.gone, pruned.files) == (["2.parquet"], (), 3)
    landing.check()
    assert landing.sync(config).action == "unchanged"
    landing.root.rename(landing.root.with_name("unmounted"))
    with pytest.raises(NotFoundError, match="no data files"):
        landing.sync(config)


def test_what_has_not_arrived_or_is_no_parquet_is_named_and_left_out(landing: Landing) -> None:
    landing.put("a.parquet")
    whole = landing.put("late.parquet", rows(10, 10)).read_bytes()
    late = landing.root / "late.parquet"
    for name in ("_SUCCESS", ".hidden.parquet", "_temporary/0/x.parquet", ".crc"):
        path = landing.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not yet")
    (landing.root / "notes.txt").write_text("read me, I am long enough to be a footer")
    (landing.root / "odd.parquet").write_bytes(b"PAR1" + b"x" * 40 + (20).to_bytes(4, "little") + b"PAR1")
    (landing.root / "lies.parquet").write_bytes(b"PAR1" + b"x" * 40 + (2000).to_bytes(4, "little") + b"PAR1")
    landing.put("empty.parquet", rows(0, 0))
    for size in (0, 3, 4, 50, len(whole) // 2, len(whole) - 1):
        late.write_bytes(whole[:size])
        report = landing.sync()
        assert [w.split(": ")[0].rpartition("/")[2] for w in report.waiting] == ["late.parquet"], size
        named = {w.split(": ")[0].rpartition("/")[2] for w in report.rejected}
        assert named == {"notes.txt", "odd.parquet", "lies.parquet"}
        assert report.files == 1
    late.write_bytes(bytes(len(whole)))
    assert len(landing.sync().waiting) == 1
    late.write_bytes(whole)
    assert (landing.sync().files, landing.paths()) == (2, {"a.parquet", "late.parquet"})
    late.write_bytes(whole[:70])
    report = landing.sync()
    assert (report.action, len(report.waiting), report.files) == ("waiting", 1, 2)


@pytest.mark.parametrize("name", ["b.parquet._COPYING_", "b.parquet.8a1f0c2e.partial", "b.parquet.1a2B3c4D"])
def test_temporary_names_of_copy_tools_are_left_out_even_when_complete(landing: Landing, name: str) -> None:
    landing.put("a.parquet.20260301")
    landing.put("b.parquet", rows(10, 10)).rename(landing.root / name)
    landing.sync()
    assert landing.paths() == {"a.parquet.20260301"}
    (landing.root / name).rename(landing.root / "b.parquet")
    assert (landing.sync().gone, len(landing.paths())) == ((), 2)


def test_a_folder_of_unfinished_files_makes_no_table(landing: Landing) -> None:
    (landing.root / "a.parquet").write_bytes(b"PAR1....")
    assert landing.sync().action == "waiting"
    assert landing.pointer is None
    (landing.root / "a.parquet").unlink()
    with pytest.raises(NotFoundError, match="no data files"):
        landing.sync()


def test_statistics_are_those_that_pyiceberg_takes_from_the_same_file(landing: Landing) -> None:
    more = {"f": [1.5, -2.0, None], "b": [b"\xff" * 30, b"a", b"b"], "s": [{"x": 1}, None, {"x": 3}], "o": [True] * 3}
    path = landing.put("a.parquet", rows(0, 3, **more), row_group_size=2)
    landing.sync()
    other = landing.care.store.catalog.create_table("ns.other", schema=landing.table.schema())
    other.add_files([str(path)])
    (ours,), (theirs,) = (list(t.scan().plan_files()) for t in (landing.table, other))
    for name in (
        "record_count", "file_size_in_bytes", "column_sizes", "value_counts", "null_value_counts", "lower_bounds",
        "upper_bounds", "split_offsets",
    ):  # fmt: skip
        assert getattr(ours.file, name) == getattr(theirs.file, name), name
    assert not list(landing.table.scan(row_filter="id > 5").plan_files())


@pytest.mark.deep
def test_a_crash_at_any_step_is_repaired_by_the_next_sync(landing: Landing) -> None:
    landing.put("a=1/1.parquet")
    landing.sync()
    struck: set[str] = set()
    count = 2
    for number in range(26):
        landing.put(f"a={number % 3}/{count}.parquet", rows(count, 2, **{f"c{number}": [1, 2]}))
        if number % 5 == 4:
            landing.put("a=1/1.parquet", rows(0, 10 + number))
        try:
            with crashing_at(number) as seen:
                landing.sync()
        except Crash:
            struck.add(seen[number])
            landing.sync()
        count += 1
        assert landing.sync().action == "unchanged"
    assert landing.paths() == {str(p.relative_to(landing.root)) for p in landing.root.rglob("*.parquet")}
    landing.check(partitioned=True)
    assert {"tables.register.before", "tables.register.after", "tables.evolve.after"} <= struck


@pytest.mark.parametrize("exists", [True, False])
def test_syncs_at_once_register_each_file_once(landing: Landing, exists: bool) -> None:
    landing.put("0.parquet")
    if exists:
        landing.sync()
    for n in range(1, 30):
        landing.put(f"{n}.parquet", rows(n * 10, 10, **({"extra": [n] * 10} if n > 20 else {})))
    barrier = threading.Barrier(3)

    def sync() -> FrazilError | DataSyncReport:
        # A store of its own, as another process has.
        other = care_of(landing.care.settings.model.home)
        with other.store, LocalEngine() as engine:
            plan = plan_data_sync(other, landing.config)
            barrier.wait(30)
            return run_data_sync(other, plan, engine)

    with ThreadPoolExecutor(3) as pool:
        reports = [future.result() for future in [pool.submit(sync) for _ in range(3)]]
    assert sum(r.files_new for r in reports if isinstance(r, DataSyncReport)) == (29 if exists else 30)
    assert len(landing.paths()) == 30
    landing.check()


def test_a_lost_reply_adds_nothing_twice(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.put("a.parquet")
    landing.sync()
    landing.put("b.parquet", rows(10, 10))

    def lose(step: str) -> None:
        if step == "tables.register.after":
            raise ConflictError("lost")

    with handled(lose):
        assert landing.sync().files_new == 1
    assert landing.paths() == {"a.parquet", "b.parquet"}
    landing.check()


def test_only_its_own_tables_and_folders_are_touched(landing: Landing) -> None:
    landing.put("a.parquet")
    with pytest.raises(NotAllowedError, match="cannot lie in"):
        landing.sync(warehouse=str(landing.root / "warehouse"))
    catalog = landing.care.store.catalog
    catalog.create_namespace_if_not_exists("ns")
    mine = catalog.create_table("ns.t", schema=rows(0, 1).schema)
    mine.append(rows(0, 1))
    with pytest.raises(NotAllowedError, match="not a replica"):
        landing.sync()
    catalog.drop_table("ns.t")
    landing.sync()
    other = landing.root.with_name("other")
    landing.root.rename(other)
    landing.root.mkdir()
    with pytest.raises(ConflictError, match="another folder"):
        landing.sync(replicated_path=str(other))
    other.joinpath("a.parquet").rename(landing.root / "a.parquet")
    landing.put("b.parquet", rows(10, 1))
    landing.table.append(rows(50, 1))
    with pytest.raises(ConflictError, match="another writer committed"):
        landing.sync()


def compact(landing: Landing) -> None:
    """All rows of a partition in one new file beside the table's metadata, as Spark's rewrite_data_files has it."""
    store, table = landing.care.store, landing.table
    files = list(_dataframe_to_data_files(table.metadata, table.scan().to_arrow(), table.io))
    for file in files:
        file.spec_id = 0
    shop = ManifestWriter(store, table)
    before = [(m, shop.entries(m)) for m in read_live_manifests(store, table)]
    manifests = [shop.added(0, files), *(shop.rewritten(m.partition_spec_id, [], entries) for m, entries in before)]
    removed = [entry.data_file for _, entries in before for entry in entries]
    draft = build_draft(table, shop, manifests, Operation.OVERWRITE, added=files, removed=removed)
    assert draft.snapshot.summary is not None
    summary = Summary(Operation.REPLACE, **draft.snapshot.summary.additional_properties)
    added, main = draft.updates
    added = AddSnapshotUpdate(snapshot=draft.snapshot.model_copy(update={"summary": summary}))
    store.catalog.commit_table(table, draft.requirements, (added, main))


def test_a_compacted_table_stays_in_step_with_the_folder(landing: Landing) -> None:
    for n in range(3):
        landing.put(f"{n}.parquet", rows(n * 10, 10))
    landing.sync()
    compact(landing)
    assert landing.sync().action == "unchanged"
    landing.put("3.parquet", rows(30, 10))
    assert (landing.sync().files_new, landing.sync(prune_missing=True).action) == (1, "unchanged")
    landing.check()
    compact(landing)
    assert landing.sync().action == "unchanged"
    landing.check()
    assert len(landing.paths()) == 1
    (landing.root / "1.parquet").unlink()
    assert len(landing.sync().gone) == 1
    landing.put("2.parquet", rows(40, 20))
    with pytest.raises(ConflictError, match=r"compacted together with .*1\.parquet"):
        landing.sync()
    report = landing.sync(prune_missing=True)
    assert (report.files_new, report.files, len(report.replaced), len(report.removed)) == (1, 3, 1, 1)
    landing.check()
    assert landing.paths() == {"0.parquet", "2.parquet", "3.parquet"}, "the files of the folder stand apart again"
    compact(landing)
    landing.put("4.parquet", rows(60, 5))
    assert landing.sync().files == 2
    landing.check()


def test_compacted_files_whose_history_was_expired_are_not_registered_again(landing: Landing) -> None:
    for n in range(3):
        landing.put(f"{n}.parquet", rows(n * 10, 10))
    landing.sync()
    compact(landing)
    landing.put("3.parquet", rows(30, 10))
    landing.sync()

    def expire() -> None:
        oldest = RemoveSnapshotsUpdate(snapshot_ids=[landing.table.metadata.snapshots[0].snapshot_id])
        landing.care.store.catalog.commit_table(landing.table, (), (oldest,))

    expire()
    landing.put("4.parquet", rows(40, 10))
    assert landing.sync().files_new == 1, "the compaction is still in the history"
    landing.check()
    expire()
    assert landing.sync().action == "unchanged"
    landing.put("5.parquet", rows(50, 10))
    pointer = landing.pointer
    with pytest.raises(ConflictError, match=r"history of ns\.t was expired"):
        landing.sync()
    assert landing.pointer == pointer
    landing.care.store.catalog.drop_table("ns.t")
    assert landing.sync().files_new == 6
    landing.check()


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_file_that_was_written_anew_without_rows_leaves_the_table(landing: Landing, is_compacted: bool) -> None:
    for n in range(3):
        landing.put(f"{n}.parquet", rows(n * 10, 10))
    landing.sync()
    if is_compacted:
        compact(landing)
    path = landing.put("1.parquet", rows(0, 0))
    report = landing.sync()
    assert (report.action, report.removed, report.files_new, report.files) == ("updated", (f"file://{path}",), 0, 2)
    landing.check()
    assert landing.paths() == {"0.parquet", "2.parquet"}
    assert landing.sync().action == "unchanged"
    landing.put("1.parquet", rows(10, 5))
    assert landing.sync().files_new == 1
    landing.check()


def test_nothing_changed_is_known_from_the_listing_alone(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.put("p=1/a.parquet")
    landing.put("p=1/b.parquet", rows(10, 10))
    landing.put("_SUCCESS", rows(0, 1))
    landing.put("p=1/empty.parquet", rows(0, 0))
    (landing.root / "notes.txt").write_text("no table, and long enough")
    assert len(landing.sync().rejected) == 1
    compact(landing)

    def refuse(*_: object) -> Any:
        raise AssertionError("manifests were read")

    with monkeypatch.context() as patched:
        patched.setattr(data_plan, "read_registered", refuse)
        patched.setattr(data_plan, "read_compactions", refuse)
        report = landing.sync()
        assert (report.action, report.files) == ("unchanged", 1)
        plan = plan_data_sync(landing.care, landing.config).to_dict()
        assert (plan["known"], plan["ignored"]) == (4, 1)
    # A file that is written anew in place leaves the times of its folder as they are.
    place = landing.root / "p=1"
    before = place.stat().st_mtime_ns
    landing.put("p=1/b.parquet", rows(10, 40))
    assert place.stat().st_mtime_ns == before
    assert len(landing.sync().replaced) == 1
    landing.check(partitioned=True)
    # After a rollback the table lacks what the listing has.
    table = landing.table
    oldest = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(oldest).commit()
    assert landing.sync().action == "updated"
    landing.check(partitioned=True)


@pytest.mark.parametrize("left", ["growing", "gone", "damaged"])
def test_a_sync_that_left_something_looks_again(landing: Landing, left: str) -> None:
    landing.put("a.parquet")
    whole = landing.put("b.parquet", rows(10, 10))
    content = whole.read_bytes()
    if left == "gone":
        landing.sync()
        whole.unlink()
        landing.put("c.parquet", rows(20, 10))
    elif left == "growing":
        whole.write_bytes(content[:-40])
    else:
        (landing.root / "odd.parquet").write_bytes(b"PAR1" + b"x" * 40 + (20).to_bytes(4, "little") + b"PAR1")
    first, second = landing.sync(), landing.sync()
    assert (second.gone, second.waiting, second.rejected) == (first.gone, first.waiting, first.rejected)
    assert second.gone or second.waiting or second.rejected


def test_after_a_failover_it_is_a_table_like_others(landing: Landing) -> None:
    landing.put("a.parquet")
    landing.sync()
    with LocalEngine() as engine:
        run_failover(landing.care, "ns.t", engine)
    assert "gc.enabled" not in landing.table.metadata.properties
    assert is_data_file_replica(landing.table.metadata.properties)
    landing.table.append(rows(10, 5))
    landing.put("b.parquet", rows(20, 5))
    with pytest.raises(NotAllowedError, match="no replica any more"):
        landing.sync()
    assert len(landing.table.scan().to_arrow()) == 15


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["03", "12", None], "int"), (["99999999999"], "long"), (["2026-03-01"], "date"), (["-5"], "int"),
        (["01067", "20095"], "string"), (["1", "x"], "string"), ([None], "string"), (["1_0"], "string"),
        ([""], "string"),
    ],
)  # fmt: skip
def test_types_of_folders_are_inferred_from_all_values(values: list[str | None], kind: str) -> None:
    assert str(infer_type(values)) == kind


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("metadata/v3.metadata.json", UsageError, "metadata of an Iceberg table"),
        ("_delta_log/00.json", UnsupportedError, "Delta Lake"),
        (".hoodie/hoodie.properties", UnsupportedError, "Hudi"),
    ],
)
def test_a_folder_with_metadata_of_a_table_is_refused(landing: Landing, name: str, kind: type, said: str) -> None:
    landing.put("a.parquet")
    (landing.root / name).parent.mkdir()
    (landing.root / name).write_text("{}")
    with pytest.raises(kind, match=said):
        landing.sync()


def test_an_empty_table_that_someone_prepared_keeps_its_columns_and_partitions(landing: Landing) -> None:
    catalog = landing.care.store.catalog
    catalog.create_namespace_if_not_exists("ns")
    catalog.create_table("ns.t", schema=rows(0, 1).schema.append(pa.field("later", pa.string())))
    landing.put("a.parquet")
    assert landing.sync().files_new == 1
    assert [f.name for f in landing.table.schema().fields] == ["id", "name", "ts", "later"]
    assert sorted(landing.table.scan().to_arrow()["id"].to_pylist()) == list(range(10))


@pytest.mark.deep
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.deep), pytest.param(3, marks=pytest.mark.deep)])
def test_random_changes_with_crashes_end_in_the_same_rows(landing: Landing, seed: int) -> None:
    chance = random.Random(seed)
    config = replace(landing.config, prune_missing=True)
    landing.put("p=0/first.parquet")
    columns: dict[str, Callable[[int], Any]] = {}
    names = ["p=0/first.parquet"]
    for step in range(40):
        kind = chance.choice(["new", "new", "replace", "remove", "column", "sync", "crash", "compact"])
        count = chance.randint(1, 20)
        more = {c: make(count) for c, make in columns.items() if chance.random() < 0.7}
        if kind == "new":
            names.append(f"p={chance.randint(0, 3)}/{step}.parquet")
            landing.put(names[-1], rows(step * 100, count, **more))
        elif kind == "replace":
            count += 30
            more = {c: make(count) for c, make in columns.items()}
            landing.put(chance.choice(names), rows(step * 100, count, **more))
        elif kind == "remove" and len(names) > 1:
            (landing.root / names.pop(chance.randrange(len(names)))).unlink()
        elif kind == "column":
            wide = chance.random() < 0.5
            columns[f"c{chance.randint(0, 3)}"] = partial(numbers, pa.int64() if wide else pa.int32())
        elif kind == "crash":
            try:
                with crashing_at(chance.randint(0, 25)):
                    landing.sync(config)
            except Crash:
                pass
        else:
            landing.sync(config)
            landing.check(partitioned=True)
            if kind == "compact":
                compact(landing)
                landing.check(partitioned=True)
    landing.sync(config)
    landing.check(partitioned=True)


def test_duckdb_itself_says_what_is_expected(landing: Landing) -> None:
    """The oracle can fail: a table that lacks a file does not pass."""
    landing.put("a.parquet")
    landing.sync()
    landing.put("b.parquet", rows(10, 10))
    with pytest.raises(AssertionError):
        landing.check()
