"""A settings file that another user could have written runs no program and redirects no data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import Shell

_STRANGER = 54321


@pytest.fixture
def below(shell: Shell, tmp_path: Path) -> tuple[Shell, Path]:
    """A shell in a folder below one with a `frazil.yaml` that names a Java of somebody's choice, and that file."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    java.chmod(0o755)
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    shell.folder = shared / "mine"
    file = shared / "frazil.yaml"
    file.write_text(f"spark:\n  java_home: {tmp_path}/jdk\n")
    return shell, file


def refused(shell: Shell, tmp_path: Path) -> str:
    done = shell.run("doctor", "--no-spark")
    assert done.returncode == 12 and "refusing to read" in done.stderr, done.stderr
    assert "another user could have written it" in done.stderr
    assert "Try: " in done.stderr and not (tmp_path / "ran").exists()
    return done.stderr


def test_a_settings_file_of_another_user_in_a_folder_above_is_refused(below, tmp_path):
    shell, file = below
    os.chown(file, _STRANGER, _STRANGER)
    assert f"it belongs to the user with ID {_STRANGER}" in refused(shell, tmp_path)
    shell.run("doctor", "--no-spark", "--config", str(file))
    assert (tmp_path / "ran").exists(), "a file that the user names is trusted"


def test_a_settings_file_that_every_user_can_write_is_refused(below, tmp_path):
    shell, file = below
    file.chmod(0o666)
    assert "every user can write to it" in refused(shell, tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize(
    "case", ["group", "folder", "folder's owner", "link", "user file", "pyiceberg", "sudo", "sticky"]
)
def test_whoever_can_exchange_a_settings_file_is_not_trusted(below, tmp_path, case):
    shell, file = below
    if case == "group":
        os.chown(file, -1, _STRANGER)
        file.chmod(0o664)
    elif case == "folder":
        file.parent.chmod(0o777)
    elif case == "folder's owner":
        os.chown(file.parent, _STRANGER, -1)
    elif case == "link":
        real = file.rename(tmp_path / "real.yaml")
        file.symlink_to(real)
        os.chown(file, _STRANGER, -1, follow_symlinks=False)
    elif case in ("user file", "pyiceberg"):
        place = ".config/frazil/config.yaml" if case == "user file" else ".pyiceberg.yaml"
        moved = shell.home / place
        moved.parent.mkdir(parents=True, exist_ok=True)
        file.rename(moved)
        os.chown(moved, _STRANGER, -1)
    elif case == "sudo":
        os.chown(file, _STRANGER, -1)
        shell.env["SUDO_UID"] = str(_STRANGER)
    elif case == "sticky":
        file.parent.chmod(0o1777)
    if case in ("sudo", "sticky"):
        shell.run("doctor", "--no-spark")
        assert (tmp_path / "ran").exists()
    else:
        refused(shell, tmp_path)
