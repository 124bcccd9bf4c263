"""Reads the dead-letter table in bounded memory: by offset, each letter with what has become of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.tables.metadata.bounds import HIGHEST
from frazil.tables.reading.ordered_plan import OrderedPlan, order_files
from frazil.tables.reading.ordered_scan import scan_in_order
from frazil.tables.reading.planning import plan_files
from frazil.tables.reading.retrying import MissingFileCheck
from frazil.tables.store import find_table
from frazil.topics.dead_letters.filters import DeadLetterFilter, in_arrow
from frazil.topics.layout import DEAD_LETTER, dead_letters_name

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

T = TypeVar("T")

#: What makes a letter one and the same. Of the log too: a topic made anew counts its offsets anew.
KEY = ["topic", "sink", "partition", "offset", "log_id"]
STATUSES = ["dead", "replaying", "replayed"]
#: What each mark counts: `released` takes one `replaying` back, as the log has refused the message; `replayed` stays.
_REPLAYED = 1 << 32
_WEIGHTS = {"replaying": 1, "replayed": _REPLAYED, "released": -1}
#: Columns that conditions are about.
_CONDITIONS = ["status", "reason", "written_at"]
#: Bytes that may be read ahead.
_BUDGET = 16 * 1024 * 1024


def on_current(store: TableStore, settings: Settings, look: Callable[[Table], T], otherwise: T) -> T:
    """What a look into the table finds; again on a newer one where compaction or expiry took a file away meanwhile."""
    files = MissingFileCheck("the dead letters")
    while True:
        table = find_table(store, dead_letters_name(settings))
        if table is None:
            return otherwise
        try:
            return look(table)
        except OSError as error:
            files.check(error, table.metadata.current_snapshot_id)


def plan_letters(store: TableStore, table: Table, expression: BooleanExpression) -> OrderedPlan:
    """The files that may hold such rows, by their lowest offset."""
    tasks = plan_files(table.scan(row_filter=expression), store.network)
    files = order_files(table, tasks)
    return OrderedPlan(table.metadata, table.io, table.metadata.current_snapshot_id, tuple(files))


def columns(names: Sequence[str]) -> pa.Schema:
    """These columns, and those that are needed to choose rows."""
    return pa.schema([f for f in DEAD_LETTER if f.name in {*KEY, *_CONDITIONS, *names}])


def rows_by_offset(
    store: TableStore, table: Table, expression: BooleanExpression, names: Sequence[str] = (), start: int = 0
) -> Iterator[pa.Table]:
    """Rows by offset, in tables that hold all of an offset or none.

    Raises:
        OSError: a file has gone, or storage does not answer.
    """
    plan = plan_letters(store, table, expression)
    options = {"budget": _BUDGET, "where": in_arrow(table, expression), "once": False, "network": store.network}
    for scanned in scan_in_order(plan, columns(names), start, HIGHEST, **options):
        if scanned.table.num_rows:
            yield scanned.table


def letters_by_offset(
    store: TableStore, table: Table, filters: DeadLetterFilter, names: Sequence[str] = (), start: int = 0
) -> Iterator[pa.Table]:
    """Dead letters by offset; `status` says what has become of each."""
    for rows in rows_by_offset(store, table, filters.messages_and_marks(), names, start):
        is_dead = pc.equal(rows["status"], "dead")
        letters = rows.filter(is_dead)
        if letters.num_rows:
            yield with_status(letters, rows.filter(pc.invert(is_dead)).select([*KEY, "status"]))


def with_status(letters: pa.Table, marks: pa.Table) -> pa.Table:
    """Returns letters with what has become of them, by what was noted."""
    if not marks.num_rows:
        return letters
    weights = pa.array(_WEIGHTS.values(), pa.int64()).take(pc.index_in(marks["status"], pa.array(_WEIGHTS)))
    sums = marks.select(KEY).append_column("weight", weights).group_by(KEY).aggregate([("weight", "sum")])
    number = pa.array(np.arange(letters.num_rows))
    found = letters.select(KEY).append_column("row", number).join(sums, KEY, join_type="inner")
    counted = pc.fill_null(found["weight_sum"], 0).to_numpy()
    ranks = np.zeros(letters.num_rows, np.int64)
    ranks[found["row"].to_numpy()] = np.where(counted >= _REPLAYED // 2, 2, np.where(counted > 0, 1, 0))
    at = letters.schema.get_field_index("status")
    return letters.set_column(at, DEAD_LETTER.field("status"), pa.array(STATUSES).take(pa.array(ranks)))


def positions(letters: pa.Table, keys: pa.Table) -> Any:
    """The numbers of those rows whose letters are among some keys, upwards."""
    numbered = letters.select(KEY).append_column("row", pa.array(np.arange(letters.num_rows)))
    return np.sort(numbered.join(keys.select(KEY), KEY, join_type="left semi")["row"].to_numpy())
