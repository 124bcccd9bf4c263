"""Atomic replacement of files: after a crash a file has its old content or its new one, never a part of either.

Two writers differ for a reason and use only `sync_folder`: `log.disk.Disk.replace`, whose single steps are the edge at
which tests inject faults, and `storage.local.LocalStore`, which compares etags under a lock between writing and naming.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

#: Ends the names of files that are being written. Listings of a local store leave them out.
TEMPORARY_SUFFIX = ".frazil-tmp"


def build_temporary_path(path: Path) -> Path:
    """Returns a new hidden name in the folder of a file, so that a rename from it to the file is atomic."""
    return path.parent / f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"


@contextmanager
def replace_file(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[BinaryIO]:
    """Opens a new file that replaces `path` when the block ends. If the block fails, `path` stays as it was.

    Args:
        path: the file to replace; the target itself, not a link to it. Its folder must exist.
        durable: sync the file before it is renamed, and the folder after it, so that a power cut loses neither.
        mode: permissions of the file, which it has before any content; None: as the umask says.

    Raises:
        OSError: the file could not be written. No temporary file is left.
    """
    temporary = build_temporary_path(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode & 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_file(path: Path, content: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Replaces the content of a file as `replace_file` does."""
    with replace_file(path, durable=durable, mode=mode) as file:
        file.write(content)


def sync_file(path: Path) -> None:
    """Returns when the content of a file is on disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Returns when the names in a folder are on disk: files that were created, renamed or removed."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
