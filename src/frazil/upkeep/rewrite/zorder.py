"""Rows along a Z-order curve, by the part of Iceberg's own action that writes one group: the curve is inside of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from frazil.upkeep import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from frazil.upkeep.rewrite.rewrite_commit import RewriteCommit


def z_order(turn: RewriteCommit, session: SparkSession, columns: Sequence[str]) -> Any:
    """What writes a group of files anew; the table must know order 0, see `know_no_order`."""
    names = turn.context.spark().sparkContext._gateway.new_array(turn.jvm.java.lang.String, len(columns))
    for i, column in enumerate(columns):
        names[i] = column
    runner = java.runner_of(java.actions(turn.jvm, session).rewriteDataFiles(turn.java).zOrder(names))
    runner.init(java.java_map(turn.jvm, {}))
    return runner


def know_no_order(turn: RewriteCommit) -> None:
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
