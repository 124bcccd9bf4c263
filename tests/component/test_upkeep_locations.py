"""However a table's place is written, linked or shared, upkeep deletes none of its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frazil.__main__ import main
from frazil.errors import FrazilError, NotAllowedError
from frazil.tables.metadata import locations as places
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import orphans, reclaim
from frazil.upkeep.expiry.shared_locations import require_alone
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
    sound,
    step,
)

LOST = "data/lost.parquet"


@pytest.fixture
def care(tmp_path: Path) -> Iterator[UpkeepContext]:
    made = care_of(tmp_path / "home")
    with made.store:
        yield made


def moved(path: Path, to: Path, target: str | Path | None = None) -> None:
    """Moves a folder elsewhere and links it back."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, to)
    path.symlink_to(target or to)


def run(care: UpkeepContext, table) -> None:
    orphans.run(care, table, step("orphans", age_s=DAY))


def frazil(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    return int(ended.value.code or 0)


def by_hand(care: UpkeepContext) -> None:
    home = care.settings.model.home
    assert frazil("table", "orphans", "ns.t", "--yes", "--set", f"home={home}") == 0


def by_upkeep(care: UpkeepContext) -> None:
    home = care.settings.model.home
    assert frazil("upkeep", "run", "ns.t", "--kind", "orphans", "--set", f"home={home}") == 0


@pytest.mark.parametrize("act", [by_hand, by_upkeep])
def test_a_table_whose_own_folder_is_a_link_keeps_its_files_and_loses_its_orphans(care, tmp_path, capsys, act):
    table = make(care)
    litter(table, LOST)
    age(table)
    moved(folder(table), tmp_path / "big_disk" / "t")
    act(care)
    sound(care, table, [1, 2, 3])
    assert LOST not in files_in(table)


def _link_of_the_table(table, away: Path) -> None:
    moved(folder(table), away / "t")


def _relative_link(table, away: Path) -> None:
    path = folder(table)
    moved(path, away / "t", os.path.relpath(away / "t", path.parent))


def _link_in_the_middle(table, away: Path) -> None:
    moved(folder(table).parent, away / "ns")


def _link_of_the_warehouse(table, away: Path) -> None:
    moved(folder(table).parent.parent, away / "warehouse")


def _link_of_a_link(table, away: Path) -> None:
    away.mkdir()
    (away / "again").symlink_to(away / "t")
    moved(folder(table), away / "t", away / "again")


LINKS = [_link_of_the_table, _relative_link, _link_in_the_middle, _link_of_the_warehouse, _link_of_a_link]


@pytest.mark.deep
@pytest.mark.parametrize("link", LINKS)
def test_links_anywhere_in_a_tables_place_change_nothing(care, tmp_path, link: Callable[..., None]):
    table = make(care)
    places.canonical_uri(table.metadata_location)  # a pipeline has resolved it before the folder is moved
    litter(table, LOST)
    age(table)
    link(table, tmp_path / "away")
    run(care, table)
    sound(care, table, [1, 2, 3])
    assert LOST not in files_in(table)


def test_expired_files_behind_a_link_are_reclaimed_and_living_ones_stay(care, tmp_path):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    moved(folder(table), tmp_path / "away" / "t")
    assert reclaim.run(care, table, step("reclaim", grace_s=0.0)).files_removed == len(expired.files)
    sound(care, table, [1, 2, 3])


@pytest.mark.parametrize("inner", ["metadata", "data"])
def test_a_table_whose_inner_folder_is_a_link_keeps_its_files(care, tmp_path, inner):
    table = make(care)
    litter(table, LOST, "metadata/lost-m0.avro")
    age(table)
    moved(folder(table) / inner, tmp_path / "away" / inner)
    try:
        run(care, table)
    except NotAllowedError as error:
        assert "metadata" in f"{error.message} {error.cause}"
    sound(care, table, [1, 2, 3])


@pytest.mark.deep
@pytest.mark.parametrize("spelling", ["{}/", "{}//", "file:{}", "file://{}/", "//{}", "{}/./", "{}%20b", "{} b"])
def test_spellings_of_a_location_change_nothing(care, tmp_path, spelling):
    table = make(care, location=spelling.format(f"{tmp_path}/place/t"))
    litter(table, LOST)
    age(table)
    try:
        run(care, table)
    except FrazilError as error:
        assert error.hint
    sound(care, table, [1, 2, 3])


def test_a_data_file_that_is_a_link_to_another_name_keeps_its_content(care, tmp_path):
    table = make(care)
    data = min((folder(table) / "data").glob("*.parquet"))
    data.rename(data.with_name("content.parquet"))
    data.symlink_to("content.parquet")
    age(table)
    run(care, table)
    sound(care, table, [1, 2, 3])


def test_another_table_that_reads_a_file_through_a_link_is_a_reason_to_refuse(care, tmp_path):
    table = make(care)
    other = make(care, "other.table", location=f"{tmp_path}/other", commits=0)
    litter(table, LOST)
    data = min((folder(table) / "data").glob("*.parquet"))
    shutil.copy(data, folder(table) / LOST)
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "a.parquet").symlink_to(folder(table) / LOST)
    other.add_files([f"{tmp_path}/inbox/a.parquet"])
    age(table)
    with pytest.raises(NotAllowedError, match=r"other\.table"):
        run(care, table)
    assert LOST in files_in(table)


