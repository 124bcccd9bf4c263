"""Merges delete files, and removes those that apply to no row any more.

Options of the step:

- `min_files`: position-delete files of a partition that are worth it.
- `budget`: bytes of delete files that are written anew together; a partition with more is taken in parts of that size.

What applies by format version: v2 has position-delete files, which are merged. v3 has one deletion vector per data
file, which every writer merges itself, so that only position deletes of the time before the table was v3 are left to
be written as vectors. In both, deletes whose data files are gone ('dangling') are removed. Equality deletes are
applied by compaction, and removed here when nothing older than them is left in their partition. v1 has no deletes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from frazil.upkeep import java
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.rewrite.turn import NothingToDoError, Turn, run_turn

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.care import Care

_MIB = 1024 * 1024


def run(care: Care, table: Table, step: Step) -> Outcome:
    """First what is merged, then what applies to nothing: two commits at most, or none."""
    if table.metadata.format_version < 2:
        return Outcome("deletes", "nothing", reason="a table of format version 1 has no delete files")
    merged = run_turn(care, table, "deletes", lambda turn: _merge(turn, step))
    if merged.result not in ("done", "nothing"):
        return merged
    removed = run_turn(care, table, "deletes", _remove_dangling)
    return both(merged, removed)


def both(first: Outcome, second: Outcome) -> Outcome:
    """Two commits of one step as one outcome; it tells of the worse of them, unless that is only 'nothing'."""
    if second.result == "nothing":
        told = first
    elif first.result == "nothing" or second.result != "done":
        told = second
    else:
        told = replace(second, reason=None)
    return replace(
        told,
        files_before=first.files_before + second.files_before,
        files_after=first.files_after + second.files_after,
        bytes_rewritten=first.bytes_rewritten + second.bytes_rewritten,
        conflicts=first.conflicts + second.conflicts,
        snapshot_id=second.snapshot_id or first.snapshot_id,
        seconds=first.seconds + second.seconds,
    )


def _merge(turn: Turn, step: Step) -> None:
    if not int(turn.java.currentSnapshot().summary().getOrDefault("total-delete-files", "1")):
        raise NothingToDoError("the table has no delete files")
    options: dict[str, object] = {
        "min-input-files": int(step.options.get("min_files") or 10),  # type: ignore[call-overload]
        "max-file-group-size-bytes": max(_MIB, int(step.options.get("budget") or 1 << 40)),  # type: ignore[call-overload]
    }
    if turn.table.metadata.format_version >= 3:
        # Only what is no vector yet is taken then, and each of that has to become one.
        options = {"rewrite-all": True}
    with turn.step("commit"):
        action = _actions(turn).rewritePositionDeletes(turn.java).options(java.java_map(turn.jvm, options))
        for key, value in turn.properties.items():
            action = action.snapshotProperty(key, value)
        result = action.execute()
    if int(result.rewrittenDeleteFilesCount()) == 0:
        raise NothingToDoError("no partition has enough position-delete files")


def _remove_dangling(turn: Turn) -> None:
    if not int(turn.java.currentSnapshot().summary().getOrDefault("total-delete-files", "1")):
        raise NothingToDoError("the table has no delete files")
    with turn.step("dangling"):
        action = _actions(turn).removeDanglingDeleteFiles(turn.java)
        for key, value in turn.properties.items():
            action = action.snapshotProperty(key, value)
        result = action.execute()
    if not result.removedDeleteFiles().iterator().hasNext():
        raise NothingToDoError("every delete file still applies")


def _actions(turn: Turn) -> Any:
    return turn.jvm.org.apache.iceberg.spark.actions.SparkActions.get(turn.care.spark()._jsparkSession)
