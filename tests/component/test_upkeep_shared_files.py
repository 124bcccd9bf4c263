"""Files that another table refers to are never deleted, by whatever step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.table import Table

from frazil.__main__ import main
from frazil.catalogs import local_path
from frazil.errors import UnsupportedError
from frazil.tables import ensure_table
from frazil.tables.metadata.reachable import find_exclusive_files
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import expire, orphans, reclaim
from frazil.upkeep.expiry.shared_locations import SharedLocationError, require_alone, require_free
from tests.component.test_upkeep_orphans import TwoCatalogs
from tests.lane import people
from tests.upkeep_files import (
    DAY,
    age,
    care_of,
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


@pytest.fixture
def care(tmp_path: Path) -> Iterator[UpkeepContext]:
    made = care_of(tmp_path / "home")
    with made.store:
        yield made


def reader_of(care: UpkeepContext, table: Table, name: str = "other.reader", **options: object) -> Table:
    """Another table that holds the data files of a table by `add_files`."""
    other = make(care, name, commits=0, **options)
    other.add_files([task.file.file_path for task in table.scan().plan_files()])
    return other


def reclaimed(care: UpkeepContext, table: Table, grace_s: float = 0.0):
    return reclaim.run(care, care.load(".".join(table.name())), step("reclaim", grace_s=grace_s))


def test_files_of_expired_snapshots_that_another_table_holds_are_not_reclaimed(care, tmp_path):
    table = make(care)
    other = reader_of(care, table)
    replaced(table)
    expired_by_hand(care, table, *old_ids(table))
    before = files_in(table)
    with pytest.raises(SharedLocationError, match=r"other\.reader") as error:
        reclaimed(care, table)
    assert error.value.exit_code == 12
    assert files_in(table) == before
    assert rows(other) == [1, 2, 3]
    care.store.catalog.drop_table("other.reader")
    assert reclaimed(care, table).files_removed > 0
    sound(care, table, [1, 2, 3])


def test_an_expiry_by_hand_that_would_take_them_ends_with_exit_code_12_and_changes_nothing(care, capsys):
    table = make(care)
    other = reader_of(care, table)
    replaced(table)
    before = files_in(table)
    home = care.settings.model.home
    with pytest.raises(SystemExit) as ended:
        main(["table", "expire", "ns.t", "--keep", "1", "--grace", "0s", "--set", f"home={home}"])
    errors = capsys.readouterr().err
    assert ended.value.code == 12
    assert "other.reader" in errors and "Try: " in errors
    assert files_in(table) == before
    assert rows(other) == [1, 2, 3]


def test_imported_files_that_another_table_imported_too_stop_neither_expiry_nor_reclaim(care, tmp_path):
    source = make(care, "other.source", location=f"{tmp_path}/inbox")
    imported = [task.file.file_path for task in source.scan().plan_files()]
    care.store.catalog.drop_table("other.source")
    table, other = make(care, commits=0), make(care, "other.reader", commits=0)
    for one in (table, other):
        one.add_files(imported)
    replaced(table)
    with pytest.raises(AssertionError, match="no JVM"):  # nothing refuses before the commit, which is Java's
        expire.run(care, care.load("ns.t"), step("expire", snapshots=old_ids(table)))
    expired_by_hand(care, table, *old_ids(table))
    assert reclaimed(care, table).files_removed > 0
    assert all(Path(local_path(file) or "").exists() for file in imported)
    assert rows(other) == [1, 2, 3]
    sound(care, table, [1, 2, 3])


def test_a_table_above_this_one_that_holds_its_files_is_asked_too(care, tmp_path):
    table = make(care, location=f"{tmp_path}/wh/t")
    other = reader_of(care, table, location=f"{tmp_path}/wh")
    replaced(table)
    expired_by_hand(care, table, *old_ids(table))
    with pytest.raises(SharedLocationError, match=r"other\.reader"):
        reclaimed(care, table)
    assert rows(other) == [1, 2, 3]


def test_other_files_of_the_same_folder_are_reclaimed(care):
    table = make(care, commits=1)
    other = reader_of(care, table)
    grow(table)
    table.delete("id = 2")
    expired = expired_by_hand(care, table, *old_ids(table)[1:])
    assert reclaimed(care, table).files_removed == len(expired.files) > 0
    assert rows(other) == [1]
    sound(care, table, [1])


def test_what_a_table_refers_to_is_believed_within_the_grace_alone(care):
    """A file that was imported before its snapshot was expired is seen by any look that is younger than the list."""
    table = make(care)
    other = make(care, "other.reader", commits=0)
    files = find_exclusive_files(care.store, table, old_ids(table))
    require_free(care, table, files)
    other.add_files([task.file.file_path for task in table.scan().plan_files()])
    replaced(table)
    files = find_exclusive_files(care.store, table, old_ids(table))
    require_free(care, table, files, believed_s=60.0)
    with pytest.raises(SharedLocationError):
        require_free(care, table, files)


def test_files_that_a_table_of_another_catalog_holds_are_not_reclaimed(tmp_path):
    two = TwoCatalogs(tmp_path / "home", warehouse=str(tmp_path / "home" / "warehouse"))
    with two.care.store, two.other().store as store:
        table = make(two.care)
        other = reader_of(replace(two.care, store=store), table, "far.away")
        replaced(table)
        expired_by_hand(two.care, table, *old_ids(table))
        with pytest.raises(SharedLocationError, match=r"other\.far\.away"):
            reclaimed(two.care, table)
        assert rows(other) == [1, 2, 3]
        other.transaction().set_properties({"write.data.path": "hdfs://elsewhere/data"}).commit_transaction()
        with pytest.raises(SharedLocationError, match=r"other\.far\.away"):
            reclaimed(two.care, table)


def test_a_name_that_another_catalog_got_within_the_hour_keeps_the_files_that_it_shows(tmp_path):
    two = TwoCatalogs(tmp_path / "home")
    with two.care.store, two.other().store as store:
        table = make(two.care)
        require_alone(two.care, table)  # remembers for an hour what the other catalog has
        store.catalog.create_namespace("far")
        again = store.catalog.register_table("far.again", table.metadata_location)
        replaced(table)
        expired_by_hand(two.care, table, *old_ids(table))
        with pytest.raises(SharedLocationError, match=r"other\.far\.again"):
            reclaimed(two.care, table)
        assert rows(again) == [1, 2, 3]


def test_a_table_on_a_storage_that_frazil_does_not_know_blocks_nothing(care):
    table = replaced(make(care))
    make(care, "other.far", commits=0, properties={"write.data.path": "hdfs://elsewhere/data"})
    expired = expired_by_hand(care, table, *old_ids(table))
    litter(table, "data/lost.parquet")
    age(table)
    assert orphans.run(care, table, step("orphans", age_s=DAY)).files_removed == 1
    assert reclaimed(care, table).files_removed == len(expired.files)


def unparsable(table: Table) -> None:
    """A column of type variant with a default, as Spark writes format 3; PyIceberg cannot parse it."""
    path = Path(local_path(table.refresh().metadata_location) or "")
    metadata = json.loads(path.read_text())
    metadata["format-version"] = 3
    metadata["next-row-id"] = 0
    field = {"id": 99, "name": "v", "required": False, "type": "variant", "initial-default": "x", "write-default": "y"}
    metadata["schemas"][-1]["fields"].append(field)
    path.write_text(json.dumps(metadata))


def test_a_table_that_pyiceberg_cannot_parse_blocks_no_other(care, tmp_path):
    table = replaced(make(care))
    strange = make(care, "other.strange")
    unparsable(strange)
    expired = expired_by_hand(care, table, *old_ids(table))
    litter(table, "data/lost.parquet")
    age(table)
    assert orphans.run(care, table, step("orphans", age_s=DAY)).files_removed == 1
    assert reclaimed(care, table).files_removed == len(expired.files)
    sound(care, table, [1, 2, 3])


def test_such_a_table_keeps_the_files_of_others_that_it_holds(care):
    table = make(care)
    other = reader_of(care, table)
    kept = {Path(task.file.file_path).name for task in table.scan().plan_files()}
    unparsable(other)
    replaced(table)
    expired_by_hand(care, table, *old_ids(table))
    with pytest.raises(SharedLocationError, match=r"other\.reader"):
        reclaimed(care, table)
    litter(table, "data/lost.parquet")
    age(table)
    with pytest.raises(SharedLocationError, match=r"other\.reader"):
        orphans.run(care, table, step("orphans", age_s=DAY))
    assert kept <= {Path(name).name for name in files_in(table)}


def test_such_a_table_says_so_itself(care):
    unparsable(make(care, "other.strange"))
    with pytest.raises(UnsupportedError, match=r"other\.strange cannot be parsed") as error:
        care.load("other.strange")
    assert error.value.cause
    assert "Spark" in (error.value.hint or "")


@pytest.mark.parametrize("command", ["show", "health", "orphans"])
def test_its_commands_say_so_too_and_other_tables_are_served(care, capsys, command):
    make(care, "ns.t")
    unparsable(make(care, "other.strange"))
    home = f"home={care.settings.model.home}"
    with pytest.raises(SystemExit) as ended:
        main(["table", command, "other.strange", "--set", home])
    errors = capsys.readouterr().err
    assert ended.value.code == 1
    assert "error: the metadata of other.strange cannot be parsed" in errors and "Traceback" not in errors
    assert "Try: query it with Spark" in errors
    with pytest.raises(SystemExit) as ended:
        main(["table", command, "ns.t", "--set", home])
    assert not ended.value.code


def lost_creation(care: UpkeepContext, table: Table, **changes: object) -> str:
    """The first metadata file of a table that PyIceberg made in the same place, and that no catalog has now."""
    twin = care.store.catalog.create_table("ns.twin", schema=table.schema(), location=table.location())
    care.store.catalog.drop_table("ns.twin")
    path = Path(local_path(twin.metadata_location) or "")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return f"metadata/{path.name}"


def test_what_a_lost_creation_left_goes_with_the_other_orphans(care):
    table = make(care)
    stray = lost_creation(care, table)
    litter(table, "data/lost.parquet")
    age(table)
    assert orphans.run(care, table, step("orphans", age_s=DAY)).files_removed == 2
    assert stray not in files_in(table)
    sound(care, table, [1, 2, 3])


#: Creates a table, and is killed when its metadata lies in storage and the catalog does not have it yet.
KILLED = """
import os, signal, sys
from pyiceberg.catalog.sql import SqlCatalog
from frazil.tables import ensure_table
from tests.lane import people
from tests.upkeep_files import care_of
from pathlib import Path

