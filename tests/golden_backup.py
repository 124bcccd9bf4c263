"""Golden fixtures of the backup repository, in `tests/data/backups`: `python -m tests.golden_backup 1` makes one.

Make a fixture once for each format of the repository, and never change it: every later version has to pass
`tests/component/test_backup_formats.py` with it. Unlike other fixtures it is unpacked as it is: a repository is read
wherever it lies, and the paths in it are those of a source that is gone.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

from frazil.backup.format import BackupRecord, BlobRef, CopiedFile
from frazil.backup.prune import run_prune
from frazil.backup.repository import Repository
from frazil.backup.retention import RetentionPolicy
from tests.lane import people
from tests.restore_kit import back_up, history, open_repository
from tests.upkeep_files import care_of, make

DATA = Path(__file__).parent / "data" / "backups"
#: The formats of which there are fixtures.
VERSIONS = sorted(path.name.removesuffix(".tar.gz") for path in DATA.glob("*.tar.gz"))


def unpack(version: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The repository of a former version below a folder, and what is expected in it."""
    with tarfile.open(DATA / f"{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "repository", json.loads((DATA / f"{version}.json").read_text())


def make_fixture(version: str, folder: Path) -> None:
    expected: dict[str, Any] = {"rows": {}, "refs": {}}
    care = care_of(folder / "home")
    with care.store:
        repository = open_repository(care, str(folder / "repository"))
        table = make(care, "ns.t", commits=2)
        second = table.refresh().metadata.current_snapshot_id

        def back_up_as(name: str, **options: Any) -> BackupRecord:
            found = history(table)
            expected["rows"][name] = {str(snapshot): rows for snapshot, rows in found["rows"].items()}
            expected["refs"][name] = {ref: one.snapshot_id for ref, one in table.metadata.refs.items()}
            return back_up(care, repository, name=name, **options)

        back_up_as("first")
        with table.update_schema() as update:
            update.add_column("city", StringType())
        with table.update_spec() as update:
            update.add_field("id", BucketTransform(4), "id_bucket")
        table.refresh().append(people(3).append_column("city", [["Köln"]]))
        table.refresh().delete("id = 1")
        table.manage_snapshots().create_tag(second, "two").create_branch(second, "side").commit()
        back_up_as("second")
        back_up_as("referenced", data="reference")

        make(care, "ns.erased", commits=1).append(people(77))  # content that no other table has
        back_up(care, repository, "ns.erased", name="erased")
        others = {f.blob for name in ("first", "second") for f in _files(repository, name)}
        (file, *_) = [f for f in _files(repository, "erased") if f.blob not in others]
        assert isinstance(file.blob, BlobRef)
        repository.erase(file.blob, "golden reason")
        expected["erased"] = str(file.blob)

        other = make(care, "ns.dropped", commits=2)
        back_up(care, repository, "ns.dropped", name="dropped")
        other.refresh().append(people(2))
        back_up(care, repository, "ns.dropped", name="kept")
        dropped = run_prune(repository, RetentionPolicy(keep_last=1), prune_wait_s=0, names=["dropped", "kept"])
        assert dropped.marked.blobs
        expected["marked"] = dropped.marked.blobs
        repository.save_progress("a-table", "a-create", {"/a": file.blob})
    DATA.mkdir(exist_ok=True, parents=True)
    with tarfile.open(DATA / f"{version}.tar.gz", "w:gz", compresslevel=9) as archive:
        archive.add(folder / "repository", "repository", filter=_anonymous)
    (DATA / f"{version}.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


def _files(repository: Repository, name: str) -> list[CopiedFile]:
    (table,) = repository.read_record(name).tables
    return [file for manifest in repository.read_state(table).manifests for file in repository.read_files(manifest)]


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        make_fixture(sys.argv[1], Path(scratch))
