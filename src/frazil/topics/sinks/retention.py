"""Retention of a topic's table by age of messages and by size.

Removes whole files, oldest first, without reading them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from frazil.log.columns import PARTITION
from frazil.observe.faultpoints import reach
from frazil.tables import RemovedFiles, RolledBackError, TableStore, find_position, list_data_files, remove_files
from frazil.tables.metadata.bounds import decode_integer_bounds
from frazil.topics.layout import ARCHIVE

if TYPE_CHECKING:
    from pyiceberg.table import Table


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


@dataclass(frozen=True)
class AgedFile:
    """A data file, the lowest offset in it, and the publish time of its youngest message."""

    path: str
    lower: int
    latest_us: int
    size: int
    rows: int


def expire(store: TableStore, table: Table, *, age_s: float | None, size: int | None) -> RemovedFiles:
    """Removes the files all of whose messages are older than an age, then the oldest ones beyond a size."""
    if age_s is None and size is None:
        return RemovedFiles(table)
    return _remove(store, table, removable(list_aged_files(store, table), age_s, size, time.time()))


def retain_table(
    store: TableStore, table: Table, topic: str, *, age_s: float | None, size: int | None, dry_run: bool
) -> Removed:
    """Plans or applies retention; returns what is removed and where the table begins then."""
    files = list_aged_files(store, table)
    going = removable(files, age_s, size, time.time())
    if not dry_run:
        _remove(store, table, going)
    gone = {file.path for file in going}
    start = min((file.lower for file in files if file.path not in gone), default=_position(table, topic))
    return Removed("table", len(going), sum(f.size for f in going), sum(f.rows for f in going), start)


def removable(files: Sequence[AgedFile], age_s: float | None, size: int | None, now: float) -> list[AgedFile]:
    """Returns the files that may be removed; by size, the newest always stays."""
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


def list_aged_files(store: TableStore, table: Table) -> list[AgedFile]:
    """Lists the data files of a topic's table, those with the lowest offsets first."""
    schema = table.schema()
    offset, published = schema.find_field("offset"), schema.find_field("publish_time")
    found = [
        AgedFile(
            file.file_path,
            decode_integer_bounds(file, offset)[0],
            decode_integer_bounds(file, published)[1],  # a file without statistics counts as new
            file.file_size_in_bytes,
            file.record_count,
        )
        for file in list_data_files(store, table)
    ]
    return sorted(found, key=lambda f: (f.lower, f.latest_us))


def _remove(store: TableStore, table: Table, going: Iterable[AgedFile]) -> RemovedFiles:
    paths = [file.path for file in going]
    if not paths:
        return RemovedFiles(table)
    reach("sink.expire.before")
    removal = remove_files(store, table, paths)
    reach("sink.expire.after")
    return removal


def _position(table: Table, topic: str) -> int:
    try:
        position = find_position(table, ARCHIVE, topic)
    except RolledBackError as error:
        position = error.table_position
    return position.offsets.get(PARTITION, 0) if position is not None else 0
