"""Merges small manifests into few, sorted by partition, so that a query plan reads less.

Options of the step:

- `small`: so many manifests below half of their target size are worth it. Those above are left as they are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from frazil.upkeep import java
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.rewrite.rewrite_commit import NothingToDoError, RewriteCommit, run_rewrite

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

_TARGET = 8 * 1024 * 1024


def run(context: UpkeepContext, table: Table, step: Step) -> Outcome:
    """One commit for the partition spec with most small manifests; the next turn takes the next."""
    small = int(step.options.get("small") or 2)  # type: ignore[call-overload]
    counted: list[tuple[int, int, int]] = []
    outcome = run_rewrite(context, table, "manifests", lambda turn: _rewrite(turn, small, counted))
    if outcome.result == "done" and counted:
        before, after, size = counted[0]
        return replace(outcome, files_before=before, files_after=after, bytes_rewritten=size)
    return outcome


def _rewrite(turn: RewriteCommit, small: int, counted: list[tuple[int, int, int]]) -> None:
    with turn.step("plan"):
        spec_id, chosen = _chosen(turn)
    if len(chosen) < max(2, small):
        raise NothingToDoError(f"{len(chosen)} small manifests, and from {max(2, small)} on it is worth it")
    among = turn.jvm.java.util.HashSet()
    for manifest in chosen:
        among.add(manifest)
    with turn.step("commit"):
        session = turn.context.spark()._jsparkSession
        action = turn.jvm.org.apache.iceberg.spark.actions.SparkActions.get(session).rewriteManifests(turn.java)
        predicates = turn.jvm.org.apache.iceberg.relocated.com.google.common.base.Predicates
        action = action.specId(spec_id).rewriteIf(getattr(predicates, "in")(among))
        for key, value in turn.properties.items():
            action = action.snapshotProperty(key, value)
        result = action.execute()
    added = list(java.items(result.addedManifests()))
    before = sum(1 for _ in java.items(result.rewrittenManifests()))
    if not before:
        raise NothingToDoError("the small manifests are as few as they can be")
    counted.append((before, len(added), sum(int(m.length()) for m in added)))


def _chosen(turn: RewriteCommit) -> tuple[int, list[Any]]:
    """The small manifests of the spec that has most of them."""
    target = int(turn.table.metadata.properties.get("commit.manifest.target-size-bytes", _TARGET))
    by_spec: dict[int, list[Any]] = defaultdict(list)
    for manifest in java.items(turn.java.currentSnapshot().allManifests(turn.java.io())):
        if int(manifest.length()) * 2 < target:
            by_spec[int(manifest.partitionSpecId())].append(manifest)
    return max(by_spec.items(), key=lambda found: len(found[1]), default=(0, []))
