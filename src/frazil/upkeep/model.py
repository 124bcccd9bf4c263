"""What flows between the steps of upkeep: a census is taken, a plan made of it, its steps run, their outcome kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from frazil.tables.bulk_delete import DeletedFiles

Kind = Literal["retention", "compact", "deletes", "manifests", "expire", "reclaim", "metadata", "stats", "orphans"]
#: In the order in which a turn takes them: what shrinks the table first, then what that left behind.
KINDS: tuple[Kind, ...] = (
    "retention", "compact", "deletes", "manifests", "expire", "reclaim", "metadata", "stats", "orphans",
)  # fmt: skip

Result = Literal["done", "nothing", "conflict", "unsupported", "stopped", "failed"]


@dataclass(frozen=True)
class Step:
    """One thing that a policy wants done to a table.

    Attributes:
        kind: what.
        why: in words, with the numbers that decided it.
        gain: what it would bring, by name: files, delete_files, manifests, snapshots, bytes.
        cost: bytes to be read and written again, about.
        options: for the action that runs it, such as a target size or ids of snapshots.
        urgent: the table suffers already; it is not put off for the sake of a small share of time.
    """

    kind: Kind
    why: str
    gain: Mapping[str, int] = field(default_factory=dict)
    cost: int = 0
    options: Mapping[str, object] = field(default_factory=dict)
    urgent: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a step.

    Attributes:
        kind: of the step.
        result: done; nothing (there was nothing left to do); conflict (another writer was faster, and nothing has
            changed); unsupported (the catalog or table cannot); stopped (it was told to end before it was done: what is
            counted here was done by then); failed.
        files_before: data and delete files that the step took in.
        files_after: those that it left in their place.
        bytes_rewritten: written anew.
        files_removed: deleted from storage.
        bytes_reclaimed: their size.
        snapshots_removed: taken out of the table's metadata.
        conflicts: commits lost to other writers on the way.
        snapshot_id: that the step has made, if one.
        reason: why it was not done.
        hint: what a person can do about that.
        seconds: it took.
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
