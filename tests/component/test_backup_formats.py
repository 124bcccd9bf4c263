"""Repositories of former versions are read, restored, continued and pruned (`tests/golden_backup.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.backup.format import BackupRecord, BlobRef
from frazil.backup.prune import run_prune
from frazil.backup.repository import ErasedError
from frazil.backup.verify import verify_repository
from tests.golden_backup import VERSIONS, unpack
from tests.repository_kit import age, open_local
from tests.restore_kit import back_up, open_repository, restore, rows_at
from tests.upkeep_files import care_of


def test_there_is_a_fixture_of_every_format() -> None:
    assert VERSIONS == ["1"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_former_repository_is_verified_and_pruned(version: str, tmp_path: Path) -> None:
    root, expected = unpack(version, tmp_path)
    repository = open_local(root, create=False)
    report = verify_repository(repository, level="checksums")
    assert report.is_sound
    assert report.backups == {
        "first": "sound", "second": "sound", "referenced": "sound", "erased": "erased", "kept": "sound",
    }  # fmt: skip
    (finding,) = report.findings
    assert "golden reason" in finding.detail
    with pytest.raises(ErasedError):
        list(repository.open_data(BlobRef.parse(expected["erased"])))
    assert repository.read_record("referenced").data == "referenced"
    assert list(repository.read_progress("a-table")) == ["/a"]
    assert report.unreferenced == expected["marked"]
    age(root, 3600)
    assert run_prune(repository, None, prune_wait_s=3600).deleted.blobs == expected["marked"]
    assert verify_repository(repository, level="checksums").unreferenced == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_former_backup_is_restored_and_continued(version: str, tmp_path: Path) -> None:
    root, expected = unpack(version, tmp_path)
    before = {path for path in (root / "data").rglob("*") if path.is_file()}
    care = care_of(tmp_path / "home")
    with care.store:
        repository = open_repository(care, str(root))
        for name in ("first", "second"):
            record = repository.read_record(name)
            restore(care, repository, record, f"ns.{name}")
            table = care.store.catalog.load_table(f"ns.{name}")
            snapshots = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
            assert {str(one): rows_at(table, one) for one in snapshots} == expected["rows"][name]
            refs = {ref: found.snapshot_id for ref, found in table.metadata.refs.items()}
            assert {ref: one for ref, one in refs.items() if "frazil" not in ref} == expected["refs"][name]
        # A backup of what was restored brings no new data: it is there under the same digests.
        again = back_up(care, repository, "ns.second", name="again")
        assert isinstance(again, BackupRecord)
        assert {path for path in (root / "data").rglob("*") if path.is_file()} == before
    assert verify_repository(repository, level="checksums").is_sound