def test_another_table_that_lies_here_through_a_link_is_a_reason_to_refuse(care, tmp_path):
    table = make(care)
    (tmp_path / "door").symlink_to(folder(table))
    make(care, "other.table", location=f"{tmp_path}/door")
    age(table)
    before = files_in(table)
    with pytest.raises(NotAllowedError, match=r"other\.table"):
        run(care, table)
    with pytest.raises(NotAllowedError, match=r"other\.table"):
        require_alone(care, table)
    assert files_in(table) == before


def test_a_link_to_a_file_of_another_table_is_an_orphan_and_the_file_is_none(care, tmp_path):
    table, other = make(care), make(care, "other.table")
    target = min((folder(other) / "data").glob("*.parquet"))
    (folder(table) / LOST).symlink_to(target)
    age(table)
    age(other)
    run(care, table)
    assert not (folder(table) / LOST).is_symlink()
    sound(care, other, [1, 2, 3])


def test_nothing_is_deleted_where_the_listing_lacks_a_file_of_the_table(care, tmp_path):
    table = make(care)
    data = min((folder(table) / "data").glob("*.parquet"))
    data.rename(tmp_path / data.name)  # such as a mount that is not there at the moment
    litter(table, LOST)
    age(table)
    with pytest.raises(NotAllowedError, match="does not show") as error:
        run(care, table)
    assert error.value.exit_code == 12
    assert data.name in (error.value.cause or "")
    assert LOST in files_in(table)


def test_a_former_metadata_file_that_is_gone_for_good_is_no_reason_to_refuse(care):
    table = make(care)
    former = table.metadata.metadata_log[0].metadata_file
    Path(former.removeprefix("file://")).unlink()
    litter(table, LOST)
    age(table)
    run(care, table)
    assert LOST not in files_in(table)


def test_a_place_that_shows_the_same_files_under_other_names_is_a_reason_to_refuse(care, tmp_path, monkeypatch):
    """As a second mount of the same disk does: no link says that both are one."""
    table = make(care, properties={"write.data.path": f"{tmp_path}/second_mount/data"})
    data = tmp_path / "second_mount" / "data"
    (folder(table) / "data").mkdir()
    for file in data.rglob("*.parquet"):
        os.link(file, folder(table) / "data" / file.name)
    litter(table, LOST)
    age(table)
    with pytest.raises(NotAllowedError, match="under another name"):
        run(care, table)
    assert LOST in files_in(table)


def test_a_folder_that_is_moved_between_the_search_and_the_removal_loses_nothing(care, tmp_path):
    table = make(care)
    litter(table, LOST)
    age(table)
    search = orphans.find(care, table, DAY)
    other = tmp_path / "copy"
    shutil.copytree(folder(table), other)
    moved(folder(table), tmp_path / "away", other)
    with pytest.raises(NotAllowedError, match="moved"):
        orphans.remove(care, search)
    sound(care, grow(table), [1, 2, 3, 4])
