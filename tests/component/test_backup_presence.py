"""A new backup is complete, also in what it shares with earlier ones that have lost something."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.backup import references
from frazil.backup.completeness import find_lost
from frazil.backup.create import create_backup
from frazil.backup.format import BlobRef
from frazil.backup.location import open_repository
from frazil.backup.verify import verify_repository
from tests.repository_kit import open_local
from tests.upkeep_files import care_of, grow, make


@pytest.mark.parametrize("look_up", [0, 1000], ids=["by listing", "one by one"])
def test_every_object_that_was_lost_is_stored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_up: int):
    monkeypatch.setattr(references, "_LOOK_UP", look_up)
    care = care_of(tmp_path)
    table = make(care, commits=4)
    repository = open_repository(care.settings, create=True)
    record = create_backup(care, repository, ["ns.t"], name="first")
    assert find_lost(repository, record.tables) == []
    grow(table)
    lost = [file for kind in ("data", "meta") for file in sorted((tmp_path / "backups" / kind).rglob("*-*"))]
    assert len(lost) > 10
    for file in lost:
        file.unlink()
        create_backup(care, repository, ["ns.t"], name=f"after-{file.name[:60]}")
    last = create_backup(care, repository, ["ns.t"], name="last")
    assert verify_repository(repository, names=["last"], level="checksums").is_sound
    assert find_lost(repository, last.tables) == []


def test_a_file_that_many_manifests_name_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(references, "_LOOK_UP", 2)
    repository = open_local(tmp_path)
    here, gone = repository.put_meta(b"here"), BlobRef.of(b"gone")
    absent = references.find_absent(repository, [("meta", here)] * 5 + [("meta", gone)] * 5)
    assert len(absent) == 1 and absent.has("meta", gone)
