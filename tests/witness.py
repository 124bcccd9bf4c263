"""A witness outside the code: what a program asks the kernel to put on disk, and when, as strace sees it.

A call such as `os.fdatasync` that is replaced, skipped or made too early does not deceive it. `witnessed` runs a
program and returns its trace; `Trace.replay` knows at each moment which files and names a power cut would lose.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from tests.services.strace import install_strace

_WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "copy_file_range", "sendfile")
_SYNCS = ("fsync", "fdatasync")
_NAMES = ("open", "openat", "creat", "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat")
_FOLDERS = ("mkdir", "mkdirat")
_LINE = re.compile(r"^(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)$")
_RESULT = re.compile(r"\) += (-?\d+)")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_HANDLE = re.compile(r"^\d+<([^>]*)>")


@dataclass(eq=False)
class Call:
    name: str
    arguments: str
    result: int = 0

    @property
    def handle(self) -> str:
        """Path of the file behind the descriptor that is its first argument."""
        found = _HANDLE.match(self.arguments)
        return found[1].removesuffix(" (deleted)") if found else ""

    @property
    def paths(self) -> list[str]:
        return _PATH.findall(self.arguments)

    @property
    def creates(self) -> bool:
        return self.name == "creat" or "O_CREAT" in self.arguments


@dataclass
class Disk:
    """What a power cut would lose at one moment of a trace."""

    files: dict[str, set[int]] = field(default_factory=dict)
    """Path → writes since its last sync."""
    names: dict[str, dict[str, int]] = field(default_factory=dict)
    """Folder → names that were made in it since its last sync."""
    removed: dict[str, dict[str, int]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    """Every path that was ever written or made: so a test can tell that it has watched something."""

    def lost(self, pattern: str) -> list[str]:
        """What would be lost of the paths in which a pattern is found."""
        contents = [f"content of {path}" for path, writes in self.files.items() if writes]
        names = [f"name of {folder}/{name}" for folder, found in self.names.items() for name in found]
        return sorted(text for text in contents + names if re.search(pattern, text.split(" of ", 1)[1]))

    def seen(self, pattern: str) -> list[str]:
        return sorted(path for path in self.written if re.search(pattern, path))


class Trace:
    def __init__(self, text: str, root: Path) -> None:
        self._root = str(root)
        self._steps = list(self._parsed(text))

    @staticmethod
    def _parsed(text: str) -> Iterator[tuple[Call, bool]]:
        """Calls, each where it begins (False) and where it has ended (True)."""
        under_way: dict[str, Call] = {}
        for line in text.splitlines():
            found = _LINE.match(line)
            if found is None:
                continue
            thread, resumed, begun, rest = found.groups()
            if begun:
                call = under_way[thread] = Call(begun, rest)
                yield call, False
            else:
                call = under_way[thread]
                assert call.name == resumed, line
            if result := _RESULT.search(rest):
                call.result = int(result[1])
                yield call, True

    def replay(self) -> Iterator[tuple[Call, Disk]]:
        """Each call before it begins, with the disk as it is then."""
        disk, covered = Disk(), {}
        for number, (call, ended) in enumerate(self._steps):
            if not ended:
                yield call, disk
                if call.name in _SYNCS:
                    covered[call] = number
            elif call.result >= 0:
                self._apply(disk, call, number, covered.get(call, number))

    def _apply(self, disk: Disk, call: Call, number: int, begun: int) -> None:
        if call.name in _WRITES and self._is_ours(call.handle):
            disk.files.setdefault(call.handle, set()).add(number)
            disk.written.add(call.handle)
        elif call.name in _SYNCS and call.result == 0:
            path = call.handle
            disk.files[path] = {n for n in disk.files.get(path, ()) if n > begun}
            for names in (disk.names, disk.removed):
                names[path] = {name: n for name, n in names.get(path, {}).items() if n > begun}
        elif call.name in _FOLDERS:
            self._made(disk, call.paths[0], number)
        elif call.name.startswith("unlink"):
            self._gone(disk, call.paths[0], number)
        elif call.name.startswith("rename"):
            old, new = call.paths
            moved = disk.files.pop(old, set())
            self._gone(disk, old, number)
            disk.files[new] = moved
            self._made(disk, new, number)
        elif call.name in _NAMES and call.creates and call.paths[0] not in disk.written:
            self._made(disk, call.paths[0], number)

    def _is_ours(self, path: str) -> bool:
        return path.startswith(self._root)

    def _made(self, disk: Disk, path: str, number: int) -> None:
        if self._is_ours(path):
            folder, _, name = path.rpartition("/")
            disk.names.setdefault(folder, {})[name] = number
            disk.written.add(path)

    def _gone(self, disk: Disk, path: str, number: int) -> None:
        """What is removed has nothing to lose."""
        if self._is_ours(path):
            folder, _, name = path.rpartition("/")
            disk.files.pop(path, None)
            disk.names.get(folder, {}).pop(name, None)
            disk.removed.setdefault(folder, {})[name] = number


def witnessed(root: Path, *program: str, environment: dict[str, str] | None = None) -> Trace:
    """Runs a program of Python to its end, and gives what it did to the files below a folder."""
    trace = root.parent / f"{root.name}.strace"
    calls = ",".join(f"?{name}" for name in (*_WRITES, *_SYNCS, *_NAMES, *_FOLDERS))
    command = [install_strace(), "-f", "-qq", "-y", "-s", "64", "--seccomp-bpf", "-e", f"trace={calls}", "-o", trace]
    done = subprocess.run(
        [*command, sys.executable, *program],
        cwd=Path(__file__).parents[1],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return Trace(trace.read_text(errors="replace"), root)


def at_the_end(trace: Trace) -> Disk:
    """The disk after the last call."""
    disk = Disk()
    for _, disk in trace.replay():  # noqa: B007 - the last one counts, and it is brought up to date in place
        pass
    return disk


def points(trace: Trace) -> Iterator[tuple[str, Disk]]:
    """The moments that the program marks by writing their names into a file called `points`."""
    for call, disk in moments(trace, lambda call: call.name == "write" and call.handle.endswith("/points")):
        yield call.paths[0].removesuffix("\\n"), disk


def moments(trace: Trace, is_one: Callable[[Call], bool]) -> Iterator[tuple[Call, Disk]]:
    """The calls that a test asks for, each with the disk as it was before it."""
    return ((call, deepcopy(disk)) for call, disk in trace.replay() if is_one(call))
