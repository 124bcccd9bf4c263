"""Retention of a topic's table: by age of its messages, and by size. Whole files go, without being read."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

from frazil.observe.faultpoints import reach
from frazil.tables import Removal, TableStore, data_files, remove_files

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


def expire(store: TableStore, table: Table, *, age_s: float | None, size: int | None) -> Removal:
    """Removes the files all of whose messages are older than an age, then the oldest ones beyond a size."""
    removal = Removal(table)
    if age_s is not None:
        removal = _by_age(store, removal.table, time.time() - age_s)
    if size is not None:
        more = _by_size(store, removal.table, size)
        removal = Removal(more.table, removal.files + more.files, removal.rows + more.rows, removal.size + more.size)
    return removal


def _by_age(store: TableStore, table: Table, before: float) -> Removal:
    from pyiceberg.expressions.parser import parse

    limit = datetime.datetime.fromtimestamp(before, datetime.UTC).isoformat()
    reach("sink.expire.before")
    removal = remove_files(store, table, parse(f"publish_time < '{limit}'"))
    reach("sink.expire.after")
    return removal


def _by_size(store: TableStore, table: Table, limit: int) -> Removal:
    """The newest file always stays."""
    files = sorted(data_files(store, table), key=lambda f: -_first_offset(table, f))
    kept, going = 0, []
    for i, file in enumerate(files):
        kept += file.file_size_in_bytes
        if i and kept > limit:
            going.append(file.file_path)
    if not going:
        return Removal(table)
    reach("sink.expire.before")
    removal = remove_files(store, table, going)
    reach("sink.expire.after")
    return removal


def _first_offset(table: Table, file: DataFile) -> int:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    bound = (file.lower_bounds or {}).get(table.schema().find_field("offset").field_id)
    return int(from_bytes(LongType(), bound)) if bound is not None else 0
