"""Rows that want to be looked at again, and tombstones whose time is over: what the sink does between batches."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from frazil.tables import TableStore

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

#: Keys that are asked for in one go.
_AT_ONCE = 5_000
#: Seconds until somebody who did not answer is asked again.
AGAIN_S = 60.0
#: Seconds between two looks for old tombstones.
_TOMBSTONES_EVERY_S = 300.0


class Due(NamedTuple):
    """A row that is to be asked for, and since when."""

    bucket: str
    key: str
    version_id: str
    check_after: datetime.datetime


class Pending:
    """When something is due, as far as this process knows. The table knows it all."""

    def __init__(self, lateness_s: float | None) -> None:
        self._lateness_s = lateness_s
        self._next: float | None = None
        self._known = False
        self._tombstones = 0.0

    @property
    def is_unknown(self) -> bool:
        return not self._known

    def forget(self) -> None:
        self._known = False

    def know(self, soonest: float | None) -> None:
        self._next, self._known = soonest, True

    def learn(self, times_us: Iterable[int | None]) -> None:
        """Of rows that were just written: when they want to be looked at."""
        for found in times_us:
            if found is not None:
                self._next = min(found / 1e6, self._next or found / 1e6)

    def postpone(self, until: float) -> None:
        """Nobody has answered, or not about all: tries again then."""
        self._next, self._known = until, True

    def is_due(self, now: float) -> bool:
        return self._next is not None and self._next <= now

    def waits_s(self, now: float) -> float | None:
        return None if self._next is None else max(0.0, self._next - now)

    def tombstones_due(self, now: float) -> bool:
        return self._lateness_s is not None and now - self._tombstones >= _TOMBSTONES_EVERY_S

    def tombstones_done(self, now: float) -> None:
        self._tombstones = now


def due_rows(store: TableStore, table: Table, now: datetime.datetime, pending: Pending) -> list[Due]:
    """The rows that are to be asked for now, those that wait longest first; `pending` learns when any is."""
    names = ("bucket", "key", "version_id", "check_after")
    scan = table.scan(row_filter="check_after is not null", selected_fields=names)
    rows = store.call(scan.to_arrow, "scan", "storage").sort_by("check_after")
    times = rows.column("check_after").to_pylist()
    pending.know(times[0].timestamp() if times else None)
    taken = rows.slice(0, min(_AT_ONCE, sum(moment <= now for moment in times)))
    return [Due(*row) for row in zip(*(taken.column(name).to_pylist() for name in names), strict=True)]


def old_tombstones(spark: SparkSession, table: str, before: datetime.datetime) -> pa.Table:
    """Where the tombstones lie that are older than a time: data file and position."""
    from pyspark.sql.functions import col, lit

    found = spark.sql(f"SELECT *, _file, _pos FROM {table}").where(  # noqa: S608 - a name of our own
        col("is_deleted") & (col("changed_at") < lit(before)) & col("check_after").isNull()
    )
    return found.select("_file", "_pos").toArrow()
