"""How many former metadata files a table keeps: Iceberg removes the older ones itself at each commit, if it is told to.

The step has one option, `versions`. Files that an earlier, longer log has left behind are orphans, and found as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.errors import UsageError
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.rewrite.rewrite_commit import NothingToDoError, RewriteCommit, run_rewrite

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

ENABLED, VERSIONS = "write.metadata.delete-after-commit.enabled", "write.metadata.previous-versions-max"


def run(context: UpkeepContext, table: Table, step: Step) -> Outcome:
    """Sets the two properties where they differ.

    Raises:
        UsageError: fewer than one. Nothing has changed.
    """
    versions = int(step.options["versions"])  # type: ignore[call-overload]
    if versions < 1:
        raise UsageError(f"{versions} former metadata files cannot be kept", hint="metadata_versions: 1 or more")
    return run_rewrite(context, table, "metadata", lambda turn: _set(turn, {ENABLED: "true", VERSIONS: str(versions)}))


def _set(turn: RewriteCommit, wanted: dict[str, str]) -> None:
    if wanted.items() <= turn.table.metadata.properties.items():
        raise NothingToDoError("the table is set so already")
    update = turn.java.updateProperties()
    for key, value in wanted.items():
        update = update.set(key, value)
    with turn.step("commit"):
        update.commit()
