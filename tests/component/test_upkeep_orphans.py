"""Orphans are found and removed; nothing that anybody may need ever is."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from frazil.__main__ import main
from frazil.catalogs import open_catalog
from frazil.errors import FrazilError, UnsupportedError
from frazil.observe.cancellation import StoppedError
from frazil.observe.faultpoints import handled
from frazil.settings import load_settings
from frazil.tables import TableStore
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import orphans, shared_locations
from frazil.upkeep.expiry.shared_locations import SharedLocationError, require_alone
from tests.upkeep_files import (
    DAY,
    age,
    care_of,
    care_of_settings,
    crash_everywhere,
    expired_by_hand,
    files_in,
    folder,
    grow,
    litter,
    make,
    old_ids,
    replaced,
    rows,
    sound,
    step,
)

LOST = ("data/lost.parquet", "data/day=1/lost.parquet", "metadata/lost-m0.avro", "metadata/snap-9-0-lost.avro")


@pytest.fixture
def care(tmp_path: Path) -> Iterator[UpkeepContext]:
    made = care_of(tmp_path / "home")
    with made.store:
        yield made


def found(care: UpkeepContext, table, age_s: float = 3 * DAY) -> set[str]:
    search = orphans.find(care, care.load(".".join(table.name())), age_s)
    return {o.uri.removeprefix(f"file://{folder(table).resolve()}/") for o in search.orphans}


def test_what_nothing_refers_to_is_found_and_removed_and_all_else_stays(care):
    table = make(care)
    before = files_in(table)
    litter(table, *LOST, "data/_SUCCESS", "notes.txt", "data/readme.md")
    age(table)
    assert found(care, table) == set(LOST)
    outcome = orphans.run(care, table, step("orphans", age_s=3 * DAY))
    assert (outcome.result, outcome.files_removed, outcome.bytes_reclaimed) == ("done", 4, 16)
    assert files_in(table) == before | {"data/_SUCCESS", "notes.txt", "data/readme.md"}
    sound(care, table, [1, 2, 3])
    assert orphans.run(care, table, step("orphans", age_s=3 * DAY)).result == "nothing"


def test_a_search_changes_nothing_and_counts_what_it_left(care):
    table = make(care)
    litter(table, *LOST, "notes.txt")
    age(table, 10 * DAY, *LOST[:3])
    before = files_in(table)
    search = orphans.find(care, table, 3 * DAY)
    assert (len(search.orphans), search.size, search.young, search.young_size) == (3, 12, 1, 4)
    assert [Path(uri).name for uri in search.unknown] == ["notes.txt"]
    assert search.seen == len(before)
    assert files_in(table) == before


def test_a_young_file_may_be_a_writers_that_has_not_committed_yet(care):
    table = make(care)
    litter(table, *LOST)
    age(table, 2 * DAY)
    assert found(care, table) == set()
    assert found(care, table, 1 * DAY) == set(LOST)


def test_metadata_of_commits_that_lost_goes_and_of_those_that_count_stays(care):
    table = make(care)
    current = Path(table.metadata_location).name
    lost = json.loads((folder(table) / "metadata" / current).read_text())
    litter(table, "metadata/00009-lost.metadata.json", content=json.dumps(lost).encode())
    litter(table, "metadata/v9.gz.metadata.json", content=gzip.compress(json.dumps(lost).encode()))
    litter(table, "metadata/00010-torn.metadata.json", content=b'{"format-version": 2, "tab')
    litter(table, "metadata/00011-else.metadata.json", content=b'{"of": "somebody else"}')
    age(table)
    assert found(care, table) == {"metadata/00009-lost.metadata.json", "metadata/v9.gz.metadata.json"}
    orphans.run(care, table, step("orphans", age_s=DAY))
    unknown = {"metadata/00010-torn.metadata.json", "metadata/00011-else.metadata.json"}
    assert unknown <= files_in(table), "nobody knows whose that was"
    sound(care, table, [1, 2, 3])


def test_every_snapshot_branch_tag_and_former_metadata_is_known(care):
    table = make(care)
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().create_tag(first, "the_first").create_branch(first, "b").commit()
    replaced(table)
    age(table)
    assert found(care, table) == set()


def test_files_of_expired_snapshots_are_left_to_reclaim(care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    litter(table, LOST[0])
    age(table)
    search = orphans.find(care, care.load("ns.t"), 3 * DAY)
    assert [o.kind for o in search.orphans] == ["data"]
    assert search.listed == len(expired.files)
    orphans.run(care, table, step("orphans", age_s=3 * DAY))
    assert {Path(f.uri).name for f in expired.files} <= {Path(f).name for f in files_in(table)}


def test_checksums_of_hadoop_go_with_their_files(care):
    table = make(care)
    litter(table, LOST[0], "data/.lost.parquet.crc", "data/.gone.parquet.crc")
    living = next(f for f in files_in(table) if f.endswith(".parquet") and "lost" not in f)
    crc = str(Path(living).with_name(f".{Path(living).name}.crc"))
    litter(table, crc)
    age(table)
    orphans.run(care, table, step("orphans", age_s=DAY))
    left = {f for f in files_in(table) if f.endswith(".crc")}
    assert left == {crc}


def test_a_table_reached_through_a_link_keeps_its_files(care, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    table = make(care, location=f"file://{tmp_path}/link/t")
    table.transaction().set_properties({"write.data.path": f"{tmp_path}/real/t/data"}).commit_transaction()
    grow(table)
    litter(table, *LOST)
    age(table)
    assert orphans.run(care, table, step("orphans", age_s=DAY)).files_removed == 4
    sound(care, table, [1, 2, 3, 4])


def refused(care: UpkeepContext, table, *words: str) -> None:
    litter(table, *LOST)
    age(table)
    before = files_in(table)
    with pytest.raises(SharedLocationError) as error:
        orphans.run(care, table, step("orphans", age_s=DAY))
    told = f"{error.value.message} {error.value.cause}"
    assert error.value.exit_code == 12
    assert error.value.hint
    for word in words:
        assert word in told
    assert files_in(table) == before


@pytest.mark.parametrize("place", ["{}/inner", "{}", "{}/..", "{}/data/x"])
def test_a_table_inside_above_or_in_the_same_place_is_a_reason_to_refuse(care, place):
    table = make(care)
    make(care, "other.table", location=place.format(table.location()))
    refused(care, table, "other.table")


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path"])
def test_so_is_a_table_that_writes_there(care, key, tmp_path):
    table = make(care)
    make(care, "other.table", location=f"{tmp_path}/other", properties={key: f"{folder(table)}/x"}, commits=0)
    refused(care, table, "other.table", "/x")


def test_so_is_a_second_name_of_the_same_table(care):
    table = make(care)
    care.store.catalog.register_table("ns.again", table.metadata_location)
    refused(care, table, "ns.again", "same table")


def test_so_is_a_table_that_refers_to_a_file_there(care, tmp_path):
    table = make(care)
    other = make(care, "other.table", location=f"{tmp_path}/other")
    litter(table, "data/imported.parquet")
    living = next(f for f in files_in(table) if f.endswith(".parquet") and "imported" not in f)
    (folder(table) / "data/imported.parquet").write_bytes((folder(table) / living).read_bytes())
    other.add_files([f"file:{folder(table)}/data/imported.parquet"], check_duplicate_files=False)
    grow(other)
    refused(care, table, "other.table", "/data")
    old = old_ids(other)
    other.overwrite(other.scan().to_arrow())
    refused(care, table, "other.table")
    assert old, "an old snapshot of it still has the file"


def test_so_is_a_table_that_cannot_be_read(care, tmp_path):
    table = make(care)
    other = make(care, "other.table", location=f"{tmp_path}/other")
    Path(other.metadata_location.removeprefix("file://")).unlink()
    refused(care, table, "other.table", "cannot be read")


class TwoCatalogs:
    """An embedded catalog, and another one in the same settings."""

    def __init__(self, home: Path, **other: str) -> None:
        file = home.parent / "two.yaml"
        section = {"kind": "sql", "uri": f"sqlite:///{home.parent}/other.db", "warehouse": f"{home.parent}/other"}
        file.write_text(yaml.safe_dump({"home": str(home), "catalogs": {"other": {**section, **other}}}))
        settings = load_settings(config=file, environ={})
        self.care = care_of_settings(settings)
        self.settings = settings

    def other(self) -> UpkeepContext:
        chosen = self.settings.catalog("other")
        network = self.settings.model.network
        return replace(self.care, catalog=chosen, store=TableStore(open_catalog(chosen, network), chosen, network))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoCatalogs]:
    made = TwoCatalogs(tmp_path / "home")
    with made.care.store:
        yield made


def test_so_is_a_table_of_another_catalog_that_refers_to_a_file_there(two):
    table = make(two.care)
    with two.other().store as store:
        other = make(replace(two.care, store=store), "far.away")
        living = next(f for f in files_in(table) if f.endswith(".parquet"))
        litter(table, "data/imported.parquet", content=(folder(table) / living).read_bytes())
        other.add_files([f"file:{folder(table)}/data/imported.parquet"], check_duplicate_files=False)
    refused(two.care, table, "other.far.away", "/data")


@pytest.mark.parametrize("place", ["{}/inner", "{}", "{}/.."])
def test_so_is_a_table_of_another_catalog_inside_above_or_in_the_same_place(two, place):
    table = make(two.care)
    with two.other().store as store:
        make(replace(two.care, store=store), "far.away", location=place.format(table.location()))
    refused(two.care, table, "other.far.away")


def test_so_is_the_same_table_in_another_catalog_once_the_two_have_parted(two):
    """Until then both catalogs are doors to one table, as a metastore and a REST server before it are."""
    table = make(two.care)
    litter(table, LOST[0])
    age(table)
    with two.other().store as store:
        store.catalog.create_namespace("far")
        again = store.catalog.register_table("far.again", table.metadata_location)
        assert orphans.run(two.care, table, step("orphans", age_s=DAY)).files_removed == 1
        grow(again)
    refused(two.care, table, "other.far.again", "same table")
    with pytest.raises(SharedLocationError, match=r"other\.far\.again"):
        require_alone(two.care, table)


def test_so_is_a_catalog_that_cannot_be_reached_unless_its_storage_is_another(tmp_path, care):
    nobody = {"kind": "rest", "uri": "http://127.0.0.1:9", "warehouse": "lake"}
    table = make(care)
    unknown = TwoCatalogs(tmp_path / "home", **nobody)
    with unknown.care.store:
        refused(unknown.care, table, "the catalog 'other' cannot be read", "127.0.0.1:9")
        require_alone(unknown.care, table)  # expiry goes on, as it does beside a table that nobody can read
    apart = TwoCatalogs(tmp_path / "home", **nobody | {"warehouse": "s3://lake/tables"})
    with apart.care.store:
        assert orphans.run(apart.care, table, step("orphans", age_s=DAY)).files_removed == len(LOST)


def test_a_look_at_another_catalog_neither_makes_it_nor_finds_fault_with_tables_that_lie_apart(two, tmp_path):
    table = make(two.care)
    litter(table, *LOST)
    age(table)
    assert found(two.care, table) == set(LOST)
    assert not (tmp_path / "other.db").exists() and not (tmp_path / "other").exists()
    with two.other().store as store:
        make(replace(two.care, store=store), "ns.t")
    assert orphans.run(two.care, table, step("orphans", age_s=DAY)).files_removed == len(LOST)


def test_where_another_catalog_shares_our_place_is_believed_for_an_hour(two, monkeypatch):
    table = make(two.care)
    require_alone(two.care, table)
    with two.other().store as store:
        make(replace(two.care, store=store), "far.away", location=table.location())
    require_alone(two.care, table)
    monkeypatch.setattr(shared_locations, "_TRUST_S", 0.0)
    with pytest.raises(SharedLocationError, match=r"other\.far\.away"):
        require_alone(two.care, table)


@pytest.mark.parametrize("at", ["upkeep.orphans.list.before", "upkeep.orphans.list.after"])
def test_a_search_that_is_told_to_end_does_so_at_once_and_changes_nothing(care, at):
    table = make(care)
    make(care, "ns.other")
    litter(table, *LOST)
    age(table)
    before = files_in(table)

    def stop(name: str) -> None:
        if name == at:
            care.stop.set()

    with handled(stop), pytest.raises(StoppedError):
        orphans.run(care, table, step("orphans", age_s=DAY))
    assert files_in(table) - before <= {f for f in files_in(table) if "frazil" in f}
    assert set(LOST) <= files_in(table)


def test_a_removal_that_is_told_to_end_says_what_it_has_done_and_that_it_is_not_all(care, monkeypatch):
    table = make(care)
    litter(table, *LOST)
    age(table)
    monkeypatch.setattr(orphans, "_BATCH", 1)

    def stop(name: str) -> None:
        if name == "upkeep.removal.batch.after":
            care.stop.set()

    with handled(stop):
        outcome = orphans.run(care, table, step("orphans", age_s=DAY))
    assert (outcome.result, outcome.files_removed) == ("stopped", 1)
    assert "3 more files" in (outcome.reason or "")
    assert len(set(LOST) & files_in(table)) == 3


def test_so_is_metadata_of_a_table_that_the_catalog_does_not_know(care):
    table = make(care)
    stranger = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    stranger["table-uuid"] = "11111111-2222-3333-4444-555555555555"
    litter(table, "deep/inside/metadata/00000-x.metadata.json", content=json.dumps(stranger).encode())
    refused(care, table, "11111111-2222-3333-4444-555555555555", "deep/inside")


def test_so_is_such_metadata_without_a_uuid_as_the_first_version_of_the_format_allows(care):
    table = make(care)
    stranger = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    del stranger["table-uuid"]
    litter(table, "deep/inside/metadata/00000-x.metadata.json", content=json.dumps(stranger).encode())
    refused(care, table, "no uuid", "deep/inside")


def test_a_neighbour_with_a_name_that_begins_alike_is_no_reason(care):
    table = make(care)
    make(care, "other.table", location=f"{table.location()}2")
    litter(table, *LOST)
    age(table)
    assert found(care, table) == set(LOST)


def test_a_table_whose_files_are_not_its_own_is_left_alone(care):
    table = make(care, properties={"gc.enabled": "false"})
    litter(table, *LOST)
    age(table)
    with pytest.raises(UnsupportedError, match="nothing is deleted"):
        orphans.find(care, table, DAY)
    outcome = orphans.run(care, table, step("orphans", age_s=DAY))
    assert (outcome.result, "gc.enabled" in (outcome.reason or "")) == ("unsupported", True)
    assert set(LOST) <= files_in(table)


def test_damaged_metadata_stops_everything(care):
    table = make(care)
    litter(table, *LOST)
    age(table)
    manifest = next(f for f in files_in(table) if f.endswith("-m0.avro") and "lost" not in f)
    (folder(table) / manifest).write_bytes(b"rubbish")
    fresh = care_of(folder(table).parents[2])
    with pytest.raises(FrazilError), fresh.store:
        orphans.run(fresh, table, step("orphans", age_s=DAY))
    assert set(LOST) <= files_in(table)


def test_what_came_to_be_needed_since_the_search_stays(care):
    """Somebody commits a file that was an orphan when the search saw it."""
    table = make(care)
    living = next(f for f in files_in(table) if f.endswith(".parquet"))
    litter(table, *LOST)
    (folder(table) / LOST[0]).write_bytes((folder(table) / living).read_bytes())
    age(table)
    search = orphans.find(care, table, DAY)
    assert len(search.orphans) == 4
    table.add_files([f"file://{folder(table)}/{LOST[0]}"], check_duplicate_files=False)
    assert orphans.remove(care, search).files == 3
    assert LOST[0] in files_in(table)
    sound(care, table, rows(table))


def test_a_crash_at_any_step_hurts_nothing_and_the_next_run_does_the_rest(care):
    table = make(care)
    litter(table, *(f"data/lost-{i}.parquet" for i in range(3)))
    age(table)

    def act():
        return orphans.run(care, table, step("orphans", age_s=DAY))

    struck = crash_everywhere(act, lambda _: sound(care, table, [1, 2, 3]))
    assert {"upkeep.orphans.list.before", "upkeep.orphans.look.after", "upkeep.removal.batch.before"} <= set(struck)
    assert found(care, table) == set()
    sound(care, table, [1, 2, 3])


def test_two_searches_at_once_do_each_other_no_harm(care):
    table = make(care)
    litter(table, *(f"data/lost-{i}.parquet" for i in range(50)))
    age(table)
    meet = threading.Barrier(2)
    waited = threading.local()

    def handle(name: str) -> None:
        if name == "upkeep.orphans.look.before" and not getattr(waited, "done", False):
            waited.done = True
            meet.wait(60)

    outcomes = []
    with handled(handle):
        threads = [
            threading.Thread(target=lambda: outcomes.append(orphans.run(care, table, step("orphans", age_s=DAY))))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [o.result for o in outcomes] == ["done", "done"]
    assert found(care, table) == set()
    sound(care, table, [1, 2, 3])


def frazil(capsys: pytest.CaptureFixture[str], home: Path, *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["table", *args, "--set", f"home={home}"])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_command_only_looks_unless_it_is_told_to_delete(care, capsys, tmp_path):
    home = tmp_path / "home"
    table = make(care)
    litter(table, *LOST, *(f"data/lost-{i}.parquet" for i in range(20)), "notes.txt")
    age(table)
    before = files_in(table)
    code, out, err = frazil(capsys, home, "orphans", "ns.t", "-o", "json")
    told = json.loads(out)
    assert (code, told["done"], told["removed"], len(told["orphans"])) == (0, False, 0, 24)
    assert {"uri", "size", "kind", "written"} == set(told["orphans"][0])
    code, out, err = frazil(capsys, home, "orphans", "ns.t")
    assert code == 0
    assert "and 14 more" in out
    assert "1 files of other kinds than Iceberg's, which are kept" in out
    assert "--yes" in err
    assert files_in(table) == before
    code, out, err = frazil(capsys, home, "orphans", "ns.t", "--yes", "-o", "json")
    told = json.loads(out)
    assert (code, told["done"], told["removed"], told["removed_bytes"]) == (0, True, 24, 96)
    assert len(files_in(table)) == len(before) - 24


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["orphans", "ns.t", "--yes", "--dry-run"], 2),
        (["orphans", "ns.t", "--older-than", "5m"], 2),
        (["orphans", "ns.t", "--older-than", "soon"], 2),
        (["orphans", "ns.nix"], 10),
        (["verify", "ns.nix"], 10),
        (["expire", "ns.nix"], 10),
        (["expire", "ns.t", "--snapshot", "1", "--keep", "2"], 2),
        (["expire", "ns.t", "--snapshot", "1"], 10),
        (["expire", "ns.t", "--older-than", "never"], 2),
        (["pins", "nix"], 2),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(care, capsys, tmp_path, args, code):
    table = make(care)
    litter(table, *LOST)
    age(table)
    before = files_in(table)
    ended, _, err = frazil(capsys, tmp_path / "home", *args)
    assert ended == code
    assert "Try:" in err
    assert files_in(table) == before


def test_a_shared_place_is_told_with_its_exit_code(care, capsys, tmp_path):
    table = make(care)
    make(care, "other.table", location=f"{table.location()}/inner")
    code, _, err = frazil(capsys, tmp_path / "home", "orphans", "ns.t", "--yes")
    assert code == 12
    assert "other.table" in err
