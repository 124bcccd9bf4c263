"""Files are found in the folder of a relocated table, however their paths spell it."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from frazil.settings import NetworkSettings, S3Settings
from frazil.storage import provide_hadoop_stores
from frazil.tables.relocation.prefixes import UnmappedPathError
from frazil.tables.relocation.target_folder import TargetFolder


@pytest.mark.parametrize("location", ["/lake/t", "file:/lake/t", "file:///lake/t"])
@pytest.mark.parametrize("path", ["/lake/t/data/1", "file:/lake/t/data/1", "file:///lake/t/data/1"])
def test_a_local_folder_has_one_key_for_all_spellings(location, path):
    assert _folder(location).key_of(path) == "data/1"


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_so_has_a_bucket(scheme):
    assert _folder("s3://lake/t").key_of(f"{scheme}://lake/t/data/1") == "data/1"


@pytest.mark.parametrize("path", ["/lake/tt/data/1", "/other", "s3://lake/t/data/1", "/lake/t/../u/1"])
def test_a_path_elsewhere_has_no_key(path):
    with pytest.raises(UnmappedPathError):
        _folder("file:///lake/t").key_of(path)


def test_a_folder_on_hadoop_is_opened_by_the_session_that_there_is():
    opened: list[str] = []

    def open_by(session: str):
        return provide_hadoop_stores(lambda location: opened.append(session) or MagicMock())

    with open_by("first"):
        _folder("hdfs:///lake/t").open()
    with open_by("second"):
        _folder("hdfs:///lake/t").open()
    assert opened == ["first", "second"]


def test_another_folder_is_opened_once():
    assert _folder("file:///lake/t").open() is _folder("file:///lake/t").open()


def _folder(location: str) -> TargetFolder:
    return TargetFolder(location, S3Settings(), NetworkSettings())