write = SqlCatalog._write_metadata

def write_and_die(*args, **options):
    write(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)

SqlCatalog._write_metadata = staticmethod(write_and_die)
ensure_table(care_of(Path(sys.argv[1])).store, "ns.t", people().schema)
"""


def test_what_a_process_left_that_was_killed_while_it_created_the_table_goes_with_the_other_orphans(care):
    home = str(care.settings.model.home)
    killed = subprocess.run([sys.executable, "-c", KILLED, home], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    table = grow(ensure_table(care.store, "ns.t", people().schema))
    strays = [name for name in files_in(table) if name.startswith("metadata/00000-")]
    assert len(strays) == 2, "that of the killed process, and the first one of the table"
    litter(table, "data/lost.parquet")
    age(table)
    assert orphans.run(care, table, step("orphans", age_s=DAY)).files_removed == 2
    assert len([name for name in files_in(table) if name.startswith("metadata/00000-")]) == 1
    sound(care, table, [1])


def test_a_young_one_stays_and_keeps_nothing_else_from_going(care):
    table = make(care)
    stray = lost_creation(care, table)
    litter(table, "data/lost.parquet")
    age(table)
    os.utime(folder(table) / stray)
    assert orphans.run(care, table, step("orphans", age_s=DAY)).files_removed == 1
    assert stray in files_in(table)


@pytest.mark.parametrize(
    "changes",
    [
        {"snapshots": [{"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": "/x"}]},
        {"metadata-log": [{"metadata-file": "/x", "timestamp-ms": 1}]},
        {"location": "/elsewhere"},
        {"table-uuid": None},
    ],
)
def test_metadata_that_may_be_of_a_living_table_is_a_reason_to_refuse(care, changes):
    table = make(care)
    lost_creation(care, table, **changes)
    litter(table, "data/lost.parquet")
    age(table)
    before = files_in(table)
    with pytest.raises(SharedLocationError, match="metadata of another table"):
        orphans.run(care, table, step("orphans", age_s=DAY))
    assert files_in(table) == before


def test_so_is_the_first_metadata_of_a_table_that_the_catalog_shows_elsewhere(care, tmp_path):
    table = make(care)
    other = make(care, "other.table", location=f"{tmp_path}/other")
    lost_creation(care, table, **{"table-uuid": str(other.metadata.table_uuid)})
    age(table)
    with pytest.raises(SharedLocationError, match="metadata of another table"):
        orphans.run(care, table, step("orphans", age_s=DAY))
