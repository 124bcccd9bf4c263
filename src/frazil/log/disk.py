"""All file operations of the log in one place, where tests inject faults: a full disk, a failing fsync."""

from __future__ import annotations

import os
from pathlib import Path

from frazil.atomic_files import sync_folder
from frazil.log.frame import Bytes

#: Below the system's limit of 1,024.
_MAX_BUFFERS = 1000


class Disk:
    """The real disk."""

    def open(self, path: Path, *, create: bool = False) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        """Writes all bytes at a position."""
        written = os.pwrite(fd, data, at)
        while written < len(data):  # a signal, or a nearly full disk
            written += os.pwrite(fd, memoryview(data)[written:], at + written)

    def write_all(self, fd: int, buffers: list[Bytes], at: int) -> None:
        """Writes buffers one after the other without concatenating them."""
        if len(buffers) > _MAX_BUFFERS:
            self.write(fd, b"".join(buffers), at)
            return
        written = os.pwritev(fd, buffers, at)
        if written < sum(map(len, buffers)):
            self.write(fd, b"".join(buffers)[written:], at + written)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync_folder(self, folder: Path) -> None:
        """Makes names in a folder durable: files that were created, renamed or removed."""
        sync_folder(folder)

    def replace(self, path: Path, content: bytes) -> None:
        """Replaces a small file atomically: after a crash it has the old content or the new one."""
        partial = path.with_name(f".{path.name}.part")
        partial.unlink(missing_ok=True)
        fd = self.open(partial, create=True)
        try:
            self.write(fd, content, 0)
            self.sync(fd)
        finally:
            self.close(fd)
        self.rename(partial, path)
        self.sync_folder(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def free(self, folder: Path) -> int:
        """Returns the bytes that this user can still write."""
        stat = os.statvfs(folder)
        return stat.f_bavail * stat.f_frsize
