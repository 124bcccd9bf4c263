"""Compaction along a Z-order curve, by Iceberg's own action: the curve is inside of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from frazil.upkeep import java
from frazil.upkeep.rewrite.turn import NothingToDoError

if TYPE_CHECKING:
    from frazil.upkeep.rewrite.turn import Turn


class Wanted(Protocol):
    """What it needs to know of a compaction's options."""

    @property
    def sort_by(self) -> tuple[str, ...]: ...
    @property
    def budget(self) -> int: ...


def rewrite_in_z_order(turn: Turn, options: Mapping[str, object], wanted: Wanted) -> None:
    """One commit of Iceberg's `rewrite_data_files`, with as many files as the budget lets it take, about."""
    know_no_order(turn)
    with turn.step("plan"):
        spark = turn.care.spark()
        action = turn.jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession).rewriteDataFiles(
            turn.java
        )
        columns = spark.sparkContext._gateway.new_array(turn.jvm.java.lang.String, len(wanted.sort_by))
        for i, column in enumerate(wanted.sort_by):
            columns[i] = column
        bounded = {**options, "max-file-group-size-bytes": wanted.budget, "max-files-to-rewrite": _files(turn, wanted)}
        action = action.zOrder(columns).options(java.java_map(turn.jvm, bounded))
        for key, value in turn.properties.items():
            action = action.snapshotProperty(key, value)
    with turn.step("commit"):
        result = action.execute()
    if int(result.rewrittenDataFilesCount()) == 0:
        raise NothingToDoError("no partition has enough small files, or files with enough deleted rows")


def _files(turn: Turn, wanted: Wanted) -> int:
    summary: Any = turn.table.metadata.current_snapshot().summary  # type: ignore[union-attr]  # a turn has one
    size, count = (int(summary.get(key) or 0) for key in ("total-files-size", "total-data-files"))
    return max(2, min(5000, wanted.budget * count // size)) if size and count else 5000


def know_no_order(turn: Turn) -> None:
    """Adds the order 0, 'unsorted', to the orders that a table knows, where it was made with another.

    Iceberg 1.12 marks files that it sorted by an order which is not the table's with order 0, and refuses to write them
    when the table does not know that. The table's own order stays as it is.
    """
    if turn.java.sortOrders().containsKey(0):
        return
    with turn.step("order"):
        operations = turn.java.operations()
        before = operations.current()
        builder = turn.jvm.org.apache.iceberg.TableMetadata.buildFrom(before)
        after = builder.addSortOrder(turn.jvm.org.apache.iceberg.SortOrder.unsorted()).build()
        operations.commit(before, after)
        turn.java.refresh()
