"""What a sync has done, as its caller and the table of runs see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from frazil.replica.newest import NewestVersion
    from frazil.replica.plan import SyncPlan
    from frazil.replica.state import ServedTable
    from frazil.tables.relocation.table_metadata import TableMetadata

#: dropped: a beacon says that the primary has no such table any more.
Action = Literal["created", "updated", "unchanged", "waiting", "dropped"]


@dataclass(frozen=True)
class SyncReport:
    """What a sync has done.

    Attributes:
        source_metadata: the primary's metadata file that is served, as the primary spells it; None: nothing yet.
        version: its number.
        witnessed: whether it is known to be committed.
        snapshots: in the replica.
        files_new: data and delete files that were not served before.
        manifests_new: that were relocated.
        bytes_new: that were written.
        missing: files of newer versions that have not arrived.
        newest_version: number of the newest metadata file that has arrived.
        reasons: why newer versions are not served, a sentence each.
        served_ms: when the primary committed what is served.
        waiting_since_ms: when it committed the oldest version that has begun to arrive and is not served; None: there
            is none.
        lag_snapshots: snapshots of such versions that the replica has not.
    """

    identifier: str
    action: Action
    source_metadata: str | None
    version: int | None
    witnessed: bool
    snapshots: int = 0
    files_new: int = 0
    manifests_new: int = 0
    bytes_new: int = 0
    missing: tuple[str, ...] = ()
    newest_version: int | None = None
    snapshot_id: int | None = None
    metadata_location: str | None = None
    reasons: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    served_ms: int | None = None
    waiting_since_ms: int | None = None
    lag_snapshots: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        found = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return {**found, "seconds": round(self.seconds, 3)}


def describe_plan(plan: SyncPlan, action: Action, served: ServedTable | None) -> SyncReport:
    """Returns the report of a sync that publishes nothing, or the first half of that of one that does."""
    newest = plan.newest
    report = SyncReport(
        plan.table.name,
        action,
        source_metadata=None,
        version=None,
        witnessed=newest.choice.witness is not None,
        files_new=newest.closure.files if newest.closure is not None and action != "unchanged" else 0,
        missing=plan.missing,
        newest_version=newest.newest_number,
        reasons=newest.choice.reasons,
        losses=plan.losses,
        warnings=plan.warnings,
        waiting_since_ms=min((waiting.candidate.version.updated_ms for waiting in newest.waiting), default=None),
        lag_snapshots=_count_waiting_snapshots(newest, served),
    )
    if served is None:
        return report
    state = served.state
    return replace(
        report,
        source_metadata=state.source_metadata,
        version=state.version,
        witnessed=state.witnessed or report.witnessed,
        snapshots=len(served.metadata.get("snapshots") or ()),
        snapshot_id=state.snapshot_id,
        metadata_location=served.pointer,
        served_ms=state.updated_ms,
    )


def _count_waiting_snapshots(newest: NewestVersion, served: ServedTable | None) -> int:
    """Counts the snapshots of versions that have not arrived completely, and that are in no version that is served."""
    shown: TableMetadata = {}
    if newest.candidate is not None:
        shown = newest.candidate.metadata
    elif served is not None:
        shown = served.metadata
    found = {one["snapshot-id"] for w in newest.waiting for one in w.candidate.metadata.get("snapshots") or ()}
    return len(found - {one["snapshot-id"] for one in shown.get("snapshots") or ()})
