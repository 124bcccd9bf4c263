"""Backups hold what the table was, byte for byte, and copy only what is new."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table
from pyiceberg.types import StringType

from frazil.backup import create, table_copy
from frazil.backup.contents import describe_table, diff_backups
from frazil.backup.format import BackedUpTable, BlobRef
from frazil.backup.repository import Repository
from frazil.catalogs import local_path
from frazil.errors import ConflictError, IntegrityError, NotFoundError, UnsupportedError, UsageError
from frazil.observe.cancellation import StoppedError
from frazil.tables.metadata.locations import canonical_uri
from frazil.tables.relocation.engine import LocalEngine
from frazil.upkeep.expiry import pins
from tests.backup_create_kit import (
    FILES,
    LISTS,
    MANIFESTS,
    Bench,
    blobs_in,
    expected,
    held,
    held_metadata,
    metadata_bytes,
    open_bench,
    remove_files,
)
from tests.lane import people
from tests.upkeep_files import Crash, files_in, folder, grow, make, old_ids, replaced, rows


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with open_bench(tmp_path) as made:
        yield made


def one_at_a_time(*_: object, stop: threading.Event, **__: object) -> LocalEngine:
    """An engine that copies one file after the other, so that there is an order."""
    return LocalEngine(1, stop)


def data_files(table: Table) -> list[str]:
    return sorted(table.refresh().inspect.all_data_files()["file_path"].to_pylist())


def expire(table: Table, *ids: int) -> None:
    """Expires snapshots, by default all but the current one, and deletes what only they had."""
    ids = ids or tuple(old_ids(table))
    before = set(data_files(table)) | {s.manifest_list for s in table.metadata.snapshots}
    manifests = {m.manifest_path for s in table.metadata.snapshots for m in s.manifests(table.io)}
    table.maintenance.expire_snapshots().by_ids(list(ids)).commit()
    table.refresh()
    after = set(data_files(table)) | {s.manifest_list for s in table.metadata.snapshots}
    left = {m.manifest_path for s in table.metadata.snapshots for m in s.manifests(table.io)}
    for uri in (before - after) | (manifests - left):
        Path(local_path(uri) or "/nowhere").unlink(missing_ok=True)


# -- what a record holds


def test_a_backup_holds_the_whole_history_byte_for_byte(bench: Bench) -> None:
    table = make(bench.care, commits=3)
    table.delete("id = 2")
    table.manage_snapshots().create_tag(table.metadata.snapshots[0].snapshot_id, "first").commit()
    before = metadata_bytes(bench.care, table)
    record = bench.backup(name="one")
    (found,) = record.tables
    assert held_metadata(bench.repository, found) == before
    assert held(bench.repository, found) == expected(bench.care, metadata=before)
    assert (found.snapshots, found.refs) == (len(table.refresh().metadata.snapshots), ("first", "main"))
    assert found.files == 3
    assert found.new_files == 3
    assert found.bytes == found.new_bytes == sum(Path(local_path(f) or "").stat().st_size for f in data_files(table))
    assert bench.records == ["one"]
    assert bench.repository.read_record("one") == record
    assert record.data == "copied"
    assert record.started_at <= record.created_at


def test_a_repository_in_a_folder_of_a_table_is_refused(bench: Bench) -> None:
    table = make(bench.care, "ns.t")
    settings = bench.care.settings.model
    for place in (folder(table) / "backups", folder(table) / "data" / "x"):
        inside = Repository.open(str(place), s3=settings.s3, network=settings.network, create=True)
        with pytest.raises(UsageError, match=r"lies in a folder of ns\.t"):
            create.create_backup(bench.care, inside, ["ns.t"], engine="local")
        assert inside.list_records() == []
    assert bench.backup("ns.t").tables[0].files == 3


def test_a_table_without_snapshots_is_a_backup_too(bench: Bench) -> None:
    make(bench.care, commits=0)
    (found,) = bench.backup().tables
    assert (found.snapshots, found.files, found.current_snapshot_id) == (0, 0, None)


def test_partition_evolution_schema_changes_and_format_1(bench: Bench) -> None:
    table = make(bench.care, commits=2, properties={"format-version": "1"})
    with table.update_schema() as update:
        update.add_column("more", StringType())
    with table.update_spec() as spec:
        spec.add_identity("name")
    table.append(pa.table({"id": pa.array([7]), "name": ["seven"], "more": ["x"]}))
    (found,) = bench.backup().tables
    assert found.format_version == 1
    assert held(bench.repository, found) == expected(bench.care)


def test_gzipped_metadata_stays_as_it_is(bench: Bench) -> None:
    table = make(bench.care, commits=1, properties={"write.metadata.compression-codec": "gzip"})
    before = metadata_bytes(bench.care, table)
    (found,) = bench.backup().tables
    assert held_metadata(bench.repository, found) == before


def test_files_outside_the_tables_location_are_copied_and_their_folders_named(bench: Bench, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    table = make(bench.care, commits=1, properties={"write.data.path": f"file://{elsewhere}/data"})
    (found,) = bench.backup().tables
    assert f"file://{elsewhere}/data" in bench.repository.read_state(found).prefixes
    assert held(bench.repository, found) == expected(bench.care)
    table.transaction().set_properties({"write.data.path": f"file://{folder(table)}/data"}).commit_transaction()
    grow(table)
    again = bench.backup().tables[0]
    assert f"file://{elsewhere}/data" in bench.repository.read_state(again).prefixes


# -- incremental


def test_the_next_backup_reads_only_what_is_new(bench: Bench) -> None:
    table = make(bench.care, commits=5)
    bench.backup(name="one")
    grow(table, 2)
    before = blobs_in(bench.repository)
    (found,) = bench.backup(name="two").tables
    assert (bench.steps[FILES], bench.steps[MANIFESTS], bench.steps[LISTS]) == (2, 2, 2)
    assert (found.files, found.new_files) == (7, 2)
    assert found.new_bytes == sum(int(name.partition("-")[0]) for name in blobs_in(bench.repository) - before)
    assert held(bench.repository, found) == expected(bench.care)


def test_a_table_that_did_not_change_is_not_read_nor_pinned(bench: Bench) -> None:
    table = make(bench.care)
    bench.backup()
    before = table.refresh().metadata_location
    (found,) = bench.backup().tables
    assert not bench.steps.keys() & {FILES, MANIFESTS, LISTS, "backup.create.pinned"}
    assert (found.files, found.new_files) == (3, 0)
    assert table.refresh().metadata_location == before


def test_files_that_a_new_manifest_takes_over_are_not_copied_again(bench: Bench) -> None:
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = make(bench.care, commits=4, properties=merging)
    bench.backup()
    grow(table)
    (found,) = bench.backup().tables
    assert bench.steps[FILES] == 1
    assert (found.files, found.new_files) == (5, 1)
    assert held(bench.repository, found) == expected(bench.care)


def test_after_compaction_and_expiry_only_the_new_file_is_copied(bench: Bench) -> None:
    table = replaced(make(bench.care, commits=4))
    first = bench.backup().tables[0]
    assert first.files == 5
    expire(table)
    grow(table)
    (found,) = bench.backup().tables
    assert bench.steps[FILES] == 1
    assert (found.files, found.new_files, found.snapshots) == (2, 1, 2)
    assert found.bytes == sum(Path(local_path(f) or "").stat().st_size for f in data_files(table))
    assert held(bench.repository, found) == expected(bench.care)


def test_a_file_that_was_replaced_by_one_of_its_name_and_size_is_read_again(bench: Bench, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("kept.parquet", "replaced.parquet")]
    for number, path in enumerate(paths):
        pq.write_table(people(7 + number), path)
    size = Path(paths[1]).stat().st_size
    table = make(bench.care, commits=0)
    table.add_files(paths)
    bench.backup()
    table.delete("id = 8")  # the manifest of both is written anew: one of its files was there
    expire(table)
    pq.write_table(people(9), paths[1])
    assert Path(paths[1]).stat().st_size == size
    table.add_files(paths[1:])
    (found,) = bench.backup().tables
    assert held(bench.repository, found) == expected(bench.care)


def test_folders_that_only_deleted_entries_name_are_covered(bench: Bench, tmp_path: Path) -> None:
    """A restore maps these paths too, though their files are not in the backup."""
    imported = tmp_path / "imported" / "x.parquet"
    imported.parent.mkdir()
    pq.write_table(people(7, 8), imported)
    table = make(bench.care, commits=0)
    table.add_files([str(imported)])
    table.delete("id = 7")
    expire(table)
    (found,) = bench.backup().tables
    assert str(imported.parent) in bench.repository.read_state(found).prefixes


def test_a_path_that_no_restore_can_map_is_refused(bench: Bench, tmp_path: Path) -> None:
    pq.write_table(people(7), tmp_path / "x.parquet")
    table = make(bench.care, commits=1)
    table.add_files([f"{tmp_path}//x.parquet"])
    with pytest.raises(UnsupportedError, match="//x"):
        bench.backup()
    assert not bench.records
    bench.backup(data="reference")


def test_one_branch_or_tag_and_its_history(bench: Bench) -> None:
    table = make(bench.care, commits=4)
    table.manage_snapshots().create_tag(table.metadata.snapshots[1].snapshot_id, "second").commit()
    whole = bench.backup().tables[0]
    (found,) = bench.backup(ref="second").tables
    assert (found.snapshots, found.files) == (2, 2)
    assert bench.steps[FILES] == 0
    assert held(bench.repository, found).files.items() <= held(bench.repository, whole).files.items()
    with pytest.raises(NotFoundError, match="thrid"):
        bench.backup(ref="thrid")
    again = bench.backup().tables[0]
    assert (again.files, again.new_files, bench.steps[FILES]) == (4, 2, 2)


def test_referenced_data_is_looked_at_and_not_copied(bench: Bench) -> None:
    table = make(bench.care)
    record = bench.backup(data="reference")
    (found,) = record.tables
    assert record.data == "referenced"
    assert (found.files, blobs_in(bench.repository)) == (3, set())
    assert all(manifest.files is None for manifest in bench.repository.read_state(found).manifests)
    gone = data_files(table)[0]
    remove_files(table, gone)
    with pytest.raises(NotFoundError, match=Path(gone).name):
        bench.backup(data="reference")


# -- pins


def test_the_head_is_pinned_while_it_is_copied_and_the_record_knows_nothing_of_it(bench: Bench) -> None:
    table = make(bench.care)
    head, before = table.metadata.current_snapshot_id, metadata_bytes(bench.care, table)
    seen: list[int] = []

    def look(step: str, number: int) -> None:
        if step == FILES and number == 1:
            seen.extend(p.snapshot_id for p in pins.pins(bench.care.load("ns.t")))

    (found,) = bench.backup(hook=look).tables
    assert seen == [head]
    assert held_metadata(bench.repository, found) == before
    assert found.refs == ("main",)
    assert set(table.refresh().metadata.refs) == {"main"}


def test_pins_of_others_are_not_in_the_record(bench: Bench) -> None:
    table = make(bench.care)
    pins.pin(bench.care, table, "replica", 3600.0)
    (found,) = bench.backup().tables
    assert found.refs == ("main",)
    assert b"frazil-pin" not in held_metadata(bench.repository, found).partition(b'"metadata-log"')[0]
    assert held(bench.repository, found).files == expected(bench.care).files


def test_who_may_not_write_the_table_backs_it_up_without_a_pin(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    make(bench.care)

    def refused(*_: object) -> object:
        raise ForbiddenError("read only")

    monkeypatch.setattr(bench.care.store.catalog, "commit_table", refused)
    (found,) = bench.backup().tables
    assert held(bench.repository, found) == expected(bench.care)


def test_a_catalog_without_tags_needs_no_pin(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    make(bench.care)

    def none(care: object) -> None:
        raise UnsupportedError("the catalog keeps no tags")

    monkeypatch.setattr(pins, "_require_tags", none)
    (found,) = bench.backup().tables
    assert held(bench.repository, found) == expected(bench.care)


def test_a_table_that_pyiceberg_cannot_parse(bench: Bench) -> None:
    table = make(bench.care)
    path = Path(local_path(table.refresh().metadata_location) or "")
    metadata = json.loads(path.read_text())
    metadata |= {"format-version": 3, "next-row-id": 3, "of-tomorrow": {"kept": True}}
    metadata["schemas"][-1]["fields"].append(
        {"id": 99, "name": "v", "required": False, "type": "variant", "initial-default": "x", "write-default": "y"}
    )
    path.write_text(json.dumps(metadata))
    (found,) = bench.backup().tables
    assert held_metadata(bench.repository, found) == path.read_bytes()
    assert (found.format_version, found.files) == (3, 3)
    found = bench.repository.list_records()[0].tables[0]
    assert [c.name for c in describe_table(bench.repository, found).columns][-1] == "v"


def test_an_encrypted_table_is_refused(bench: Bench) -> None:
    table = make(bench.care)
    path = Path(local_path(table.refresh().metadata_location) or "")
    metadata = json.loads(path.read_text())
    keys = [{"key-id": "k", "encrypted-key-metadata": "eA=="}]
    metadata |= {"format-version": 3, "next-row-id": 3, "encryption-keys": keys}
    path.write_text(json.dumps(metadata))
    with pytest.raises(UnsupportedError, match="encrypt"):
        bench.backup()
    assert bench.records == []


# -- files that vanish


def at(where: str, act: object, nth: int = 1) -> object:
    def hook(step: str, number: int) -> None:
        if step == where and number == nth:
            act()  # type: ignore[operator]

    return hook


@pytest.mark.parametrize(
    ("where", "nth"),
    [
        ("backup.create.loaded", 1),
        ("backup.create.planned", 1),
        ("backup.create.pinned", 1),
        (LISTS, 2),
        (MANIFESTS, 1),
        (FILES, 1),
    ],
)
def test_what_is_expired_while_it_is_copied_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str, nth: int
) -> None:
    monkeypatch.setattr(table_copy, "_LARGE", 0)  # one manifest after the other, so that something is left to vanish
    monkeypatch.setattr(create, "open_engine", one_at_a_time)
    table = make(bench.care, commits=6)
    replaced(table)
    head = table.refresh().metadata.current_snapshot_id
    (found,) = bench.backup(name="one", hook=at(where, lambda: expire(table), nth)).tables
    assert found.current_snapshot_id == head
    assert found.files == held(bench.repository, found).files.__len__()
    assert expected(bench.care).files.items() <= held(bench.repository, found).files.items()
    again = bench.backup(name="two").tables[0]
    assert again.new_files == 0
    assert held(bench.repository, again) == expected(bench.care)


def test_without_a_pin_even_the_head_may_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "_require_tags", lambda care: (_ for _ in ()).throw(UnsupportedError("no tags")))
    table = make(bench.care, commits=3)
    old_files = data_files(table)

    def rewritten() -> None:
        replaced(table)
        expire(table)

    (found,) = bench.backup(hook=at("backup.create.planned", rewritten)).tables
    assert held(bench.repository, found) == expected(bench.care)
    assert not set(map(canonical_uri, old_files)) & held(bench.repository, found).files.keys()


def test_a_table_that_keeps_expiring_faster_than_it_is_copied(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "_require_tags", lambda care: (_ for _ in ()).throw(UnsupportedError("no tags")))
    table = make(bench.care, commits=2)

    def hook(step: str, _: int) -> None:
        if step == "backup.create.planned":
            replaced(table)
            expire(table)

    with pytest.raises(ConflictError, match="expire faster"):
        bench.backup(hook=hook)
    assert bench.records == []


@pytest.mark.parametrize("what", ["data", "manifest", "list"])
def test_a_file_that_is_missing_fails_the_backup_and_is_named(bench: Bench, what: str) -> None:
    table = make(bench.care)
    snapshot = table.refresh().metadata.snapshots[0]
    gone = {
        "data": lambda: data_files(table)[0],
        "manifest": lambda: snapshot.manifests(table.io)[0].manifest_path,
        "list": lambda: snapshot.manifest_list,
    }[what]()
    remove_files(table, gone)
    with pytest.raises(NotFoundError, match=Path(gone).name) as caught:
        bench.backup()
    assert caught.value.hint
    assert bench.records == []
    assert set(table.refresh().metadata.refs) == {"main"}


def test_a_new_snapshot_does_not_excuse_a_missing_file(bench: Bench) -> None:
    table = make(bench.care)
    gone = data_files(table)[0]
    remove_files(table, gone)
    with pytest.raises(NotFoundError, match=Path(gone).name):
        bench.backup(hook=at("backup.create.planned", lambda: table.refresh().append(people(99))))


def test_a_file_of_another_size_fails_the_backup(bench: Bench) -> None:
    table = make(bench.care)
    path = Path(local_path(data_files(table)[0]) or "")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match=path.name):
        bench.backup()
    assert bench.records == []


def test_a_table_that_is_replaced_while_it_is_copied(bench: Bench) -> None:
    make(bench.care)

    def replace() -> None:
        table = bench.care.load("ns.t")
        gone = data_files(table)
        bench.care.store.catalog.drop_table("ns.t")
        remove_files(table, *gone)
        make(bench.care)

    with pytest.raises((ConflictError, NotFoundError)):
        bench.backup(hook=at("backup.create.pinned", replace))
    assert bench.records == []


# -- crashes


def test_what_a_crash_has_copied_is_not_copied_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_copy, "_NOTE_S", 0.0)
    monkeypatch.setattr(create, "open_engine", one_at_a_time)
    table = make(bench.care, commits=8)

    def crash() -> None:
        raise Crash

    with pytest.raises(Crash):
        bench.backup(hook=at("backup.create.progress.saved", crash, 5))
    assert bench.records == []
    (found,) = bench.backup(name="one").tables
    assert bench.steps[FILES] <= 3
    assert (found.files, found.new_files) == (8, 8)
    assert held(bench.repository, found) == expected(bench.care)
    assert bench.repository.read_progress(str(table.metadata.table_uuid)) == {}


def test_an_interrupt_leaves_nothing_listed_and_its_copies_are_used(bench: Bench) -> None:
    make(bench.care, commits=30)
    stop = threading.Event()
    with pytest.raises(StoppedError):
        bench.backup(stop=stop, hook=at(FILES, stop.set, 3))
    copied = bench.steps[FILES]
    assert bench.records == []
    assert set(bench.care.load("ns.t").metadata.refs) == {"main"}
    (found,) = bench.backup().tables
    assert 3 <= copied < 30
    assert bench.steps[FILES] == 30 - copied
    assert held(bench.repository, found) == expected(bench.care)


# -- several


def test_several_tables_share_a_record_and_equal_content_is_stored_once(bench: Bench) -> None:
    for name in ("ns.t", "ns.u", "other.v"):
        make(bench.care, name)
    record = bench.backup("ns.t", "other.v", "ns.u", "ns.t")
    assert [".".join(t.identifier) for t in record.tables] == ["ns.t", "other.v", "ns.u"]
    for table in record.tables:
        assert held(bench.repository, table) == expected(bench.care, ".".join(table.identifier))
    assert len(blobs_in(bench.repository)) <= 3, "the files of these tables are equal"


def test_one_table_that_fails_fails_them_all(bench: Bench) -> None:
    make(bench.care)
    broken = make(bench.care, "ns.u")
    remove_files(broken, data_files(broken)[0])
    with pytest.raises(NotFoundError, match=r"ns\.u"):
        bench.backup("ns.t", "ns.u")
    assert bench.records == []
    with pytest.raises(NotFoundError, match=r"ns\.w"):
        bench.backup("ns.t", "ns.w")
    with pytest.raises(UsageError):
        create.create_backup(bench.care, bench.repository, [])


def test_two_creates_at_once_both_succeed(bench: Bench) -> None:
    table = make(bench.care, commits=6)
    with ThreadPoolExecutor(2) as pool:
        records = list(pool.map(lambda _: create.create_backup(bench.care, bench.repository, ["ns.t"]), range(2)))
    assert len({record.name for record in records}) == 2
    for record in records:
        assert held(bench.repository, record.tables[0]) == expected(bench.care)
    assert set(table.refresh().metadata.refs) == {"main"}


def test_a_name_is_taken_once(bench: Bench) -> None:
    make(bench.care)
    bench.backup(name="nightly")
    with pytest.raises(ConflictError, match="nightly"):
        bench.backup(name="nightly")
    assert not bench.steps
    with pytest.raises(UsageError):
        bench.backup(name="../nightly")


def test_writers_go_on_while_a_table_is_copied(bench: Bench) -> None:
    table = make(bench.care, commits=3)
    before = expected(bench.care)
    (found,) = bench.backup(hook=at(FILES, lambda: grow(table.refresh()))).tables
    assert held(bench.repository, found) == before
    assert rows(table) == [1, 2, 3, 4]


# -- prune


@pytest.mark.parametrize("kind", ["data", "meta"])
def test_blobs_that_a_prune_has_deleted_are_copied_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = make(bench.care, commits=3)
    bench.backup(name="one")
    grow(table)
    lost: list[BlobRef] = []

    def check(repository: Repository, tables: Sequence[BackedUpTable], *_: object, **__: object) -> list[BlobRef]:
        if lost:
            return []
        lost.extend(delete_blobs(repository, tables[0], kind))
        return lost

    monkeypatch.setattr(create, "check_marks", check)
    (found,) = bench.backup(name="two").tables
    assert lost
    assert held(bench.repository, found) == expected(bench.care)
    assert found.files == 4


def delete_blobs(repository: Repository, table: BackedUpTable, kind: str) -> list[BlobRef]:
    """Deletes every blob of a table, as a prune would that knows nothing of it."""
    root, state = Path(local_path(repository.root) or ""), repository.read_state(table)
    if kind == "data":
        blobs = [file.blob for one in state.manifests for file in repository.read_files(one) if file.blob is not None]
        paths = [root / "data" / blob.shard / str(blob) for blob in blobs]
    else:
        lists = [one.files for one in state.manifests if one.files is not None]
        blobs = [*lists, *(one.blob for one in (*state.manifests, *state.manifest_lists)), state.metadata.blob]
        paths = [root / "meta" / blob.shard / f"{blob}.zst" for blob in blobs]
    for path in paths:
        path.unlink()
    return blobs


def test_two_backups_differ_by_what_was_done_between_them(bench: Bench) -> None:
    table = make(bench.care, commits=3)
    make(bench.care, "ns.same")
    one = bench.backup("ns.t", "ns.same", name="one")
    replaced(table)
    expire(table)
    with table.update_schema() as update:
        update.rename_column("name", "called")
    two = bench.backup("ns.t", "ns.same", name="two")
    same, found = diff_backups(bench.repository, one, two)
    assert same.change == "same"
    assert (found.change, found.same_uuid) == ("changed", True)
    assert (found.added_files, found.removed_files) == (1, 3)
    assert found.removed_bytes == one.tables[0].bytes
    assert (found.changed_columns, found.moved_refs) == (("called",), ("main",))
    assert len(found.removed_snapshots) == 3
    (table,) = [t for t in two.tables if t.identifier == ("ns", "t")]
    contents = describe_table(bench.repository, table)
    assert [(c.name, c.type) for c in contents.columns] == [("id", "long"), ("called", "string")]
    assert contents.snapshots[-1].refs == ("main",)
    json.dumps([contents.to_dict(), found.to_dict()])


def test_nothing_is_written_below_the_table(bench: Bench) -> None:
    table = make(bench.care)
    before = files_in(table)
    bench.backup()
    new = {name for name in files_in(table) - before if not name.startswith("metadata/")}
    assert new == set()
