"""A replication by cp, rsync and rclone: in the worst order, and stopped half-way."""

from __future__ import annotations

import random
import resource
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from frazil.errors import FrazilError, NotFoundError
from frazil.replica.report import SyncReport
from frazil.storage import ObjectStore, open_store
from tests.replica_sync_kit import Pair, describe, listing
from tests.services.copy_tools import install_copy_tool
from tests.upkeep_files import replaced, rows

ToolName: TypeAlias = Literal["cp", "rsync", "rclone"]
#: Bytes in a data file, so that a tool can be stopped in the middle of one.
_PADDING = 150_000
#: At this size of a file, a tool that is to be stopped half-way is stopped by the kernel.
_CUT_AT = 60_000
#: Kilobytes per second of a copy that lasts.
_SLOW = 2000


@dataclass
class Tool:
    """A copy tool and where it copies to.

    Attributes:
        name: of the program.
        target: a folder, or a remote of rclone.
        env: settings of the tool.
    """

    name: ToolName
    target: str
    env: dict[str, str] = field(default_factory=dict)

    def start(self, source: Path, names: Sequence[str], *, slow: bool, cut: bool) -> subprocess.Popen[bytes]:
        """Starts to copy files.

        Args:
            source: the folder that the names are in.
            names: to copy; rsync and rclone have an order of their own.
            slow: limits the bandwidth.
            cut: lets no file grow beyond some size: the tool dies in the first larger one, or leaves it cut off.
        """
        limit = _limit_files if cut else None
        listed = None if self.name == "cp" else "\n".join(names).encode()
        process = subprocess.Popen(
            [*self._command(source, slow), *(names if listed is None else ())],
            cwd=source, env=self.env or None, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, preexec_fn=limit,
        )  # fmt: skip
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(listed or b"")
            process.stdin.close()
        return process

    def _command(self, source: Path, slow: bool) -> list[str]:
        if self.name == "cp":
            return ["cp", "--parents", "--target-directory", self.target]
        program = str(install_copy_tool(self.name))
        if self.name == "rsync":
            limit = [f"--bwlimit={_SLOW}"] if slow else []
            return [program, "--times", "--inplace", *limit, "--files-from=-", f"{source}/", f"{self.target}/"]
        limit = [f"--bwlimit={_SLOW}k"] if slow else []
        # Small files first: metadata.
        order = [
            "--order-by=size,ascending",
            "--transfers=3",
            "--retries=1",
            "--low-level-retries=1",
            "--multi-thread-streams=0",
        ]
        return [program, "copy", "--config=/dev/null", *limit, *order, "--files-from=-", str(source), self.target]


@dataclass
class Site:
    """A primary, a copy of its storage that a tool makes, and a replica of it.

    Attributes:
        committed: for each metadata file of the primary its number, and all that the table was with it.
        served: number of the version that the replica serves.
    """

    pair: Pair
    tool: Tool
    random: random.Random
    committed: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    served: int = -1

    def __post_init__(self) -> None:
        self._landed: ObjectStore = open_store(
            self.pair.order.replicated_path,
            s3=self.pair.replica.settings.model.s3,
            network=self.pair.replica.settings.model.network,
        )
        self._remember()

    def write(self, change: str = "") -> None:
        """Commits to the primary: rows, a delete, or a compaction, by default any of them."""
        table = self.pair.table.refresh()
        ids = rows(table)
        any_change = self.random.choice(["append", "append", "append", "delete", "compact"]) if ids else "append"
        change = change or any_change
        if change == "append":
            padding = self.random.randbytes(_PADDING // 2).hex()
            table.append(pa.table({"id": [max(ids, default=0) + 1], "name": [padding]}))
        elif change == "delete":
            table.delete(f"id = {self.random.choice(ids)}")
        else:
            replaced(table)
        self._remember()

    def list_new(self) -> list[str]:
        """Files that have not arrived completely: the newest metadata first, then in any order."""
        there = {info.key: info.size for info in self._landed.list()}
        found = [name for name, size in listing(self.pair.source).items() if there.get(name) != size]
        self.random.shuffle(found)
        if self.random.random() < 0.7:
            found.sort(key=_rank)
        return found

    def copy_some(self) -> None:
        """Copies in two steps; the second one is complete, cut in a file, or killed while syncs run beside it."""
        names = self.list_new()
        split = self.random.randint(0, len(names))
        for part, is_last in ((names[:split], False), (names[split:], True)):
            if not part:
                continue
            ending = self.random.choice(["whole", "cut", "killed"]) if is_last else "whole"
            process = self.tool.start(self.pair.source, part, slow=ending == "killed", cut=ending == "cut")
            if ending == "killed":
                for _ in range(self.random.randint(1, 3)):
                    self.sync(beside=True)
                process.kill()
            process.wait(60)
            self.sync()

    def copy_all(self) -> None:
        if names := self.list_new():
            assert self.tool.start(self.pair.source, names, slow=False, cut=False).wait(60) == 0
        assert self.list_new() == []

    def sync(self, *, beside: bool = False) -> SyncReport | None:
        """Syncs, and checks what is served and what is named. None before any metadata has arrived.

        Args:
            beside: a copy runs, which needs the primary's files; otherwise nobody can read them.
        """
        arrived = {info.key: info.size for info in self._landed.list()}
        try:
            report = self.pair.sync()
        except FrazilError as error:
            is_early = isinstance(error, NotFoundError) or "cannot be read" in error.message
            assert self.served == -1 and is_early, (error.message, error.cause)
            return None
        assert report.action in ("created", "updated", "unchanged", "waiting")
        if report.action == "waiting":
            assert report.missing
            assert all(any(name in line for name in self._list_incomplete(arrived)) for line in report.missing)
        with nullcontext() if beside else self.pair.without_primary():
            self._check_served()
        return report

    def _list_incomplete(self, arrived: dict[str, int]) -> Iterator[str]:
        return (name for name, size in listing(self.pair.source).items() if arrived.get(name) != size)

    def _check_served(self) -> None:
        """The replica is a version that the primary had, row by row, and none older than before."""
        if not self.pair.replica.store.catalog.table_exists("ns.t"):
            assert self.served == -1
            return
        table = self.pair.load()
        number, expected = self.committed[_name_of(table.properties["frazil.replica.source-metadata"])]
        assert describe(table) == expected
        assert number >= self.served
        self.served = number

    def _remember(self) -> None:
        table = self.pair.table.refresh()
        self.committed[_name_of(table.metadata_location)] = len(self.committed), describe(table)


def run_rounds(site: Site, rounds: int) -> None:
    """Commits, copies and syncs in turns; at the end all arrives and the newest version is served."""
    for _ in range(rounds):
        for _ in range(site.random.randint(1, 2)):
            site.write()
        site.copy_some()
    site.copy_all()
    report = site.sync()
    assert report is not None and report.missing == ()
    assert site.served == len(site.committed) - 1
    again = site.sync()
    assert again is not None and again.action == "unchanged"


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_CUT_AT, _CUT_AT))


def _rank(name: str) -> tuple[bool, bool]:
    return not name.endswith(".metadata.json"), not name.endswith(".avro")


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]
