"""Data-file mode: a replicated folder of bare Parquet files becomes an Iceberg table, and stays equal to it.

Files are registered where they landed, by their footers. What is known of the folder is the table itself: a file whose
path and size stand in a manifest is not looked at again, so that a sync that was interrupted is simply repeated. That
holds for files whose rows a compaction has moved, too: their entries stay in the history. Tables change by one commit,
on the state that the decision was made on; columns are added before it, once all files fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any

from pyiceberg.table.snapshots import Operation

from frazil.catalogs import parse_name
from frazil.errors import ConflictError, FrazilError, NotAllowedError, NotFoundError, UnsupportedError, UsageError
from frazil.observe.cancellation import raise_if_stopped
from frazil.observe.logs import get_logger
from frazil.observe.progress import Progress
from frazil.replica.data_entries import GatheredFiles, gather_files
from frazil.replica.runs import record_run
from frazil.replica.scan import ReplicatedFile, canonical_path, open_replica_files
from frazil.replica.sync import Action, SyncReport
from frazil.tables.create import assign_field_ids, ensure_table
from frazil.tables.metadata.locations import overlaps
from frazil.tables.position import list_ancestors
from frazil.tables.properties import set_properties
from frazil.tables.registration.columns import set_columns
from frazil.tables.registration.commit import (
    RegisteredFile,
    Registration,
    read_compacted,
    read_registered,
    register_files,
)
from frazil.tables.schema_evolution import evolve_schema
from frazil.tables.store import find_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from frazil.tables import TableStore
    from frazil.tables.relocation.engine import Engine
    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

#: `replica`, or `primary` after a failover.
ROLE = "frazil.replica.data-files"
PATH = "frazil.replica.replicated-path"
#: In the summary of each snapshot of a sync.
SYNC = "frazil.replica.sync"
_GC = "gc.enabled"
#: Attempts against others that create the table, or add columns, at the same time.
_TRIES = 5
#: Logs of other table formats: which of their files count is written there.
_OTHER_FORMATS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}


@dataclass(frozen=True)
class DataFileTable:
    """A folder of Parquet files to replicate as a table.

    Attributes:
        replicated_path: the folder that the files are copied to.
        identifier: of the replica's table.
        warehouse: where its metadata goes: `<warehouse>/<namespace>/<table>`.
        partition_by: how a new table is partitioned, as terms like `region` or `day(ts)`; by default by the folders
            like `year=2026` that there are.
        prune_missing: take files out of the table that are no longer in the folder.
        keep_snapshots: how many stay for time travel once the table may expire any.
    """

    replicated_path: str
    identifier: tuple[str, ...]
    warehouse: str
    partition_by: tuple[str, ...] = ()
    prune_missing: bool = False
    keep_snapshots: int = 50

    @property
    def name(self) -> str:
        return ".".join(self.identifier)


@dataclass(frozen=True)
class ReplacedFile:
    """A file that has another size than the table says."""

    path: str
    size: int
    size_before: int


@dataclass(frozen=True)
class DataSyncPlan:
    """What a sync will do, as far as the footers of new files allow.

    Attributes:
        config: with canonical places.
        new: files that the table does not have, or that could not be registered yet.
        replaced: files that were written anew in place.
        gone: paths in the table that are no longer in the folder.
        known: files that the table has.
        ignored: files that are left out by their names, such as `_SUCCESS`.
    """

    config: DataFileTable
    new: tuple[ReplicatedFile, ...]
    replaced: tuple[ReplacedFile, ...]
    gone: tuple[str, ...]
    known: int
    ignored: int
    table: Table | None = field(repr=False, default=None)
    registered: Mapping[str, RegisteredFile] = field(repr=False, default_factory=dict)

    @property
    def has_work(self) -> bool:
        return bool(self.new or self.replaced or (self.gone and self.config.prune_missing))

    @property
    def files(self) -> list[tuple[str, int]]:
        """Paths and sizes of the files whose footers are to be read."""
        return [(f.path, f.size) for f in self.new] + [(f.path, f.size) for f in self.replaced]

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON."""
        return {
            "table": self.config.name,
            "replicated_path": self.config.replicated_path,
            "action": "created" if self.table is None else "updated" if self.has_work else "unchanged",
            "known": self.known,
            "files_new": len(self.new),
            "bytes_new": sum(size for _, size in self.files),
            "replaced": [vars(file) for file in self.replaced],
            "gone": list(self.gone),
            "prune_missing": self.config.prune_missing,
            "ignored": self.ignored,
        }


