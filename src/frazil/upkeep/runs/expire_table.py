"""Expires snapshots of one table on request, and deletes the files that are due."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from frazil.errors import ConflictError, PartialError, UnsupportedError, UsageError
from frazil.upkeep.expiry import expire, reclaim
from frazil.upkeep.expiry.pin_protection import PinProtection, list_protections
from frazil.upkeep.expiry.reclaim import Waiting, waiting
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.policy import Policy, policy_for

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext


@dataclass(frozen=True)
class ExpiryReport:
    """What an expiry has done, or would do.

    Attributes:
        table: `namespace.table`.
        snapshots: the expired snapshots, oldest first.
        files: files that only these snapshots hold.
        bytes: their size.
        kinds: their count by kind.
        grace_s: seconds until such files are deleted.
        pins: pins that protect snapshots which are old enough.
        waiting: files of expired snapshots that are not deleted yet.
        outcomes: of the steps; empty after a dry run.
    """

    table: str
    snapshots: tuple[int, ...]
    files: int
    bytes: int
    kinds: dict[str, int]
    grace_s: float
    pins: tuple[PinProtection, ...]
    waiting: Waiting
    outcomes: tuple[Outcome, ...]

    @property
    def done(self) -> bool:
        """Whether it was done: no dry run, and no failure."""
        return bool(self.outcomes) and all(outcome.result in ("done", "nothing") for outcome in self.outcomes)

    @property
    def reclaimed_files(self) -> int:
        """Files that were deleted."""
        return sum(outcome.files_removed for outcome in self.outcomes)

    @property
    def reclaimed_bytes(self) -> int:
        return sum(outcome.bytes_reclaimed for outcome in self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "snapshots": list(self.snapshots),
            "files": self.files,
            "bytes": self.bytes,
            "kinds": self.kinds,
            "grace_s": self.grace_s,
            "pins": [hold.to_dict() for hold in self.pins],
            "done": self.done,
            "reclaimed_files": self.reclaimed_files,
            "reclaimed_bytes": self.reclaimed_bytes,
            "waiting": asdict(self.waiting),
        }

    def raise_failures(self) -> None:
        """Raises the error of the first step that failed, if one did."""
        for outcome in self.outcomes:
            reason = outcome.reason or ""
            if outcome.result == "conflict":
                raise ConflictError(reason, hint=outcome.hint)
            if outcome.result == "unsupported":
                raise UnsupportedError(f"nothing was expired: {reason}", hint=outcome.hint)
            if outcome.kind == "reclaim" and outcome.result in ("done", "failed") and reason:
                raise PartialError(reason, hint=outcome.hint)


def expire_table(
    context: UpkeepContext,
    name: str,
    *,
    max_age_s: float | None = None,
    max_snapshots: int | None = None,
    snapshots: Sequence[int] = (),
    grace_s: float | None = None,
    dry_run: bool = False,
) -> ExpiryReport:
    """Expires snapshots, and deletes files whose grace is over. Failures of a step are in the report.

    Args:
        context: the catalog, and Spark.
        name: `namespace.table`.
        max_age_s: expire older snapshots; without it and `max_snapshots`, the table's policy applies.
        max_snapshots: keep at most so many.
        snapshots: expire these, whatever their age.
        grace_s: seconds that files are kept after their snapshot; None: as the policy says.
        dry_run: only report what would be done.

    Raises:
        UsageError: `snapshots` together with a limit; or one of them cannot be expired.
        ConflictError: pins protect all snapshots that the limits choose.
    """
    if snapshots and (max_age_s is not None or max_snapshots is not None):
        raise UsageError("snapshots are named, or chosen by age and number; not both", hint="one of the two")
    table = context.load(name)
    policy = policy_for(context.settings, table)
    grace = policy.file_grace_s if grace_s is None else grace_s
    limits = _limits(policy, max_age_s, max_snapshots)
    chosen = list(snapshots) or expire.choose(table.metadata, **limits)
    held = [] if snapshots else list_protections(table.metadata, ".".join(table.name()), **limits)
    if held and not chosen and (max_age_s is not None or max_snapshots is not None):
        raise _all_held(name, held)
    planned = expire.plan(context, table, chosen)
    outcomes = [] if dry_run else _run(context, table, planned.snapshots, grace)
    return ExpiryReport(
        table=".".join(table.name()),
        snapshots=planned.snapshots,
        files=len(planned.files),
        bytes=planned.size,
        kinds=dict(Counter(file.kind for file in planned.files.values())),
        grace_s=grace,
        pins=tuple(held),
        waiting=waiting(context, table, grace),
        outcomes=tuple(outcomes),
    )


def _limits(policy: Policy, age: float | None, keep: int | None) -> dict[str, Any]:
    """A limit that is given stands alone; without one, those of the policy do."""
    if age is None and keep is None:
        age, keep = policy.max_snapshot_age_s, policy.max_snapshots
    now_ms = int(time.time() * 1000)
    return {"max_age_s": age, "max_snapshots": keep, "min_snapshots": policy.min_snapshots, "now_ms": now_ms}


def _all_held(table: str, held: Sequence[PinProtection]) -> ConflictError:
    last = max(held, key=lambda hold: hold.pin.until).pin
    return ConflictError(
        f"nothing of {table} can be expired: pins hold all that is old enough",
        cause="; ".join(map(str, held)),
        hint=f"wait until {last.until:%Y-%m-%d %H:%M} UTC; if its holder is gone: "
        f"ALTER TABLE {table} DROP TAG `{last.tag}`",
    )


def _run(context: UpkeepContext, table: Table, snapshots: Sequence[int], grace_s: float) -> list[Outcome]:
    outcomes = []
    if snapshots:
        options = {"snapshots": list(snapshots)}
        outcomes.append(expire.run(context, table, Step("expire", "asked for", options=options)))
    outcomes.append(reclaim.run(context, table, Step("reclaim", "asked for", options={"grace_s": grace_s})))
    return outcomes
