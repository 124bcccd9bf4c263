"""A primary on the embedded catalog, written by PyIceberg without a JVM, and a replication that copies its files in the
worst order. The primary remembers the rows of every version it committed: the oracle of all tests of replicas.
"""

from __future__ import annotations

import filecmp
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import StaticTable, Table

from frazil.catalogs import local_path
from frazil.replica.beacon import Beacon, write_beacon
from frazil.replica.scan import ReplicaFiles, open_replica_files
from frazil.settings import NetworkSettings, S3Settings
from frazil.upkeep.context import UpkeepContext
from tests.upkeep_files import Crash, care_of

Order = Literal["metadata-first", "data-first", "random"]
Rows = tuple[int, ...]


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64()), "text": pa.array([f"row {value}" for value in values])})


@dataclass(frozen=True)
class Committed:
    """A version that the primary committed.

    Attributes:
        name: of its metadata file.
        rows: in the current snapshot.
    """

    name: str
    rows: Rows


@dataclass
class PrimaryTable:
    """A table and all that was ever committed to it.

    Attributes:
        history: in the order of the commits.
        lost: names of metadata files whose commit lost a race.
    """

    care: UpkeepContext
    name: str
    history: list[Committed] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    next_row: int = 1

    @property
    def table(self) -> Table:
        return self.care.load(self.name)

    @property
    def folder(self) -> Path:
        return Path(local_path(self.table.location()) or "/nowhere")

    @property
    def current(self) -> Committed:
        return self.history[-1]

    @property
    def metadata(self) -> Path:
        return self.folder / "metadata" / self.current.name

    def append(self, rows: int = 1) -> Committed:
        added = range(self.next_row, self.next_row + rows)
        self.next_row += rows
        return self._commit(lambda table: table.append(numbers(*added)))

    def delete(self, row: int) -> Committed:
        return self._commit(lambda table: table.delete(f"id == {row}"))

    def compact(self) -> Committed:
        return self._commit(lambda table: table.overwrite(table.scan().to_arrow()))

    def set(self, **properties: str) -> Committed:
        values = {key.replace("_", "-").replace("--", "."): value for key, value in properties.items()}
        return self._commit(lambda table: table.transaction().set_properties(values).commit_transaction())

    def expire(self, *, purge: bool = True) -> Committed:
        """Removes all snapshots but the current one, and the files that only they had."""
        table = self.table
        current = table.metadata.current_snapshot_id
        old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != current]
        found = self._commit(lambda table: table.maintenance.expire_snapshots().by_ids(old).commit())
        if purge:
            kept = reachable_files(self.metadata)
            for file in self.folder.rglob("*"):
                if file.is_file() and not file.name.endswith(".metadata.json") and str(file) not in kept:
                    file.unlink()
        return found

    def roll_back(self) -> Committed:
        """Makes the first snapshot the current one again."""
        first = self.table.metadata.snapshots[0].snapshot_id
        return self._commit(lambda table: table.manage_snapshots().rollback_to_snapshot(first).commit())

    def lose_race(self, *, killed: bool = False) -> str:
        """Commits while another writer does: the loser's metadata file stays, but PyIceberg removes its manifests.

        Args:
            killed: the loser is killed before it learns that it lost. Then all its files stay.

        Returns:
            the name of the loser's file.
        """
        catalog: Any = self.care.store.catalog
        write = catalog._write_metadata
        loser = self.care.load(self.name)
        names: list[str] = []

        def write_and_wait(metadata: Any, io: Any, metadata_path: str) -> None:
            write(metadata, io, metadata_path)
            if not names:
                names.append(Path(metadata_path).name)
                catalog._write_metadata = write
                self.append()
                if killed:
                    raise Crash

        catalog._write_metadata = write_and_wait
        try:
            with suppress(CommitFailedException, Crash):
                loser.append(numbers(-1))
                raise AssertionError("the race was not lost")
        finally:
            catalog._write_metadata = write
        self.lost += names
        return names[0]

    def rows_of(self, name: str) -> Rows:
        """Rows of a version; fails for one that was never committed."""
        return next(found.rows for found in self.history if found.name == name)

    def index_of(self, name: str) -> int:
        return [found.name for found in self.history].index(name)

    def _commit(self, change: Callable[[Table], object]) -> Committed:
        change(self.table)
        return self.record()

    def record(self) -> Committed:
        """Remembers the current version."""
        table = self.table
        self.history.append(Committed(Path(table.metadata_location).name, rows_in(table)))
        return self.history[-1]


