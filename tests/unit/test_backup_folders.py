"""The folders of a record cover every path of the table, and stay few."""

from __future__ import annotations

import pytest

from frazil.backup.folders import CoveringFolders
from frazil.tables.relocation import PrefixMap


def covers(folders: CoveringFolders, *paths: str) -> bool:
    prefixes = PrefixMap([(folder, folder) for folder in folders.list()])
    return all(prefixes.covers(path) for path in paths)


def test_the_tables_own_folders_come_first_and_cover_other_spellings() -> None:
    folders = CoveringFolders(["file:///w/t", "s3://b/data/"])
    for path in ("/w/t/metadata/a.json", "file:/w/t/data/b.parquet", "s3a://b/data/c"):
        folders.cover(path)
    assert folders.list() == ("file:///w/t", "s3://b/data")


def test_a_path_elsewhere_adds_its_folder_and_a_longer_name_is_elsewhere() -> None:
    folders = CoveringFolders(["/w/t"])
    folders.cover("/w/t2/x.parquet")
    folders.cover("/imported/day=1/x.parquet")
    folders.cover("/imported/day=1/y.parquet")
    assert folders.list() == ("/w/t", "/w/t2", "/imported/day=1")


@pytest.mark.parametrize("root", ["s3://bucket/former", "file:///w/former", "/w/former"])
def test_thousands_of_folders_become_one(root: str) -> None:
    folders = CoveringFolders(["s3://bucket/t"])
    paths = [f"{root}/{number:04b}/{number}/x.parquet" for number in range(2000)]
    for path in paths:
        folders.cover(path)
    assert len(folders.list()) <= 18
    assert covers(folders, *paths)


def test_folders_of_an_earlier_backup_stay() -> None:
    folders = CoveringFolders(["/w/t"], ["/w/t", "/imported"])
    assert folders.list() == ("/w/t", "/imported")


def test_a_path_that_cannot_be_mapped_adds_nothing() -> None:
    folders = CoveringFolders(["/w/t"])
    assert folders.cover("/w/u/x.parquet")
    for path in ("/w/t/../u/x.parquet", "relative/x.parquet", "/w/t//x.parquet", "/v//x.parquet"):
        assert not folders.cover(path)
    assert folders.list() == ("/w/t", "/w/u")