@dataclass(frozen=True)
class DataSyncReport(SyncReport):
    """What a sync of bare Parquet files has done. `files_new` counts replaced files too.

    Attributes:
        files: in the table now.
        rows: in the new files.
        replaced: files that were written anew in place, and are registered anew.
        removed: files that were taken out of the table.
        gone: files that are in the table, and no longer in the folder.
        waiting: files that are still growing, or were cut short, with the reason.
        rejected: files that are not Parquet, or are damaged, with the reason.
        columns_added: that the table did not have.
    """

    files: int = 0
    rows: int = 0
    replaced: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    columns_added: tuple[str, ...] = ()


def plan_data_sync(
    care: UpkeepContext, config: DataFileTable, *, spark: Callable[[], SparkSession] | None = None
) -> DataSyncPlan:
    """Compares the folder with the table. Reads names, sizes and manifests, and no Parquet file. Changes nothing.

    Args:
        care: of the replica's catalog.
        config: what to replicate.
        spark: gives a session, for HDFS.

    Raises:
        ConflictError: others have written to the table, or it is another one's replica.
        NotFoundError: there is no file at all.
        NotAllowedError: the table is no replica, or the warehouse lies in the folder.
        UsageError: the folder holds the metadata of a table.
    """
    root = canonical_path(config.replicated_path).rstrip("/")
    identifier = parse_name(config.name, care.store.settings.name)
    config = replace(config, replicated_path=root, identifier=identifier)
    table = find_table(care.store, config.name)
    _require_apart(config, root, table)
    if table is not None:
        require_own(table, root)
    registered = {} if table is None else read_registered(care.store, table)
    s3 = care.catalog.s3 or care.settings.model.s3
    files = open_replica_files(root, s3=s3, network=care.settings.model.network, spark=spark)
    found = _Found(root)
    new: list[ReplicatedFile] = []
    replaced: list[ReplacedFile] = []
    compacted = {} if table is None else read_compacted(care.store, table)
    sizes = compacted | {path: known.size for path, known in registered.items()}
    unseen = {path for path in sizes if path.startswith(f"{root}/")}
    for file in found.select(files.list()):
        size = sizes.get(file.path)
        if size is None:
            new.append(file)
            continue
        unseen.discard(file.path)
        if size != file.size:
            replaced.append(ReplacedFile(file.path, file.size, size))
    if not found.count:
        raise NotFoundError(
            f"there are no data files in {root}",
            cause=f"the table {config.name} has {len(registered)} files there" if registered else None,
            hint="check that the folder is mounted, and that the replication has run",
        )
    changed = {file.path for file in replaced} | (unseen if config.prune_missing else set())
    _require_separate(config.name, changed, registered, compacted)
    new.sort(key=lambda file: file.path)
    known = len(registered) + len(compacted.keys() - registered.keys())
    return DataSyncPlan(
        config, tuple(new), tuple(replaced), tuple(sorted(unseen)), known, found.ignored, table, registered
    )


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


def release_table(store: TableStore, name: str) -> Table:
    """Makes a table in data-file mode writable, as a failover has it: no sync touches it any more.

    Raises:
        NotFoundError: there is no such table.
    """
    return set_properties(store, store.load(name), {ROLE: "primary", _GC: None})


def is_data_file_replica(properties: Mapping[str, str]) -> bool:
    """Returns whether properties are those of a table in data-file mode, also after its failover."""
    return ROLE in properties


