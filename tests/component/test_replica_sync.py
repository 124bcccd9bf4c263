"""Syncs of a replica: what is served, what is written, and what is refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType

from frazil.errors import ConflictError, NotAllowedError, UnavailableError
from frazil.observe.cancellation import StoppedError
from frazil.observe.faultpoints import handled
from frazil.replica import publication, relocation
from frazil.replica.beacon import write_beacon
from frazil.replica.plan import ReplicaTable, plan_sync
from frazil.replica.runs import list_runs
from frazil.tables.commit_draft import build_draft, read_live_manifests
from frazil.tables.manifest_writer import ManifestWriter
from frazil.tables.relocation.prefixes import UnmappedPathError
from frazil.tables.writing.data_files import WriteTarget
from frazil.tables.writing.position_deletes import write_position_deletes
from tests.lane import people
from tests.replica_sync_kit import Pair, copy_tree, describe, grow, listing, make, open_pair, stop_at
from tests.upkeep_files import Crash, old_ids, replaced, rows


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with open_pair(tmp_path) as made:
        yield made


def test_a_replica_has_the_whole_history_and_needs_no_primary(pair: Pair) -> None:
    current = pair.table.current_snapshot()
    assert current is not None
    pair.table.manage_snapshots().create_tag(current.snapshot_id, "first").commit()
    pair.table.manage_snapshots().create_branch(current.snapshot_id, "audit").commit()
    pair.table.append(people(50), branch="audit")
    with pair.table.update_schema() as schema:
        schema.add_column("size", LongType())
    pair.copy()
    plan = plan_sync(pair.replica, pair.order)
    assert (plan.action, plan.to_dict()["files_new"], plan.served) == ("created", 4, None)
    report = pair.sync()
    assert (report.action, report.files_new, report.manifests_new, report.missing) == ("created", 4, 4, ())
    pair.require_equal()
    assert pair.load().properties["gc.enabled"] == "false"


def test_nothing_is_written_into_the_replicated_folder(pair: Pair) -> None:
    for _ in range(2):
        pair.mirror()
        before = {name: (pair.landed / name).stat().st_mtime_ns for name in listing(pair.landed)}
        for path in (pair.landed, *pair.landed.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        pair.sync()
        for path in (pair.landed, *pair.landed.rglob("*")):
            path.chmod(0o755)
        assert {name: (pair.landed / name).stat().st_mtime_ns for name in listing(pair.landed)} == before
        grow(pair.table)
    metadata = pair.load().metadata
    assert metadata.location == (pair.home / "warehouse/ns/t").as_uri()
    assert all(s.manifest_list.startswith(metadata.location) for s in metadata.snapshots)


def test_a_second_sync_changes_nothing_and_looks_at_no_data(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.copy()
    first = pair.sync()
    before, runs = listing(pair.home / "warehouse"), len(list_runs(pair.replica.store))
    (pair.landed / "data").rename(pair.landed / "hidden")
    (pair.home / "warehouse/ns/t/relocated").rename(pair.home / "hidden")
    report = pair.sync()
    (pair.home / "hidden").rename(pair.home / "warehouse/ns/t/relocated")
    assert (report.action, report.version, report.source_metadata) == ("unchanged", 3, first.source_metadata)
    assert (listing(pair.home / "warehouse"), len(list_runs(pair.replica.store))) == (before, runs)


def test_only_new_manifests_are_relocated(pair: Pair) -> None:
    pair.copy()
    pair.sync()
    before = listing(pair.home / "warehouse")
    grow(pair.table, 2)
    pair.copy()
    steps: list[str] = []
    with handled(steps.append):
        report = pair.sync()
    assert (report.action, report.manifests_new, report.files_new) == ("updated", 2, 2)
    assert (steps.count("replica.manifest.before"), steps.count("replica.list.before")) == (2, 2)
    assert before.items() <= listing(pair.home / "warehouse").items()
    pair.require_equal()


def test_deletes_that_a_later_manifest_names_again_are_not_relocated_again(pair: Pair) -> None:
    store, table = pair.primary.store, pair.table

    def commit(operation: Operation, files: list[DataFile], manifests: list[ManifestFile]) -> None:
        draft = build_draft(table, shop, manifests, operation, added=files)
        store.catalog.commit_table(table, draft.requirements, draft.updates)
        table.refresh()

    for number, task in enumerate(list(table.scan().plan_files())[:2]):
        place = pa.array([task.file.file_path]), pa.array([0])
        files = write_position_deletes(WriteTarget.of(table), f"deletes-{number}", *place)
        shop = ManifestWriter(store, table)
        files[0].spec_id = 0
        commit(Operation.DELETE, files, [shop.added(0, files), *read_live_manifests(store, table)])
    pair.copy()
    steps: list[str] = []
    with handled(steps.append):
        pair.sync()
        assert steps.count("replica.deletes.before") == 2
        pair.require_equal()
        shop = ManifestWriter(store, table)
        living = read_live_manifests(store, table)
        deletes = [manifest for manifest in living if manifest.content == ManifestContent.DELETES]
        rest = [manifest for manifest in living if manifest.content != ManifestContent.DELETES]
        commit(Operation.OVERWRITE, [], [shop.merged(0, deletes), *rest])
        pair.copy()
        assert pair.sync().manifests_new == 1
    assert steps.count("replica.deletes.before") == 2
    pair.require_equal()


def test_versions_that_have_not_arrived_wait(pair: Pair) -> None:
    pair.copy()
    pair.sync()
    served = describe(pair.load())
    grow(pair.table)
    new = sorted(pair.list_new(), key=lambda name: not name.endswith(".json"))
    for number, name in enumerate(new[:-1]):
        pair.copy(new[number : number + 1], part=True)
        assert (pair.sync().action, describe(pair.load())) == ("waiting", served), name
        pair.copy(new[number : number + 1])
        report = pair.sync()
        assert (report.action, describe(pair.load())) == ("waiting", served), name
        assert report.missing and report.version == 3 and report.newest_version == 4
    pair.copy()
    assert pair.sync().action == "updated"
    pair.require_equal()


def test_the_newest_complete_version_is_served_while_a_newer_one_waits(pair: Pair) -> None:
    grow(pair.table)
    middle = describe(pair.table)
    pair.copy()
    grow(pair.table)
    pair.copy([name for name in pair.list_new() if name.endswith(".json")])
    report = pair.sync()
    assert (report.action, report.version, report.newest_version, report.witnessed) == ("created", 4, 5, True)
    assert any("data" in name or "metadata" in name for name in report.missing)
    assert describe(pair.load()) == middle


def test_a_sole_newest_version_is_served_without_a_witness_or_waits_for_one(pair: Pair) -> None:
    pair.copy()
    report = pair.sync(witnessed_only=True)
    assert (report.action, report.version) == ("created", 2)
    report = pair.sync()
    assert (report.action, report.version, report.witnessed) == ("updated", 3, False)


def test_expiry_compaction_and_rollback_are_followed(pair: Pair) -> None:
    pair.copy()
    pair.sync()
    grow(replaced(pair.table))
    pair.mirror()
    pair.sync()
    pair.require_equal()
    pair.table.maintenance.expire_snapshots().by_ids(old_ids(pair.table)).commit()
    used = {Path(task.file.file_path).name for task in pair.table.refresh().scan().plan_files()}
    for path in (pair.source / "data").iterdir():
        if path.name not in used:
            path.unlink()
    pair.mirror()
    assert pair.sync().snapshots == 1
    pair.require_equal()
    first = pair.table.current_snapshot()
    assert first is not None
    grow(pair.table)
    pair.mirror()
    pair.sync()
    pair.table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    pair.mirror()
    assert pair.sync().action == "updated"
    pair.require_equal()


def test_files_of_former_versions_are_removed_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.copy()
    pair.sync()
    pair.table.maintenance.expire_snapshots().by_ids(old_ids(pair.table)).commit()
    pair.copy()
    pair.sync()
    place = pair.home / "warehouse/ns/t"
    assert len(list(place.rglob("*.avro"))) == 6
    monkeypatch.setattr(publication, "RETIRE_S", 0.0)
    grow(pair.table)
    pair.copy()
    pair.sync()
    names = {Path(s.manifest_list).name for s in pair.load().metadata.snapshots}
    assert {path.name for path in place.rglob("snap-*.avro")} == names
    assert (len(list(place.rglob("*.metadata.json"))), len(list(place.rglob("replica-*.json")))) == (2, 2)
    pair.require_equal()


def test_storage_that_was_copied_to_the_same_place_is_served_as_it_is(pair: Pair) -> None:
    pair.order = ReplicaTable(str(pair.source), ("ns", "t"), pair.order.warehouse)
    before = listing(pair.source)
    for number in (3, 4):
        report = pair.sync()
        assert (report.version, report.bytes_new, listing(pair.source)) == (number, 0, before)
        mine, theirs = (table.refresh().metadata for table in (pair.load(), pair.table))
        assert [s.manifest_list for s in mine.snapshots] == [s.manifest_list for s in theirs.snapshots]
        assert describe(pair.load()) == describe(pair.table)
        assert pair.sync().action == "unchanged"
        grow(pair.table)
        before = listing(pair.source)
    assert not list((pair.home / "warehouse").rglob("*.avro"))
    grow(pair.load())  # another writer commits to the replica: it shows, and not in the replicated folder
    assert listing(pair.source) == before
    with pytest.raises(ConflictError):
        pair.sync()


def test_storage_that_moves_is_followed(pair: Pair) -> None:
    pair.copy()
    pair.sync()
    served = describe(pair.load())
    moved = pair.home / "moved"
    copy_tree(pair.landed, moved)
    lost = next((moved / "data").iterdir())
    data = lost.read_bytes()
    lost.unlink()
    pair.order = ReplicaTable(str(moved), ("ns", "t"), pair.order.warehouse)
    assert (pair.sync().action, describe(pair.load())) == ("waiting", served)
    lost.write_bytes(data)
    assert pair.sync().action == "updated"
    (pair.landed / "data").rename(pair.home / "away")
    pair.require_equal()
    assert pair.sync().action == "unchanged"


# What is refused


def test_a_replica_that_somebody_wrote_to_is_refused_with_both_histories(pair: Pair) -> None:
    pair.copy()
    pair.sync()
    written = grow(pair.load())
    wrong = describe(written)
    grow(pair.table)
    pair.copy()
    with pytest.raises(ConflictError, match="another writer committed to the replica") as caught:
        pair.sync()
    histories = caught.value.to_dict()
    assert (len(histories["synced"]), len(histories["now"])) == (3, 4)
    assert describe(pair.load()) == wrong
    assert plan_sync(pair.replica, pair.order).to_dict()["written"]
    report = pair.sync(discard_replica_writes=True)
    assert (report.action, report.version) == ("updated", 4)
    pair.require_equal()
    with pair.load().update_schema() as schema:
        schema.add_column("more", LongType())
    with pytest.raises(ConflictError):
        pair.sync()
    assert pair.sync(discard_replica_writes=True).action == "updated"
    pair.require_equal()
    assert pair.sync().action == "unchanged"


def test_a_table_that_is_no_replica_is_refused(pair: Pair) -> None:
    make(pair.replica, "ns.t", commits=1)
    pair.copy()
    with pytest.raises(NotAllowedError, match="is no replica"):
        pair.sync()
    assert rows(pair.load()) == [1]


def test_another_table_at_the_replicated_path_is_refused(pair: Pair) -> None:
    pair.copy()
    pair.sync()
    served = pair.load().metadata_location
    other = make(pair.primary, "ns.other", commits=5)
    for path in sorted(pair.landed.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    pair.table = other
    pair.copy()
    with pytest.raises(ConflictError, match="is the replica of another table"):
        pair.sync()
    assert pair.load().metadata_location == served


def test_a_warehouse_in_the_replicated_folder_is_refused(pair: Pair) -> None:
    pair.copy()
    before = listing(pair.landed)
    with pytest.raises(NotAllowedError, match="in the replicated storage"):
        pair.sync(warehouse=str(pair.landed / "warehouse"))
    assert listing(pair.landed) == before


def test_a_path_that_no_prefix_covers_is_an_error(pair: Pair) -> None:
    outside = pair.home / "outside"
    with pair.table.transaction() as change:
        change.set_properties({"write.data.path": outside.as_uri()})
    grow(pair.table)
    pair.copy()
    with pytest.raises(UnmappedPathError, match="outside"):
        pair.sync()
    assert not pair.replica.store.catalog.table_exists("ns.t")
    pair.order = ReplicaTable(
        str(pair.landed), ("ns", "t"), pair.order.warehouse, ((outside.as_uri(), (pair.home / "landed/out").as_uri()),)
    )
    copy_tree(outside, pair.home / "landed/out")
    pair.sync()
    outside.rename(pair.home / "outside.gone")
    expected = [row["id"] for row in pair.load().scan().to_arrow().to_pylist()]
    assert sorted(expected) == [1, 2, 3, 4]
    assert "write.data.path" not in pair.load().properties


# Interruptions


def test_a_sync_that_stops_at_any_step_is_continued(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relocation, "CHECKPOINT_S", 0.0)
    pair.copy()
    pair.sync()
    served = describe(pair.load())
    grow(replaced(pair.table))
    pair.table.delete(EqualTo("id", 2))
    pair.copy()
    wanted = describe(pair.table)
    steps: list[str] = []
    with handled(steps.append):
        pair.replica.store.catalog.drop_table("ns.t")
        pair.sync()
    steps = [step for step in steps if not step.startswith("replica.record")]
    for step in dict.fromkeys(steps):
        for error in (Crash(step), UnavailableError(step)):
            pair.replica.store.catalog.drop_table("ns.t")
            with handled(stop_at(step, error)), pytest.raises((Crash, UnavailableError, ConflictError)):
                pair.sync()
                raise error  # a lost reply is looked up, and the sync succeeds
            catalog = pair.replica.store.catalog
            assert not catalog.table_exists("ns.t") or describe(pair.load()) == wanted, step
            if not catalog.table_exists("ns.t"):
                assert pair.sync().action == "created", step
            assert describe(pair.load()) == wanted, step
    assert served != wanted


def test_what_an_interrupted_sync_has_relocated_is_not_relocated_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relocation, "CHECKPOINT_S", 0.0)
    grow(pair.table, 5)
    pair.copy()
    with handled(stop_at("replica.manifest.before", Crash(), nth=6)), pytest.raises(Crash):
        pair.sync()
    assert pair.sync().manifests_new == 3
    assert not list((pair.home / "warehouse").rglob("replica-progress.json"))
    pair.require_equal()


def test_notes_of_an_interrupted_sync_from_before_sizes_of_deletes_were_noted_are_of_use(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relocation, "CHECKPOINT_S", 0.0)
    store, table = pair.primary.store, pair.table
    (task, *_) = table.scan().plan_files()
    place = pa.array([task.file.file_path]), pa.array([0])
    (file,) = write_position_deletes(WriteTarget.of(table), "deletes", *place)
    file.spec_id, shop = 0, ManifestWriter(store, table)
    manifests = [shop.added(0, [file]), *read_live_manifests(store, table)]
    draft = build_draft(table, shop, manifests, Operation.DELETE, added=[file])
    store.catalog.commit_table(table, draft.requirements, draft.updates)
    table.refresh()
    pair.copy()
    with handled(stop_at("replica.list.before", Crash())), pytest.raises(Crash):
        pair.sync()
    (notes,) = (pair.home / "warehouse").rglob("replica-progress.json")
    content = json.loads(notes.read_text())
    assert len(content.pop("relocated_deletes")) == 1
    notes.write_text(json.dumps(content))
    assert pair.sync().manifests_new == 1
    pair.require_equal()


def test_a_retired_file_that_an_interrupted_sync_needed_again_stays(pair: Pair) -> None:
    pair.copy()
    pair.sync()
    (files,) = (pair.home / "warehouse").rglob("metadata/replica-*.json")
    content = json.loads(files.read_text())
    current = pair.load().current_snapshot()
    assert current is not None
    content["retired"][current.manifest_list] = 0.0
    files.write_text(json.dumps(content))
    grow(pair.table)
    pair.copy()
    pair.sync()
    pair.require_equal()


def test_a_sync_that_is_told_to_stop_changes_nothing(pair: Pair) -> None:
    pair.copy()
    stop = threading.Event()
    with handled(lambda step: stop.set() if step == "replica.manifest.before" else None), pytest.raises(StoppedError):
        pair.sync(stop=stop)
    assert not pair.replica.store.catalog.table_exists("ns.t")
    assert pair.sync().manifests_new <= 3
    pair.require_equal()


def test_two_syncs_at_once_publish_once(pair: Pair) -> None:
    pair.copy()
    pair.sync()
    grow(pair.table)
    pair.copy()
    done: list[str] = []

    def other(step: str) -> None:
        if step == "replica.publish.before" and not done:
            done.append("begun")
            done.append(pair.sync().action)

    with handled(other):
        assert pair.sync().action == "unchanged"
    assert done == ["begun", "updated"]
    pair.require_equal()


def test_runs_are_recorded(pair: Pair) -> None:
    pair.copy()
    began = datetime.now(UTC)
    report = pair.sync()
    make(pair.replica, "ns.other", commits=0)
    for _ in range(2):
        with pytest.raises(NotAllowedError):
            pair.order = ReplicaTable(str(pair.landed), ("ns", "other"), pair.order.warehouse)
            pair.sync()
    runs = list_runs(pair.replica.store)
    assert [(run["table"], run["result"]) for run in runs] == [("ns.other", "failed"), ("ns.t", "created")]
    last = runs[1]
    assert last["started_at"] >= began.replace(microsecond=0)
    assert (last["source_metadata"], last["version"], last["snapshot_id"]) == (
        report.source_metadata, 3, report.snapshot_id,
    )  # fmt: skip
    assert "is no replica" in runs[0]["reason"] and os.getpid() == runs[0]["process"]
    assert json.dumps(report.to_dict())


# Drops and renames of the primary


def send_beacon(pair: Pair, *names: str) -> None:
    write_beacon(pair.primary, names, str(pair.landed))


def test_a_drop_is_followed_only_by_a_beacon(pair: Pair) -> None:
    pair.copy()
    pair.sync()
    pair.primary.store.catalog.drop_table("ns.t")
    assert pair.sync().action == "unchanged"
    make(pair.primary, "ns.other", commits=1)
    send_beacon(pair, "ns.other")  # not of the whole catalog
    assert pair.sync().action == "unchanged"
    send_beacon(pair)
    assert plan_sync(pair.replica, pair.order).action == "dropped"
    assert pair.sync().action == "dropped"
    assert not pair.replica.store.catalog.table_exists("ns.t")
    assert list_runs(pair.replica.store)[0]["result"] == "dropped"
    report = pair.sync()
    assert (report.action, report.version) == ("waiting", None)
    assert "dropped" in report.reasons[0]


def test_a_rename_is_followed_only_by_a_beacon(pair: Pair) -> None:
    pair.copy()
    send_beacon(pair)
    pair.sync()
    pair.primary.store.catalog.rename_table("ns.t", "ns.new")
    pair.table = pair.primary.store.catalog.load_table("ns.new")
    assert pair.sync().action == "unchanged"
    send_beacon(pair)
    report = pair.sync()
    assert (report.identifier, report.action) == ("ns.new", "updated")
    catalog = pair.replica.store.catalog
    assert describe(catalog.load_table("ns.new")) == describe(pair.table)
    assert not catalog.table_exists("ns.t")
    assert (pair.sync().identifier, pair.sync().action) == ("ns.new", "unchanged")
    grow(pair.table)
    pair.copy()
    assert (pair.sync().identifier, pair.sync().version) == ("ns.new", 4)
    assert describe(catalog.load_table("ns.new")) == describe(pair.table)


def test_a_name_of_its_own_is_kept(pair: Pair) -> None:
    pair.order = ReplicaTable(str(pair.landed), ("copies", "mine"), pair.order.warehouse)
    pair.copy()
    send_beacon(pair)
    pair.sync()
    pair.primary.store.catalog.rename_table("ns.t", "ns.new")
    send_beacon(pair)
    assert (pair.sync().identifier, pair.sync().action) == ("copies.mine", "unchanged")
