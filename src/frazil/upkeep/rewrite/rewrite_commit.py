"""One commit of upkeep: what it says of itself, whether it landed, and that its files are on disk afterwards."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from frazil.catalogs import local_path
from frazil.errors import ConflictError, FrazilError, UnsupportedError
from frazil.observe.faultpoints import reach
from frazil.tables import CommitUnknownError
from frazil.tables.durability import sync_files, sync_metadata
from frazil.tables.position import collect_carried_positions
from frazil.upkeep import java
from frazil.upkeep.model import Kind, Outcome

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from frazil.upkeep.context import UpkeepContext

#: In the summary of each snapshot that upkeep makes: what it was for, and an id by which a lost reply is looked up.
KIND, ID = "frazil.upkeep", "frazil.upkeep.id"
#: The steps in which an action commits.
COMMITS = {"commit", "dangling", "rows"}
#: Seconds to wait for a commit to show whose reply was lost, before each look.
_LOOKS = (0.0, 0.5, 2.0)


@dataclass(frozen=True)
class RewriteCommit:
    """An action on its way.

    Attributes:
        context: where.
        kind: of action.
        table: as PyIceberg has loaded it when the action began.
        java: the same table in Java.
        start: the snapshot that it was planned on. What came after it is checked when the action commits.
        id: of this action, new each time.
        begun: names of the steps that were begun.
        properties: for the summary of the snapshot: kind, id, and the positions that the table has.
    """

    context: UpkeepContext
    kind: Kind
    table: Table
    java: Any
    start: int
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    begun: set[str] = field(default_factory=set)

    @property
    def properties(self) -> dict[str, str]:
        return {KIND: self.kind, ID: self.id, **collect_carried_positions(self.table.metadata)}

    @property
    def jvm(self) -> Any:
        return self.context.spark()._jvm

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step that tests can strike before and after; Java's errors in it come out as ours."""
        reach(f"upkeep.{self.kind}.{name}.before")
        self.begun.add(name)
        with java.translated(self.table):
            yield
        reach(f"upkeep.{self.kind}.{name}.after")


class NothingToDoError(Exception):
    """There is nothing to do, and the text says why."""


def run_rewrite(context: UpkeepContext, table: Table, kind: Kind, act: Callable[[RewriteCommit], None]) -> Outcome:
    """Runs an action that ends with one commit, and says what came of it.

    Args:
        context: where.
        table: may be out of date.
        kind: of action.
        act: plans, writes and commits; or raises NothingToDo before it has changed anything.

    Raises:
        FrazilError: what a person must see: not allowed, not there, out of reach.
    """
    began = time.monotonic()
    outcome = _run(context, table, kind, act)
    return replace(outcome, seconds=time.monotonic() - began)


def _run(context: UpkeepContext, table: Table, kind: Kind, act: Callable[[RewriteCommit], None]) -> Outcome:
    if context.stop.is_set():
        return Outcome(kind, "nothing", reason="asked to stop before it began")
    fresh = context.store.load(table.name())
    if fresh.metadata.current_snapshot_id is None:
        return Outcome(kind, "nothing", reason="the table is empty")
    loaded = java.load(context, fresh)
    turn = RewriteCommit(context, kind, fresh, loaded, int(loaded.currentSnapshot().snapshotId()))
    try:
        act(turn)
    except NothingToDoError as nothing:
        return Outcome(kind, "nothing", reason=str(nothing))
    except ConflictError as error:
        return Outcome(kind, "conflict", conflicts=1, reason=error.message, hint=error.hint)
    except UnsupportedError as error:
        return Outcome(kind, "unsupported", reason=error.message, hint=error.hint)
    except FrazilError as error:
        # A reply may be lost in many ways, and Java has not a name for each.
        snapshot = landed(turn) if turn.begun & COMMITS else None
        if snapshot is None:
            if isinstance(error, CommitUnknownError):
                return Outcome(kind, "failed", reason=f"no answer came: {error.message}", hint=error.hint)
            raise
        return finished(turn, snapshot)
    snapshot = landed(turn, looks=(0.0,))
    if snapshot is not None:
        return finished(turn, snapshot)
    # What makes no snapshot has written metadata.json all the same.
    with turn.step("sync"):
        sync_metadata(context.store.load(table.name()))
    return Outcome(kind)


def landed(turn: RewriteCommit, looks: tuple[float, ...] | None = None) -> Snapshot | None:
    """The snapshot that the action has made, if the table shows it."""
    for wait in _LOOKS if looks is None else looks:
        time.sleep(wait)
        table = turn.context.store.load(turn.table.name())
        for snapshot in reversed(table.metadata.snapshots):
            if snapshot.summary is not None and snapshot.summary.get(ID) == turn.id:
                return snapshot
    return None


def finished(turn: RewriteCommit, snapshot: Snapshot) -> Outcome:
    """The outcome by the snapshot's own summary, after its files are on disk where that is here."""
    table = turn.context.store.load(turn.table.name())
    with turn.step("sync"):
        sync_snapshot(turn.context, table, snapshot)
        java.forget(turn.context, table)
    summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return Outcome(
        turn.kind,
        files_before=_sum(summary, "deleted-data-files", "removed-delete-files"),
        files_after=_sum(summary, "added-data-files", "added-delete-files"),
        bytes_rewritten=_sum(summary, "added-files-size"),
        snapshot_id=snapshot.snapshot_id,
    )


def _sum(summary: Mapping[str, str], *keys: str) -> int:
    return sum(int(summary.get(key, 0)) for key in keys)


def sync_snapshot(context: UpkeepContext, table: Table, snapshot: Snapshot) -> None:
    """Puts on disk what a snapshot has added, where it lies on this machine. What it replaced will be deleted one day.

    Raises:
        UnavailableError: one of the files could not be synced.
    """
    if not lies_here(table):
        return
    files = added_files(context, table, snapshot)
    sync_files({*files, *(m.manifest_path for m in _added_manifests(context, table, snapshot)), snapshot.manifest_list})
    sync_metadata(table)


def added_files(context: UpkeepContext, table: Table, snapshot: Snapshot) -> list[str]:
    """The data and delete files that a snapshot has added."""
    return [
        entry.data_file.file_path
        for manifest in _added_manifests(context, table, snapshot)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.snapshot_id == snapshot.snapshot_id
    ]


def _added_manifests(context: UpkeepContext, table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    every = context.store.read_manifests(table.io, snapshot.manifest_list)
    return [manifest for manifest in every if manifest.added_snapshot_id == snapshot.snapshot_id]


def lies_here(table: Table) -> bool:
    """Whether files of the table are on this machine."""
    properties = table.metadata.properties
    places = (table.location(), properties.get("write.data.path", ""), properties.get("write.metadata.path", ""))
    return any(local_path(place) is not None for place in places if place)
