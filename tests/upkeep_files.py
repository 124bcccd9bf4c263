"""What tests of expiry and orphans share: a table without a JVM, its folder, and time that passes at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.catalogs import local_path, open_catalog
from frazil.observe.faultpoints import handled
from frazil.settings import Settings, load_settings
from frazil.tables import TableStore
from frazil.tables.metadata.reachable import find_exclusive_files
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import expired_file_lists
from frazil.upkeep.expiry.verify import verify
from frazil.upkeep.model import Outcome, Step
from tests.lane import people

DAY = 86400.0


class Crash(BaseException):
    """The end of a process, as far as a test in the same process can have one."""


def care_of(home: Path) -> UpkeepContext:
    """The embedded catalog in a folder. There is no Spark: who asks for it fails."""
    return care_of_settings(load_settings(flags={"home": str(home)}, environ={}))


def care_of_settings(settings: Settings) -> UpkeepContext:
    chosen = settings.catalog()
    network = settings.model.network
    store = TableStore(open_catalog(chosen, network), chosen, network)
    return UpkeepContext(settings, chosen, store, _no_spark, threading.Event())


def _no_spark() -> object:
    raise AssertionError("this needs no JVM")


def make(care: UpkeepContext, name: str = "ns.t", *, commits: int = 3, **options: object) -> Table:
    """A table with one row and one file for each commit."""
    catalog: Catalog = care.store.catalog
    catalog.create_namespace_if_not_exists(name.split(".")[0])
    table = catalog.create_table(name, schema=people().schema, **options)
    return grow(table, commits)


def grow(table: Table, commits: int = 1) -> Table:
    for _ in range(commits):
        table.append(people(len(rows(table)) + 1))
    return table


def rows(table: Table) -> list[int]:
    return sorted(table.refresh().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())


def replaced(table: Table) -> Table:
    """The same rows in one new file, as a compaction has it."""
    found: pa.Table = table.refresh().scan().to_arrow()
    table.overwrite(found)
    return table


def folder(table: Table) -> Path:
    return Path(local_path(table.location()) or "/nowhere")


def files_in(table: Table) -> set[str]:
    """Every file in the table's folder, by its name there."""
    return {str(p.relative_to(folder(table))) for p in folder(table).rglob("*") if p.is_file()}


def age(table: Table, seconds: float = 10 * DAY, *names: str) -> None:
    """Makes files older; by default all of the table's."""
    then = time.time() - seconds
    for name in names or files_in(table):
        os.utime(folder(table) / name, (then, then))


def litter(table: Table, *names: str, content: bytes = b"lost") -> None:
    for name in names:
        path = folder(table) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def expired_by_hand(
    care: UpkeepContext, table: Table, *ids: int, committed: bool = True, commit: bool = True
) -> expired_file_lists.ExpiredList:
    """What `expire.run` does, with PyIceberg's commit instead of Java's."""
    table = care.load(".".join(table.name()))
    places = care.storage_of(table)
    made = expired_file_lists.new_list(table, ids, find_exclusive_files(care.store, table, ids).values())
    expired_file_lists.write(places, made)
    if commit:
        table.maintenance.expire_snapshots().by_ids(list(ids)).commit()
    if committed:
        made = expired_file_lists.write(places, replace(made, committed=True))
    return made


def old_ids(table: Table) -> list[int]:
    """All snapshots but the current one."""
    metadata = table.refresh().metadata
    return [s.snapshot_id for s in metadata.snapshots if s.snapshot_id != metadata.current_snapshot_id]


def sound(care: UpkeepContext, table: Table, expected: list[int]) -> None:
    """Nothing that the table needs is gone, and all rows are there."""
    fresh = care.load(".".join(table.name()))
    verdict = verify(care, fresh)
    assert verdict.sound, verdict.findings
    assert rows(fresh) == expected


def step(kind: str, **options: object) -> Step:
    return Step(kind, "a test", options=options)  # type: ignore[arg-type]


@contextmanager
def crashing_at(number: int) -> Iterator[list[str]]:
    """The process ends at the step with this number, counted from 0; gives the names of all that were reached."""
    seen: list[str] = []
    lock = threading.Lock()

    def handle(name: str) -> None:
        with lock:
            seen.append(name)
            dies = len(seen) == number + 1
        if dies:
            raise Crash(name)

    with handled(handle):
        yield seen


def crash_everywhere(act: Callable[[], Outcome], check: Callable[[str], None]) -> list[str]:
    """Runs `act` with a crash at its first step, then at its second, and so on, until it gets through.

    Args:
        act: makes its own start, or goes on with what a crash has left.
        check: called after each crash with the step it was at.
    """
    struck = []
    for number in range(200):
        try:
            with crashing_at(number) as seen:
                act()
        except Crash as crash:
            struck.append(str(crash))
            check(str(crash))
        else:
            assert len(seen) <= number
            return struck
    raise AssertionError("it never got through")
