"""Retention of a topic's table, planned before it is done: whole files go, oldest first."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from frazil.tables import remove_files
from frazil.topics.reading.table_plan import PlannedFile, plan_table

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import TableStore


@dataclass(frozen=True)
class Removed:
    """What retention has removed, or would remove, from one place."""

    where: str
    """`log` or `table`."""
    files: int
    size: int
    rows: int | None
    start: int
    """The first offset that this place has afterwards."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def retain_table(
    store: TableStore, table: Table, topic: str, *, age_s: float | None, size: int | None, dry_run: bool
) -> Removed:
    """Removes the files all of whose messages are older than an age, then the oldest beyond a size."""
    plan = plan_table(table, topic)
    going = removable(plan.files, age_s, size, time.time())
    gone = {f.path for f in going}
    if gone and not dry_run:
        remove_files(store, table, gone)
    start = min((f.lower for f in plan.files if f.path not in gone), default=plan.position)
    rows = sum(int(f.task.file.record_count) for f in going)
    return Removed("table", len(going), sum(f.size for f in going), rows, start)


def removable(files: tuple[PlannedFile, ...], age_s: float | None, size: int | None, now: float) -> list[PlannedFile]:
    """The files that may go; by size the newest always stays."""
    before = None if age_s is None else (now - age_s) * 1e6
    going = [f for f in files if before is not None and f.latest_us < before]
    staying = [f for f in files if before is None or f.latest_us >= before]
    kept = sum(f.size for f in staying)
    for file in staying[:-1]:
        if size is None or kept <= size:
            break
        going.append(file)
        kept -= file.size
    return going
