"""Metadata stays small: old snapshots go with new ones, manifests are merged, and what others hold is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import ManifestEntryStatus

from frazil.observe.faultpoints import handled
from frazil.query import run_sql
from frazil.settings import load_settings
from frazil.tables import remove_files
from frazil.tables.manifest_merging import choose
from tests.tables import (
    Wrapped,
    append,
    append_until,
    embedded,
    end_of,
    make_table,
    offsets_in,
    open_store,
    reached,
    rows,
)

NAME = "topics.clicks"


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def store(home):
    with open_store(embedded(home)) as opened:
        yield opened


@pytest.fixture
def table(store):
    return make_table(store, NAME)


def appended(store, table, count, keep=5):
    for _ in range(count):
        table = append(store, table, 2, keep_snapshots=keep).table
    return table


def manifests(table):
    return table.current_snapshot().manifests(table.io)


def entries(table):
    """Each living file with the numbers that readers order deletes by, and the snapshot that added it."""
    return {
        e.data_file.file_path: (e.snapshot_id, e.sequence_number, e.file_sequence_number)
        for m in manifests(table)
        for e in m.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def metadata_files(table) -> set[str]:
    return {p.name for p in (Path(table.location().removeprefix("file://")) / "metadata").iterdir()}


@pytest.mark.deep
def test_three_hundred_commits_keep_snapshots_and_manifests_few_and_all_rows(home, store, table):
    expected = {}
    for i in range(320):
        commit = append(store, table, 2, keep_snapshots=20)
        table = commit.table
        if i % 40 == 0:
            # Read by PyIceberg from storage, not from our memory.
            new = {path: numbers for path, numbers in entries(store.load(NAME)).items() if path not in expected}
            assert all(n[1] == n[2] for n in new.values())
            expected |= new
    table = store.load(NAME)
    assert 20 <= len(table.metadata.snapshots) < 24
    assert len(manifests(table)) <= 24
    assert len(table.metadata.metadata_log) <= 20
    found = entries(table)
    assert len(found) >= 320
    assert expected.items() <= found.items(), "a merge changed what an entry says"
    assert offsets_in(table) == list(range(640))
    sql = 'SELECT count(*) AS n, count(DISTINCT "offset") AS d FROM topics.clicks'
    result = run_sql(sql, load_settings(flags={"home": str(home)}, environ={}), engine="duckdb")
    assert result.table.to_pylist() == [{"n": 640, "d": 640}]
    for manifest in manifests(table):
        on_disk = Path(manifest.manifest_path.removeprefix("file://"))
        assert on_disk.stat().st_size == manifest.manifest_length


def test_counts_and_bounds_of_merged_manifests_are_those_of_their_entries(store, table):
    table = append_until(store, table, 900, 30)[0]  # five days
    assert any(m.existing_files_count for m in manifests(table)), "nothing was merged"
    for m in manifests(table):
        found = m.fetch_manifest_entry(table.io)
        by_status = {s: [e.data_file for e in found if e.status == s] for s in ManifestEntryStatus}
        added, existing = by_status[ManifestEntryStatus.ADDED], by_status[ManifestEntryStatus.EXISTING]
        assert (m.added_files_count, m.existing_files_count) == (len(added), len(existing))
        assert m.added_rows_count == sum(f.record_count for f in added)
        assert m.existing_rows_count == sum(f.record_count for f in existing)
        assert m.min_sequence_number == min(e.sequence_number for e in found)
        days = [f.partition[0] for f in (*added, *existing)]
        bounds = [int.from_bytes(b, "little") for b in (m.partitions[0].lower_bound, m.partitions[0].upper_bound)]
        assert bounds == [min(days), max(days)]
    from datetime import UTC, datetime

    from pyiceberg.expressions import GreaterThanOrEqual

    late = table.scan(row_filter=GreaterThanOrEqual("publish_time", datetime(2026, 1, 4, tzinfo=UTC).isoformat()))
    assert sorted(late.to_arrow()["offset"].to_pylist()) == list(range(600, 900))


def test_the_window_holds_as_many_snapshots_as_it_says(store, table):
    table = appended(store, table, 30, keep=7)
    assert len(table.metadata.snapshots) == 7
    assert len(table.metadata.snapshot_log) == 7
    assert end_of(reached(table)) == 60


def test_files_of_old_snapshots_go_after_the_delay(home):
    with open_store(embedded(home), delete_delay_s=0.0) as store:
        table = appended(store, make_table(store, NAME), 40)
    names = metadata_files(table)
    lists = {s.manifest_list.rpartition("/")[2] for s in table.metadata.snapshots}
    used = {m.manifest_path.rpartition("/")[2] for s in table.metadata.snapshots for m in s.manifests(table.io)}
    logged = {e.metadata_file.rpartition("/")[2] for e in table.metadata.metadata_log}
    assert names == lists | used | logged | {table.metadata_location.rpartition("/")[2]}
    for snapshot in table.metadata.snapshots:
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows > 0
    assert offsets_in(table) == list(range(80))


def test_a_reader_that_planned_before_still_reads_within_the_delay(store, table):
    table = appended(store, table, 10)
    old = store.load(NAME)
    appended(store, table, 30)
    assert offsets_in(old) == list(range(20))


def test_what_a_tag_or_a_branch_holds_stays_readable(home):
    with open_store(embedded(home), delete_delay_s=0.0) as store:
        table = appended(store, make_table(store, NAME), 6)
        tagged = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_tag(tagged, "monthly").commit()
        table = appended(store, store.load(NAME), 6)
        branched = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(branched, "audit").commit()
        table = appended(store, store.load(NAME), 40)
    table = store.load(NAME)
    assert set(table.metadata.refs) == {"main", "monthly", "audit"}
    for name, count in (("monthly", 12), ("audit", 24)):
        snapshot = table.snapshot_by_name(name)
        assert sorted(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()["offset"].to_pylist()) == list(
            range(count)
        )
    assert offsets_in(table) == list(range(104))
    assert len(table.metadata.snapshots) <= 5 + 12, "behind the branch the window goes on"


def test_a_tag_set_since_our_last_commit_is_respected(store, table):
    ours = appended(store, table, 6)
    oldest = ours.metadata.snapshots[0].snapshot_id
    store.load(NAME).manage_snapshots().create_tag(oldest, "keep_me").commit()
    table = appended(store, ours, 10)
    assert table.metadata.refs["keep_me"].snapshot_id == oldest
    assert table.scan(snapshot_id=oldest).to_arrow().num_rows > 0


@pytest.mark.parametrize(
    ("at", "is_rest"),
    [("tables.commit.list.after", True), ("tables.commit.list.after", False), ("tables.commit.before", False)],
)
def test_a_tag_set_while_our_commit_is_made_is_respected(home, store, table, at, is_rest):
    """What a REST server checks does not cover tags, so the table is looked at last of all; the others check it too."""
    table = appended(store, table, 5)
    oldest = table.metadata.snapshots[0].snapshot_id
    tags = []

    def tag(name: str) -> None:
        if name == at and not tags:
            tags.append("mine")
            with open_store(embedded(home)) as other:
                other.load(NAME).manage_snapshots().create_tag(oldest, "mine").commit()

    if is_rest:
        store.catalog = Wrapped(store.catalog, [])
    with handled(tag):
        table = append(store, table, 2, keep_snapshots=5).table
    assert tags and oldest in {s.snapshot_id for s in table.metadata.snapshots}
    assert table.metadata.refs["mine"].snapshot_id == oldest
    table = appended(store, table, 6)
    assert store.load(NAME).metadata.refs["mine"].snapshot_id == oldest
    assert table.scan(snapshot_id=oldest).to_arrow().num_rows == 2
    assert offsets_in(table) == list(range(24))
    assert len(table.metadata.snapshots) == 6, "the others go as ever"


def test_snapshots_that_somebody_expired_since_our_last_commit_are_not_missed(store, table):
    ours = appended(store, table, 5)
    old = [s.snapshot_id for s in ours.metadata.snapshots[:-1]]
    store.load(NAME).maintenance.expire_snapshots().by_ids(old).commit()
    assert offsets_in(appended(store, ours, 3)) == list(range(16))


def test_the_snapshots_of_others_stay_for_upkeep(store, table):
    table = appended(store, table, 10)
    table.append(rows(1_000_000, 1_000_001))
    foreign = store.load(NAME).current_snapshot().snapshot_id
    table = appended(store, store.load(NAME), 20)
    ids = [s.snapshot_id for s in table.metadata.snapshots]
    assert foreign in ids
    # Nothing between it and the current one went: an engine that expires it later needs it to be an ancestor.
    from pyiceberg.table.snapshots import is_ancestor_of

    assert is_ancestor_of(table.current_snapshot().snapshot_id, foreign, table.metadata)
    table.maintenance.expire_snapshots().by_ids(ids[: ids.index(foreign) + 1]).commit()
    table = appended(store, store.load(NAME), 5)
    assert len(table.metadata.snapshots) == 5, "after upkeep the window works again"
    assert [o for o in offsets_in(table) if o < 1_000_000] == list(range(70))


def test_a_table_whose_files_belong_to_others_is_not_cleaned(store):
    table = make_table(store, NAME, properties={"gc.enabled": "false"})
    table = appended(store, table, 12)
    assert len(table.metadata.snapshots) == 12


@pytest.mark.parametrize(
    ("properties", "left"),
    [
        ({"history.expire.min-snapshots-to-keep": "9"}, 9),
        ({"history.expire.max-snapshot-age-ms": "3600000"}, 20),
        ({"history.expire.max-snapshot-age-ms": "1"}, 5),
        ({"history.expire.min-snapshots-to-keep": "2"}, 5),
        ({"history.expire.min-snapshots-to-keep": "many", "history.expire.max-snapshot-age-ms": "long"}, 5),
    ],
)
def test_the_history_that_a_table_asks_for_is_kept(store, properties, left):
    table = appended(store, make_table(store, NAME, properties=properties), 20)
    assert len(table.metadata.snapshots) == left


def test_the_age_that_main_names_is_kept_and_counts_before_the_tables(store):
    from pyiceberg.table.update import AssertTableUUID, SetSnapshotRefUpdate

    table = appended(store, make_table(store, NAME, properties={"history.expire.max-snapshot-age-ms": "1"}), 1)
    update = SetSnapshotRefUpdate(
        ref_name="main",
        type="branch",
        snapshot_id=table.current_snapshot().snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=3_600_000,
        min_snapshots_to_keep=None,
    )
    store.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))
    assert len(appended(store, store.load(NAME), 11).metadata.snapshots) == 12


def test_the_users_retention_of_main_is_kept(store, table):
    from pyiceberg.table.update import AssertTableUUID, SetSnapshotRefUpdate

    table = appended(store, table, 1)
    update = SetSnapshotRefUpdate(
        ref_name="main",
        type="branch",
        snapshot_id=table.current_snapshot().snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=1,
        min_snapshots_to_keep=9,
    )
    store.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))
    table = appended(store, store.load(NAME), 20)
    main = table.metadata.refs["main"]
    assert (main.max_snapshot_age_ms, main.min_snapshots_to_keep) == (1, 9)
    assert len(table.metadata.snapshots) == 9


def test_a_table_with_deleted_files_is_merged_without_them(store, table):
    table = appended(store, table, 5, keep=50)
    table = remove_files(store, table, lambda f: f.record_count == 2 and reached_first(f)).table
    table = appended(store, table, 20, keep=50)
    assert offsets_in(table) == list(range(2, 50))
    assert not any(m.deleted_files_count for m in manifests(table))


def reached_first(file) -> bool:
    return int.from_bytes(file.lower_bounds[1], "little") == 0


def test_manifests_of_other_writers_are_merged_with_ours(store, table):
    """PyIceberg's own have the same form; those of DuckDB or Spark do not, and are read and written anew."""
    for i in range(12):
        table = appended(store, table, 1, keep=50)
        table.append(rows(1_000_000 + i, 1_000_001 + i))
        table = store.load(NAME)
    assert len(manifests(table)) <= 16
    assert offsets_in(table) == [*range(24), *range(1_000_000, 1_000_012)]


def test_old_statistics_of_partitions_without_bounds_are_not_made_up(store, table):
    table = append_until(store, table, 60)[0]
    assert all(m.partitions[0].contains_null is False for m in manifests(table))


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 700))
def test_merging_in_tiers_keeps_manifests_few_and_rewrites_each_entry_a_few_times(files, commits):
    sizes: list[int] = []
    rewritten = 0
    for _ in range(commits):
        going = choose(sizes)
        if going:
            total = sum(sizes[i] for i in going)
            rewritten += total
            sizes = [total, *(s for i, s in enumerate(sizes) if i not in going)]
        sizes.insert(0, files)
    assert sum(sizes) == files * commits
    assert len(sizes) <= 8 * 5
    assert rewritten <= 5 * files * commits


def test_nothing_is_merged_where_little_is_to_be_gained():
    assert choose([]) == []
    assert choose([1] * 7) == []
    assert choose([1] * 8) == list(range(8))
    assert choose([5000] * 20) == []
    assert choose([*[1] * 8, *[10] * 7]) == list(range(15)), "a full tier takes the next one along"
