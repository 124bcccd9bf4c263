"""What `frazil doctor` says of the backup repository."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from frazil.backup.location import check_repository, open_repository
from frazil.errors import FrazilError, IntegrityError, UnsupportedError
from frazil.settings import Settings, load_settings


def settings(folder: Path, **more: str) -> Settings:
    flags = {f"backup.{name}": value for name, value in more.items()}
    return load_settings(flags={"home": str(folder), **flags}, environ={})


def test_a_place_without_backups_is_fine_and_stays_empty(tmp_path: Path):
    assert check_repository(settings(tmp_path)) == f"{tmp_path}/backups: no backups yet"
    assert list(tmp_path.iterdir()) == []


def test_a_repository_says_how_many_backups_it_has(tmp_path: Path):
    open_repository(settings(tmp_path), create=True)
    assert check_repository(settings(tmp_path)) == f"{tmp_path}/backups: 0 backups"


def test_only_its_owner_can_enter_a_repository(tmp_path: Path):
    place = tmp_path / "other" / "disk"
    open_repository(settings(tmp_path, bucket=str(place)), create=True)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (place, place.parent)] == [0o700, 0o700]


def test_a_damaged_record_is_found(tmp_path: Path):
    open_repository(settings(tmp_path), create=True)
    (tmp_path / "backups" / "backups").mkdir(exist_ok=True)
    (tmp_path / "backups" / "backups" / "monday.json").write_text('{"format": 1')
    with pytest.raises(IntegrityError, match="1 of 1 backup cannot be used"):
        check_repository(settings(tmp_path))


def test_a_header_that_is_not_ours_is_found(tmp_path: Path):
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups" / "repository.json").write_text("{}")
    with pytest.raises(FrazilError):
        check_repository(settings(tmp_path))


def test_a_folder_cannot_lock_objects(tmp_path: Path):
    with pytest.raises(UnsupportedError, match="not a bucket of S3"):
        check_repository(settings(tmp_path, lock_days="30"))
