"""The one way rows get into a table: a commit that lands on the state whose position was checked, or not at all.

PyIceberg's transaction and Java's both refresh and rebase when another writer was faster, which writes the same
offsets twice. Here a conflict means: load the table, look at its position, and only if that is still the expected
one build the commit anew on the new state.

Each attempt requires main to be at its base. Once main has moved on, an attempt that got no answer can no longer
land; before that it still may, and nothing of it is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.manifest import DataFile

from frazil.errors import (
    CircuitOpenError,
    ConflictError,
    FrazilError,
    NotAllowedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.observe.resilience import worth_retrying
from frazil.tables import metrics
from frazil.tables.commit_draft import Draft, draft_append, expire_old_snapshots
from frazil.tables.create import needs_first_snapshot, require_writable
from frazil.tables.discard_queue import delete
from frazil.tables.durability import sync_metadata
from frazil.tables.errors import CommitUnknownError, PositionMovedError, with_attributes
from frazil.tables.position import Position, find_batch, find_position, list_ancestors
from frazil.tables.properties import require_no_replica
from frazil.tables.snapshot_retention import find_unreferenced_metadata
from frazil.tables.store import TableStore, back_off

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = get_logger(__name__)


@dataclass(frozen=True)
class Commit:
    """A commit that landed.

    Attributes:
        table: with the commit; take it for the next one, which then needs no load.
        position: reached.
        snapshot_id: of the snapshot that carries it.
        tries: how many it took.
        found: it had landed without a reply, and was found in the table.
    """

    table: Table
    position: Position
    snapshot_id: int
    tries: int
    found: bool


def commit_append(
    store: TableStore,
    table: Table,
    files: Sequence[DataFile],
    *,
    expected: Position | None,
    reached: Position,
    keep_snapshots: int = 50,
    tries: int = 30,
    on: int | None = None,
) -> Commit:
    """Adds files and moves the position from `expected` to `reached`, in one step and exactly once.

    It may be repeated with the same arguments after any error: a batch id that is in the table is not written again.

    Args:
        store: where.
        table: as the caller knows it; it may be out of date.
        files: written already; none where a batch holds nothing for this table. One without a spec id is taken
            to be partitioned as `table` is by default.
        expected: what the files were planned on.
        reached: what the table holds with them. Its batch id must be new for each set of files.
        keep_snapshots: how many snapshots stay for time travel; up to a fifth more before old ones go together.
        tries: attempts against commits of others.
        on: id of the snapshot that the files were made for, where some of them delete rows of it: the commit then
            lands on no other.

    Raises:
        PositionMovedError: another writer moved the position, or the table away from `on`. The files are deleted: plan
            anew.
        RolledBackError: the table was rolled back.
        CommitUnknownError: no answer, and the table does not show the batch (yet). The files are left alone.
        ConflictError: too many commits of others, or the table was replaced. The files are left alone.
    """
    _check(expected, reached)
    require_writable(table)
    require_no_replica(table)
    if needs_first_snapshot(store, table):
        raise UnsupportedError(
            f"the first commit to {'.'.join(table.name())} cannot be distinguished from another writer's on this "
            f"catalog",
            hint="let Frazil create the table (ensure_table), or insert a first row with another engine",
        )
    for file in files:
        if not hasattr(file, "_spec_id"):  # PyIceberg's writers leave it open
            file.spec_id = table.metadata.default_spec_id
    started = time.monotonic()
    try:
        return _Append(store, files, expected, reached, keep_snapshots, on).run(table, tries)
    finally:
        metrics.SECONDS.inc(time.monotonic() - started)


def _check(expected: Position | None, reached: Position) -> None:
    if expected is None:
        return
    same = (expected.sink, expected.topic, expected.log_id) == (reached.sink, reached.topic, reached.log_id)
    back = [p for p, offset in expected.offsets.items() if reached.offsets.get(p, -1) < offset]
    if not same or back or expected.batch_id == reached.batch_id:
        raise UsageError(
            f"a commit cannot advance from {expected} of '{expected.topic}' to {reached} of '{reached.topic}'",
            cause="same sink, topic and log, no partition backwards, and a new batch id",
        )


class _Append:
    """One call of `commit_append`, over all its attempts."""

    def __init__(
        self,
        store: TableStore,
        files: Sequence[DataFile],
        expected: Position | None,
        reached: Position,
        keep_snapshots: int,
        on: int | None,
    ) -> None:
        self._on = on
        self._store = store
        self._files = files
        self._expected = expected
        self._reached = reached
        self._keep = keep_snapshots
        #: Attempts that did not land, as far as is known. Their metadata files are deleted when that is certain.
        self._failed: list[Draft] = []
        self._silent = 0

    def run(self, table: Table, tries: int) -> Commit:
        for attempt in range(1, tries + 1):
            current = find_position(table, self._reached.sink, self._reached.topic)
            if current != self._expected:
                if (landed := self._landed(table, current)) is not None:
                    return self._found(table, landed, attempt)
                self._lost(table, current)
            if self._on is not None and table.metadata.current_snapshot_id != self._on:
                self._lost(table, current)
            draft = draft_append(self._store, table, self._files, self._reached)
            draft = expire_old_snapshots(self._store, draft, self._keep)
            try:
                after = self._send(draft)
            except CircuitOpenError:  # nothing was sent
                raise
            except ConflictError:
                metrics.CONFLICTS.inc()
                table = self._reload(draft)
                back_off(attempt)
            except Exception as error:  # noqa: BLE001 - whatever it was, the commit may have landed
                table = self._after_silence(draft, error)
            else:
                return self._done(draft, after, attempt)
        metrics.COMMITS.labels("failed").inc()
        raise ConflictError(
            f"{tries} commits to {'.'.join(table.name())} failed because another writer committed first",
            hint="try again; if it persists, find out who else writes: frazil table snapshots",
        )

    def _send(self, draft: Draft) -> Table:
        catalog, base = self._store.catalog, draft.base
        reach("tables.commit.before")
        response = self._store.call_once(lambda: catalog.commit_table(base, draft.requirements, draft.updates))
        reach("tables.commit.after")
        return apply_response(base, response.metadata, response.metadata_location)

    def _reload(self, draft: Draft) -> Table:
        self._failed.append(draft)
        reach("tables.commit.lookup.before")
        try:
            table = self._store.load(draft.base.name())
        except UnavailableError as error:
            self._unknown(draft.base, error)
        reach("tables.commit.lookup.after")
        if table.metadata.table_uuid != draft.base.metadata.table_uuid:
            metrics.COMMITS.labels("failed").inc()
            raise ConflictError(
                f"the table {'.'.join(table.name())} was dropped and recreated during the write",
                hint="start again; the new table has no position yet",
            )
        return table

    def _after_silence(self, draft: Draft, error: Exception) -> Table:
        """Reloads the table after a commit whose reply was lost, if the commit may be retried."""
        table = self._reload(draft)
        if find_position(table, self._reached.sink, self._reached.topic) != self._expected:
            return table  # which says whether it was this attempt that moved it
        if table.metadata_location != draft.base.metadata_location and not isinstance(error, NotAllowedError):
            # Built on what others have changed: a snapshot that we wanted to remove is gone already, say.
            metrics.CONFLICTS.inc()
            return table
        self._silent += 1
        if not (isinstance(error, FrazilError) and _may_repeat(error)):
            metrics.COMMITS.labels("failed").inc()
            raise error
        if self._silent >= self._store.network.retry_attempts:
            self._unknown(table, error)
        back_off(self._silent + 3)
        # On an unmoved base either this attempt or the next can land, never both.
        return table

    def _unknown(self, table: Table, error: FrazilError) -> NoReturn:
        metrics.COMMITS.labels("unknown").inc()
        raise CommitUnknownError(
            f"a commit to {'.'.join(table.name())} got no response; its outcome is unknown",
            cause=error.message,
            hint="try again: a batch that was committed is detected and not written twice",
        ) from error

    def _landed(self, table: Table, current: Position | None) -> Position | None:
        """Returns the position of our batch if it has landed; later commits may be built on it."""
        if current is not None and current.batch_id == self._reached.batch_id:
            return current
        return find_batch(table.metadata, self._reached)

    def _found(self, table: Table, landed: Position, attempt: int) -> Commit:
        metrics.COMMITS.labels("found").inc()
        metrics.LOST_REPLIES.inc()
        sync_metadata(table)
        others = [d for d in self._failed if d.snapshot.snapshot_id != landed.anchor]
        if len(others) < len(self._failed):  # it was one of these, so that the others were not
            self._clean(table, others)
        return Commit(table, landed, landed.anchor or -1, attempt, found=True)

    def _lost(self, table: Table, current: Position | None) -> NoReturn:
        metrics.COMMITS.labels("lost").inc()
        if self._cannot_have_landed(table):
            self._clean(table, self._failed)
            delete(table.io, [file.file_path for file in self._files])
        else:
            log.warning(
                "files of a failed batch are left for upkeep", table=".".join(table.name()), files=len(self._files)
            )
        reach("tables.commit.cleanup.after")
        raise with_attributes(
            PositionMovedError(
                f"another writer moved {'.'.join(table.name())} from {self._expected or 'nothing'} "
                f"to {current or 'nothing'} of '{self._reached.topic}'"
                if current != self._expected
                else f"another writer has committed to {'.'.join(table.name())} since its rows were read",
                hint="plan again from the current snapshot",
            ),
            table=table,
            position=current,
        )

    def _cannot_have_landed(self, table: Table) -> bool:
        """Whether the history is known back to where the batch would stand, and main has left all bases behind."""
        bases = {d.base.metadata.current_snapshot_id for d in self._failed}
        if table.metadata.current_snapshot_id in bases:
            return False
        oldest = self._failed[0].snapshot.sequence_number or 0 if self._failed else 0
        floor = self._expected.sequence if self._expected and self._expected.sequence else oldest
        reaches_back = any((s.sequence_number or 0) <= floor for s in list_ancestors(table.metadata))
        ours = {d.snapshot.snapshot_id for d in self._failed}
        return reaches_back and not ours & {s.snapshot_id for s in table.metadata.snapshots}

    def _done(self, draft: Draft, table: Table, attempt: int) -> Commit:
        metrics.COMMITS.labels("landed").inc()
        sync_metadata(table)
        self._store.cache_manifests(draft.snapshot.manifest_list, draft.manifests)
        self._clean(table, self._failed)
        discard_replaced_metadata(self._store, draft, table)
        reach("tables.commit.cleanup.after")
        snapshot_id = draft.snapshot.snapshot_id
        position = self._reached.anchored(snapshot_id, draft.snapshot.sequence_number or 0)
        return Commit(table, position, snapshot_id, attempt, found=False)

    def _clean(self, table: Table, drafts: Sequence[Draft]) -> None:
        """Deletes the metadata files of attempts that did not land and no longer can."""
        reach("tables.commit.cleanup.before")
        for draft in drafts:
            delete(table.io, draft.written)


def _may_repeat(error: FrazilError) -> bool:
    # The catalog said itself that it does not know: as good as no answer.
    return worth_retrying(error) or type(error) is FrazilError


def apply_response(base: Table, metadata: object, metadata_location: str) -> Table:
    """Builds the table that a commit's response describes, without another request."""
    from pyiceberg.table import Table

    return Table(base.name(), metadata, metadata_location, base.io, base.catalog, base.config)  # type: ignore[arg-type]


def _deletes_metadata(table: Table) -> bool:
    return table.metadata.properties.get("write.metadata.delete-after-commit.enabled", "").lower() == "true"


def discard_replaced_metadata(store: TableStore, draft: Draft, table: Table) -> None:
    """Queues what nothing refers to after the commit. It cannot fail the commit, which has landed."""
    try:
        loose = find_unreferenced_metadata(store, table.io, draft.gone, draft.manifests)
    except FrazilError as error:
        log.warning("old metadata files are left for upkeep", table=".".join(table.name()), error=error.message)
        loose = []
    # A REST server sees to its own.
    if isinstance(store.catalog, MetastoreCatalog) and _deletes_metadata(table):
        kept = {entry.metadata_file for entry in table.metadata.metadata_log}
        loose += [e.metadata_file for e in draft.base.metadata.metadata_log if e.metadata_file not in kept]
    store.discards.add(table.io, loose)
