"""A restored table is what it was: every snapshot, branch and tag, wherever it lies now; or it is not there at all."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

from frazil.atomic_files import TEMPORARY_SUFFIX
from frazil.backup import references
from frazil.backup.repository import Repository, data_key, meta_key
from frazil.backup.restorable import check_restorable
from frazil.backup.restore import PREVIOUS_PROPERTY
from frazil.backup.restore_location import MARKER
from frazil.backup.rollback import rollback_restore
from frazil.errors import (
    ConflictError,
    FrazilError,
    IntegrityError,
    NotAllowedError,
    NotFoundError,
    UsageError,
)
from frazil.observe.cancellation import StoppedError
from frazil.observe.faultpoints import handled
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import orphans
from tests.lane import people
from tests.restore_kit import (
    back_up,
    folder_of,
    history,
    listing,
    moved_away,
    open_repository,
    plan,
    restore,
    rows_at,
    run_plan,
)
from tests.upkeep_files import DAY, Crash, age, care_of, grow, make, step


@pytest.fixture
def care(tmp_path: Path) -> Iterator[UpkeepContext]:
    made = care_of(tmp_path / "home")
    with made.store:
        yield made


@pytest.fixture
def repository(care: UpkeepContext) -> Repository:
    return open_repository(care)


def evolved(care: UpkeepContext, name: str = "ns.t", **options: object) -> Table:
    """A table with appends, a deletion, two schemas, two partition specs, a branch and a tag."""
    table = make(care, name, commits=2, **options)
    second = table.refresh().metadata.current_snapshot_id
    with table.update_schema() as update:
        update.add_column("city", StringType())
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(4), "id_bucket")
    table.refresh().append(people(3).append_column("city", [["Ulm"]]))
    table.refresh().delete("id = 1")
    table.manage_snapshots().create_tag(second, "two").create_branch(second, "side").commit()
    return table.refresh()


def loaded(care: UpkeepContext, name: str = "ns.r") -> Table:
    return care.store.catalog.load_table(name)


def exists(care: UpkeepContext, name: str = "ns.r") -> bool:
    return care.store.catalog.table_exists(name)


# -- what comes back


def test_a_restored_table_has_every_snapshot_while_the_original_is_away(care, repository):
    table = evolved(care)
    before = history(table)
    record = back_up(care, repository)
    report = restore(care, repository, record)
    with moved_away(folder_of(table.location())):
        restored = loaded(care)
        assert history(restored) == before
        assert restored.metadata.table_uuid != table.metadata.table_uuid
        assert restored.append(people(9).append_column("city", [["Bonn"]])) is None
        assert len(rows_at(restored.refresh())) == 3
    assert report.snapshots == len(before["rows"])
    assert not (folder_of(report.location) / MARKER).exists()


def test_paths_outside_the_tables_folder_come_along(care, repository, tmp_path):
    outside = {"write.data.path": str(tmp_path / "d"), "write.metadata.path": f"file://{tmp_path}/m"}
    table = evolved(care, properties=outside)
    before = history(table)
    record = back_up(care, repository)
    report = restore(care, repository, record)
    assert not folder_of(table.location()).exists()
    with moved_away(tmp_path / "d", tmp_path / "m"):
        restored = loaded(care)
        assert history(restored) == before
        assert restored.properties["write.data.path"].startswith(f"{report.location}/relocated/")
        restored.append(people(9).append_column("city", [["Bonn"]]))
        again = back_up(care, repository, "ns.r", name="b2")
        second = restore(care, repository, again, "ns.again")
    with moved_away(folder_of(report.location)):
        assert set(history(loaded(care, "ns.again"))["rows"]) > set(before["rows"])
        assert len(rows_at(loaded(care, "ns.again"))) == 3
    assert second.files == report.files + 1


def test_a_folder_that_the_table_has_left_is_no_obstacle(care, repository, tmp_path):
    """Entries of deleted files name it until their manifest is rewritten."""
    imported = tmp_path / "imported" / "x.parquet"
    imported.parent.mkdir()
    pq.write_table(people(7, 8), imported)
    table = make(care, commits=1)
    table.add_files([str(imported)])
    table.delete("id = 7")
    old = [s.snapshot_id for s in table.refresh().metadata.snapshots[:-1]]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    before = history(table.refresh())
    record = back_up(care, repository)
    assert check_restorable(repository, record, record.tables[0]).is_restorable
    restore(care, repository, record)
    with moved_away(folder_of(table.location()), tmp_path / "imported"):
        assert history(loaded(care)) == before


def test_an_imported_file_that_was_replaced_has_its_newest_content(care, repository, tmp_path):
    """All snapshots read the one file that is there."""
    imported = tmp_path / "x.parquet"
    pq.write_table(people(7), imported)
    table = make(care, commits=0)
    table.add_files([str(imported)])
    back_up(care, repository)
    table.delete("id = 7")
    pq.write_table(people(8), imported)
    table.add_files([str(imported)])
    restore(care, repository, back_up(care, repository, name="b2"))
    assert history(loaded(care)) == history(table.refresh())


def test_a_table_that_was_dropped_comes_back_under_its_name(care, repository):
    table = evolved(care)
    before = history(table)
    record = back_up(care, repository)
    care.store.catalog.drop_table("ns.t")
    report = restore(care, repository, record, "ns.t")
    assert report.location != table.location(), "its old files are still there"
    with moved_away(folder_of(table.location())):
        assert history(loaded(care, "ns.t")) == before


def test_a_table_whose_files_are_lost_comes_back_where_it_was(care, repository):
    table = evolved(care)
    before = history(table)
    record = back_up(care, repository)
    care.store.catalog.drop_table("ns.t")
    with moved_away(folder_of(table.location())):
        report = restore(care, repository, record, "ns.t", location=table.location())
        assert report.location == table.location()
        assert history(loaded(care, "ns.t")) == before
        folder_of(table.location()).rename(folder_of(table.location()).with_name("restored"))


def test_paths_that_spell_the_folder_otherwise_come_back_where_they_were(care, repository):
    """Spark writes `file:/x` into tables in `file:///x`."""
    table = make(care, commits=1)
    inside = folder_of(table.location()) / "data" / "x.parquet"
    pq.write_table(people(7), inside)
    table.add_files([f"file:{inside}"])
    before = history(table.refresh())
    record = back_up(care, repository)
    care.store.catalog.drop_table("ns.t")
    shutil.rmtree(folder_of(table.location()))
    assert restore(care, repository, record, "ns.t").location == table.location()
    assert history(loaded(care, "ns.t")) == before


def test_a_new_namespace_is_made(care, repository):
    make(care)
    restore(care, repository, back_up(care, repository), "elsewhere.r")
    assert len(rows_at(loaded(care, "elsewhere.r"))) == 3


def test_an_empty_table_comes_back(care, repository):
    make(care, commits=0)
    report = restore(care, repository, back_up(care, repository))
    assert (report.files, report.snapshot_id) == (0, None)
    assert rows_at(loaded(care)) == []


# -- at a snapshot or a time


def test_a_table_is_restored_at_a_snapshot_with_its_columns_and_older_tags(care, repository):
    table = evolved(care)
    first, second, _, fourth = [s.snapshot_id for s in table.metadata.snapshots][:4]
    table.manage_snapshots().create_tag(fourth, "late").commit()
    before = history(table)
    record = back_up(care, repository)
    planned = plan(care, repository, record, snapshot=second)
    assert (planned.snapshot_id, planned.snapshots, planned.refs) == (second, 2, ("main", "side", "two"))
    assert any("late" in loss for loss in planned.losses)
    run_plan(care, repository, planned)
    restored = loaded(care)
    assert rows_at(restored) == before["rows"][second]
    assert restored.schema().column_names == ["id", "name"], "as they were then"
    assert [s.snapshot_id for s in restored.metadata.snapshots] == [first, second]
    restored.append(people(7))
    assert len(rows_at(restored.refresh())) == 3


def test_a_table_is_restored_as_of_a_time(care, repository):
    table = make(care, commits=3)
    record = back_up(care, repository)
    log = table.refresh().metadata.snapshot_log
    at = datetime.fromtimestamp(log[1].timestamp_ms / 1000, UTC)
    assert plan(care, repository, record, as_of=at).snapshot_id == log[1].snapshot_id
    assert plan(care, repository, record, as_of=at - timedelta(milliseconds=1)).snapshot_id == log[0].snapshot_id
    restore(care, repository, record, as_of=at)
    assert len(rows_at(loaded(care))) == 2
    with pytest.raises(NotFoundError, match="no snapshot that was current") as error:
        plan(care, repository, record, "ns.q", as_of=at - timedelta(days=9))
    assert "begins" in str(error.value.cause)


def test_only_the_current_snapshot(care, repository):
    evolved(care)
    restore(care, repository, back_up(care, repository), current_only=True)
    metadata = loaded(care).metadata
    assert (len(metadata.snapshots), list(metadata.refs)) == (1, ["main"])
    assert len(rows_at(loaded(care))) == 2


def test_a_snapshot_that_the_backup_lacks_is_refused(care, repository):
    make(care)
    record = back_up(care, repository)
    with pytest.raises(NotFoundError, match="no snapshot 42"):
        plan(care, repository, record, snapshot=42)
    with pytest.raises(UsageError):
        plan(care, repository, record, snapshot=42, as_of=datetime.now(UTC))


# -- the plan


def test_a_plan_says_everything_and_changes_nothing(care, repository, tmp_path):
    table = evolved(care)
    record = back_up(care, repository)
    before = listing(tmp_path / "home")
    planned = plan(care, repository, record)
    assert listing(tmp_path / "home").keys() == before.keys()
    assert not exists(care)
    found = json.loads(json.dumps(planned.to_dict()))
    files = {f for s in table.metadata.snapshots for m in s.manifests(table.io) for f in _files(m, table)}
    assert found["files"] == len(files)
    assert found["bytes"] == sum(size for _, size in files)
    assert found["prefixes"] == [{"from": table.location(), "to": found["location"]}]
    assert (found["method"], found["uuid"], found["action"]) == ("register", "new", "create")
    assert (found["losses"], found["warnings"], found["data"]) == ([], [], "copied")


def _files(manifest, table) -> set[tuple[str, int]]:
    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    return {(e.data_file.file_path, e.data_file.file_size_in_bytes) for e in entries}


# -- a name that is taken


def test_a_table_that_exists_is_left_alone(care, repository):
    make(care)
    record = back_up(care, repository)
    for options in ({}, {"location": str(care.settings.model.home / "else")}):
        with pytest.raises(ConflictError, match=r"ns\.t"):
            restore(care, repository, record, "ns.t", **options)
    report = restore(care, repository, record, "ns.t", if_not_exists=True)
    assert (report.action, report.files) == ("keep", 0)
    assert restore(care, repository, record, if_not_exists=True).action == "create"
    with pytest.raises(UsageError):
        plan(care, repository, record, if_not_exists=True, replace=True)
    with pytest.raises(NotFoundError):
        plan(care, repository, record, "ns.none", replace=True)


def test_a_replaced_table_is_rolled_back(care, repository):
    table = evolved(care)
    record = back_up(care, repository)
    backed_up = history(table)
    table.append(people(7).append_column("city", [["Rom"]]))
    now, pointer = history(table), table.metadata_location
    report = restore(care, repository, record, "ns.t", replace=True)
    replaced = loaded(care, "ns.t")
    assert report.uuid == str(table.metadata.table_uuid) == str(replaced.metadata.table_uuid)
    assert report.previous == pointer == replaced.properties[PREVIOUS_PROPERTY]
    assert report.location.startswith(f"{table.location()}_restored_")
    with moved_away(folder_of(table.location())):
        assert history(replaced) == backed_up
    assert rollback_restore(care, "ns.t", dry_run=True).metadata_location == pointer
    assert loaded(care, "ns.t").metadata_location == report.metadata_location
    undone = rollback_restore(care, "ns.t")
    assert (undone.metadata_location, undone.restored) == (pointer, report.metadata_location)
    assert history(loaded(care, "ns.t")) == now
    with pytest.raises(NotFoundError, match="did not replace"):
        rollback_restore(care, "ns.t")
    again = restore(care, repository, record, "ns.t", replace=True)
    assert again.location == f"{report.location}_2", "the first folder has files"
    third = restore(care, repository, record, "ns.t", replace=True)
    assert third.location == f"{report.location}_3"
    assert rollback_restore(care, "ns.t").metadata_location == again.metadata_location


def test_upkeep_of_a_restored_table_leaves_what_a_rollback_needs(care, repository):
    table = make(care)
    record = back_up(care, repository)
    before = history(table)
    restore(care, repository, record, "ns.t", replace=True)
    restored = loaded(care, "ns.t")
    age(table)
    age(restored)
    orphans.run(care, restored, step("orphans", age_s=DAY))
    rollback_restore(care, "ns.t")
    assert history(loaded(care, "ns.t")) == before


def test_commits_since_the_restore_are_not_lost_by_a_rollback_unasked(care, repository):
    make(care)
    restore(care, repository, back_up(care, repository), "ns.t", replace=True)
    grow(loaded(care, "ns.t"))
    with pytest.raises(ConflictError, match="commits since"):
        rollback_restore(care, "ns.t")
    rollback_restore(care, "ns.t", discard_newer=True)
    assert len(rows_at(loaded(care, "ns.t"))) == 3


@pytest.mark.parametrize("change", ["branch", "column", "property", "tag"])
def test_commits_that_leave_the_current_snapshot_alone_are_not_lost_either(care, repository, change):
    make(care)
    restore(care, repository, back_up(care, repository), "ns.t", replace=True)
    table = loaded(care, "ns.t")
    head = table.metadata.current_snapshot_id
    if change == "branch":
        table.manage_snapshots().create_branch(head, "audit").commit()
        table.append(people(9), branch="audit")
    elif change == "column":
        table.update_schema().add_column("city", StringType()).commit()
    elif change == "property":
        table.transaction().set_properties({"owner": "me"}).commit_transaction()
    else:
        table.manage_snapshots().create_tag(head, "kept").commit()
    with pytest.raises(ConflictError, match="commits since"):
        rollback_restore(care, "ns.t")
    rollback_restore(care, "ns.t", discard_newer=True)


def test_a_backup_of_the_restored_table_does_not_stand_against_a_rollback(care, repository):
    make(care)
    restore(care, repository, back_up(care, repository), "ns.t", replace=True)
    restored = loaded(care, "ns.t").metadata_location
    back_up(care, repository, name="b2")
    assert loaded(care, "ns.t").metadata_location != restored, "it was pinned"
    rollback_restore(care, "ns.t")


def test_a_rollback_to_files_that_are_gone_is_refused(care, repository):
    table = make(care)
    report = restore(care, repository, back_up(care, repository), "ns.t", replace=True)
    with moved_away(folder_of(table.location())), pytest.raises(NotFoundError, match="not in storage"):
        rollback_restore(care, "ns.t")
    manifest_list = folder_of(table.current_snapshot().manifest_list)
    with moved_away(manifest_list), pytest.raises(IntegrityError, match="not in storage"):
        rollback_restore(care, "ns.t")
    assert loaded(care, "ns.t").metadata_location == report.metadata_location


def test_a_writer_that_is_faster_than_a_replacement_keeps_its_commit(care, repository):
    table = make(care)
    record = back_up(care, repository)
    planned = plan(care, repository, record, "ns.t", replace=True)
    grow(table)
    with pytest.raises(ConflictError, match="changed"):
        run_plan(care, repository, planned)
    assert len(rows_at(loaded(care, "ns.t"))) == 4


# -- places


def test_places_of_other_tables_are_refused(care, repository):
    table = make(care)
    make(care, "ns.other")
    record = back_up(care, repository)
    other = folder_of(loaded(care, "ns.other").location())
    before = listing(care.settings.model.home)
    for place in (other, other / "data" / "x", other.parent, folder_of(table.location()), f"file:{other}/y"):
        with pytest.raises(NotAllowedError, match="in the place of the table"):
            restore(care, repository, record, location=str(place))
    for place in (f"{other}/../free", "/", "s3://bucket", f"{other.parent}/./free"):
        with pytest.raises(NotAllowedError):
            restore(care, repository, record, location=place)
    with pytest.raises(UsageError, match="relative"):
        restore(care, repository, record, location="some/where")
    care.store.catalog.drop_table("ns.t")
    with pytest.raises(NotAllowedError, match="overlaps"):
        restore(care, repository, record, location=f"{table.location()}/inside")
    with pytest.raises(ConflictError, match="holds files"):
        restore(care, repository, record, location=table.location())
    assert listing(care.settings.model.home).keys() == before.keys()
    assert not exists(care)


def test_a_link_to_the_place_of_a_table_is_that_place(care, repository, tmp_path):
    table = make(care)
    record = back_up(care, repository)
    (tmp_path / "link").symlink_to(folder_of(table.location()))
    with pytest.raises(NotAllowedError, match="in the place of the table"):
        restore(care, repository, record, location=str(tmp_path / "link" / "x"))


def test_files_of_others_in_the_target_are_left_alone(care, repository, tmp_path):
    make(care)
    record = back_up(care, repository)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ConflictError, match="holds files"):
        restore(care, repository, record, location=str(tmp_path / "mine"))
    assert listing(tmp_path / "mine") == {"letter.txt": 4}


# -- damage


def blob_files(repository: Repository, record) -> list[str]:
    """Every object of a backup that a restore reads, by its key."""
    state = repository.read_state(record.tables[0])
    keys = [meta_key(record.tables[0].state), meta_key(state.metadata.blob)]
    keys += [meta_key(found.blob) for found in (*state.manifest_lists, *state.manifests)]
    keys += [meta_key(m.files) for m in state.manifests if m.files]
    return keys + [data_key(f.blob) for m in state.manifests for f in repository.read_files(m) if f.blob]


def test_a_flipped_bit_anywhere_in_a_backup_is_found_before_anything_is_published(care, repository):
    evolved(care)
    record = back_up(care, repository)
    root = folder_of(repository.root)
    for number, key in enumerate(dict.fromkeys(blob_files(repository, record))):
        whole = (root / key).read_bytes()
        damaged = bytearray(whole)
        damaged[random.Random(key).randrange(len(whole))] ^= 0x10
        (root / key).chmod(0o644)
        (root / key).write_bytes(damaged)
        with pytest.raises(IntegrityError):
            restore(care, repository, record, f"ns.r{number}")
        assert not exists(care, f"ns.r{number}"), key
        (root / key).write_bytes(whole)
    restore(care, repository, record)
    assert exists(care)


def test_a_missing_file_is_named_by_the_plan(care, repository, monkeypatch):
    evolved(care)
    record = back_up(care, repository)
    state = repository.read_state(record.tables[0])
    file = next(f for m in state.manifests for f in repository.read_files(m))
    (folder_of(repository.root) / data_key(file.blob)).unlink()
    for most in (1000, 0):  # by single requests, and by a listing
        monkeypatch.setattr(references, "_LOOK_UP", most)
        with pytest.raises(IntegrityError) as error:
            plan(care, repository, record)
        assert file.path in error.value.message
        assert error.value.details["missing_files"] == [file.path]


def test_erased_content_is_left_out_if_allowed(care, repository, monkeypatch):
    table = make(care)
    record = back_up(care, repository)
    state = repository.read_state(record.tables[0])
    file = next(f for m in state.manifests for f in repository.read_files(m))
    repository.erase(file.blob, "a person asked for it")
    for most in (1000, 0):
        monkeypatch.setattr(references, "_LOOK_UP", most)
        with pytest.raises(NotAllowedError, match="erased on purpose") as error:
            plan(care, repository, record)
        assert error.value.details["erased_files"] == [file.path]
    planned = plan(care, repository, record, allow_erased=True)
    assert planned.erased == (file.path,)
    assert planned.files == 2
    run_plan(care, repository, planned)
    with moved_away(folder_of(table.location())):
        restored = loaded(care)
        assert len(rows_at(restored)) == 2
        for snapshot in restored.metadata.snapshots:
            assert len(rows_at(restored, snapshot.snapshot_id)) <= 2
        manifests = restored.current_snapshot().manifests(restored.io)
        assert sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests) == 2


def test_a_backup_is_checked_by_a_restore_in_memory(care, repository):
    evolved(care)
    record = back_up(care, repository)
    report = check_restorable(repository, record, record.tables[0])
    assert report.is_restorable, report.problems
    assert (report.snapshots, report.files > 0) == (record.tables[0].snapshots, True)
    state = repository.read_state(record.tables[0])
    damaged = folder_of(repository.root) / meta_key(state.manifests[0].blob)
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    report = check_restorable(repository, record, record.tables[0])
    assert not report.is_restorable
    assert state.manifests[0].path in report.problems[0]
    json.dumps(report.to_dict())


# -- data that was not copied


def test_a_backup_without_data_says_so_and_needs_the_files(care, repository):
    table = evolved(care)
    before = history(table)
    record = back_up(care, repository, data="reference")
    planned = plan(care, repository, record)
    assert any("not copied" in warning for warning in planned.warnings)
    data = folder_of(table.location()) / "data"
    with moved_away(data), pytest.raises(IntegrityError, match="gone or changed"):
        run_plan(care, repository, planned)
    assert not exists(care)
    report = run_plan(care, repository, planned)
    assert report.files == 0
    with moved_away(folder_of(table.location()) / "metadata"):
        assert history(loaded(care)) == before
    assert loaded(care).properties["gc.enabled"] == "false"


# -- crashes and races


def _steps(care: UpkeepContext, repository: Repository, record, name: str, **options: object) -> list[str]:
    reached: list[str] = []
    with handled(reached.append):
        restore(care, repository, record, name, **options)
    return reached


@pytest.mark.parametrize("replace", [False, True])
def test_a_restore_that_crashes_anywhere_changes_nothing_and_is_continued(care, repository, replace):
    table = evolved(care)
    before = history(table)
    record = back_up(care, repository)
    steps = _steps(care, repository, record, "ns.first")
    grow_city(table)
    newer = history(table)
    name = "ns.t" if replace else "ns.r"
    points = sorted({step for step in steps if step.startswith(("restore.", "tables."))})
    assert len(points) > 12
    for point in points:
        _crash(care, repository, record, name, point, replace=replace)
        is_published = point in ("restore.publish.after", "tables.publish.after")
        if replace:
            assert history(loaded(care, name)) == (before if is_published else newer), point
        else:
            assert exists(care, name) == is_published, point
        if not is_published:
            copied: list[str] = []
            with handled(copied.append):
                report = restore(care, repository, record, name, replace=replace)
            if point.startswith(("restore.flush", "restore.metadata", "restore.list", "restore.manifest")):
                assert "restore.copy.before" not in copied, point
                assert report.skipped_files > 0
        assert history(loaded(care, name)) == before, point
        if replace:
            rollback_restore(care, name)
        else:
            care.store.catalog.purge_table(name)


def grow_city(table: Table) -> None:
    table.append(people(7).append_column("city", [["Rom"]]))


def _crash(care: UpkeepContext, repository: Repository, record, name: str, point: str, **options: object) -> None:
    def crash(step: str) -> None:
        if step == point:
            raise Crash(step)

    with handled(crash), pytest.raises(Crash):
        restore(care, repository, record, name, **options)


def test_a_file_that_a_power_cut_has_damaged_is_copied_again(care, repository):
    table = make(care)
    record = back_up(care, repository)

    def crash(step: str) -> None:
        if step == "restore.manifest.before":
            raise Crash(step)

    with handled(crash), pytest.raises(Crash):
        restore(care, repository, record)
    damaged, *rest = (folder_of(table.location()).parent / "r").rglob("*.parquet")
    damaged.write_bytes(bytes(damaged.stat().st_size))
    report = restore(care, repository, record)
    assert (report.files, report.skipped_files) == (1, len(rest))
    assert history(loaded(care)) == history(table)


def test_a_file_that_is_being_written_does_not_count_as_one_of_others(care, repository):
    """Another run of the same restore writes its marker at the same time: not both of them may give up."""
    make(care)
    planned = plan(care, repository, back_up(care, repository))

    def write(step: str) -> None:
        if step == "restore.claim.before":
            folder = folder_of(planned.location)
            folder.mkdir()
            (folder / f".0123{TEMPORARY_SUFFIX}").touch()

    with handled(write):
        run_plan(care, repository, planned)
    assert len(rows_at(loaded(care))) == 3


def test_of_two_restores_to_one_name_one_wins(care, repository, tmp_path):
    table = evolved(care)
    before = history(table)
    records = [back_up(care, repository), back_up(care, repository, name="b2")]
    for round_number, pair in enumerate(([records[0], records[0]], records)):
        name = f"ns.r{round_number}"
        barrier = threading.Barrier(2)

        def run(record, name=name, barrier=barrier) -> str:
            barrier.wait()
            try:
                restore(care, repository, record, name)
            except ConflictError as error:
                return error.message
            return "won"

        with ThreadPoolExecutor(2) as pool:
            results = sorted(pool.map(run, pair))
        assert results.count("won") == 1, results
        with moved_away(folder_of(table.location())):
            assert history(loaded(care, name)) == before


def test_a_restore_that_is_stopped_changes_nothing(care, repository):
    make(care)
    record = back_up(care, repository)
    planned = plan(care, repository, record)

    def stop(step: str) -> None:
        if step == "restore.manifest.after":
            care.stop.set()

    with handled(stop), pytest.raises(StoppedError):
        run_plan(care, repository, planned)
    assert not exists(care)


def test_another_restore_does_not_write_into_a_folder_that_is_begun(care, repository, tmp_path):
    make(care)
    record, other = back_up(care, repository), back_up(care, repository, name="b2")
    place = str(tmp_path / "place")
    planned = plan(care, repository, other, location=place)
    _crash(care, repository, record, "ns.r", "restore.copy.after", location=place)
    for attempt in (lambda: run_plan(care, repository, planned), lambda: plan(care, repository, other, location=place)):
        with pytest.raises(ConflictError):
            attempt()
    restore(care, repository, record, location=place)
    assert len(rows_at(loaded(care))) == 3


def test_a_plan_that_is_run_twice_leaves_the_first_table_alone(care, repository):
    make(care)
    planned = plan(care, repository, back_up(care, repository))
    run_plan(care, repository, planned)
    before = listing(folder_of(planned.location))
    with pytest.raises(ConflictError):
        run_plan(care, repository, planned)
    assert listing(folder_of(planned.location)) == before


def test_a_folder_that_cannot_be_made_is_a_clear_error(care, repository, tmp_path):
    make(care)
    record = back_up(care, repository)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FrazilError, match="file"):
        restore(care, repository, record, location=str(tmp_path / "file" / "t"))
    assert not exists(care)