def require_own(table: Table, root: str) -> None:
    """Refuses a table that is no replica of this folder, or that others have written to.

    Raises:
        NotAllowedError: it is no replica, or no longer.
        ConflictError: it belongs to another folder, or others have written to it.
    """
    name, properties = ".".join(table.name()), table.metadata.properties
    current = table.metadata.current_snapshot()
    role = properties.get(ROLE)
    if role is None and current is None:
        return  # prepared by someone who wants other columns or partitions
    if role != "replica":
        raise NotAllowedError(
            f"the table {name} exists, and is {'no replica any more' if role else 'not a replica of data files'}",
            hint="choose another name, or drop the table from the catalog without its files",
        )
    if properties.get(PATH) != root:
        raise ConflictError(
            f"the table {name} is the replica of another folder than {root}",
            cause=f"it is that of {properties.get(PATH)}",
            hint="choose another name for this folder",
        )
    foreign = _list_foreign(table)
    if foreign:
        raise ConflictError(
            f"another writer committed to the replica {name}: {len(foreign)} snapshots are not from a sync",
            cause=", ".join(foreign[:5]),
            hint="roll the table back to the last sync's snapshot, or fail over and write to it as a primary",
        ).adding("nothing was changed", written=foreign)


def _list_foreign(table: Table) -> list[str]:
    """Commits of others since the last sync, newest first."""
    found: list[str] = []
    for snapshot in list_ancestors(table.metadata):
        summary = snapshot.summary
        operation = summary.operation.value if summary else "unknown"
        extra = summary.additional_properties if summary else {}
        # Catalogs that need a first snapshot get one without files.
        if SYNC in extra or (snapshot.parent_snapshot_id is None and extra.get("total-data-files", "0") == "0"):
            return found
        if operation != Operation.REPLACE.value:  # a compaction changes no row
            found.append(f"{snapshot.snapshot_id} ({operation})")
    return found


def _require_separate(
    name: str, changed: Iterable[str], registered: Mapping[str, RegisteredFile], compacted: Mapping[str, int]
) -> None:
    """Refuses to take back files whose rows lie among those of others since a compaction."""
    lost = sorted(path for path in changed if path in compacted and path not in registered)
    if lost:
        raise ConflictError(
            f"{lost[0]} has changed since its rows were compacted into other files of {name}",
            cause=f"{len(lost)} such files were written anew or removed",
            hint="drop the table from the catalog without its files, and sync: the folder is registered anew",
        ).adding("nothing was changed", changed=lost)


def _require_apart(config: DataFileTable, root: str, table: Table | None) -> None:
    location = table.location() if table is not None else _location_of(config)
    if overlaps(canonical_path(location), root):
        raise NotAllowedError(
            f"metadata of {config.name} cannot lie in {location}: that is in the replicated storage",
            cause=f"{root} is written by the replication, which may be read-only, or delete what is not its own",
            hint="choose another --warehouse",
        )


def _location_of(config: DataFileTable) -> str:
    return "/".join([canonical_path(config.warehouse).rstrip("/"), *config.identifier])


