"""Statistics for query planners: how many distinct values a column has, as a sketch in a Puffin file.

It reads every row of the chosen columns. The step has one option, `columns`: names; by default all that are no lists,
maps or structs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from frazil.errors import UsageError
from frazil.tables.durability import sync_files
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.rewrite.rewrite_commit import NothingToDoError, RewriteCommit, run_rewrite

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.statistics import StatisticsFile

    from frazil.upkeep.context import UpkeepContext


def run(context: UpkeepContext, table: Table, step: Step) -> Outcome:
    """Statistics of the current snapshot; nothing, where it has some; unsupported, where the catalog takes none.

    Raises:
        UsageError: an unknown column. Nothing has changed.
    """
    columns = [str(name) for name in step.options.get("columns") or ()]  # type: ignore[attr-defined]
    unknown = [name for name in columns if name not in table.schema().column_names]
    if unknown:
        raise UsageError(
            f"{', '.join(unknown)}: no column of {'.'.join(table.name())}",
            cause=f"there are {', '.join(table.schema().column_names)}",
            hint="choose one of these",
        )
    computed: list[int] = []
    outcome = run_rewrite(context, table, "stats", lambda turn: _compute(turn, columns, computed))
    if outcome.result != "done":
        return outcome
    found = _of(context.store.load(table.name()), computed[0])
    if found is None:
        return replace(outcome, result="unsupported", reason="the catalog keeps no statistics files")
    sync_files([found.statistics_path])
    return replace(outcome, files_after=1, bytes_rewritten=found.file_size_in_bytes)


def _compute(turn: RewriteCommit, columns: list[str], computed: list[int]) -> None:
    if _of(turn.table, turn.start) is not None:
        raise NothingToDoError("the current snapshot has statistics")
    spark = turn.context.spark()
    with turn.step("commit"):
        actions = turn.jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)
        action = actions.computeTableStats(turn.java)
        if columns:
            names = spark.sparkContext._gateway.new_array(turn.jvm.java.lang.String, len(columns))
            for i, name in enumerate(columns):
                names[i] = name
            action = action.columns(names)
        action.execute()
    computed.append(turn.start)


def _of(table: Table, snapshot_id: int) -> StatisticsFile | None:
    return next((s for s in table.metadata.statistics if s.snapshot_id == snapshot_id), None)
