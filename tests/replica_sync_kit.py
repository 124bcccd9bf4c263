"""A primary, a copy of its storage, and a replica, for tests of syncs; syncs in their own process, to be killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from frazil.observe.faultpoints import handled
from frazil.replica.sync import ReplicaTable, SyncReport, run_sync
from frazil.tables.relocation.engine import LocalEngine
from frazil.upkeep.context import UpkeepContext
from tests.restore_kit import listing, rows_at
from tests.upkeep_files import care_of, folder, grow, make

__all__ = ["Pair", "folder", "grow", "listing", "make", "open_pair", "rows_at", "sync_in_process"]


class Pair:
    """A primary with the table `ns.t`, and a replica of it. The replication copies files one by one, as it is told."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.home = home
        self.primary = care_of(home / "primary")
        self.replica = care_of(home / "replica")
        self.landed = home / "landed" / "t"
        self.order = ReplicaTable(str(self.landed), ("ns", "t"), str(home / "warehouse"))
        self.table = make(self.primary, "ns.t", **options)

    @property
    def source(self) -> Path:
        return folder(self.table)

    def list_new(self) -> list[str]:
        """Files that have not arrived, oldest first."""
        there = listing(self.landed) if self.landed.exists() else {}
        found = [name for name, size in listing(self.source).items() if there.get(name) != size]
        return sorted(found, key=lambda name: (self.source / name).stat().st_mtime_ns)

    def copy(self, names: Iterable[str] | None = None, *, part: bool = False) -> None:
        """Replicates these files, by default all that are new; `part`: only the first half of each."""
        for name in self.list_new() if names is None else names:
            target = self.landed / name
            target.parent.mkdir(parents=True, exist_ok=True)
            data = (self.source / name).read_bytes()
            target.write_bytes(data[: len(data) // 2] if part else data)

    def mirror(self) -> None:
        """Replicates all, and deletes what the primary does not have any more."""
        self.copy()
        for name in listing(self.landed).keys() - listing(self.source).keys():
            (self.landed / name).unlink()

    def sync(self, **options: Any) -> SyncReport:
        changes = {name: options.pop(name) for name in ("witnessed_only", "warehouse") if name in options}
        with LocalEngine() as engine:
            return run_sync(self.replica, replace(self.order, **changes), engine, **options)

    def load(self) -> Table:
        """The replica's table."""
        return self.replica.store.catalog.load_table("ns.t")

    @contextmanager
    def without_primary(self) -> Iterator[None]:
        away = self.source.with_name("gone")
        self.source.rename(away)
        try:
            yield
        finally:
            away.rename(self.source)

    def require_equal(self) -> None:
        """All snapshots, branches, tags and times are those of the primary, which is not needed to read them."""
        expected = describe(self.table)
        with self.without_primary():
            assert describe(self.load()) == expected

    def close(self) -> None:
        for care in (self.primary, self.replica):
            care.store.close()


def describe(table: Table) -> dict[str, Any]:
    """The rows of every snapshot, where branches and tags point to, and what was current when."""
    metadata = table.refresh().metadata
    return {
        "rows": {s.snapshot_id: rows_at(table, s.snapshot_id) for s in metadata.snapshots},
        "refs": {name: ref.model_dump() for name, ref in metadata.refs.items()},
        "log": [(entry.snapshot_id, entry.timestamp_ms) for entry in metadata.snapshot_log],
        "current": (metadata.current_snapshot_id, metadata.current_schema_id, metadata.last_sequence_number),
        "uuid": str(metadata.table_uuid),
    }


@contextmanager
def open_pair(home: Path, **options: Any) -> Iterator[Pair]:
    pair = Pair(home, **options)
    try:
        yield pair
    finally:
        pair.close()


def stop_at(step: str, error: BaseException, nth: int = 1) -> Callable[[str], None]:
    """A handler of fault points that raises at a step."""
    seen: list[str] = []

    def strike(reached: str) -> None:
        seen.append(reached)
        if reached == step and seen.count(step) == nth:
            raise error

    return strike


def sync_in_process(pair: Pair, step: str | None = None) -> dict[str, Any] | None:
    """A sync in its own process; None if it was killed at the step."""
    order = {"home": str(pair.home / "replica"), "table": vars(pair.order), "step": step}
    command = [sys.executable, "-m", "tests.replica_sync_kit", json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _main(order: str) -> None:
    given = json.loads(order)
    steps: list[str] = []

    def strike(step: str) -> None:
        steps.append(step)
        if step == given["step"]:
            os.kill(os.getpid(), signal.SIGKILL)

    care: UpkeepContext = care_of(Path(given["home"]))
    fields = given["table"] | {"identifier": tuple(given["table"]["identifier"]), "source_prefixes": ()}
    with care.store, LocalEngine() as engine, handled(strike):
        report = run_sync(care, ReplicaTable(**fields), engine)
    print(json.dumps({"steps": steps, "report": report.to_dict()}))


def copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


if __name__ == "__main__":
    _main(sys.argv[1])
