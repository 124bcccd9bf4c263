"""A disk on which one can do what no real one lets a test do: cut the power, fill it up, make a sync fail.

Calls go to a real folder, so that readers and memory maps see what they would see. Beside it stands what the platter
holds: the bytes of each file that a sync has brought there, and the names that a sync of their folder has.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from frazil.log.disk import Disk

SECTOR = 512


@dataclass(eq=False)
class Inode:
    durable: bytes = b""
    dirty: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Writes (position, bytes) and truncations (size, None) since the last sync, in order."""

    def synced(self) -> None:
        self.durable = applied(self.durable, self.dirty)
        self.dirty = []


@dataclass
class Fault:
    call: str
    error: int
    times: int
    match: str


def applied(content: bytes, changes: list[tuple[int, bytes | None]]) -> bytes:
    made = bytearray(content)
    for at, data in changes:
        if data is None:
            del made[at:]
            made.extend(bytes(at - len(made)))
        else:
            made.extend(bytes(max(0, at + len(data) - len(made))))
            made[at : at + len(data)] = data
    return bytes(made)


class FaultyDisk(Disk):
    """Everything below `root` is on this disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[int, Path] = {}
        self._live: dict[Path, Inode] = {}
        self._named: dict[Path, Inode] = {}
        self._pending: dict[Path, list[tuple[Path | None, Path | None, Inode]]] = {}
        self._faults: list[Fault] = []
        self.space: int | None = None
        """Bytes that can still be written, also over others; None: no end. What is freed, somebody else takes."""
        self.free_space = 2**40
        self.syncs = 0
        self._take_stock()

    def _take_stock(self) -> None:
        """What is there now was there for ever."""
        paths = [p for p in self._root.rglob("*") if not p.is_dir() and p.name != "LOCK"]
        self._live = {p: Inode(p.read_bytes()) for p in paths}
        self._named = dict(self._live)
        self._pending = {}
        self._folders = {self._root, *(p for p in self._root.rglob("*") if p.is_dir())}

    # -- faults ----------------------------------------------------------------------------------------------------

    def fail(self, call: str, error: int = errno.EIO, *, times: int = 1, match: str = "") -> None:
        """The next calls of this kind on a path that has `match` in it fail."""
        self._faults.append(Fault(call, error, times, match))

    def repair(self) -> None:
        self._faults, self.space = [], None

    def _may_fail(self, call: str, path: Path) -> None:
        for fault in self._faults:
            if fault.call == call and fault.times > 0 and fault.match in str(path):
                fault.times -= 1
                raise OSError(fault.error, os.strerror(fault.error), str(path))

    def drop_handles(self) -> None:
        """What the operating system does when a process dies."""
        for fd in list(self._files):
            self.close(fd)

    def power_loss(self, chance: random.Random | None = None) -> None:
        """Only what was synced is left; with `chance`, also any part of the rest, in any order."""
        self.drop_handles()
        for changes in self._pending.values():
            for old, new, inode in changes:
                if chance is not None and chance.random() < 0.5:
                    self._rename(self._named, old, new, inode)
        kept = dict(self._named)
        for path in self._root.rglob("*"):
            if not path.is_dir():
                path.unlink()
        for path in [p for p in self._root.rglob("*") if p.is_dir() and p not in self._folders]:
            shutil.rmtree(path, ignore_errors=True)
        for path, inode in kept.items():
            if path.parent.exists():
                path.write_bytes(_survived(inode, chance))
        self._take_stock()

    # -- what the log calls ----------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> int:
        self._may_fail("open", path)
        fd = super().open(path, create=create)
        self._files[fd] = path
        if create:
            self._live[path] = Inode()
            self._note(None, path, self._live[path])
        return fd

    def close(self, fd: int) -> None:
        self._files.pop(fd, None)
        super().close(fd)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
        path, whole = self._files[fd], bytes(data)
        self._may_fail("write", path)
        fits = whole if self.space is None else whole[: self.space]
        if fits:
            super().write(fd, fits, at)
            self._live[path].dirty.append((at, fits))
        if self.space is not None:
            self.space -= len(fits)
        if len(fits) < len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def write_all(self, fd: int, buffers: list[bytes], at: int) -> None:
        self.write(fd, b"".join(buffers), at)

    def sync(self, fd: int) -> None:
        path = self._files[fd]
        inode = self._live[path]
        self.syncs += 1
        try:
            self._may_fail("sync", path)
        except OSError:
            inode.dirty = []  # as Linux does: the pages count as clean, and never come to the disk
            raise
        inode.synced()

    def truncate(self, fd: int, size: int) -> None:
        path = self._files[fd]
        self._may_fail("truncate", path)
        super().truncate(fd, size)
        self._live[path].dirty.append((size, None))

    def sync_folder(self, folder: Path) -> None:
        self._may_fail("sync_folder", folder)
        for old, new, inode in self._pending.pop(folder, []):
            self._rename(self._named, old, new, inode)
        self._folders |= {p for p in folder.iterdir() if p.is_dir()}

    def rename(self, old: Path, new: Path) -> None:
        self._may_fail("rename", new)
        super().rename(old, new)
        if old not in self._live:  # a folder
            return
        self._note(old, new, self._live[old])
        self._rename(self._live, old, new, self._live[old])

    def remove(self, path: Path) -> None:
        self._may_fail("remove", path)
        if path in self._live:
            self._note(path, None, self._live.pop(path))
        super().remove(path)

    def free(self, folder: Path) -> int:
        return self.free_space

    def _note(self, old: Path | None, new: Path | None, inode: Inode) -> None:
        self._pending.setdefault((new or old or self._root).parent, []).append((old, new, inode))

    @staticmethod
    def _rename(names: dict[Path, Inode], old: Path | None, new: Path | None, inode: Inode) -> None:
        if old is not None and names.pop(old, None) is None:
            return  # it never came to be
        if new is not None:
            names[new] = inode


def _survived(inode: Inode, chance: random.Random | None) -> bytes:
    """A file after a power cut: what was synced, and, by chance, some of the sectors that were not."""
    if chance is None:
        return inode.durable
    style = chance.choice(["none", "all", "prefix", "sectors"])
    if style == "all":
        return applied(inode.durable, inode.dirty)
    pieces: list[tuple[int, bytes | None]] = []
    for at, data in inode.dirty:
        if data is None:
            pieces.append((at, None))
            continue
        begin = 0
        while begin < len(data):
            end = min(len(data), begin + SECTOR - (at + begin) % SECTOR)
            pieces.append((at + begin, data[begin:end]))
            begin = end
    if style == "prefix":
        pieces = pieces[: chance.randint(0, len(pieces))]
    elif style == "sectors":
        pieces = [p for p in pieces if chance.random() < 0.5]
    return applied(inode.durable, [] if style == "none" else pieces)
