"""The census and the health of tables, on the embedded catalog; no JVM."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record

from frazil.catalogs import open_catalog
from frazil.cli.run import run_command
from frazil.errors import IntegrityError, NotFoundError
from frazil.settings import load_settings
from frazil.tables import TableStore
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.plans.census import Census, take
from frazil.upkeep.plans.health import examine
from frazil.upkeep.plans.manifest_stats import ManifestStatsCache
from frazil.upkeep.policy import policy_for

DAY = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])


def never() -> None:
    raise AssertionError("no JVM is needed")


class Lake:
    """An embedded catalog."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.settings = load_settings(flags={"home": str(home)}, environ={})
        chosen = self.settings.catalog()
        self.store = TableStore(open_catalog(chosen), chosen)
        self.store.catalog.create_namespace("shop")
        self.care = UpkeepContext(self.settings, chosen, self.store, never, threading.Event())

    def table(self, name: str = "shop.orders", *, version: int = 2, by_day: bool = True, **properties: str) -> Table:
        given = {key.replace("__", "-").replace("_", "."): value for key, value in properties.items()}
        table = self.store.catalog.create_table(name, COLUMNS, properties={"format-version": str(version), **given})
        if by_day:
            with table.update_spec() as spec:
                spec.add_field("at", DayTransform(), "day")
        return table

    def append(self, table: Table, *days: int, rows: int = 10) -> None:
        """One commit with so many rows of each day."""
        times = [DAY + timedelta(days=day, seconds=n) for day in days for n in range(rows)]
        table.append(pa.table({"id": range(len(times)), "at": times}, schema=COLUMNS))

    def census(self, table: Table, known: ManifestStatsCache | None = None, **flags: str) -> Census:
        settings = load_settings(flags={"home": str(self.home), **flags}, environ={})
        return take(self.care, table, policy_for(settings, table), known=known)

    def delete(self, table: Table, *files: DataFile) -> None:
        """Has the current snapshot hold delete files too, as if a writer that can make them had committed them."""
        snapshot = table.current_snapshot()
        path = f"{table.location()}/metadata/deletes-{len(files)}-{snapshot.snapshot_id}.avro"
        with _DeleteWriter(
            table.spec(), table.schema(), table.io.new_output(path), snapshot.snapshot_id, "null"
        ) as made:
            for file in files:
                made.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED, snapshot_id=snapshot.snapshot_id,
                        sequence_number=None, file_sequence_number=None, data_file=file,
                    )
                )  # fmt: skip
        found = made.to_manifest_file()
        there = self.store.read_manifests(table.io, snapshot.manifest_list)
        found.sequence_number = snapshot.sequence_number + 1
        self.store.cache_manifests(snapshot.manifest_list, (*there, found))


