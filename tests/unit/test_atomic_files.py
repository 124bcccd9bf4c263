"""Replacement of files: the old content or the new one, and nothing else, whatever fails and whenever."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.atomic_files import TEMPORARY_SUFFIX, replace_file, write_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "state.json"
    found.write_bytes(b"old")
    return found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records syncs and renames in their order."""
    found: list[str] = []
    sync, rename = os.fsync, Path.replace

    def noting_sync(number: int) -> None:
        target = Path(f"/proc/self/fd/{number}").readlink()
        found.append(f"sync {'folder' if target.is_dir() else 'file'}")
        sync(number)

    def noting_rename(self: Path, target: Path) -> Path:
        assert self.parent == target.parent, "a rename is atomic within one folder"
        found.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(Path, "replace", noting_rename)
    return found


def only(path: Path, content: bytes) -> bool:
    return path.read_bytes() == content and list(path.parent.iterdir()) == [path]


def test_a_durable_file_is_synced_before_its_rename_and_the_folder_after_it(path: Path, steps: list[str]):
    write_file(path, b"new")
    assert only(path, b"new")
    assert steps == ["sync file", "rename", "sync folder"]


def test_a_file_that_may_be_lost_is_not_synced(path: Path, steps: list[str]):
    write_file(path, b"new", durable=False)
    assert only(path, b"new")
    assert steps == ["rename"]


def test_readers_see_the_old_content_until_the_block_ends(path: Path):
    with replace_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert only(path, b"new")


def test_a_block_that_fails_leaves_the_old_content_and_no_other_file(path: Path):
    with pytest.raises(KeyboardInterrupt), replace_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert only(path, b"old")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_step_that_fails_leaves_the_old_content_and_no_other_file(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    with pytest.raises(OSError, match="the disk is broken"):
        write_file(path, b"new")
    assert only(path, b"old")


def test_a_killed_writer_leaves_the_old_content(path: Path):
    code = f"""
import os, signal
from pathlib import Path
from frazil.atomic_files import replace_file
with replace_file(Path({str(path)!r})) as file:
    file.write(b"half"), file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    others = [found for found in path.parent.iterdir() if found != path]
    assert len(others) == 1 and others[0].name.endswith(TEMPORARY_SUFFIX), "listings of a store leave it out"


def test_a_private_file_is_private_before_it_has_content(path: Path):
    before = os.umask(0)
    try:
        with replace_file(path, mode=0o600) as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_mode_the_umask_decides(tmp_path: Path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "rows.csv", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "rows.csv").stat().st_mode) == 0o640


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "no" / "file", b"")
