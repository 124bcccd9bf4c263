"""Merges small files, and writes files anew that have lost many rows. One turn is one commit, bounded in bytes.

Options of the step:

- `target`: bytes of a new file.
- `below`: files smaller than this are taken; others only for their deletes. By default three quarters of the target.
- `min_files`: so many of a partition are worth it; or fewer that together exceed the target.
- `delete_ratio`: share of deleted rows at which a file is taken, whatever its size.
- `delete_files`: number of delete files that apply to a file, at which it is taken. It is how equality deletes, and
  position deletes of several files in one, come to an end: nobody knows their share of rows without reading.
- `strategy`: auto, binpack, sort or zorder. auto sorts as the table is sorted, and does not where that is so already.
- `sort_by`: columns for sort (`name`, `name desc`) and zorder.
- `budget`: bytes that one turn may take in; a whole new file's worth at least.
- `partition`: a condition as in SQL that says which partitions; None for all.
- `without`: paths of files that are left: who goes on until nothing is left does not write the same again and again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frazil.errors import UsageError
from frazil.upkeep import java
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.rewrite.grouping import locations, one_file_each, within
from frazil.upkeep.rewrite.ordering import order_of
from frazil.upkeep.rewrite.rewrite_commit import NothingToDoError, RewriteCommit, run_rewrite
from frazil.upkeep.rewrite.rewriting import Group, Shape, commit, rewrite
from frazil.upkeep.rewrite.zorder import know_no_order

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

_MIB = 1024 * 1024
STRATEGIES = ("auto", "binpack", "sort", "zorder")
#: A plan for more files at once would take the driver's memory, and minutes.
_FILES_AT_ONCE = 5000
_UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class Options:
    """What the step says, checked."""

    target: int
    below: int
    min_files: int
    delete_ratio: float
    delete_files: int
    strategy: str
    sort_by: tuple[str, ...]
    budget: int
    partition: str | None
    without: frozenset[str] = frozenset()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Options:
        """Raises UsageError for what no compaction can be."""
        target = int(options.get("target") or 128 * _MIB)
        found = cls(
            target=target,
            below=min(int(options.get("below") or target * 3 // 4), target - 1),
            min_files=int(options.get("min_files") or 10),
            delete_ratio=float(options.get("delete_ratio") or 0.3),
            delete_files=int(options.get("delete_files") or 10),
            strategy=str(options.get("strategy") or "auto"),
            sort_by=tuple(options.get("sort_by") or ()),
            budget=max(int(options.get("budget") or _UNBOUNDED), target),
            partition=options.get("partition"),
            without=frozenset(options.get("without") or ()),
        )
        if target < 1 or found.below < 1 or found.min_files < 1 or not 0 < found.delete_ratio <= 1:
            raise UsageError(
                f"these options contradict themselves: {dict(options)}", hint="frazil table compact --help"
            )
        if found.strategy not in STRATEGIES:
            raise UsageError(f"'{found.strategy}' is not a strategy", hint=f"one of {', '.join(STRATEGIES)}")
        return found

    def check(self, table: Table) -> None:
        """Raises UsageError for what this table cannot have."""
        if self.strategy == "zorder" and not self.sort_by:
            raise UsageError("zorder needs columns", hint="sort_by: two or more columns")
        if self.strategy == "sort" and not self.sort_by and table.sort_order().is_unsorted:
            raise UsageError(f"{'.'.join(table.name())} has no order of its own to sort by", hint="sort_by: columns")
        for text in self.sort_by:
            name = text.strip().partition(" ")[0]
            try:
                table.schema().find_field(name)
            except ValueError as error:
                raise UsageError(
                    f"'{name}' is no column of {'.'.join(table.name())}",
                    cause=f"there are {', '.join(table.schema().column_names)}",
                    hint="choose one of these",
                ) from error

    def for_java(self) -> dict[str, object]:
        return {
            "target-file-size-bytes": self.target,
            "min-file-size-bytes": self.below,
            "max-file-size-bytes": _UNBOUNDED,  # a large file is no harm that is worth writing it anew
            "min-input-files": self.min_files,
            "delete-ratio-threshold": self.delete_ratio,
            "delete-file-threshold": self.delete_files,
            "max-file-group-input-files": _FILES_AT_ONCE,
        }


def run(context: UpkeepContext, table: Table, step: Step) -> Outcome:
    """Takes what is most worth it within the budget; what is left, the next turn takes.

    Raises:
        UsageError: the options do not fit the table. Nothing has changed.
    """
    options = Options.of(step.options)
    options.check(table)
    return run_rewrite(context, table, "compact", lambda turn: _compact(turn, options))


def _compact(turn: RewriteCommit, options: Options) -> None:
    with turn.step("plan"):
        groups = plan(turn, options)
    if not groups:
        raise NothingToDoError("no partition has enough small files, or files with enough deleted rows")
    groups = [part for group in groups for part in one_file_each(turn, group, options.target)]
    if not groups:
        raise NothingToDoError("the files are about as large as new ones would be")
    if options.strategy == "zorder":
        know_no_order(turn)
    order = turn.table.sort_order()
    shape = Shape(options.target, options.sort_by, None if order.is_unsorted else order.order_id)
    commit(turn, rewrite(turn, groups, shape))


def plan(turn: RewriteCommit, options: Options) -> list[Group]:
    """The groups of this turn: the partitions with most files first, as far as the budget goes."""
    planner = turn.jvm.org.apache.iceberg.actions.BinPackRewriteFilePlanner(
        turn.java, condition(turn, options.partition), turn.start, True
    )
    planner.init(java.java_map(turn.jvm, {**options.for_java(), "rewrite-job-order": "files-desc"}))
    order = order_of(turn.table) if options.strategy != "binpack" and not options.sort_by else None
    return list(within(turn, options, java.items(planner.plan().groups()), order))


def condition(turn: RewriteCommit, text: str | None) -> Any:
    """A condition in SQL as Iceberg's expression."""
    if not text:
        return turn.jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
    converter = turn.jvm.org.apache.spark.sql.execution.datasources.SparkExpressionConverter
    session = turn.context.spark()._jsparkSession
    found = converter.collectResolvedSparkExpression(session, turn.context.sql_name(turn.table), text)
    return converter.convertToIcebergExpression(found)


def files_at(turn: RewriteCommit, expression: Any, paths: Collection[str]) -> Iterator[Any]:
    """Java's data files of some paths, among those that may have rows for which an expression holds."""
    planner = turn.jvm.org.apache.iceberg.actions.BinPackRewriteFilePlanner(turn.java, expression, turn.start, True)
    planner.init(java.java_map(turn.jvm, {"rewrite-all": True}))
    for group in java.items(planner.plan().groups()):
        tasks = group.fileScanTasks()
        for i, path in enumerate(locations(tasks)):
            if path in paths:
                yield tasks.get(i).file()
