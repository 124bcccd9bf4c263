"""Restores a table from a backup: its files first, then its metadata from the leaves to the root, then its name.

Nothing that exists is changed before the last step, which is one commit of the catalog. What an interrupted run leaves
are files that nothing refers to; the same restore finds them and continues.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

from frazil.backup.format import BlobRef
from frazil.backup.repository import Repository
from frazil.backup.restore_contents import SeenSet, iterate_files, map_folders, shorten
from frazil.backup.restore_location import (
    MARKER,
    choose_location,
    claim_folder,
    find_default_location,
    get_target_folder,
)
from frazil.backup.restore_plan import RestorePlan
from frazil.backup.restore_tasks import (
    ManifestTask,
    RestoreWork,
    batch_files,
    copy_files,
    find_missing_files,
    restore_list,
    restore_manifest,
)
from frazil.errors import ConflictError, IntegrityError
from frazil.observe.cancellation import raise_if_stopped
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.observe.progress import Progress
from frazil.tables.create import ensure_namespace
from frazil.tables.metadata.manifest_entries import POSITION_DELETES
from frazil.tables.publishing import PublicationPlan, Published, publish, reserve_table
from frazil.tables.relocation.engine import Engine
from frazil.tables.relocation.manifests import RelocatedManifest
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.table_metadata import TableMetadata, format_metadata, relocate_metadata

if TYPE_CHECKING:
    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

#: Properties of a restored table: the backup, the snapshot that it was restored at, and the metadata file that the
#: catalog named before, for `rollback`.
BACKUP_PROPERTY = "frazil.restore.backup"
SNAPSHOT_PROPERTY = "frazil.restore.snapshot-id"
PREVIOUS_PROPERTY = "frazil.restore.previous-metadata-location"

#: Files and bytes of one task.
_FILES, _BYTES = 16, 64 * 1024 * 1024


@dataclass(frozen=True)
class RestoreReport:
    """What a restore has done.

    Attributes:
        action: `keep`: the table existed, and nothing was done.
        metadata_location: of the restored table.
        uuid: of the restored table.
        files: copied or rewritten, metadata excluded.
        bytes: of these.
        skipped_files: that an earlier run had copied.
        skipped_bytes: of these.
        previous: the metadata file that the catalog named before.
    """

    name: str
    catalog: str
    action: Literal["create", "replace", "keep"]
    location: str | None = None
    metadata_location: str | None = None
    uuid: str | None = None
    snapshot_id: int | None = None
    snapshots: int = 0
    files: int = 0
    bytes: int = 0
    skipped_files: int = 0
    skipped_bytes: int = 0
    seconds: float = 0.0
    previous: str | None = None
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        return {
            **vars(self),
            "seconds": round(self.seconds, 3),
            "losses": list(self.losses),
            "warnings": list(self.warnings),
        }


def run_restore(
    care: UpkeepContext,
    repository: Repository,
    plan: RestorePlan,
    engine: Engine,
    progress: Progress | None = None,
    stop: Event | None = None,
) -> RestoreReport:
    """Restores a table as planned.

    Args:
        care: of the catalog that the table will be in.
        repository: that holds the backup.
        plan: of `plan_restore`.
        engine: that runs the tasks.
        progress: receives counts of what is done.
        stop: ends it before the next step; by default that of `care`.

    Raises:
        ConflictError: the name or the folder was taken since the plan was made.
        IntegrityError: the repository lacks a file, or one is damaged. Nothing was published.
        StoppedError: `stop` was set.
    """
    if plan.publication is None:
        return RestoreReport(plan.name, plan.catalog, plan.action)
    began = time.monotonic()
    restore = _Restore(care, repository, plan, engine, progress or Progress(), stop or care.stop)
    published = restore.run()
    return RestoreReport(
        plan.name,
        plan.catalog,
        plan.action,
        location=restore.work.target.location,
        metadata_location=published.metadata_location,
        uuid=published.uuid,
        snapshot_id=plan.snapshot_id,
        snapshots=plan.snapshots,
        files=restore.files,
        bytes=restore.bytes,
        skipped_files=restore.skipped_files,
        skipped_bytes=restore.skipped_bytes,
        seconds=time.monotonic() - began,
        previous=published.previous if plan.action == "replace" else None,
        losses=tuple(dict.fromkeys((*plan.losses, *published.losses))),
        warnings=plan.warnings,
    )


class _Restore:
    """One run of a restore."""

    def __init__(
        self,
        care: UpkeepContext,
        repository: Repository,
        plan: RestorePlan,
        engine: Engine,
        progress: Progress,
        stop: Event,
    ) -> None:
        assert plan.publication is not None
        self._care, self._repository, self._plan = care, repository, plan
        self._engine, self._progress, self._stop = engine, progress, stop
        self._contents = plan.contents
        self._publication: PublicationPlan = plan.publication
        self._written = SeenSet()
        self.files = self.bytes = self.skipped_files = self.skipped_bytes = 0

    def run(self) -> Published:
        self.work = self._prepare()
        if self.work.moves_data:
            self._copy()
        else:
            self._require_references()
        manifests = self._relocate_manifests()
        self._relocate_lists(manifests)
        path, metadata = self._write_metadata()
        self._flush()
        self._verify()
        return self._publish(path, metadata)

    def _prepare(self) -> RestoreWork:
        plan, location = self._plan, self._plan.location
        is_assigned = self._publication.location is not None
        if location is None and self._publication.method != "create+updates":
            location = self._choose_location()
        if location is None:
            reach("restore.reserve.before")
            self._publication = reserve_table(self._care.store, self._publication, self._contents.metadata)
            reach("restore.reserve.after")
            location, is_assigned = self._publication.location, True
        assert location is not None
        target = get_target_folder(self._care, location)
        reach("restore.claim.before")
        # A service that assigns the folder gives it to this table alone, and may refuse files that are not Iceberg's.
        self._has_marker = not is_assigned
        is_resumed = is_assigned or claim_folder(target, plan.restore_id, plan.backup)
        reach("restore.claim.after")
        return RestoreWork(
            self._repository.access,
            target,
            PrefixMap(map_folders(plan.source_folders, location, plan.backup_id)),
            moves_data=plan.data == "copied",
            is_resumed=is_resumed,
            omit=frozenset(plan.erased),
        )

    def _choose_location(self) -> str:
        """Chooses the folder where the catalog says it only once the namespace exists."""
        plan, store = self._plan, self._care.store
        store.call(lambda: ensure_namespace(store, plan.identifier[:-1]), "create_namespace")
        base = find_default_location(store, plan.identifier)
        if base is None:
            raise ConflictError(f"the namespace of {plan.name} was dropped", hint="try again")
        return choose_location(self._care, base, plan.backed_up_at, plan.restore_id, is_new=True)

    # -- stages

    def _copy(self) -> None:
        """Copies what does not change: data files, equality deletes, statistics."""
        self._progress.begin("copy", self._plan.name, files=self._plan.files, bytes=self._plan.bytes)
        tasks = batch_files(self._list_copies(), _FILES, _BYTES)
        for done in self._engine.map(partial(copy_files, self.work), tasks, kind="io"):
            self.files, self.bytes = self.files + done.files, self.bytes + done.bytes
            self.skipped_files += done.skipped_files
            self.skipped_bytes += done.skipped_bytes
            self._progress.advance(done.files + done.skipped_files, done.bytes + done.skipped_bytes)
        self._progress.end()

    def _list_copies(self) -> Iterator[tuple[BlobRef, str]]:
        """Yields blobs and where they go, each place once."""
        work = self.work
        for file in iterate_files(self._repository, self._contents.manifests):
            if file.content == POSITION_DELETES or file.path in work.omit:
                continue
            if file.blob is None:
                raise IntegrityError(f"the backup has no copy of {file.path}", hint="frazil backup verify")
            path = work.prefixes.map(file.path)
            if self._expect(path, file.size):
                yield file.blob, path
        for statistics in self._contents.statistics:
            path = work.prefixes.map(statistics.path)
            if self._expect(path, statistics.blob.size):
                yield statistics.blob, path

    def _require_references(self) -> None:
        """Requires that the files of a backup that refers to them are there; copies its statistics."""
        self._progress.begin("check", self._plan.name)
        check = partial(find_missing_files, self.work)
        missing = [path for found in self._engine.map(check, self._contents.manifests, kind="io") for path in found]
        if missing:
            raise IntegrityError(
                f"{len(missing)} data files that the backup refers to are gone or changed: {shorten(missing)}",
                hint="the backup did not copy them (--data reference): bring them back, or restore another backup",
            ).adding("nothing was restored", missing_files=missing)
        for statistics in self._contents.statistics:
            path = self.work.prefixes.map(statistics.path)
            self._expect(path, statistics.blob.size)
            target = self.work.target
            self._repository.copy_data_to(statistics.blob, path, s3=target.s3, network=target.network)
        self._progress.end()

    def _relocate_manifests(self) -> dict[str, RelocatedManifest | int]:
        contents = self._contents
        self._progress.begin("manifests", self._plan.name, files=len(contents.manifests))
        tasks = (ManifestTask(found, contents.first_row_ids.get(found.path)) for found in contents.manifests)
        relocated: dict[str, RelocatedManifest | int] = {}
        for done in self._engine.map(partial(restore_manifest, self.work), tasks, kind="cpu"):
            relocated[done.source] = done.relocated
            for path, size in done.written:
                self._expect(path, size)
            for _, size in done.written[:-1]:
                self.files, self.bytes = self.files + 1, self.bytes + size
            self._progress.advance()
        self._progress.end()
        return relocated

    def _relocate_lists(self, manifests: Mapping[str, RelocatedManifest | int]) -> None:
        lists = self._contents.manifest_lists
        self._progress.begin("manifest lists", self._plan.name, files=len(lists))
        for path, size in self._engine.map(partial(restore_list, self.work, manifests), lists, kind="io"):
            self._expect(path, size)
            self._progress.advance()
        self._progress.end()

    def _write_metadata(self) -> tuple[str, TableMetadata]:
        plan = self._plan
        properties: dict[str, str | None] = {
            BACKUP_PROPERTY: plan.backup,
            SNAPSHOT_PROPERTY: str(plan.snapshot_id) if plan.snapshot_id is not None else None,
            PREVIOUS_PROPERTY: self._publication.expected if plan.action == "replace" else None,
        }
        if not self.work.moves_data:
            properties["gc.enabled"] = "false"
        metadata = relocate_metadata(
            self._contents.metadata,
            self.work.prefixes,
            metadata_log="drop",
            table_uuid=self._publication.uuid or str(uuid.uuid4()),
            properties=properties,
        )
        data = format_metadata(metadata)
        # Another name in each run: two of them at once must not replace each other's.
        path = f"{self.work.target.location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        reach("restore.metadata.before")
        self.work.target.write(path, data)
        reach("restore.metadata.after")
        self._expect(path, len(data))
        return path, metadata

    def _flush(self) -> None:
        reach("restore.flush.before")
        self.work.target.flush()
        reach("restore.flush.after")

    def _verify(self) -> None:
        """Requires that everything is there with its size."""
        self._progress.begin("verify", self._plan.name, files=len(self._written))
        for key, size in self.work.target.list_sizes():
            if self._written.discard(_fingerprint(key, size)):
                self._progress.advance(1, size)
        self._progress.end()
        if len(self._written):
            names = [path for _, path in self._list_missing()]
            raise IntegrityError(
                f"{len(self._written)} files of the restored table are not in {self.work.target.location} as they were "
                f"written{': ' if names else ''}{shorten(names)}",
                hint="repeat the restore; if it fails again, check the storage",
            )

    def _list_missing(self) -> Iterator[tuple[BlobRef, str]]:
        for file in iterate_files(self._repository, self._contents.manifests):
            if file.blob is not None and file.path not in self.work.omit:
                path = self.work.prefixes.map(file.path)
                if _fingerprint(self.work.target.key_of(path), file.size) in self._written:
                    yield file.blob, path

    def _publish(self, path: str, metadata: TableMetadata) -> Published:
        raise_if_stopped(self._stop)
        self._progress.begin("publish", self._plan.name)
        store = self._care.store
        reach("restore.publish.before")
        published = publish(store, self._publication, path, metadata)
        reach("restore.publish.after")
        if self._has_marker:
            self.work.target.open().delete(MARKER)
        self._progress.end()
        log.info(
            "a table is restored", table=self._plan.name, backup=self._plan.backup, files=self.files, bytes=self.bytes
        )
        return published

    def _expect(self, path: str, size: int) -> bool:
        return self._written.add(_fingerprint(self.work.target.key_of(path), size))


def _fingerprint(key: str, size: int) -> str:
    return f"{key}\0{size}"
