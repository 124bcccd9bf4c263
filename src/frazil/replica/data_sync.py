"""Data-file mode: a replicated folder of bare Parquet files becomes an Iceberg table, and stays equal to it.

Files are registered where they landed, by their footers. The table changes by one commit, on the state that the
decision was made on; columns are added before it, once all files fit.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING

from frazil.errors import ConflictError, FrazilError
from frazil.observe.cancellation import StoppedError, raise_if_stopped
from frazil.observe.logs import get_logger
from frazil.observe.progress import Progress
from frazil.replica.data_entries import GatheredFiles, gather_files
from frazil.replica.data_files import LISTING, PATH, ROLE, SYNC, require_own
from frazil.replica.data_plan import DataSyncPlan, KnownDataFiles
from frazil.replica.places import location_in
from frazil.replica.report import Action, SyncReport
from frazil.replica.runs import record_run
from frazil.tables.create import assign_field_ids, ensure_table
from frazil.tables.registration.columns import set_columns
from frazil.tables.registration.commit import RegisteredFile, Registration, register_files
from frazil.tables.schema_evolution import evolve_schema
from frazil.tables.store import find_table
from frazil.upkeep.runs.run import Limits, Report, run_upkeep

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables.relocation.engine import Engine
    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

#: Attempts against others that create the table, or add columns, at the same time.
_TRIES = 5


@dataclass(frozen=True)
class DataSyncReport(SyncReport):
    """What a sync of bare Parquet files has done. `files_new` counts replaced files too.

    Attributes:
        files: in the table now.
        rows: in the new files.
        replaced: files that were written anew in place, and are registered anew.
        removed: files that were taken out of the table: gone from the folder, or written anew without rows.
        gone: files that are in the table, and no longer in the folder.
        waiting: files that are still growing, or were cut short, with the reason.
        rejected: files that are not Parquet, or are damaged, with the reason.
        columns_added: that the table did not have.
        compacted: files whose rows were written into larger ones after the sync.
    """

    files: int = 0
    rows: int = 0
    replaced: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    columns_added: tuple[str, ...] = ()
    compacted: int = 0


def run_data_sync(
    care: UpkeepContext,
    plan: DataSyncPlan,
    engine: Engine,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> DataSyncReport:
    """Registers the plan's files and takes out what is gone, in one commit. Nothing is changed if there is nothing new.

    It may be repeated after any error, and run at the same time as another one: a file is registered once.

    Args:
        care: of the replica's catalog.
        plan: of `plan_data_sync`; it may be out of date.
        engine: that reads footers.
        progress: receives counts of what is done.
        stop: ends it before the commit; by default that of `care`.

    Raises:
        SchemaMismatchError: columns of a file do not fit the others'. The table is as it was.
        PartitionError: the partition of a file cannot be known from its footer. The table is as it was.
        ConflictError: others have written to the table.
        StoppedError: `stop` was set.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    name = plan.config.name
    try:
        report = _Sync(care, plan, engine, progress, stop or care.stop).run()
    except FrazilError as error:
        record_run(care.store, name, "failed", started_at, time.monotonic() - began, error=error)
        raise
    report = replace(report, seconds=time.monotonic() - began)
    if report.action in ("created", "updated"):
        record_run(
            care.store, name, report.action, started_at, report.seconds, report=report.to_dict(),
            replicated_path=plan.config.replicated_path,
        )  # fmt: skip
        log.info("a replica is up to date", table=name, files=report.files_new, removed=len(report.removed))
    return report


def compact_table(care: UpkeepContext, report: DataSyncReport) -> DataSyncReport:
    """Compacts small files of a table and merges its manifests, as its policy asks, in the table's own folder.

    Replicated files stay as they are, and are known to the next sync. What fails is a warning: the sync has happened.

    Args:
        care: of the replica's catalog.
        report: of the sync before.
    """
    try:
        done = run_upkeep(care, report.identifier, Limits(kinds=("compact", "manifests")))
    except StoppedError:
        raise
    except FrazilError as error:
        done = Report(report.identifier, errors=[error])
    compacted = sum(outcome.files_before for outcome in done.outcomes if outcome.kind == "compact")
    failed = tuple(f"it was not compacted: {error.in_one_line}" for error in done.errors)
    return replace(report, compacted=compacted, warnings=(*report.warnings, *failed))


