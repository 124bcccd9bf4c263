"""The runs of replicas: a table with a row for each sync that changed something or failed, and for each failover.

A sync reads nothing from here that it needs. A row that cannot be written is reported, and does
not undo the sync.
"""

from __future__ import annotations

import datetime
import os
import socket
import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError, NotFoundError, UnavailableError, first_line
from frazil.observe.cancellation import StoppedError
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.tables import ensure_table
from frazil.tables.commit_retry import commit_with_retry, is_conflict

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from frazil.tables import TableStore

log = get_logger(__name__)

#: In the replica's catalog.
RUNS_TABLE = "frazil.replica_runs"
COLUMNS = (
    "run_id", "table", "result", "started_at", "seconds", "source_metadata", "version", "witnessed", "snapshot_id",
    "snapshots", "files_new", "manifests_new", "bytes_new", "replicated_path", "metadata_location", "reason", "hint",
    "host", "process",
)  # fmt: skip
_REQUIRED = ("run_id", "table", "result", "started_at")
_TEXTS = (
    "run_id",
    "table",
    "result",
    "source_metadata",
    "replicated_path",
    "metadata_location",
    "reason",
    "hint",
    "host",
)
_TRIES = 5
#: Threads of this process append one after the other, and not against each other.
_APPENDING = threading.Lock()


def get_schema() -> pa.Schema:
    """Returns the columns of the table."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = dict.fromkeys(_TEXTS, pa.string())
    types |= {"started_at": pa.timestamp("us", "UTC"), "seconds": pa.float64(), "witnessed": pa.bool_()}
    return pa.schema([pa.field(c, types.get(c, pa.int64()), nullable=c not in _REQUIRED) for c in COLUMNS])


def record_run(
    store: TableStore,
    table: str,
    result: str,
    started_at: datetime.datetime,
    seconds: float,
    *,
    report: Mapping[str, Any] | None = None,
    error: FrazilError | None = None,
    replicated_path: str | None = None,
) -> None:
    """Appends a row. It does not raise.

    A failure like the one before is not written once more, nor one that a repetition may mend.
    """
    if isinstance(error, UnavailableError | StoppedError):
        return
    row: dict[str, Any] = {name: (report or {}).get(name) for name in COLUMNS}
    row |= {"run_id": str(uuid.uuid4()), "table": table, "result": result, "started_at": started_at, "seconds": seconds}
    row |= {"replicated_path": replicated_path, "host": socket.gethostname(), "process": os.getpid()}
    if error is not None:
        row |= {"reason": error.in_one_line, "hint": error.hint}
    try:
        if error is not None and _is_repeated(store, table, row["reason"]):
            return
        with _APPENDING:
            _append(store, row)
    except Exception as failure:  # noqa: BLE001 - the sync has happened
        log.warning("the run of a replica cannot be recorded", table=RUNS_TABLE, of=table, error=first_line(failure))


def list_runs(store: TableStore, table: str | None = None, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Returns the recorded runs, newest first.

    Args:
        store: with the replica's catalog.
        table: only of this one.
        limit: at most so many.
    """
    try:
        runs = store.load(RUNS_TABLE)
    except NotFoundError:
        return []
    found: list[dict[str, Any]] = store.call(lambda: _scan(runs, table), "scan", "storage").to_pylist()
    found.sort(key=lambda row: row["started_at"], reverse=True)
    return found[:limit]


def _is_repeated(store: TableStore, table: str, reason: str) -> bool:
    last = list_runs(store, table, limit=1)
    return bool(last) and last[0]["result"] == "failed" and last[0]["reason"] == reason


def _append(store: TableStore, row: Mapping[str, Any]) -> None:
    import pyarrow as pa

    table = ensure_table(store, RUNS_TABLE, get_schema(), partition=["month(started_at)"])
    batch = pa.Table.from_pylist([dict(row)], schema=get_schema())

    def append(now: Table, rows: pa.Table) -> Table:
        reach("replica.record.before")
        store.call_once(lambda: now.append(rows))
        reach("replica.record.after")
        return now

    commit_with_retry(store, table, lambda _: batch, append, tries=_TRIES, may_repeat=is_conflict)


def _scan(runs: Table, table: str | None) -> pa.Table:
    from pyiceberg import expressions

    known: Any = expressions  # its constructors are typed as those of pydantic, which they are not
    chosen = known.EqualTo("table", table) if table is not None else known.AlwaysTrue()
    return runs.scan(row_filter=chosen, selected_fields=COLUMNS).to_arrow()
