"""The data of upkeep's stages: a census leads to a plan, a plan to steps, a step to an outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from frazil.tables.bulk_delete import DeletedFiles

Kind = Literal["retention", "compact", "deletes", "manifests", "expire", "reclaim", "metadata", "stats", "orphans"]
#: In order of execution: what shrinks the table first, then what that leaves behind.
KINDS: tuple[Kind, ...] = (
    "retention", "compact", "deletes", "manifests", "expire", "reclaim", "metadata", "stats", "orphans",
)  # fmt: skip

Result = Literal["done", "nothing", "conflict", "unsupported", "stopped", "failed"]


@dataclass(frozen=True)
class Step:
    """One action on a table that a policy requests.

    Attributes:
        kind: of action.
        why: the reason, with the numbers that decided it.
        gain: the expected gain by name: files, delete_files, manifests, snapshots, bytes.
        cost: approximate bytes to read and rewrite.
        options: of the action, such as a target size or snapshot ids.
        urgent: the table is affected already; the step is not postponed to save time.
    """

    kind: Kind
    why: str
    gain: Mapping[str, int] = field(default_factory=dict)
    cost: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    urgent: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step.

    Attributes:
        kind: of the step.
        result: done; nothing (there was nothing to do); conflict (another writer committed first, and nothing has
            changed); unsupported (by the catalog or table); stopped (it was told to end early: the counts are of what
            was done by then); failed.
        files_before: data and delete files that were replaced.
        files_after: files that replaced them.
        bytes_rewritten: bytes written.
        files_removed: files deleted from storage.
        bytes_reclaimed: their size.
        snapshots_removed: snapshots removed from the table's metadata.
        conflicts: commits lost to other writers.
        snapshot_id: the snapshot made by the step, if any.
        reason: why it was not done.
        hint: what an operator can do about it.
        seconds: its duration.
    """

    kind: Kind
    result: Result = "done"
    files_before: int = 0
    files_after: int = 0
    bytes_rewritten: int = 0
    files_removed: int = 0
    bytes_reclaimed: int = 0
    snapshots_removed: int = 0
    conflicts: int = 0
    snapshot_id: int | None = None
    reason: str | None = None
    hint: str | None = None
    seconds: float = 0.0


def removal_outcome(kind: Kind, done: DeletedFiles) -> Outcome:
    """Returns the outcome of a step that deletes files."""
    error = done.error
    if done.left and error is None:
        reason = f"told to end before {len(done.left)} more files were deleted"
        return Outcome(kind, "stopped", files_removed=done.files, bytes_reclaimed=done.size, reason=reason)
    return Outcome(
        kind,
        "done" if done.files or error is None else "failed",
        files_removed=done.files,
        bytes_reclaimed=done.size,
        reason=None if error is None else f"{len(done.left)} files are left for later: {error.message}",
        hint=None if error is None else error.hint,
    )
