"""Merges delete files, and removes those that apply to no row any more.

Options of the step:

- `min_files`: position-delete files of a partition that are worth it.
- `budget`: bytes of delete files that one turn may take in, about; the partitions with most files come first. In v2 a
  partition with more is taken in parts of that size; in v3 as a whole, since a data file must not get two vectors.

What applies by format version: v2 has position-delete files, which are merged. v3 has one deletion vector per data
file, which every writer merges itself, so that only position deletes of the time before the table was v3 are left to
be written as vectors. In both, deletes whose data files are gone ('dangling') are removed. Equality deletes are
applied by compaction, and removed here when nothing older than them is left in their partition. v1 has no deletes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestContent

from frazil.upkeep import java
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.plans.groups import DELETED_PATH
from frazil.upkeep.plans.manifest_stats import are_joined
from frazil.upkeep.rewrite.grouping import locations, picked
from frazil.upkeep.rewrite.rewrite_commit import NothingToDoError, RewriteCommit, run_rewrite
from frazil.upkeep.rewrite.rewriting import commit_with, session_for, write_each

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

_MIB = 1024 * 1024
_UNBOUNDED = 1 << 40
#: What one more group costs beside its bytes: a Spark job takes as long as writing so many.
_JOB = 4 * _MIB
_WHOLE = 1 << 62


@dataclass
class _Options:
    """What the step says; `more` is told by the plan: something is left for the next turn."""

    min_files: int
    budget: int
    more: bool = False

    @classmethod
    def of(cls, step: Step) -> _Options:
        options: Any = step.options
        return cls(int(options.get("min_files") or 10), int(options.get("budget") or _UNBOUNDED))


def run(context: UpkeepContext, table: Table, step: Step) -> Outcome:
    """First what is merged, then what applies to nothing: two commits at most, or none.

    What is merged is as much as the budget allows for; while there is more, the second waits for the turn that ends it.
    """
    if table.metadata.format_version < 2:
        return Outcome("deletes", "nothing", reason="a table of format version 1 has no delete files")
    options = _Options.of(step)
    merged = run_rewrite(context, table, "deletes", lambda turn: _merge(turn, options))
    if merged.result not in ("done", "nothing") or options.more:
        return merged
    removed = run_rewrite(context, table, "deletes", _remove_dangling)
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


def _merge(turn: RewriteCommit, options: _Options) -> None:
    _require_deletes(turn)
    with turn.step("plan"):
        groups = _chosen(turn, options)
    if not groups:
        raise NothingToDoError("no partition has enough position-delete files")
    manager = turn.jvm.org.apache.iceberg.actions.RewritePositionDeletesCommitManager(
        turn.java, java.java_map(turn.jvm, turn.properties)
    )

    def write(group: Any) -> Any:
        # Of one part of a shuffle all deletes of a data file become one vector.
        session = session_for(turn, 1)
        runner = java.runner_of(java.actions(turn.jvm, session).rewritePositionDeletes(turn.java))
        group.setOutputFiles(runner.rewrite(group))
        return group

    commit_with(turn, write_each(turn, groups, write, manager.abort), manager.commitOrClean, manager.abort)


def _chosen(turn: RewriteCommit, options: _Options) -> list[Any]:
    """The groups of this turn: those with most files first, as far as the budget goes, and one at least."""
    chosen: list[Any] = []
    left = options.budget
    for group in _groups(turn, options):
        left -= int(group.inputFilesSizeInBytes()) + _JOB
        if chosen and left < 0:
            options.more = True
            break
        chosen.append(group)
    return chosen


def _groups(turn: RewriteCommit, options: _Options) -> Iterator[Any]:
    """Java's groups of delete files, each of one partition, that there is something to gain from."""
    planner = turn.jvm.org.apache.iceberg.actions.BinPackRewritePositionDeletePlanner(turn.java)
    vectors = turn.table.metadata.format_version >= 3
    wanted: dict[str, object] = {"rewrite-job-order": "files-desc"}
    if vectors:  # each that is none yet has to become one, together with those of the same data files
        wanted |= {"rewrite-all": True}
    else:
        wanted |= {"min-input-files": options.min_files, "max-file-group-size-bytes": max(_MIB, options.budget)}
    planner.init(java.java_map(turn.jvm, wanted))
    about = {} if are_joined(turn.table) else _data_files(turn)
    for group in java.items(planner.plan().groups()):
        tasks, split, files = group.fileScanTasks(), int(group.inputSplitSize()), int(group.expectedOutputFiles())
        if vectors:
            split, files = _WHOLE, 1
            if not _has_files(turn, tasks):
                continue
        elif about:
            places = mergeable([about.get(path) for path in locations(tasks)])
            if len(places) < 2:
                continue
            tasks = picked(turn, tasks, places)
        elif int(tasks.size()) <= files:
            continue
        yield turn.jvm.org.apache.iceberg.actions.RewritePositionDeletesGroup(
            group.info(), tasks, group.maxOutputFileSize(), split, files
        )


def mergeable(about: Sequence[str | None]) -> list[int]:
    """The places of delete files that become fewer where each data file has its own: not of those that it is so of.

    Args:
        about: the data file of each, if it is one; files for several become some for one each, and then fewer.
    """
    count = Counter(about)
    return [i for i, data_file in enumerate(about) if data_file is None or count[data_file] > 1]


def _data_files(turn: RewriteCommit) -> dict[str, str]:
    """By path of a delete file the data file that it is about, if it is one."""
    table, found = turn.table, {}
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None, "a turn has one"
    for manifest in turn.context.store.read_manifests(table.io, snapshot.manifest_list):
        if manifest.content == ManifestContent.DATA:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            bounds = (entry.data_file.lower_bounds, entry.data_file.upper_bounds)
            first, last = ((bound or {}).get(DELETED_PATH) for bound in bounds)
            if first is not None and first == last:
                found[entry.data_file.file_path] = first.decode()
    return found


def _has_files(turn: RewriteCommit, tasks: Any) -> bool:
    """Whether some of the deletes are no vectors."""
    is_vector = turn.jvm.org.apache.iceberg.util.ContentFileUtil.isDV
    return any(
        not path.endswith(".puffin") and not is_vector(tasks.get(i).file()) for i, path in enumerate(locations(tasks))
    )


def _require_deletes(turn: RewriteCommit) -> None:
    if not int(turn.java.currentSnapshot().summary().getOrDefault("total-delete-files", "1")):
        raise NothingToDoError("the table has no delete files")


def _remove_dangling(turn: RewriteCommit) -> None:
    _require_deletes(turn)
    with turn.step("dangling"):
        action = java.actions(turn.jvm, turn.context.spark()).removeDanglingDeleteFiles(turn.java)
        for key, value in turn.properties.items():
            action = action.snapshotProperty(key, value)
        result = action.execute()
    if not result.removedDeleteFiles().iterator().hasNext():
        raise NothingToDoError("every delete file still applies")
