"""docs/backup-repository.md says what the code writes, and restores a backup by hand."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from frazil.backup.format import (
    BackedUpTable,
    BackupRecord,
    CopiedFile,
    ManifestState,
    TableState,
    Tombstone,
    compress,
    seal,
)
from frazil.backup.repository import Repository
from tests.repository_kit import back_up, files_of, open_local, write_sources

PAGE = (Path(__file__).parents[2] / "docs" / "backup-repository.md").read_text()
BLOCKS = re.findall(r"```(?:sh|text)\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = open_local(tmp_path / "r")
    back_up(repository, "NAME", write_sources(tmp_path / "s", {f"{n} ü.parquet": n.encode() * 99 for n in "abc"}))
    return repository


@pytest.mark.parametrize("kind", [BackupRecord, BackedUpTable, TableState, ManifestState, CopiedFile, Tombstone])
def test_every_field_is_described(kind: type) -> None:
    for field in fields(kind):
        assert f"`{field.name}`" in PAGE, field.name


def test_the_seal_is_as_described() -> None:
    tail = next(block for block in BLOCKS if block.startswith(',\\n "sha256"')).strip()
    sealed = seal({"a": 1})
    digest = hashlib.sha256(sealed[:-82]).hexdigest()
    assert sealed[-82:].decode() == tail.replace("\\n", "\n").replace("<64 hex digits>", digest)


def test_compression_is_as_described() -> None:
    data = compress(b"data")
    (magic,) = re.findall(r"`(50 2a [0-9a-f ]+)`", PAGE)
    assert data[-40:] == bytes.fromhex(magic) + hashlib.sha256(data[:-40]).digest()


def test_every_object_is_in_the_layout(repository: Repository) -> None:
    repository.save_progress("table", "id", {})
    layout = {line.split()[0] for line in BLOCKS[0].splitlines() if line.strip()}
    patterns = [
        re.escape(line).replace("<aa>", "[0-9a-f]{2}").replace("<size>\\-<sha256>", r"\d+-[0-9a-f]{64}")
        .replace("<name>", "[^/]+").replace("<table", "[^/]+").replace("<id>", "[^/]+")
        for line in layout
    ]  # fmt: skip
    for path in files_of(repository.location.path):
        key = str(path.relative_to(repository.location.path))
        assert any(re.match(pattern, key) for pattern in patterns), key


@pytest.mark.skipif(shutil.which("jq") is None or shutil.which("zstd") is None, reason="needs jq and zstd")
def test_a_backup_is_restored_by_hand(repository: Repository) -> None:
    script = next(block for block in BLOCKS if block.startswith("meta()"))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=repository.location.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    out = repository.location.path / "OUT/lake/table-1"
    restored = {path.name: path.read_bytes() for path in files_of(out)}
    (table,) = repository.read_record("NAME").tables
    state = repository.read_state(table)
    wanted = {Path(f.path).name: f.blob for m in state.manifests for f in repository.read_files(m)}
    for name, blob in wanted.items():
        assert blob is not None
        assert restored[name] == b"".join(repository.open_data(blob))
    for one in (state.metadata, *state.manifest_lists, *state.manifests):
        assert restored[Path(one.path).name] == repository.get_meta(one.blob)


def test_a_lost_header_is_written_by_hand(repository: Repository) -> None:
    folder = repository.location.path
    (folder / "repository.json").unlink()
    script = next(block for block in BLOCKS if block.startswith("printf"))
    subprocess.run(["bash", "-euc", f"ID={repository.id}\n{script}"], cwd=folder, check=True)
    again = open_local(folder, create=False)
    assert again.id == repository.id
    assert again.read_record("NAME").repository == repository.id
