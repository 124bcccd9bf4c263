"""One commit of upkeep: its snapshot properties, whether it landed, and the sync of its files."""

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

#: In the summary of each snapshot made by upkeep: the kind of step, and an id to find it after a lost reply.
KIND, ID = "frazil.upkeep", "frazil.upkeep.id"
#: The fault points at which an action commits.
COMMITS = {"commit", "dangling", "rows"}
#: Seconds to wait for a commit whose reply was lost, before each check.
_LOOKS = (0.0, 0.5, 2.0)


@dataclass(frozen=True)
class RewriteCommit:
    """An action that ends with one commit.

    Attributes:
        context: the catalog, and Spark.
        kind: of action.
        table: as PyIceberg loaded it when the action began.
        java: the same table in Java.
        start: the snapshot that it was planned on. Later ones are checked when the action commits.
        id: of this action, unique.
        begun: names of the steps that were begun.
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
        """Properties for the snapshot's summary: kind, id, and the positions of the table."""
        return {KIND: self.kind, ID: self.id, **collect_carried_positions(self.table.metadata)}

    @property
    def jvm(self) -> Any:
        return self.context.spark()._jvm

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A fault point before and after the block, which translates Java's errors."""
        reach(f"upkeep.{self.kind}.{name}.before")
        self.begun.add(name)
        with java.translated(self.table):
            yield
        reach(f"upkeep.{self.kind}.{name}.after")


class NothingToDoError(Exception):
    """There is nothing to do; the message says why."""


def run_rewrite(context: UpkeepContext, table: Table, kind: Kind, act: Callable[[RewriteCommit], None]) -> Outcome:
    """Runs an action that ends with one commit, and returns its outcome.

    Args:
        context: the catalog, and Spark.
        table: may be out of date.
        kind: of action.
        act: plans, writes and commits; or raises NothingToDoError before it has changed anything.

    Raises:
        FrazilError: an error for the operator: not allowed, not found, unavailable.
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
    rewrite = RewriteCommit(context, kind, fresh, loaded, int(loaded.currentSnapshot().snapshotId()))
    try:
        act(rewrite)
    except NothingToDoError as nothing:
        return Outcome(kind, "nothing", reason=str(nothing))
    except ConflictError as error:
        return Outcome(kind, "conflict", conflicts=1, reason=error.message, hint=error.hint)
    except UnsupportedError as error:
        return Outcome(kind, "unsupported", reason=error.message, hint=error.hint)
    except FrazilError as error:
        # A reply may be lost in many ways, and Java does not name each of them.
        snapshot = find_landed_snapshot(rewrite) if rewrite.begun & COMMITS else None
        if snapshot is None:
            if isinstance(error, CommitUnknownError):
                return Outcome(kind, "failed", reason=f"no answer came: {error.message}", hint=error.hint)
            raise
        return make_outcome(rewrite, snapshot)
    snapshot = find_landed_snapshot(rewrite, looks=(0.0,))
    if snapshot is not None:
        return make_outcome(rewrite, snapshot)
    # An action without a snapshot has written metadata.json all the same.
    with rewrite.step("sync"):
        sync_metadata(context.store.load(table.name()))
    return Outcome(kind)


def find_landed_snapshot(rewrite: RewriteCommit, looks: tuple[float, ...] | None = None) -> Snapshot | None:
    """Returns the snapshot of the action, if the table contains it."""
    for wait in _LOOKS if looks is None else looks:
        time.sleep(wait)
        table = rewrite.context.store.load(rewrite.table.name())
        for snapshot in reversed(table.metadata.snapshots):
            if snapshot.summary is not None and snapshot.summary.get(ID) == rewrite.id:
                return snapshot
    return None


def make_outcome(rewrite: RewriteCommit, snapshot: Snapshot) -> Outcome:
    """Returns the outcome according to the snapshot's summary, after syncing files on this machine."""
    table = rewrite.context.store.load(rewrite.table.name())
    with rewrite.step("sync"):
        sync_snapshot(rewrite.context, table, snapshot)
        java.forget(rewrite.context, table)
    summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return Outcome(
        rewrite.kind,
        files_before=_sum(summary, "deleted-data-files", "removed-delete-files"),
        files_after=_sum(summary, "added-data-files", "added-delete-files"),
        bytes_rewritten=_sum(summary, "added-files-size"),
        snapshot_id=snapshot.snapshot_id,
    )


def _sum(summary: Mapping[str, str], *keys: str) -> int:
    return sum(int(summary.get(key, 0)) for key in keys)


def sync_snapshot(context: UpkeepContext, table: Table, snapshot: Snapshot) -> None:
    """Syncs the files that a snapshot has added on this machine, because the files that it replaced will be deleted.

    Raises:
        UnavailableError: one of the files could not be synced.
    """
    if not is_on_this_machine(table):
        return
    files = added_files(context, table, snapshot)
    sync_files({*files, *(m.manifest_path for m in _added_manifests(context, table, snapshot)), snapshot.manifest_list})
    sync_metadata(table)


def added_files(context: UpkeepContext, table: Table, snapshot: Snapshot) -> list[str]:
    """Returns the data and delete files that a snapshot has added."""
    return [
        entry.data_file.file_path
        for manifest in _added_manifests(context, table, snapshot)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.snapshot_id == snapshot.snapshot_id
    ]


def _added_manifests(context: UpkeepContext, table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    every = context.store.read_manifests(table.io, snapshot.manifest_list)
    return [manifest for manifest in every if manifest.added_snapshot_id == snapshot.snapshot_id]


def is_on_this_machine(table: Table) -> bool:
    """Returns whether files of the table are on this machine."""
    properties = table.metadata.properties
    places = (table.location(), properties.get("write.data.path", ""), properties.get("write.metadata.path", ""))
    return any(local_path(place) is not None for place in places if place)
