"""The version that a replica would serve, from real tables whose files arrive in the worst order."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.errors import IntegrityError, NotFoundError, UnsupportedError, UsageError
from frazil.observe.cancellation import StoppedError
from frazil.replica.beacon import read_beacon
from frazil.replica.candidates import MetadataCandidate, find_table_folder, list_metadata_files, load_candidate
from frazil.replica.choose import ServedVersion
from frazil.replica.closure import KnownFiles, check_closure
from frazil.replica.newest import NewestVersion, find_newest_version
from frazil.replica.scan import ReplicaFiles
from frazil.tables.relocation import PrefixMap, UnmappedPathError
from tests.replica_kit import Primary, PrimaryTable, Replication, files_of, open_primary


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Primary]:
    with open_primary(tmp_path) as opened:
        yield opened


@pytest.fixture
def copy(primary: Primary, tmp_path: Path) -> Replication:
    return Replication(primary.warehouse, tmp_path / "replica")


def find(copy: Replication, table: str = "ns/t", **options) -> NewestVersion:
    files = files_of(copy.target)
    return find_newest_version(files, f"{files.root}/{table}", **options)


def served(found: NewestVersion) -> ServedVersion:
    assert found.candidate is not None
    return found.candidate.to_served(witnessed=found.choice.witness is not None)


def known(found: NewestVersion, before: KnownFiles | None = None) -> KnownFiles:
    assert found.closure is not None
    before = before or KnownFiles()
    return KnownFiles(
        {*before.manifest_lists, *found.closure.manifest_lists},
        {*before.manifests, *((m.path, m.length) for m in found.closure.manifests)},
        {*before.statistics, *found.closure.statistics},
    )


class CountingFiles(ReplicaFiles):
    """Remembers which folders were listed and which files were read or measured."""

    def __init__(self, files: ReplicaFiles) -> None:
        self.__dict__.update(files.__dict__)
        self.listed: list[str] = []
        self.read_paths: list[str] = []
        self.measured: list[str] = []

    def list(self, folder="", *, recursive=True):
        self.listed.append(folder)
        return super().list(folder, recursive=recursive)

    def read(self, path):
        self.read_paths.append(path)
        return super().read(path)

    def find_sizes(self, paths):
        self.measured += paths
        return super().find_sizes(paths)


def test_the_newest_version_is_found_at_the_place_where_it_landed(primary: Primary, copy: Replication) -> None:
    table = primary.create(commits=3)
    copy.run()
    copy.move_source_away()
    found = find(copy)
    assert found.choice.name == table.current.name
    assert found.choice.witness is None  # nothing says yet that it was committed
    assert found.candidate is not None
    assert found.candidate.source_path == f"{primary.warehouse}/ns/t/metadata/{table.current.name}"
    assert found.places is not None
    assert found.places.map(f"{primary.warehouse}/ns/t/data/x") == f"file://{copy.target}/ns/t/data/x"
    assert found.closure is not None
    assert (len(found.closure.manifest_lists), len(found.closure.manifests), found.closure.files) == (3, 3, 3)


@pytest.mark.parametrize("order", ["metadata-first", "data-first", "random"])
def test_at_every_step_of_a_replication_a_complete_version_is_served(primary, copy, order) -> None:
    table = primary.create(commits=2)
    copy.run()
    now = served(find(copy))
    assert now.name == table.current.name
    table.append()
    table.delete(1)
    table.append()
    versions = [now.name]
    while pending := copy.list_pending(order):
        copy.copy(pending[0], size=(copy.source / pending[0]).stat().st_size // 2)
        for _ in range(2):
            found = find(copy, served=now)
            if found.candidate is not None:
                now = served(found)
                versions.append(now.name)
            copy.copy(pending[0])
    found = find(copy, served=now)
    now = served(found) if found.candidate else now
    assert now.name == table.current.name
    indexes = [table.index_of(name) for name in versions]
    assert indexes == sorted(indexes)


def test_what_is_missing_is_named(primary: Primary, copy: Replication) -> None:
    table = primary.create(commits=2)
    copy.run()
    data = sorted((copy.target / "ns/t/data").rglob("*.parquet"))
    size = data[0].stat().st_size
    data[0].write_bytes(data[0].read_bytes()[:100])
    data[1].unlink()
    found = find(copy)
    assert found.choice.name == table.history[-3].name  # before both files
    newest = found.waiting[0]
    assert newest.candidate.version.name == table.current.name
    assert newest.closure.missing_count == 2
    named = {str(file) for file in newest.closure.missing}
    assert named == {
        f"data file://{data[0]}: 100 of {size} bytes",
        f"data file://{data[1]}: not there",
    }


@pytest.mark.parametrize("kind", ["snap-*.avro", "*-m0.avro"])
def test_a_manifest_or_list_cut_at_any_byte_is_not_complete(primary: Primary, copy: Replication, kind: str) -> None:
    primary.create(commits=1)
    copy.run()
    files = files_of(copy.target)
    listed = list_metadata_files(files, f"{files.root}/ns/t")
    candidate = load_candidate(files, listed.files[0])
    assert isinstance(candidate, MetadataCandidate)
    places = PrefixMap([(str(primary.warehouse), str(copy.target))])
    (path,) = (copy.target / "ns/t/metadata").glob(kind)
    data = path.read_bytes()
    assert check_closure(candidate, files, places).is_complete
    for size in (*range(0, len(data), 37), len(data) - 17, len(data) - 16, len(data) - 1):
        path.write_bytes(data[:size])
        assert not check_closure(candidate, files, places).is_complete
    path.write_bytes(bytes(len(data)))  # some tools reserve the space first
    assert check_closure(candidate, files, places).missing[0].reason is not None


def test_truncated_metadata_is_named_and_the_version_before_it_is_served(primary, copy) -> None:
    table = primary.create(commits=3)
    copy.run()
    path = copy.target / "ns/t/metadata" / table.current.name
    data = path.read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        found = find(copy)
        assert found.unreadable[0].file.name == table.current.name
        assert found.choice.name == table.history[-3].name  # the last one but one has no witness now
    for file in path.parent.glob("*.metadata.json"):
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(IntegrityError, match=table.current.name):
        find(copy)
    kept = find(copy, served=ServedVersion(table.history[1].name))
    assert kept.candidate is None
    assert len(kept.unreadable) >= 3


def test_a_check_without_changes_reads_nothing_but_the_names_of_metadata(primary: Primary, copy: Replication) -> None:
    primary.create(commits=3)
    copy.run()
    now = served(find(copy))
    files = CountingFiles(files_of(copy.target))
    found = find_newest_version(files, f"{files.root}/ns/t", served=now)
    assert found.candidate is None
    assert files.listed == [f"{files.root}/ns/t/metadata"]
    assert not files.read_paths
    assert not files.measured


def test_only_what_is_new_is_read_and_measured(primary: Primary, copy: Replication) -> None:
    table = primary.create(commits=5)
    copy.run()
    first = find(copy)
    table.append()
    copy.run()
    files = CountingFiles(files_of(copy.target))
    found = find_newest_version(files, f"{files.root}/ns/t", served=served(first), known=known(first))
    assert found.choice.name == table.current.name
    assert len([path for path in files.read_paths if path.endswith(".avro")]) == 2  # a list and a manifest
    assert len([path for path in files.measured if path.endswith(".parquet")]) == 1
    assert {Path(folder).name for folder in files.listed} == {"metadata"}


@pytest.mark.parametrize("killed", [False, True])
def test_the_loser_of_a_commit_race_is_not_served_once_the_winner_is_known(primary, copy, killed) -> None:
    table = primary.create(commits=2)
    before = table.current.name
    loser = table.lose_race(killed=killed)
    copy.run()
    contested = find(copy)
    assert contested.choice.is_contested
    assert contested.choice.name == before
    table.append()
    copy.run()
    assert find(copy).choice.name == table.current.name
    assert find(copy, witnessed_only=True).choice.name == table.history[-2].name
    assert loser not in (found.name for found in table.history)


def test_a_loser_that_arrives_alone_is_marked_and_replaced(primary: Primary, copy: Replication) -> None:
    table = primary.create(commits=2)
    loser = table.lose_race(killed=True)
    copy.run()
    winner = copy.target / "ns/t/metadata" / table.current.name
    winner.unlink()
    found = find(copy)
    assert (found.choice.name, found.choice.witness) == (loser, None)
    assert find(copy, witnessed_only=True).choice.witness == "later-log"
    copy.run()
    primary.write_beacon()
    copy.run()
    files = files_of(copy.target)
    beacon = read_beacon(files, f"{files.root}/ns/t")
    replaced = find(copy, served=served(found), beacon=beacon)
    assert (replaced.choice.name, replaced.choice.witness) == (table.current.name, "beacon")
    assert replaced.choice.served_lost


def test_a_rollback_and_an_expiry_are_followed_and_the_replica_does_not_go_back(primary, copy) -> None:
    table = primary.create(commits=3)
    copy.run()
    now = served(find(copy))
    table.roll_back()
    copy.run()
    found = find(copy, served=now)
    assert found.choice.name == table.current.name
    table.append()
    table.expire()
    copy.run("data-first")
    copy.mirror_deletions()
    now = served(found)
    found = find(copy, served=now)
    assert found.choice.name == table.current.name
    assert find(copy).choice.name == table.current.name
    now = served(found)
    (copy.target / "ns/t/metadata" / table.current.name).unlink()
    assert find(copy, served=now).choice.name is None


def test_a_hadoop_table_is_witnessed_by_its_hint(primary: Primary, copy: Replication, tmp_path: Path) -> None:
    table = primary.create(commits=2)
    metadata = make_hadoop_table(table)
    lost = metadata / f"{uuid.uuid4()}.metadata.json"
    shutil.copy(metadata / "v4.metadata.json", lost)  # what a killed commit leaves
    copy.run()
    found = find(copy, witnessed_only=True)
    assert (found.choice.name, found.choice.witness) == ("v4.metadata.json", "version-hint")
    (copy.target / "ns/t/metadata/version-hint.text").write_text("3")
    found = find(copy)
    assert (found.choice.name, found.choice.witness) == ("v4.metadata.json", None)
    (copy.target / "ns/t/metadata/version-hint.text").write_text("")
    assert find(copy).choice.name == "v4.metadata.json"


@pytest.mark.parametrize("pattern", ["{stem}.gz.metadata.json", "{stem}.metadata.json.gz"])
def test_gzipped_metadata_is_read(primary: Primary, copy: Replication, pattern: str) -> None:
    table = primary.create(commits=2)
    stem = table.current.name.removesuffix(".metadata.json")
    name = pattern.format(stem=stem)
    data = table.metadata.read_bytes()
    copy.run()
    folder = copy.target / "ns/t/metadata"
    (folder / table.current.name).unlink()
    (folder / name).write_bytes(gzip.compress(data))
    assert find(copy).choice.name == name
    (folder / name).write_bytes(gzip.compress(data)[:-30])
    assert find(copy).unreadable[0].file.name == name


def test_a_path_without_a_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/part-0.parquet").write_bytes(b"PAR1")
    files = files_of(tmp_path)
    with pytest.raises(NotFoundError, match="no Iceberg table"):
        find_table_folder(files, ("ns", "t"))
    with pytest.raises(NotFoundError, match="no Iceberg metadata"):
        find_newest_version(files, files.root)
    with pytest.raises(NotFoundError):
        find_table_folder(files_of(tmp_path / "nothing"))


def test_the_folder_of_a_table_is_found_below_a_warehouse(primary: Primary, copy: Replication) -> None:
    primary.create("ns.t")
    copy.run()
    files = files_of(copy.target)
    assert find_table_folder(files) == f"{files.root}/ns/t"
    assert find_table_folder(files_of(copy.target / "ns/t"), ("any", "name")).endswith("/ns/t")
    with pytest.raises(NotFoundError, match=r"ns\.other does not exist in"):
        find_table_folder(files, ("ns", "other"))
    primary.create("ns.other")
    copy.run()
    assert find_table_folder(files, ("ns", "other")) == f"{files.root}/ns/other"
    (copy.target / "ns").rename(copy.target / "ns.db")
    assert find_table_folder(files, ("ns", "other")) == f"{files.root}/ns.db/other"
    (copy.target / "ns.db/other").rename(copy.target / f"ns.db/other_{uuid.uuid4().hex}")
    assert "/ns.db/other_" in find_table_folder(files, ("ns", "other"))
    with pytest.raises(UsageError, match="2 tables") as error:
        find_table_folder(files)
    assert "ns.db/t" in str(error.value.cause)


def test_two_tables_in_one_folder_are_both_named_until_it_is_known_which_to_follow(primary, copy) -> None:
    old = primary.create(commits=2)
    old_uuid = str(old.table.metadata.table_uuid)
    primary.care.store.catalog.drop_table("ns.t")
    new = primary.create(commits=1)
    new_uuid = str(new.table.metadata.table_uuid)
    copy.run()
    with pytest.raises(UsageError, match="2 tables") as error:
        find(copy)
    assert old_uuid in str(error.value.cause)
    assert new_uuid in str(error.value.cause)
    found = find(copy, uuid=new_uuid)
    assert (found.choice.name, found.other_uuids) == (new.current.name, (old_uuid,))
    assert find(copy, served=ServedVersion(old.history[-2].name, uuid=old_uuid)).choice.name == old.current.name
    beacon = primary.write_beacon()
    assert find(copy, beacon=beacon).choice.name == new.current.name


def test_data_outside_the_table_needs_a_prefix(primary: Primary, copy: Replication, tmp_path: Path) -> None:
    table = primary.create(commits=1)
    outside = tmp_path / "elsewhere"
    table.set(write__data__path=str(outside))
    table.append()
    copy.run()
    with pytest.raises(UnmappedPathError, match="elsewhere"):
        find(copy)
    prefixes = ((str(outside), str(tmp_path / "landed")),)
    found = find(copy, prefixes=prefixes)
    assert found.choice.name == table.history[-2].name
    assert "landed" in str(found.waiting[0].closure.missing[0])
    shutil.copytree(outside, tmp_path / "landed")
    assert find(copy, prefixes=prefixes).choice.name == table.current.name


def test_a_given_prefix_of_the_warehouse_covers_the_table(primary: Primary, copy: Replication) -> None:
    table = primary.create(commits=1)
    copy.run()
    found = find(copy, prefixes=((str(primary.warehouse), str(copy.target)),))
    assert found.choice.name == table.current.name


def test_where_paths_are_equal_they_stay_as_they_are(primary: Primary, tmp_path: Path) -> None:
    table = primary.create(commits=1)
    found = find(Replication(primary.warehouse, primary.warehouse))
    assert found.choice.name == table.current.name
    assert found.places is not None
    assert found.places.is_identity


def test_metadata_in_a_folder_of_its_own_needs_a_prefix_of_the_location(primary, tmp_path: Path) -> None:
    table = primary.create(commits=1)
    table.set(write__metadata__path=str(tmp_path / "meta"))
    table.append()
    files = files_of(tmp_path / "meta")
    with pytest.raises(UsageError, match="not known"):
        find_newest_version(files, files.root)
    prefixes = ((str(primary.warehouse), str(primary.warehouse)), (str(tmp_path / "meta"), str(tmp_path / "meta")))
    assert find_newest_version(files, files.root, prefixes=prefixes).choice.name == table.current.name


def test_a_newer_format_version_is_refused(primary: Primary, copy: Replication) -> None:
    table = primary.create(commits=1)
    copy.run()
    path = copy.target / "ns/t/metadata" / table.current.name
    path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 4}))
    with pytest.raises(UnsupportedError, match="format version 4"):
        find(copy)


def test_a_search_can_be_stopped(primary: Primary, copy: Replication) -> None:
    primary.create(commits=1)
    copy.run()
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        find(copy, stop=stop)


def test_statistics_are_part_of_a_version(primary: Primary, copy: Replication) -> None:
    table = primary.create(commits=2)
    copy.run()
    path = copy.target / "ns/t/metadata" / table.current.name
    metadata = json.loads(path.read_text())
    entry = {"snapshot-id": metadata["current-snapshot-id"], "file-size-in-bytes": 20}
    statistics = {**entry, "statistics-path": f"{table.folder}/metadata/s.stats"}
    path.write_text(json.dumps({**metadata, "statistics": [statistics]}))
    found = find(copy)
    assert found.choice.name == table.history[-2].name
    assert str(found.waiting[0].closure.missing[0]).startswith("statistics file://")
    (path.parent / "s.stats").write_bytes(bytes(20))
    assert find(copy).choice.name == table.current.name


def test_a_damaged_beacon_counts_as_none(primary: Primary, copy: Replication) -> None:
    primary.create(commits=1)
    primary.create("ns.other", commits=1)
    beacon = primary.write_beacon()
    assert beacon.is_whole
    copy.run()
    files = files_of(copy.target)
    assert read_beacon(files, f"{files.root}/ns/t") == beacon
    path = copy.target / "frazil-beacon.json"
    data = path.read_bytes()
    for damaged in (data[:-5], data[: len(data) // 2], data.replace(b"00001", b"00009"), b"[]", b""):
        path.write_bytes(damaged)
        assert read_beacon(files, f"{files.root}/ns/t") is None
    path.unlink()
    assert read_beacon(files) is None


def test_random_schedules_serve_committed_versions_only(primary: Primary, copy: Replication, tmp_path: Path) -> None:
    for seed in range(3):
        play(primary, Replication(primary.warehouse, tmp_path / f"replica{seed}", seed), f"ns.t{seed}", seed)


def play(primary: Primary, copy: Replication, name: str, seed: int) -> None:
    chance = random.Random(seed)
    table = primary.create(name, commits=1)
    folder = name.replace(".", "/")
    now: ServedVersion | None = None
    for _ in range(14):
        match chance.choice(["append", "append", "delete", "compact", "race", "expire", "beacon", "copy", "copy"]):
            case "append":
                table.append()
            case "delete" if table.current.rows:
                table.delete(table.current.rows[0])
            case "compact":
                table.compact()
            case "race":
                table.lose_race(killed=chance.random() < 0.5)
            case "expire" if len(table.table.metadata.snapshots) > 1:
                table.expire()
            case "beacon":
                primary.write_beacon(name)
            case "copy":
                copy.run("random", files=chance.randrange(12))
                copy.mirror_deletions()
        now = sync(copy, folder, table, now)
    primary.write_beacon(name)
    copy.run()
    now = sync(copy, folder, table, now)
    assert now is not None
    assert now.name == table.current.name


def sync(copy: Replication, folder: str, table: PrimaryTable, now: ServedVersion | None) -> ServedVersion | None:
    files = files_of(copy.target)
    try:
        found = find_newest_version(
            files, f"{files.root}/{folder}", served=now, beacon=read_beacon(files), witnessed_only=True
        )
    except (NotFoundError, IntegrityError):
        assert now is None
        return None
    if found.candidate is None:
        return now
    index = table.index_of(found.candidate.version.name)  # fails for a loser
    assert now is None or index > table.index_of(now.name)
    assert found.closure is not None
    assert found.closure.is_complete
    return served(found)


def make_hadoop_table(table: PrimaryTable) -> Path:
    """Gives a table's metadata the names that a Hadoop catalog does: v1, v2, … and a hint."""
    folder = table.folder / "metadata"
    names = {old.name: f"v{number}.metadata.json" for number, old in enumerate(table.history, start=1)}
    last = len(names)
    table.append()
    names[table.current.name] = f"v{last + 1}.metadata.json"
    for old, new in names.items():
        text = (folder / old).read_text()
        for one, other in names.items():
            text = text.replace(one, other)
        (folder / old).unlink()
        (folder / new).write_text(text)
    (folder / "version-hint.text").write_text(str(last + 1))
    return folder
