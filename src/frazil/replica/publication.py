"""Publishes a version as the replica's table by one commit, and takes back what others have committed to it."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING

from frazil.errors import ConflictError, FrazilError
from frazil.observe.cancellation import raise_if_stopped
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.observe.progress import Progress
from frazil.replica.choose import number_of
from frazil.replica.places import map_places, needs_jvm, open_target, s3_of
from frazil.replica.plan import choose_location
from frazil.replica.relocation import Files, Relocation, RelocationWork
from frazil.replica.state import (
    RelocatedFiles,
    ReplicaState,
    ServedTable,
    compute_fingerprint,
    read_prepared,
    strip_source_properties,
)
from frazil.tables.metadata.locations import UriStorage
from frazil.tables.publishing import plan_publication, publish, reserve_table
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.table_metadata import (
    TableMetadata,
    current_snapshot_id,
    format_metadata,
    relocate_metadata,
)

if TYPE_CHECKING:
    from frazil.replica.plan import ReplicaTable, SyncPlan
    from frazil.tables.relocation.engine import Engine
    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

#: Seconds after which relocated files of former versions are removed: queries that began on them have ended.
RETIRE_S = 86400.0


class Publication:
    """One run that publishes a version.

    Attributes:
        relocation: of its files.
        state: that the replica has with it.
        metadata: of the replica's table.
        location: of the metadata file that the catalog names.
        losses: what the catalog did not keep, a sentence each.
    """

    relocation: Relocation
    state: ReplicaState
    metadata: TableMetadata

    def __init__(
        self, care: UpkeepContext, plan: SyncPlan, engine: Engine, progress: Progress | None, stop: Event
    ) -> None:
        assert plan.publication is not None and plan.newest.candidate is not None
        self._care, self._plan, self._engine, self._progress, self._stop = care, plan, engine, progress, stop
        self._publication = plan.publication
        self._candidate = plan.newest.candidate
        self._source = strip_source_properties(plan.table.select(self._candidate))
        self.losses: tuple[str, ...] = ()
        self.location = ""

    def run(self) -> None:
        """Relocates what is new, and publishes.

        Raises:
            ConflictError: another writer was faster. The served table is as it was.
            StoppedError: the stop event was set.
        """
        if self._publication.method == "create+updates":
            reach("replica.reserve.before")
            self._publication = reserve_table(self._care.store, self._publication, self._source)
            reach("replica.reserve.after")
        self._work = self._prepare_work()
        self.relocation = Relocation(self._plan, self._work, self._engine, self._progress, self._stop)
        files = self.relocation.files
        before = files.list_sources()
        self.relocation.run()
        files.forget_all_but(self._candidate.metadata)
        over = self._retire(files, before)
        self._publish(files)
        self._remove(over)

    def _prepare_work(self) -> RelocationWork:
        found, assigned = self._plan.newest.places, self._publication.location
        assert found is not None
        if assigned is not None:
            # The table's own folder first.
            location = str(self._candidate.metadata["location"])
            found = PrefixMap(sorted(found.pairs, key=lambda pair: not PrefixMap([pair]).covers(location)))
        target = open_target(self._care, assigned or choose_location(self._plan.table, self._plan.served))
        places, homes = map_places(found, target.location, is_assigned=assigned is not None)
        return RelocationWork(self._reader(), target, places, homes, takes_lists=assigned is None)

    def _reader(self) -> Files:
        """Reads replicated files in any process; on HDFS in this one."""
        root = self._plan.files.root
        if needs_jvm(root):
            return self._plan.files
        return UriStorage(s3_of(self._care), self._care.settings.model.network, (root,))

    def _retire(self, files: RelocatedFiles, before: set[str]) -> list[str]:
        """Notes what the new version does not need any more. Returns what no query reads any more."""
        now, work = time.time(), self._work
        after = files.list_sources()
        if not work.is_in_place:
            for path in before - after:
                files.retired.setdefault(work.homes.map(path), now)
            for path in after:  # also what an interrupted run has relocated again, which is in `before`
                files.retired.pop(work.homes.map(path), None)
        if self._plan.served is not None:
            state = self._plan.served.state
            files.retired |= dict.fromkeys((state.prepared, state.files), now)
        over = [path for path, since in files.retired.items() if now - since > RETIRE_S]
        for path in over:
            del files.retired[path]
        return [path for path in over if path.startswith(f"{self._work.target.location}/")]

    def _remove(self, paths: list[str]) -> None:
        """Removes files of former versions. What cannot be removed costs nothing but space."""
        notes = self.relocation.notes
        for path in paths if notes is None else [*paths, notes]:
            try:
                self._work.target.open().delete(self._work.target.key_of(path))
            except FrazilError as error:
                log.warning("a file of a former version stays", path=path, error=error.message)

    def _publish(self, files: RelocatedFiles) -> None:
        target, served = self._work.target, self._plan.served
        token = uuid.uuid4()
        path = next_path(target.location, served.pointer if served else None, token)
        metadata = self._relocate_metadata()
        self.state = replace(self._make_state(path, token), content=compute_fingerprint(metadata))
        self.metadata = self.state.apply_to(metadata)
        if self.state.files:
            reach("replica.files.before")
            target.write(self.state.files, files.encode())
        reach("replica.metadata.before")
        target.write(path, format_metadata(self.metadata))
        reach("replica.flush.before")
        target.flush()
        reach("replica.flush.after")
        raise_if_stopped(self._stop)
        if self._progress is not None:
            self._progress.begin("publish", self._plan.table.name, files=1)
        reach("replica.publish.before")
        published = publish(self._care.store, self._publication, path, self.metadata)
        reach("replica.publish.after")
        self.location, self.losses = published.metadata_location, published.losses
        if self._progress is not None:
            self._progress.end()

    def _make_state(self, prepared: str, token: uuid.UUID) -> ReplicaState:
        plan, candidate, source = self._plan, self._candidate, self._source
        return ReplicaState(
            role="replica",
            uuid=candidate.uuid or str(source.get("table-uuid") or ""),
            source_metadata=candidate.source_path or candidate.file.path,
            updated_ms=candidate.version.updated_ms,
            witnessed=plan.newest.choice.witness is not None,
            parent=candidate.version.parent,
            snapshot_id=current_snapshot_id(source),
            replicated_path=plan.files.root,
            folder=plan.folder,
            prefixes=self._work.places.pairs,
            prepared=prepared,
            files=f"{self._work.target.location}/metadata/replica-{token}.json" if self._work.takes_lists else "",
            content="",
            synced_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            source_gc=str((source.get("properties") or {}).get("gc.enabled") or ""),
            source_name=plan.source_name,
        )

    def _relocate_metadata(self) -> TableMetadata:
        """Data, equality deletes and statistics are where they landed; lists are among the relocated files."""
        work, source = self._work, self._source
        wanted = self._publication.uuid or source.get("table-uuid")
        table_uuid = str(wanted or uuid.uuid5(uuid.NAMESPACE_URL, str(source["location"])))
        found = relocate_metadata(source, work.homes, metadata_log="drop", table_uuid=table_uuid)
        for name in ("statistics", "partition-statistics"):
            if source.get(name):
                found[name] = [
                    {**entry, "statistics-path": work.places.map(entry["statistics-path"])} for entry in source[name]
                ]
        return {**found, "location": self._work.target.location}


def republish(care: UpkeepContext, table: ReplicaTable, served: ServedTable, state: ReplicaState) -> None:
    """Publishes what the last sync published once more, with another state.

    What others have committed to the replica since is no longer there.

    Raises:
        ConflictError: the prepared metadata is missing, or another writer committed in between.
    """
    target = open_target(care, str(served.metadata["location"]))
    prepared = read_prepared(open_target(care, served.state.prepared.rpartition("/metadata/")[0]), served)
    if prepared is None:
        raise ConflictError(
            f"the writes to {table.name} cannot be taken back: {served.state.prepared} cannot be read",
            hint="drop the table from the replica's catalog without its files, and sync again",
        )
    path = next_path(target.location, served.pointer)
    metadata = replace(state, prepared=path).apply_to(prepared)
    publish_over(
        care, table.identifier, served.pointer, path, metadata, current_only=table.current_only, step="replica.discard"
    )


def publish_over(
    care: UpkeepContext,
    identifier: tuple[str, ...],
    pointer: str,
    path: str,
    metadata: TableMetadata,
    *,
    current_only: bool,
    step: str,
) -> str:
    """Replaces the metadata of a replica's table whose other files are all there. Returns what the catalog names then.

    Args:
        care: of the replica's catalog.
        identifier: of the table.
        pointer: the metadata file that it has now.
        path: of the new one, from `next_path`.
        metadata: its content.
        current_only: whether the catalog keeps the current snapshot only.
        step: what its fault points are called.

    Raises:
        ConflictError: another writer committed in between.
    """
    plan = plan_publication(care.store, identifier, metadata, replace=True, current_only=current_only, relocated=True)
    if plan.expected != pointer:
        name = ".".join(identifier)
        raise ConflictError(f"another writer is committing to {name}", hint="stop the writers, then try again")
    target = open_target(care, path.rpartition("/metadata/")[0])
    target.write(path, format_metadata(metadata))
    target.flush()
    reach(f"{step}.before")
    published = publish(care.store, plan, path, metadata)
    reach(f"{step}.after")
    return published.metadata_location


def next_path(location: str, pointer: str | None, token: uuid.UUID | None = None) -> str:
    """Returns the path of the next metadata file in the folder of a table."""
    number = max(number_of((pointer or "").rpartition("/")[2]), -1) + 1
    return f"{location}/metadata/{number:05}-{token or uuid.uuid4()}.metadata.json"
