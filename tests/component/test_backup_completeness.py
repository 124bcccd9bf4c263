"""A new backup is complete, also in what it shares with earlier ones that have lost something."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.backup import completeness
from frazil.backup.create import create_backup
from frazil.backup.location import open_repository
from frazil.backup.verify import verify_repository
from tests.upkeep_files import care_of, grow, make


@pytest.mark.parametrize("look_up", [0, 1000], ids=["by listing", "one by one"])
def test_every_object_that_was_lost_is_stored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_up: int):
    monkeypatch.setattr(completeness, "_LOOK_UP", look_up)
    care = care_of(tmp_path)
    table = make(care, commits=4)
    repository = open_repository(care.settings, create=True)
    record = create_backup(care, repository, ["ns.t"], name="first")
    assert completeness.find_absent(repository, record.tables) == []
    grow(table)
    lost = [file for kind in ("data", "meta") for file in sorted((tmp_path / "backups" / kind).rglob("*-*"))]
    assert len(lost) > 10
    for file in lost:
        file.unlink()
        create_backup(care, repository, ["ns.t"], name=f"after-{file.name[:60]}")
    last = create_backup(care, repository, ["ns.t"], name="last")
    assert verify_repository(repository, names=["last"], level="checksums").is_sound
    assert completeness.find_absent(repository, last.tables) == []
