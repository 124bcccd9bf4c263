"""Statistics for query planners: how many distinct values a column has, as a sketch in a Puffin file.

It reads every row of the chosen columns. The step has one option, `columns`: names; by default all that are no lists,
maps or structs.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from frazil.catalogs import flavor_of
from frazil.errors import UsageError
from frazil.tables.durable import sync_files, sync_metadata
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.turn import NothingToDoError, Turn, run_turn

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.statistics import StatisticsFile

    from frazil.upkeep.care import Care

#: Catalogs that lose them or refuse the file, as it was seen.
_WITHOUT = {
    "s3tables": "SeaweedFS refuses Puffin files",
    "nessie": "Nessie keeps no statistics files",
}


def run(care: Care, table: Table, step: Step) -> Outcome:
    """Statistics of the current snapshot; nothing, where it has some.

    Raises:
        UsageError: an unknown column. Nothing has changed.
    """
    flavor = flavor_of(care.catalog, dict(care.store.catalog.properties))
    if flavor in _WITHOUT:
        return Outcome("stats", "unsupported", reason=_WITHOUT[flavor], hint="set upkeep.policy.statistics to false")
    columns = [str(name) for name in step.options.get("columns") or ()]  # type: ignore[attr-defined]
    unknown = [name for name in columns if name not in table.schema().column_names]
    if unknown:
        raise UsageError(
            f"{', '.join(unknown)}: no column of {'.'.join(table.name())}",
            cause=f"there are {', '.join(table.schema().column_names)}",
            hint="choose one of these",
        )
    began = time.monotonic()
    outcome = run_turn(care, table, "stats", lambda turn: _compute(turn, columns))
    if outcome.result != "done":
        return outcome
    fresh = care.store.load(table.name())
    found = _of_current(fresh)
    if found is None:
        return Outcome("stats", "unsupported", reason="the catalog keeps no statistics files")
    sync_files([found.statistics_path])
    sync_metadata(fresh)
    return replace(outcome, files_after=1, bytes_rewritten=found.file_size_in_bytes, seconds=time.monotonic() - began)


def _compute(turn: Turn, columns: list[str]) -> None:
    if _of_current(turn.table) is not None:
        raise NothingToDoError("the current snapshot has statistics")
    spark = turn.care.spark()
    with turn.step("commit"):
        actions = turn.jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)
        action = actions.computeTableStats(turn.java)
        if columns:
            names = spark.sparkContext._gateway.new_array(turn.jvm.java.lang.String, len(columns))
            for i, name in enumerate(columns):
                names[i] = name
            action = action.columns(names)
        action.execute()


def _of_current(table: Table) -> StatisticsFile | None:
    current = table.metadata.current_snapshot_id
    return next((s for s in table.metadata.statistics if s.snapshot_id == current), None)