class _DeleteWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_file(
    number: int, day: int, rows: int, content: DataFileContent = DataFileContent.POSITION_DELETES, **more: object
) -> DataFile:
    plain = {key: {} for key in ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")}
    return DataFile.from_args(
        content=content, file_path=f"/nowhere/{number}.parquet", file_format=FileFormat.PARQUET,
        partition=Record(20454 + day), record_count=rows, file_size_in_bytes=100 + number,
        **{**plain, "lower_bounds": {}, "upper_bounds": {}, "key_metadata": None, "split_offsets": None,
           "equality_ids": None, "sort_order_id": None, **more},
    )  # fmt: skip


def about(file: str) -> dict[str, dict[int, bytes]]:
    """The bounds of a file of position deletes for one data file."""
    return {name: {2147483546: file.encode()} for name in ("lower_bounds", "upper_bounds")}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    made = Lake(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize("version", [1, 2])
def test_files_are_counted_per_partition_as_the_table_itself_tells(lake: Lake, version: int):
    table = lake.table(version=version)
    for days in ([0, 1], [1], [1, 2]):
        lake.append(table, *days)
    found = lake.census(table)
    files = table.inspect.files()
    sizes = sorted(files["file_size_in_bytes"].to_pylist())
    assert (found.files, found.bytes, found.rows) == (5, sum(sizes), 50)
    assert (found.sizes.least, found.sizes.median, found.sizes.most) == (sizes[0], sizes[2], sizes[-1])
    assert {group.partition: sum(group.files) for group in found.groups} == {(20454,): 1, (20455,): 3, (20456,): 1}
    assert found.small_files == 5
    assert (found.snapshots, found.manifests.count, found.delete_files) == (3, 3, 0)
    assert found.json_bytes == Path(table.metadata_location.removeprefix("file://")).stat().st_size
    assert found.metadata_bytes > found.json_bytes + found.manifests.bytes


def test_files_that_were_deleted_are_not_counted(lake: Lake):
    table = lake.table()
    lake.append(table, 0, 1)
    table.delete("at < '2026-01-02T00:00:00+00:00'")
    assert [(g.partition, sum(g.files)) for g in lake.census(table).groups] == [((20455,), 1)]


def test_a_table_without_snapshots_has_nothing(lake: Lake):
    found = lake.census(lake.table())
    assert (found.files, found.rows, found.snapshots, found.growth) == (0, 0, 0, None)


def test_files_of_a_former_partitioning_are_told_apart(lake: Lake):
    table = lake.table(by_day=False)
    lake.append(table, 0)
    with table.update_spec() as spec:
        spec.add_field("at", DayTransform(), "day")
    lake.append(table, 0)
    assert {(g.spec_id, g.partition) for g in lake.census(table).groups} == {(0, ()), (1, (20454,))}
    health = examine(lake.care, "shop.orders")
    assert health.specs == [0, 1]
    assert {tuple(p.partition.items()) for p in health.largest} == {(), (("day", "2026-01-01"),)}


def test_growth_is_told_per_day_over_the_kept_history(lake: Lake):
    table = lake.table()
    for _ in range(3):
        lake.append(table, 0)
    first, *_, last = table.metadata.snapshots
    earlier = first.model_copy(update={"timestamp_ms": last.timestamp_ms - 43_200_000})
    table.metadata.snapshots[0] = earlier
    growth = lake.census(table).growth
    assert (growth.over_s, growth.rows, growth.files, growth.commits) == (43200, 40, 4, 4)
    assert growth.bytes > 0


def test_what_was_counted_before_is_not_read_again(lake: Lake):
    table, known = lake.table(), ManifestStatsCache()
    lake.append(table, 0)
    first = lake.census(table, known)
    for manifest in table.current_snapshot().manifests(table.io):
        Path(manifest.manifest_path.removeprefix("file://")).write_bytes(b"")
    again = lake.census(table, known)
    assert (again.groups, again.sizes) == (first.groups, first.sizes)
    lake.append(table, 1)
    assert lake.census(table, known).files == 2
    with pytest.raises(IntegrityError, match=r"\.avro cannot be read"):
        lake.census(table)


def test_a_manifest_with_other_entries_than_its_list_says_is_damaged(lake: Lake):
    table = lake.table()
    lake.append(table, 0)
    lake.append(table, 0, 1)
    one, two = (Path(m.manifest_path.removeprefix("file://")) for m in table.current_snapshot().manifests(table.io))
    one.write_bytes(two.read_bytes())
    with pytest.raises(IntegrityError, match="does not match its manifest list"):
        lake.census(table)


def test_what_is_known_is_forgotten_when_it_is_too_much(lake: Lake):
    table, known = lake.table(), ManifestStatsCache(most=2)
    for day in range(3):
        lake.append(table, day)
    for _ in range(2):
        assert lake.census(table, known).files == 3
    assert len(known._values) == 1


def test_position_deletes_are_counted_by_the_file_or_partition_that_they_are_about(lake: Lake):
    table = lake.table()
    lake.append(table, 0, 1)
    paths = {int(file["partition"]["day"].day): file["file_path"] for file in table.inspect.files().to_pylist()}
    lake.delete(
        table,
        delete_file(1, 0, 4, **about(paths[1])),
        delete_file(2, 1, 2, **about(paths[2])),
        delete_file(3, 1, 1),
        delete_file(4, 1, 9, **about("/gone.parquet")),
        delete_file(5, 7, 1),
    )
    found = lake.census(table)
    by_day = {group.partition[0] - 20454: group for group in found.groups}
    assert (by_day[0].deleted_rows, by_day[0].dirty_files, by_day[0].position_files) == (4, 1, 0)
    assert (by_day[1].deleted_rows, by_day[1].dirty_files, by_day[1].position_files) == (3, 0, 1)
    assert by_day[0].dirty_bytes == sum(by_day[0].bytes)
    assert (found.deletes.position_files, found.deletes.rows, found.deletes.dangling) == (5, 17, 2)
    assert found.delete_ratio == 17 / 20


@pytest.mark.parametrize(("granularity", "merged"), [("file", 2), ("partition", 3)])
def test_delete_files_that_a_merge_would_leave_as_they_are_are_not_to_be_merged(
    lake: Lake, granularity: str, merged: int
):
    table = lake.table(**{"write.delete.granularity": granularity})
    lake.append(table, 0)
    lake.append(table, 0)
    one, two = (file["file_path"] for file in table.inspect.files().to_pylist())
    lake.delete(table, *(delete_file(n, 0, 1, **about(path)) for n, path in enumerate((one, two, two))))
    (group,) = lake.census(table).groups
    assert group.position_files == merged


def test_equality_deletes_apply_to_what_was_written_before_them_and_can_have_such_rows(lake: Lake):
    table = lake.table()
    lake.append(table, 0)
    lake.append(table, 0, 1)

    def deleting(value: int, day: int, number: int) -> DataFile:
        bound = {1: value.to_bytes(8, "little")}
        content = DataFileContent.EQUALITY_DELETES
        return delete_file(number, day, 1, content, equality_ids=[1], lower_bounds=bound, upper_bounds=bound)

    lake.delete(table, *(deleting(value, 0, value) for value in (0, 5, 9)), deleting(10, 0, 20), deleting(99, 1, 21))
    for allowed, burdened in (("2", [2, 0]), ("3", [2, 0]), ("4", [0, 0])):
        found = lake.census(table, **{"upkeep.policy.delete_files": allowed})
        by_day = {group.partition[0] - 20454: group for group in found.groups}
        # The second commit's rows of day 1 have ids from 10 on.
        assert [by_day[day].burdened_files for day in (0, 1)] == burdened
        assert [by_day[day].equality_files for day in (0, 1)] == [4, 1]
    assert (found.deletes.equality_files, found.deletes.dangling, found.deleted_rows) == (5, 0, 0)


def test_deletes_for_a_partition_with_younger_files_only_delete_nothing(lake: Lake):
    table = lake.table()
    lake.append(table, 1)
    lake.append(table, 0)
    lake.delete(table, delete_file(1, 0, 1), delete_file(2, 0, 1, DataFileContent.EQUALITY_DELETES))
    added = lake.store.read_manifests(table.io, table.current_snapshot().manifest_list)[-1]
    added.sequence_number = 1
    found = lake.census(table)
    assert found.deletes.dangling == 2


def test_old_rows_are_found_by_the_bounds_of_their_files(lake: Lake):
    table = lake.table(by_day=False)
    now = datetime.now(UTC)
    for ages in ([40, 35], [31, 20], [3, 2]):
        times = [now - timedelta(days=age) for age in ages]
        table.append(pa.table({"id": [1, 2], "at": times}, schema=COLUMNS))
    rule = {"upkeep.policy.retention_column": "at", "upkeep.policy.retention_age_s": str(30 * 86400)}
    watch = lake.census(table, **rule).watch
    assert (watch.old_files, watch.old_rows, watch.mixed_files, watch.unknown_files) == (1, 2, 1, 0)
    assert abs(watch.oldest_us - (now - timedelta(days=40)).timestamp() * 1e6) < 10
    assert lake.census(table).watch is None


def test_a_health_says_what_is_next(lake: Lake):
    table = lake.table()
    for _ in range(12):
        lake.append(table, 0)
    with table.manage_snapshots() as refs:
        refs.create_tag(table.metadata.snapshots[3].snapshot_id, "frazil-pin-backup-1")
    health = examine(lake.care, "shop.orders")
    assert [step.kind for step in health.steps] == ["compact", "metadata"]
    assert ["on request only" in note for note in health.notes] == [True], "others made this table"
    assert health.steps[0].gain["files"] == 11
    assert [(ref.name, ref.kind, ref.pin) for ref in health.refs] == [
        ("frazil-pin-backup-1", "tag", True),
        ("main", "branch", False),
    ]
    assert health.policy["min_input_files"] == {"value": 10, "source": "default"}
    with pytest.raises(NotFoundError):
        examine(lake.care, "shop.nothing")


#: The fields of `frazil table health --output json`. A change here is a change for those who read it.
FIELDS = {
    "table", "format_version", "taken_at", "snapshot_id", "rows", "deleted_rows", "delete_ratio", "files", "tiers",
    "deletes", "partitions", "largest", "specs", "manifests", "snapshots", "refs", "metadata", "statistics", "expired",
    "growth", "last_upkeep", "steps", "policy", "notes",
}  # fmt: skip
INNER = {
    "files": {"count", "bytes", "small", "least", "median", "most", "target"},
    "deletes": {
        "position_files", "position_bytes", "vectors", "vector_bytes", "rows", "equality_files", "equality_bytes",
        "dangling",
    },
    "manifests": {"count", "bytes", "small", "small_bytes", "target"},
    "snapshots": {"count", "oldest_age_s"},
    "metadata": {"bytes", "json_bytes", "list_bytes", "versions"},
    "expired": {"count", "oldest_age_s"},
    "growth": {"over_s", "commits", "rows", "bytes", "files"},
}  # fmt: skip
EACH = {
    "tiers": {"at_least", "below", "files", "bytes"},
    "largest": {"spec_id", "partition", "files", "small_files", "bytes", "rows", "deleted_rows"},
    "refs": {"name", "kind", "snapshot_id", "age_s", "pin"},
    "steps": {"kind", "why", "gain", "cost", "options", "urgent"},
}


@pytest.fixture
def frazil(lake: Lake, capsys: pytest.CaptureFixture[str]):
    def call(*args: str) -> tuple[int, str, str]:
        code = run_command(args[0], args[0], [*args[1:], "--set", f"home={lake.home}"])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_the_json_of_a_health_has_these_fields_and_no_others(lake: Lake, frazil):
    table = lake.table()
    for _ in range(12):
        lake.append(table, 0, 1)
    code, out, _ = frazil("table", "health", "shop.orders", "-o", "json")
    found = json.loads(out)
    assert (code, set(found)) == (0, FIELDS)
    assert {name: set(found[name]) for name in INNER} == INNER
    assert {name: set(found[name][0]) for name in EACH} == EACH
    assert found["files"]["count"] == 24
    assert found["policy"]["compact"] == {"value": True, "source": "default"}


def test_the_text_of_a_health_can_be_read(lake: Lake, frazil):
    table = lake.table()
    for _ in range(12):
        lake.append(table, 0, 1)
    code, out, err = frazil("table", "health", "shop.orders", "--policy")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0].startswith("shop.orders, format version 2, at 20")
    assert "rows 240" in lines
    assert any(line.startswith("files 24 with ") and line.endswith("; small: 24") for line in lines)
    assert "deletes none" in lines
    assert any(line.startswith("day=2026-01-01") and line.endswith("12 files, 12 small") for line in lines)
    assert any(
        line.startswith("1 compact 24 files below 24.0 KiB can become about 2, in 2 partition") for line in lines
    )
    assert "max_snapshot_age_s 5 days default" in lines
    assert "target_file_size 128 MiB default" in lines


def test_an_empty_table_is_healthy(lake: Lake, frazil):
    lake.table()
    code, out, _ = frazil("table", "health", "shop.orders")
    assert code == 0
    assert out.splitlines()[1:] == [
        "nothing has been written yet",
        "",
        "next: nothing to do, the table complies with its policy",
    ]


def test_an_unknown_table_and_a_policy_that_contradicts_itself_are_told(lake: Lake, frazil):
    lake.table()
    code, _, err = frazil("table", "health", "shop.order")
    assert (code, "Try: shop.orders" in err) == (10, True)
    code, _, err = frazil("table", "health", "shop.orders", "--set", "upkeep.tables.shop.*.retention_age_s=5")
    assert (code, "says nothing without retention_column" in err) == (2, True)


def test_a_plan_of_many_tables_tells_the_steps_of_each(lake: Lake, frazil):
    for name in ("shop.orders", "shop.parts"):
        table = lake.table(name)
        for _ in range(10):
            lake.append(table, 0)
    code, out, _ = frazil("upkeep", "plan", "shop.*", "-o", "json", "--kind", "compact")
    found = json.loads(out)
    assert (code, [(one["table"], [s["kind"] for s in one["steps"]]) for one in found]) == (
        0,
        [("shop.orders", ["compact"]), ("shop.parts", ["compact"])],
    )
    code, out, _ = frazil("upkeep", "plan", "shop.parts")
    assert "10 files below 24.0 KiB can become about 1" in out
    assert frazil("upkeep", "plan", "nothing.*")[0] == 10
