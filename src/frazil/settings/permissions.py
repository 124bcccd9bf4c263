"""Permissions of files: which settings files are trusted, and how Frazil's own files are kept private."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from frazil.errors import NotAllowedError
from frazil.settings import ambient


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


def _require_ours(file: Path, path: Path, status: os.stat_result, hint: str) -> None:
    what = "it" if path == file else str(path)
    if status.st_uid not in ambient.trusted_owners():
        raise _untrusted(file, f"{what} belongs to {_user_name(status.st_uid)}", hint)
    if stat.S_ISLNK(status.st_mode) or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return  # a link has no mode of its own; in a sticky folder nobody replaces the files of others
    if status.st_mode & stat.S_IWOTH:
        raise _untrusted(file, f"every user can write to {what}", hint)
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status):
        raise _untrusted(file, f"the group {_group_name(status.st_gid)} can write to {what}", hint)


def _untrusted(file: Path, cause: str, hint: str) -> NotAllowedError:
    return NotAllowedError(
        f"{file} is not read: another user could have written it",
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
        return f"the user with number {uid}"


def _group_name(gid: int) -> str:
    import grp

    try:
        return f"'{grp.getgrgid(gid).gr_name}'"
    except KeyError:
        return f"with number {gid}"
