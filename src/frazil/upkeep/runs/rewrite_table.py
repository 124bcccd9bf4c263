"""Rewrites one table on request: repeats a step, one commit each, until nothing is left to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from frazil.errors import ConflictError, FrazilError, UnsupportedError
from frazil.upkeep.model import Kind, Outcome, Step
from frazil.upkeep.policy import policy_for
from frazil.upkeep.rewrite.compact import Options
from frazil.upkeep.rewrite.rewrite_commit import added_files
from frazil.upkeep.runs.run import action

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

#: Bytes that one commit rewrites.
BUDGET = 1 << 30
#: Limit of commits per call, for a table that others write to all the time.
_MOST_COMMITS = 1000


@dataclass(frozen=True)
class RewriteReport:
    """What a rewrite has done.

    Attributes:
        table: `namespace.table`.
        outcomes: of each commit, in order; the last one says why there are no more.
    """

    table: str
    outcomes: tuple[Outcome, ...]

    @property
    def result(self) -> str:
        """`done`, `nothing` (there was nothing to do), `stopped`; or `conflict`, `unsupported`, `failed`."""
        return self.outcomes[-1].result

    @property
    def commits(self) -> int:
        return sum(1 for outcome in self.outcomes if outcome.result == "done")

    @property
    def files_before(self) -> int:
        """Data and delete files that were replaced."""
        return sum(outcome.files_before for outcome in self.outcomes)

    @property
    def files_after(self) -> int:
        """Files that replaced them."""
        return sum(outcome.files_after for outcome in self.outcomes)

    @property
    def bytes_rewritten(self) -> int:
        return sum(outcome.bytes_rewritten for outcome in self.outcomes)

    @property
    def seconds(self) -> float:
        return round(sum(outcome.seconds for outcome in self.outcomes), 3)

    @property
    def reason(self) -> str | None:
        """Why nothing was left to do, or what failed."""
        return self.outcomes[-1].reason

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "result": self.result,
            "commits": self.commits,
            "files_before": self.files_before,
            "files_after": self.files_after,
            "bytes_rewritten": self.bytes_rewritten,
            "conflicts": sum(outcome.conflicts for outcome in self.outcomes),
            "seconds": self.seconds,
            "reason": self.reason,
        }

    def raise_failures(self) -> None:
        """Raises the error of the first commit that failed, if one did."""
        raise_failures(self.outcomes)


def compaction_options(
    context: UpkeepContext,
    table: Table,
    *,
    target: int | None = None,
    min_files: int | None = None,
    strategy: str | None = None,
    sort_by: Sequence[str] | None = None,
    where: str | None = None,
    budget: int = BUDGET,
) -> dict[str, Any]:
    """Returns the options of a compaction: what is given, and the table's policy for the rest.

    Args:
        context: the catalog.
        table: the table.
        target: bytes of a new file.
        min_files: files of a partition that are worth it.
        strategy: `auto`, `binpack`, `sort` or `zorder`.
        sort_by: columns for `sort` and `zorder`.
        where: only partitions for which this condition holds, as in SQL.
        budget: bytes that one commit takes in.

    Raises:
        UsageError: an option does not fit the table.
    """
    policy = policy_for(context.settings, table)
    wanted = target or policy.target_file_size
    given = {"target": target, "min_files": min_files, "strategy": strategy, "sort_by": sort_by, "partition": where}
    options: dict[str, Any] = {
        "target": wanted,
        "below": wanted * 3 // 4,
        "min_files": policy.min_input_files,
        "delete_ratio": policy.delete_ratio,
        "delete_files": policy.delete_files,
        "strategy": policy.strategy,
        "sort_by": policy.sort_by,
        "budget": budget,
    } | {name: value for name, value in given.items() if value is not None}
    if options["strategy"] in ("auto", "binpack"):
        options["sort_by"] = sort_by or []
    Options.of(options).check(table)
    return options


def rewrite_table(context: UpkeepContext, table: Table, kind: Kind, options: Mapping[str, Any]) -> RewriteReport:
    """Repeats a step until nothing is left to do. Files that it has written itself are not rewritten again.

    Args:
        context: the catalog, and Spark.
        table: the table.
        kind: `compact`, `manifests` or `stats`.
        options: of the step.
    """
    step = Step(kind, "asked for", options=options)
    outcomes: list[Outcome] = []
    made: set[str] = set()
    for _ in range(_MOST_COMMITS):
        outcome = action(kind)(context, table, replace(step, options={**options, "without": made}))
        outcomes.append(outcome)
        if outcome.result != "done" or kind == "stats":
            break
        if kind == "compact" and outcome.snapshot_id is not None:
            table = context.store.load(table.name())
            snapshot = table.snapshot_by_id(outcome.snapshot_id)
            made.update(added_files(context, table, snapshot) if snapshot is not None else ())
    if len(outcomes) > 1 and outcomes[-1].result == "nothing":
        del outcomes[-1]
    return RewriteReport(".".join(table.name()), tuple(outcomes))


def raise_failures(outcomes: Sequence[Outcome]) -> None:
    """Raises the error of the first commit that failed, if one did."""
    for outcome in outcomes:
        message = outcome.reason or outcome.result
        if outcome.result == "conflict":
            raise ConflictError(message, hint="try again")
        if outcome.result == "unsupported":
            raise UnsupportedError(message, hint=outcome.hint or "see docs/catalogs.md")
        if outcome.result == "failed":
            raise FrazilError(message, hint=outcome.hint)