class _Found:
    """Selects data files by their names: all but hidden ones, as Spark and Hive do."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.count = 0
        self.ignored = 0

    def select(self, files: Iterable[ReplicatedFile]) -> Iterator[ReplicatedFile]:
        start = len(self._root) + 1
        for file in files:
            relative = file.path[start:]
            if relative.endswith(".metadata.json"):
                raise UsageError(
                    f"{self._root} holds the metadata of an Iceberg table: {relative}",
                    hint="sync it in metadata mode, or name the folder of its data files",
                )
            if self._is_ignored(relative):
                self.ignored += 1
            else:
                self.count += 1
                yield file

    def _is_ignored(self, relative: str) -> bool:
        if relative.endswith("._COPYING_"):
            return True
        text = f"/{relative}"
        if "/_" not in text and "/." not in text:
            return False
        for part in relative.split("/"):
            if part in _OTHER_FORMATS:
                raise UnsupportedError(
                    f"{self._root} is a table of {_OTHER_FORMATS[part]}: {relative}",
                    cause="some of its files do not count any more",
                    hint="convert it to Iceberg on the primary",
                )
            if part.startswith(".") or (part.startswith("_") and "=" not in part):
                return True
        return False


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

    def run(self) -> DataSyncReport:
        table = self._plan.table
        if not self._plan.has_work:
            return self._describe(table, GatheredFiles(), Registration(), len(self._plan.registered))
        for attempt in range(_TRIES):
            if attempt:
                table = find_table(self._store, self._config.name)
                if table is not None:
                    require_own(table, self._config.replicated_path)
            gathered = gather_files(self._care, self._config, self._plan.files, table, self._engine, self._progress)
            raise_if_stopped(self._stop)
            if not gathered.entries and not self._to_prune:
                return self._describe(table, gathered, Registration(), len(self._plan.registered))
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
                location=_location_of(self._config),
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
        return {ROLE: "replica", PATH: self._config.replicated_path, _GC: "false"}

    def _commit(self, table: Table, gathered: GatheredFiles) -> DataSyncReport:
        spec_id = table.spec().spec_id
        for entry in gathered.entries:
            entry.spec_id = spec_id
        count = 0

        def decide(now: Table, registered: Mapping[str, RegisteredFile]) -> Registration | None:
            nonlocal count
            require_own(now, self._config.replicated_path)
            raise_if_stopped(self._stop)
            compacted = read_compacted(self._store, now)
            entries = [e for e in gathered.entries if compacted.get(e.file_path) != e.file_size_in_bytes]
            added = [e for e in entries if _is_other(registered.get(e.file_path), e.file_size_in_bytes)]
            _require_separate(self._config.name, (e.file_path for e in added), registered, compacted)
            removed = [e.file_path for e in added if e.file_path in registered]
            removed += [path for path in self._to_prune if path in registered]
            count = len(registered) + len(added) - len(removed)
            return Registration(added, removed) if added or removed else None

        known = self._plan.registered if table is self._plan.table else None
        table, done = register_files(
            self._store,
            table,
            decide,
            summary={SYNC: self._config.replicated_path},
            properties=self._properties,
            keep_snapshots=self._config.keep_snapshots,
            known=known,
        )
        return self._describe(table, gathered, done, count)

    def _describe(self, table: Table | None, gathered: GatheredFiles, done: Registration, files: int) -> DataSyncReport:
        gone, pruned = set(self._plan.gone), set(self._to_prune)
        waiting = tuple(f"{one.path}: {one.reason}" for one in gathered.unusable if one.kind == "waiting")
        rejected = tuple(f"{one.path}: {one.reason}" for one in gathered.unusable if one.kind in ("foreign", "damaged"))
        is_changed = bool(done.added or done.removed)
        action: Action = "waiting" if waiting else "unchanged"
        if is_changed:
            action = "created" if self._created else "updated"
        removed = set(done.removed)
        metadata = table.metadata if table is not None else None
        return DataSyncReport(
            self._config.name,
            action,
            source_metadata=None,
            version=None,
            witnessed=False,
            snapshots=len(metadata.snapshots) if metadata is not None else 0,
            files_new=len(done.added),
            snapshot_id=metadata.current_snapshot_id if metadata is not None else None,
            metadata_location=table.metadata_location if table is not None else None,
            warnings=tuple(self._warn(gone - pruned, rejected)),
            files=files,
            rows=sum(entry.record_count for entry in done.added),
            replaced=tuple(e.file_path for e in done.added if e.file_path in removed),
            removed=tuple(sorted(removed - {e.file_path for e in done.added})),
            gone=tuple(sorted(gone - removed)),
            waiting=waiting,
            rejected=rejected,
            columns_added=self._columns_added if is_changed else (),
        )

    def _warn(self, gone: Collection[str], rejected: Collection[str]) -> Iterator[str]:
        if gone:
            yield f"{len(gone)} files of the table are no longer in the folder, such as {min(gone)}: --prune-missing"
        if rejected:
            yield f"{len(rejected)} files are not registered, such as {min(rejected)}"


def _is_other(known: RegisteredFile | None, size: int) -> bool:
    return known is None or known.size != size
