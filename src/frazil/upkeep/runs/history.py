"""The history of upkeep: a table with a row for every step that changed something or failed.

Rows are buffered and appended at most once a minute, so that the history itself stays small. Losing some is logged and
harmless: upkeep depends on nothing in it.
"""

from __future__ import annotations

import datetime
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError, NotFoundError, first_line
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.tables import TableStore, ensure_table
from frazil.tables.commit_retry import commit_with_retry, is_conflict
from frazil.upkeep.model import Kind, Outcome

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

log = get_logger(__name__)

#: Minimum seconds between two appends.
FLUSH_EVERY_S = 60.0
#: Limit of buffered rows; if the table cannot be written, the oldest are lost.
_MAX_BUFFERED = 1000
_TRIES = 5
#: Kinds whose interval counts from the last check, whether or not it found something.
_PERIODIC: tuple[Kind, ...] = ("stats", "orphans")

COLUMNS = (
    "run_id", "table", "kind", "result", "started_at", "seconds", "files_before", "files_after", "bytes_rewritten",
    "files_removed", "bytes_reclaimed", "snapshots_removed", "conflicts", "snapshot_id", "reason", "hint", "host",
    "process",
)  # fmt: skip


def schema() -> pa.Schema:
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    types = {"started_at": pa.timestamp("us", "UTC"), "seconds": pa.float64(), "process": number}
    types |= dict.fromkeys(("run_id", "table", "kind", "result", "reason", "hint", "host"), text)
    required = ("run_id", "table", "kind", "result", "started_at")
    return pa.schema([pa.field(c, types.get(c, number), nullable=c not in required) for c in COLUMNS])


class History:
    """Buffers rows and appends them periodically. Thread safe.

    Args:
        store: the catalog of the table, which is created with the first row.
        name: of the table; empty: no history is kept.
        clock: monotonic seconds.
    """

    def __init__(self, store: TableStore, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self.name = name
        self._clock = clock
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MAX_BUFFERED)
        self._lock = threading.Lock()
        self._appending = threading.Lock()
        self._due = clock() + FLUSH_EVERY_S
        self._failed = False
        self._last: dict[str, dict[Kind, float]] = {}
        self._tried: dict[str, dict[Kind, float]] = {}
        self._read: set[str] = set()

    def last(self, table: str) -> Mapping[Kind, float]:
        """Returns when steps of each kind were last done on a table, in seconds since 1970, as far as known."""
        self._read_once(table)
        return self._last.get(table, {})

    def tried(self, table: str) -> Mapping[Kind, float]:
        """Returns when steps of each kind were last tried, whatever their result."""
        self._read_once(table)
        return self._tried.get(table, {})

    def _read_once(self, table: str) -> None:
        if table in self._read:
            return
        self._read.add(table)
        try:
            rows = self.rows([table])
        except FrazilError as error:
            log.info("the history of upkeep cannot be read", table=self.name, error=error.message)
            rows = []
        with self._lock:
            self._last[table] = {**last_done(rows), **self._last.get(table, {})}
            self._tried[table] = {**last_tried(rows), **self._tried.get(table, {})}

    def add(self, run_id: str, table: str, outcome: Outcome, started_at: float) -> None:
        """Records the outcome of a step. One that had nothing to do is recorded only for periodic kinds."""
        with self._lock:
            self._tried.setdefault(table, {})[outcome.kind] = started_at
        if outcome.result in ("done", "nothing"):
            with self._lock:
                self._last.setdefault(table, {})[outcome.kind] = started_at
        if not self.name or (outcome.result == "nothing" and outcome.kind not in _PERIODIC):
            return
        row = asdict(outcome) | {"run_id": run_id, "table": table, "host": socket.gethostname(), "process": os.getpid()}
        row["started_at"] = datetime.datetime.fromtimestamp(started_at, datetime.UTC)
        with self._lock:
            self._waiting.append(row)

    def flush(self, *, now: bool = False) -> None:
        """Appends the buffered rows if it is time, or `now`. Does not raise: lost rows are logged."""
        if not self._waiting or (not now and self._clock() < self._due):
            return
        with self._appending:
            with self._lock:
                rows = list(self._waiting)
                self._waiting.clear()
                self._due = self._clock() + FLUSH_EVERY_S
            try:
                self._append(rows)
                self._failed = False
            except Exception as error:  # noqa: BLE001 - upkeep goes on without its history
                with self._lock:
                    self._waiting.extendleft(reversed(rows[-(_MAX_BUFFERED - len(self._waiting)) :]))
                tell = log.debug if self._failed else log.warning
                tell(
                    "the history of upkeep cannot be written", table=self.name, rows=len(rows), error=first_line(error)
                )
                self._failed = True

    def _append(self, rows: Sequence[dict[str, Any]]) -> None:
        import pyarrow as pa

        table = ensure_table(self._store, self.name, schema(), partition=["month(started_at)"])
        batch = pa.Table.from_pylist(rows, schema=schema())

        def append(now: Table, rows: pa.Table) -> Table:
            reach("upkeep.history.append.before")
            self._store.call_once(lambda: now.append(rows))
            reach("upkeep.history.append.after")
            return now

        commit_with_retry(self._store, table, lambda _: batch, append, tries=_TRIES, may_repeat=is_conflict)

    def rows(
        self, tables: Sequence[str] = (), *, since: datetime.datetime | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Returns the recorded steps, newest first.

        Args:
            tables: only of these.
            since: only those that began at this time or later.
            limit: at most so many.

        Raises:
            FrazilError: the table cannot be read. A missing table has no rows.
        """
        if not self.name:
            return []
        try:
            table = self._store.load(self.name)
        except NotFoundError:
            return []
        found: list[dict[str, Any]] = self._store.call(
            lambda: _scan(table, tables, since), "scan", "storage"
        ).to_pylist()
        found.sort(key=lambda row: row["started_at"], reverse=True)
        return found[:limit]


def last_done(rows: Sequence[Mapping[str, Any]]) -> dict[Kind, float]:
    """Returns when a step of each kind was last done, by rows of one table, in seconds since 1970."""
    return last_tried([row for row in rows if row["result"] in ("done", "nothing")])


def last_tried(rows: Sequence[Mapping[str, Any]]) -> dict[Kind, float]:
    """Returns when a step of each kind last began, by rows of one table, in seconds since 1970."""
    found: dict[Kind, float] = {}
    for row in rows:
        found[row["kind"]] = max(found.get(row["kind"], 0.0), row["started_at"].timestamp())
    return found


def _scan(table: Table, tables: Sequence[str], since: datetime.datetime | None) -> pa.Table:
    from pyiceberg import expressions

    known: Any = expressions  # its constructors are typed as those of pydantic, which they are not
    chosen: BooleanExpression = known.AlwaysTrue()
    if tables:
        chosen = known.In("table", set(tables))
    if since is not None:
        chosen = known.And(chosen, known.GreaterThanOrEqual("started_at", since.isoformat()))
    there = {field.name for field in table.schema().fields}
    if missing := [name for name in COLUMNS if name not in there]:
        raise FrazilError(
            f"the table {'.'.join(table.name())} is no history of upkeep: it has no column {missing[0]}",
            hint="name another table with upkeep.history",
        )
    return table.scan(row_filter=chosen, selected_fields=COLUMNS).to_arrow()
