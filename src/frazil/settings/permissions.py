"""Permissions of files: which settings files are trusted, and how Frazil's own files are kept private."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from frazil.errors import NotAllowedError
from frazil.settings import environment

_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def require_trusted(file: Path, *, hint: str) -> None:
    """Refuses a settings file that another user could have written.

    Settings name programs that run (Java, jars, Python classes) and servers that credentials and data are sent to, so
    whoever writes them acts as the user who reads them. Root and the user behind `sudo` are trusted.

    Raises:
        NotAllowedError: another user owns the file, its link or its folder, or can write to one of them.
    """
    target = file.resolve()
    for path in (file, target):
        _require_ours(file, path, path.lstat(), hint)
    for folder in {file.parent, target.parent}:
        _require_ours(file, folder, folder.stat(), hint)


def make_private_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, which only this user can enter. An existing one stays."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def open_private(path: str | Path, flags: int) -> int:
    """Opens a file; one that this makes can be read by this user only. An `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def is_private(path: Path) -> bool:
    """Whether group and others have no rights on a file or folder."""
    return not path.stat().st_mode & _OF_OTHERS


def make_tree_private(top: Path) -> None:
    """Takes all rights of group and others from a folder and what is in it, as far as it belongs to this user.

    The folder itself comes last, and where it is private already nothing is done: no others can enter it.
    """
    if is_private(top):
        return
    for folder, _, files in os.walk(top, topdown=False):
        for path in (*(Path(folder, name) for name in files), Path(folder)):
            make_private(path)


def make_private(path: Path) -> None:
    """Takes all rights of group and others from a file or folder, if it exists and belongs to this user."""
    with suppress(OSError):  # it is gone, or the disk takes no changes: `frazil doctor` tells of it
        status = path.lstat()
        if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode) and status.st_mode & _OF_OTHERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OF_OTHERS)


def _require_ours(file: Path, path: Path, status: os.stat_result, hint: str) -> None:
    what = "it" if path == file else str(path)
    if status.st_uid not in environment.trusted_owners():
        raise _untrusted(file, f"{what} belongs to {_user_name(status.st_uid)}", hint)
    if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return  # a link has no mode of its own; in a sticky folder nobody replaces the files of others
    if status.st_mode & stat.S_IWOTH:
        raise _untrusted(file, f"every user can write to {what}", hint)
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status):
        raise _untrusted(file, f"group {_group_name(status.st_gid)} can write to {what}", hint)


def _untrusted(file: Path, cause: str, hint: str) -> NotAllowedError:
    return NotAllowedError(
        f"refusing to read {file}: another user could have written it",
        cause=f"{cause}; settings can run programs",
        hint=hint,
    )


def _is_private_group(status: os.stat_result) -> bool:
    """Whether the group has no member but the file's owner, as with a umask of 002 on many systems."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name and set(group.gr_mem) <= {owner.pw_name}


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"the user '{pwd.getpwuid(uid).pw_name}'"
    except KeyError:
        return f"the user with ID {uid}"


def _group_name(gid: int) -> str:
    import grp

    try:
        return f"'{grp.getgrgid(gid).gr_name}'"
    except KeyError:
        return f"with ID {gid}"