class Primary:
    """Tables below one folder, the warehouse of an embedded catalog."""

    def __init__(self, care: UpkeepContext, warehouse: Path) -> None:
        self.care = care
        self.warehouse = warehouse

    def create(self, name: str = "ns.t", *, commits: int = 1, **properties: str) -> PrimaryTable:
        namespace, _, short = name.rpartition(".")
        catalog = self.care.store.catalog
        catalog.create_namespace_if_not_exists(namespace)
        location = str(self.warehouse / namespace / short)
        values = {"commit.retry.num-retries": "0", **properties}
        catalog.create_table(name, schema=numbers(0).schema, location=location, properties=values)
        made = PrimaryTable(self.care, name)
        made.record()
        for _ in range(commits):
            made.append()
        return made

    def write_beacon(self, *tables: str) -> Beacon:
        return write_beacon(self.care, tables, str(self.warehouse))


@contextmanager
def open_primary(folder: Path) -> Iterator[Primary]:
    care = care_of(folder / "home")
    warehouse = folder / "primary"
    warehouse.mkdir(parents=True)
    with care.store:
        yield Primary(care, warehouse)


class Replication:
    """Copies files from one folder to another, one step at a time.

    Args:
        source: the primary's storage.
        target: where files land.
        seed: of the order `random`.
    """

    def __init__(self, source: Path, target: Path, seed: int = 0) -> None:
        self.source, self.target = source, target
        self._random = random.Random(seed)

    def list_pending(self, order: Order = "metadata-first") -> list[Path]:
        """Files that have not arrived, or not completely, relative to the folders."""
        every = sorted(p.relative_to(self.source) for p in self.source.rglob("*") if p.is_file())
        pending = [path for path in every if not self.has_arrived(path)]
        if order == "random":
            self._random.shuffle(pending)
            return pending
        # The newest metadata first, then what it refers to.
        pending.sort(key=_rank, reverse=order == "data-first")
        return pending

    def has_arrived(self, path: Path) -> bool:
        source, target = self.source / path, self.target / path
        return target.is_file() and filecmp.cmp(source, target, shallow=False)  # a beacon keeps its size

    def copy(self, path: Path | str, *, size: int | None = None) -> None:
        """Copies a file, or its first bytes: one that is still growing."""
        target = self.target / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = (self.source / path).read_bytes()
        target.write_bytes(data if size is None else data[:size])

    def run(self, order: Order = "metadata-first", *, files: int | None = None) -> None:
        """Copies what is pending; `files` stops it early, with the last file half copied."""
        pending = self.list_pending(order)
        for path in pending[:files]:
            self.copy(path)
        if files is not None and files < len(pending):
            path = pending[files]
            self.copy(path, size=(self.source / path).stat().st_size // 2)

    def mirror_deletions(self) -> None:
        """Removes files that the primary does not have any more."""
        for path in list(self.target.rglob("*")):
            if path.is_file() and not (self.source / path.relative_to(self.target)).exists():
                path.unlink()

    def move_source_away(self) -> None:
        """The primary is gone."""
        shutil.move(self.source, self.source.with_name(f"{self.source.name}-gone"))


def files_of(root: Path | str) -> ReplicaFiles:
    return open_replica_files(str(root), s3=S3Settings(), network=NetworkSettings())


def rows_in(table: Table | str) -> Rows:
    """The rows of a table, or of a metadata file."""
    found = StaticTable.from_metadata(table) if isinstance(table, str) else table
    return tuple(sorted(found.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()))


def reachable_files(metadata: Path) -> set[str]:
    """Local paths of all that a metadata file refers to."""
    table = StaticTable.from_metadata(str(metadata))
    found: set[str] = set()
    for snapshot in table.metadata.snapshots:
        found.add(local_path(snapshot.manifest_list) or "")
        for manifest in snapshot.manifests(table.io):
            found.add(local_path(manifest.manifest_path) or "")
            entries = manifest.fetch_manifest_entry(table.io)
            found.update(local_path(entry.data_file.file_path) or "" for entry in entries)
    return found


def _rank(path: Path) -> tuple[int, str]:
    if path.name.endswith(".metadata.json"):
        return 0, "".join(chr(0x10FFFF - ord(letter)) for letter in path.name)
    return (1 if path.suffix == ".avro" else 2), path.name
