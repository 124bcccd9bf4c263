"""Rows that want to be looked at again, and tombstones whose time is over: what the sink does between batches."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.columns import TIME
from frazil.tables import TableStore

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

#: Keys that are asked for in one go.
_AT_ONCE = 5_000
#: Seconds between the end of a pass over all rows that wait and the next pass over those that still do.
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
        self._last: Due | None = None

    @property
    def is_unknown(self) -> bool:
        return not self._known

    def forget(self) -> None:
        self._known = False

    def learn(self, times_us: Iterable[int | None]) -> None:
        """Of rows that were just written: when they want to be looked at."""
        for found in times_us:
            if found is not None:
                self._next = min(found / 1e6, self._next or found / 1e6)

    def take(self, rows: pa.Table, now: datetime.datetime) -> list[Due]:
        """Returns the next rows to ask about: those behind the last ones.

        Rows that no store can answer stay due. So each pass goes through all rows from the first to the last, and what
        is left then waits for the next pass: it holds up nothing behind it.

        Args:
            rows: all rows that wait, with the columns of `Due`.
            now: the time.
        """
        rows = rows.sort_by([(name, "ascending") for name in ("check_after", "bucket", "key", "version_id")])
        count = pc.sum(pc.less_equal(rows["check_after"], pa.scalar(now, TIME))).as_py() or 0
        taken = list(itertools.islice(_behind(rows.slice(0, count), self._last), _AT_ONCE))
        waits = [rows["check_after"][count].as_py().timestamp()] if count < rows.num_rows else []
        if count:
            is_over = not taken and self._last is not None
            waits.append(now.timestamp() + (AGAIN_S if is_over else 0))
        self._next, self._known = min(waits, default=None), True
        self._last = taken[-1] if taken else None
        return taken

    def is_due(self, now: float) -> bool:
        return self._next is not None and self._next <= now

    def waits_s(self, now: float) -> float | None:
        return None if self._next is None else max(0.0, self._next - now)

    def tombstones_due(self, now: float) -> bool:
        return self._lateness_s is not None and now - self._tombstones >= _TOMBSTONES_EVERY_S

    def tombstones_done(self, now: float) -> None:
        self._tombstones = now


def due_rows(store: TableStore, table: Table, now: datetime.datetime, pending: Pending) -> list[Due]:
    """Returns the next rows to ask about, see `Pending.take`; `pending` learns when any is due."""
    scan = table.scan(row_filter="check_after is not null", selected_fields=Due._fields)
    return pending.take(store.call(scan.to_arrow, "scan", "storage"), now)


def _behind(rows: pa.Table, last: Due | None) -> Iterator[Due]:
    """The rows behind one, of rows in order."""
    if last is not None:
        rows = rows.filter(pc.greater_equal(rows["check_after"], pa.scalar(last.check_after, TIME)))
    for row in zip(*(rows.column(name).to_pylist() for name in Due._fields), strict=True):
        due = Due(*row)
        if last is None or _place(due) > _place(last):
            yield due


def _place(row: Due) -> tuple[Any, ...]:
    return row.check_after, row.bucket, row.key, row.version_id


def old_tombstones(spark: SparkSession, table: str, before: datetime.datetime) -> pa.Table:
    """Where the tombstones lie that are older than a time: data file and position."""
    from pyspark.sql.functions import col, lit

    found = spark.sql(f"SELECT *, _file, _pos FROM {table}").where(  # noqa: S608 - a name of our own
        col("is_deleted") & (col("changed_at") < lit(before)) & col("check_after").isNull()
    )
    return found.select("_file", "_pos").toArrow()