class _Sync:
    """One run."""

    def __init__(
        self, care: UpkeepContext, plan: DataSyncPlan, engine: Engine, progress: Progress | None, stop: Event
    ) -> None:
        self._care, self._store = care, care.store
        self._plan, self._config = plan, plan.config
        self._engine, self._progress, self._stop = engine, progress, stop
        self._created = False
        self._columns_added: tuple[str, ...] = ()
        #: Registered again because they were compacted together with files that have changed.
        self._separated: set[str] = set()
        #: Of the table, and without rows now.
        self._emptied: set[str] = set()

    def run(self) -> DataSyncReport:
        table = self._plan.table
        if not self._plan.has_work:
            return self._describe(table, GatheredFiles(), Registration(), self._plan.registered_count)
        for attempt in range(_TRIES):
            if attempt:
                table = find_table(self._store, self._config.name)
                if table is not None:
                    require_own(table, self._config.replicated_path)
            gathered = gather_files(self._care, self._config, self._plan.files, table, self._engine, self._progress)
            raise_if_stopped(self._stop)
            has_emptied = not gathered.empty.isdisjoint(file.path for file in self._plan.replaced)
            if not gathered.entries and not self._to_prune and not (has_emptied and table is not None):
                return self._describe(table, gathered, Registration(), self._plan.registered_count)
            prepared = self._prepare_table(table, gathered)
            if prepared is not None:
                return self._commit(prepared, gathered)
        raise ConflictError(
            f"others created or changed {self._config.name} at the same time, again and again", hint="sync again"
        )

    @property
    def _to_prune(self) -> Collection[str]:
        return self._plan.gone if self._config.prune_missing else ()

    def _prepare_table(self, table: Table | None, gathered: GatheredFiles) -> Table | None:
        """The table with the columns that the entries were made for; None if it has got others."""
        schema, spec = gathered.schema, gathered.spec
        if table is None:
            assert schema is not None
            assert spec is not None
            plain = assign_field_ids(schema)
            has_own_ids = plain.as_struct() != schema.as_struct()
            table = ensure_table(
                self._store,
                self._config.name,
                plain,
                partition=() if has_own_ids else spec,
                properties=self._properties,
                location=location_in(self._config.warehouse, self._config.identifier),
            )
            require_own(table, self._config.replicated_path)
            self._created = True
            if has_own_ids and table.metadata.current_snapshot_id is None:
                table = set_columns(self._store, table, schema, spec)
        elif schema is not None and schema.as_struct() != table.schema().as_struct():
            table = evolve_schema(self._store, table, schema, widen=True)
            self._columns_added = gathered.columns_added
        if schema is None:
            return table
        same_spec = [(f.source_id, f.transform) for f in table.spec().fields] == [
            (f.source_id, f.transform) for f in (spec.fields if spec else ())
        ]
        return table if same_spec and table.schema().as_struct() == schema.as_struct() else None

    @property
    def _properties(self) -> dict[str, str]:
        return {ROLE: "replica", PATH: self._config.replicated_path, "gc.enabled": "false"}

    def _commit(self, table: Table, gathered: GatheredFiles) -> DataSyncReport:
        spec_id = table.spec().spec_id
        for entry in gathered.entries:
            entry.spec_id = spec_id
        count = 0

        def decide(now: Table, registered: Mapping[str, RegisteredFile]) -> Registration | None:
            nonlocal count
            require_own(now, self._config.replicated_path)
            raise_if_stopped(self._stop)
            change = self._decide(now, gathered, KnownDataFiles.read(self._store, now, registered))
            count = len(registered) + len(change.added) - len(change.removed)
            return change if change.added or change.removed else None

        known = self._plan.registered if table is self._plan.table else None
        table, done = register_files(
            self._store,
            table,
            decide,
            properties=self._properties,
            keep_snapshots=self._config.keep_snapshots,
            known=known,
        )
        return self._describe(table, gathered, done, count)

    def _decide(self, now: Table, gathered: GatheredFiles, known: KnownDataFiles) -> Registration:
        """Returns what the table still lacks. Files whose compacted rows have changed stand apart again."""
        registered, compacted, sizes = known.registered, known.compacted, known.sizes
        changed = {e.file_path for e in gathered.entries if sizes.get(e.file_path) != e.file_size_in_bytes}
        self._emptied = gathered.empty & sizes.keys()
        leaving = self._emptied.union(self._to_prune)
        removed, apart = known.take_back((changed | leaving) & compacted.keys())
        added = [e for e in gathered.entries if e.file_path in changed or e.file_path in apart]
        if lost := sorted(apart - leaving - {e.file_path for e in added}):
            raise ConflictError(
                f"files of {self._config.name} that have changed were compacted together with {lost[0]}",
                cause=f"{len(lost)} such files cannot be registered again: they are gone from the folder, or damaged",
                hint="--prune-missing, or sync again when they are back",
            ).adding("nothing was changed", lost=lost)
        removed |= {path for path in changed | leaving if path in registered}
        self._separated = apart - changed - leaving
        return Registration(added, sorted(removed), self._summarize(now, gathered, known))

    def _summarize(self, now: Table, gathered: GatheredFiles, known: KnownDataFiles) -> dict[str, str]:
        """Returns the fields of the snapshot: with the folder's fingerprint if the table equals the listing then."""
        plan = self._plan
        if plan.table is None:
            is_as_planned = not known.registered
        else:
            is_as_planned = now.metadata.current_snapshot_id == plan.table.metadata.current_snapshot_id
        is_equal = is_as_planned and gathered.is_final and (not plan.gone or self._config.prune_missing)
        found = {SYNC: self._config.replicated_path}
        return found | {LISTING: plan.listing.fingerprint} if is_equal else found

    def _describe(self, table: Table | None, gathered: GatheredFiles, done: Registration, files: int) -> DataSyncReport:
        gone, pruned = set(self._plan.gone), set(self._to_prune)
        waiting = tuple(f"{one.path}: {one.reason}" for one in gathered.unusable if one.kind == "waiting")
        rejected = tuple(f"{one.path}: {one.reason}" for one in gathered.unusable if one.kind in ("foreign", "damaged"))
        is_changed = bool(done.added or done.removed)
        action: Action = "waiting" if waiting else "unchanged"
        if is_changed:
            action = "created" if self._created else "updated"
        added = [entry for entry in done.added if entry.file_path not in self._separated]
        names = {entry.file_path for entry in added}
        metadata = table.metadata if table is not None else None
        return DataSyncReport(
            self._config.name,
            action,
            source_metadata=None,
            version=None,
            witnessed=False,
            snapshots=len(metadata.snapshots) if metadata is not None else 0,
            files_new=len(added),
            snapshot_id=metadata.current_snapshot_id if metadata is not None else None,
            metadata_location=table.metadata_location if table is not None else None,
            warnings=tuple(self._warn(gone - pruned, rejected)),
            files=files,
            rows=sum(entry.record_count for entry in added),
            replaced=tuple(sorted(names & {file.path for file in self._plan.replaced})),
            removed=tuple(sorted(gone & pruned | self._emptied)) if is_changed else (),
            gone=tuple(sorted(gone - pruned)),
            waiting=waiting,
            rejected=rejected,
            columns_added=self._columns_added if is_changed else (),
        )

    def _warn(self, gone: Collection[str], rejected: Collection[str]) -> Iterator[str]:
        if gone:
            yield f"{len(gone)} files of the table are no longer in the folder, such as {min(gone)}: --prune-missing"
        if rejected:
            yield f"{len(rejected)} files are not registered, such as {min(rejected)}"
