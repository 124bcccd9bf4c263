"""Copies one table into the repository: manifest lists, manifests, the files in them, statistics, metadata.

A backup is incremental by nature. What the last one of the table had is known by path and size and is not read again:
manifest lists and manifests by its state, files by its file lists, which are looked at only where a new manifest
refers to files that are not new. Memory is bounded by the largest manifest, not by the number of files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from frazil.backup.create_tasks import (
    Access,
    FileListTask,
    FileTask,
    ListTask,
    LiveFile,
    ManifestTask,
    StoredFile,
    StoredManifest,
    Vanished,
    store_file,
    store_file_list,
    store_list,
    store_manifest,
)
from frazil.backup.file_index import FileIndex, KnownFile
from frazil.backup.folders import CoveringFolders
from frazil.backup.format import (
    BackedUpTable,
    BlobRef,
    CopiedFile,
    ManifestState,
    PathBlob,
    TableState,
)
from frazil.backup.repository import Repository
from frazil.backup.source import TableSource, head_of, snapshot_ids
from frazil.catalogs import flavor_of
from frazil.errors import FrazilError, IntegrityError, NotFoundError, UnsupportedError
from frazil.observe.cancellation import StoppedError
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.observe.progress import Progress
from frazil.tables.relocation.engine import Engine
from frazil.tables.relocation.table_metadata import TableMetadata, format_metadata, list_metadata_paths
from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

#: What is wrong with metadata of the last backup that a new one does without.
_UNREADABLE = (NotFoundError, IntegrityError, UnsupportedError)
#: Seconds between two notes of what is copied, for a create that goes on after a crash.
_NOTE_S = 5.0
#: Bytes from which on the end of a table's copy is noted too.
_NOTED = 64 * 1024**2
#: Bytes of a manifest from which on it is read by itself: the entries of several at once would fill the memory.
_LARGE = 256 * 1024
#: Finished file lists, and files in them, that are stored together.
_LISTS, _LISTED = 64, 5_000
#: Files up to which a list is short.
_SHORT = 200


class VanishedError(Exception):
    """A file of the table is not there (any more)."""

    def __init__(self, vanished: Vanished) -> None:
        super().__init__(vanished.path)
        self.path, self.error = vanished.path, vanished.error


@dataclass(frozen=True)
class CopyPlan:
    """What of a table's metadata is stored already, and what is not.

    Attributes:
        manifest_lists: all of them, stored.
        known: manifests of the last backup that the table still has.
        new: manifests that are to be stored.
        statistics: those of the last backup.
        new_statistics: paths of the others.
        only_grew: everything of the last backup is still there.
    """

    source: TableSource
    metadata: TableMetadata
    manifest_lists: tuple[PathBlob, ...]
    known: tuple[ManifestState, ...]
    new: tuple[ManifestTask, ...]
    statistics: tuple[PathBlob, ...]
    new_statistics: tuple[str, ...]
    only_grew: bool

    @property
    def is_done(self) -> bool:
        """Whether no file of the table has to be read any more."""
        return not self.new and not self.new_statistics


@dataclass
class _Last:
    """The last backup of the table."""

    table: BackedUpTable | None = None
    lists: dict[str, BlobRef] = field(default_factory=dict)
    manifests: dict[str, ManifestState] = field(default_factory=dict)
    statistics: dict[str, PathBlob] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    is_trusted: bool = True


@dataclass
class _Totals:
    """Of the files that new manifests refer to, each counted once."""

    files: int = 0
    bytes: int = 0
    new_files: int = 0
    new_bytes: int = 0


@dataclass
class _Expected:
    """Estimates how much there is to copy: manifests are read while files are copied.

    Attributes:
        listed: files in manifests that are not read yet.
    """

    listed: int
    files: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.files += 1
        self.bytes += size

    def estimate(self) -> tuple[int, int]:
        return self.files + self.listed, round(self.bytes * (1 + self.listed / max(self.files, 1)))


class TableCopy:
    """Copies a table, again and again if files vanish, and keeps what is copied.

    Args:
        care: its catalog.
        repository: where it goes.
        engine: runs the tasks.
        uuid: of the table.
        backup_id: of the create.
        mode: whether data files are copied.
        progress: counts files and bytes.
        distrusted: blobs that are missing in the repository whatever earlier backups say.
    """

    def __init__(
        self,
        care: UpkeepContext,
        repository: Repository,
        engine: Engine,
        uuid: str,
        backup_id: str,
        mode: Literal["copy", "reference"],
        progress: Progress,
        distrusted: Collection[BlobRef] = (),
    ) -> None:
        self._care, self._repository, self._engine = care, repository, engine
        self._uuid, self._id, self._copies, self._progress = uuid, backup_id, mode == "copy", progress
        self._distrusted = frozenset(distrusted)
        self._index = FileIndex()
        self._round = 0
        self._totals = _Totals()
        self._unsaved: dict[str, BlobRef] = {}
        self._notes: list[str] = []
        self._noted = time.monotonic()
        self._last = self._load_last()
        self._last_is_indexed = self._last.table is None
        if self._copies:
            noted = repository.read_progress(uuid)
            self._index.add_uncertain(
                (path, blob.size, blob.sha256) for path, blob in noted.items() if blob not in self._distrusted
            )

    @property
    def notes(self) -> list[str]:
        """Names of the notes of progress that were written."""
        return self._notes

    def plan(self, source: TableSource, metadata: TableMetadata) -> CopyPlan:
        """Stores the manifest lists that are new, and finds what else is to be done.

        Raises:
            VanishedError: a list is missing.
        """
        last, paths, access = self._last, list_metadata_paths(metadata), self._access(source)
        grew = last.lists.keys() <= set(paths.manifest_lists)
        found = {path: PathBlob(path, last.lists[path]) for path in paths.manifest_lists if path in last.lists}
        # While no list of the last backup is gone, its manifests are those of its lists, which need not be read.
        manifests = dict.fromkeys(last.manifests) if grew and found else {}
        tasks: dict[str, ManifestTask] = {}
        for path in paths.inline_manifests:
            tasks[path] = ManifestTask(access, path, 0, 0)
        wanted = [
            ListTask(access, path, last.lists.get(path))
            for path in paths.manifest_lists
            if path not in found or not grew
        ]
        lengths: dict[str, int] = {}
        for stored in self._engine.map(store_list, wanted, kind="io"):
            if isinstance(stored, Vanished):
                raise VanishedError(stored)
            found[stored.path] = PathBlob(stored.path, stored.blob)
            for entry in stored.manifests:
                tasks.setdefault(entry.path, ManifestTask(access, entry.path, entry.content, entry.files or 0))
                lengths[entry.path] = entry.length
        known = {}
        for path in (*manifests, *tasks) if last.is_trusted else ():
            state = last.manifests.get(path)
            if state is not None and lengths.get(path, state.blob.size) == state.blob.size:
                known[path] = state
        statistics = (*paths.statistics, *paths.partition_statistics)
        # The largest come first, so that none of them is left when all else is done; see `_read_manifests`.
        new = [task for path, task in tasks.items() if path not in known]
        new.sort(key=lambda task: lengths.get(task.path, 0), reverse=True)
        self._lengths = lengths
        return CopyPlan(
            source, metadata, tuple(found[path] for path in paths.manifest_lists), tuple(known.values()), tuple(new),
            tuple(last.statistics[path] for path in statistics if path in last.statistics),
            tuple(path for path in statistics if path not in last.statistics),
            last.is_trusted and grew and known.keys() >= last.manifests.keys(),
        )  # fmt: skip

    def run(self, plan: CopyPlan) -> BackedUpTable:
        """Copies what is new, and stores the state of the table.

        Raises:
            VanishedError: a file is missing. What was copied by then is kept for another call.
        """
        self._round += 1
        self._totals = _Totals()
        folders = CoveringFolders(list_metadata_paths(plan.metadata).locations, self._last.prefixes)
        folders.cover(plan.source.location)
        self._cover(folders, *(one.path for one in plan.manifest_lists))
        self._expected = _Expected(listed=sum(task.listed for task in plan.new))
        self._progress.begin("copy", plan.source.name, files=self._expected.listed)
        try:
            manifests = [*plan.known, *self._copy_manifests(plan.new, folders)]
            statistics = [*plan.statistics, *self._copy_statistics(plan, folders)]
        except BaseException:
            self._save_progress()
            raise
        finally:
            self._progress.end()
        if self._totals.new_bytes > _NOTED:  # tables that follow may take long
            self._save_progress()
        return self._finish(plan, manifests, statistics, folders)

    def close(self) -> None:
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- manifests and their files

    def _copy_manifests(self, tasks: Collection[ManifestTask], folders: CoveringFolders) -> list[ManifestState]:
        opened = _OpenManifests()
        states: list[ManifestState] = []
        vanished: list[Vanished] = []

        def store_lists(limit: int) -> None:
            if len(opened.ready) > limit or opened.ready_files > _LISTED:
                states.extend(self._store_lists(opened))

        def files() -> Iterator[FileTask]:
            for manifest in self._read_manifests(tasks):
                if isinstance(manifest, Vanished):
                    vanished.append(manifest)
                    return
                self._cover(folders, manifest.path, *(f"{folder}/x" for folder in manifest.folders))
                self._expected.listed -= manifest.listed
                for task in self._find_files(manifest, opened, folders):
                    yield task
                    if vanished:
                        return
                store_lists(_LISTS)

        for stored in self._engine.map(store_file, files(), kind="io"):
            if isinstance(stored, Vanished):
                vanished.append(stored)
                continue  # those that are under way are kept
            self._keep(stored, opened)
            store_lists(_LISTS)
        if vanished:
            raise VanishedError(vanished[0])
        store_lists(0)
        if len(states) != len(tasks):  # whatever the reason: a record without a manifest is worse than none
            raise StoppedError(f"{len(states)} of {len(tasks)} manifests were copied", hint="repeat the command")
        return states

    def _read_manifests(self, tasks: Collection[ManifestTask]) -> Iterator[StoredManifest | Vanished]:
        """Stores manifests: large ones one after the other, small ones several at once.

        Ends early where the engine is stopped: that which copies their files ends then too, and says so.
        """
        for task in tasks:
            if self._lengths.get(task.path, 0) >= _LARGE:
                yield store_manifest(task)
        small = (task for task in tasks if self._lengths.get(task.path, 0) < _LARGE)
        with suppress(StoppedError):
            yield from self._engine.map(store_manifest, small, kind="io")

    def _find_files(
        self, manifest: StoredManifest, opened: _OpenManifests, folders: CoveringFolders
    ) -> Iterator[FileTask]:
        """The files of a manifest that are to be copied."""
        place = opened.open(manifest)
        for slot, file in enumerate(manifest.files):
            if opened.is_pending(file):
                opened.wait(file, place, slot)
                continue
            known = self._find(file, manifest.path)
            self._cover(folders, file.path)
            if known is not None and known.is_certain:
                self._count(file.path, file.size, known.is_new)
                opened.fill(place, slot, known.sha256)
                continue
            opened.wait(file, place, slot)
            blob = BlobRef(file.size, known.sha256) if known and known.sha256 else None
            self._expected.add(file.size)
            self._progress.expect(*self._expected.estimate())
            yield FileTask(self._task_access, file.path, file.size, blob, self._copies)
        opened.close_if_full(place)

    def _cover(self, folders: CoveringFolders, *paths: str) -> None:
        """Requires that a restore can map paths: otherwise a backup would be listed that cannot be restored."""
        for path in paths:
            if not folders.cover(path) and self._copies:
                raise UnsupportedError(
                    f"the table names {path}, which could not be restored at another place",
                    cause="the path is relative, or contains '.', '..' or an empty component",
                    hint="rewrite the data files and manifests that name it, and expire the snapshots before",
                )

    def _find(self, file: LiveFile, manifest: str) -> KnownFile | None:
        # An imported file may be replaced by another of its name and size. A manifest that adds it means the new one.
        may_be_old = file.was_there or (not self._last.is_trusted and manifest in self._last.manifests)
        if may_be_old:
            self._index_last()
        known = self._index.find(file.path, file.size)
        return known if known is None or known.is_new or may_be_old else None

    def _keep(self, stored: StoredFile, opened: _OpenManifests) -> None:
        sha256 = stored.blob.sha256 if stored.blob else None
        self._index.add_new(stored.path, stored.size, sha256)
        self._count(stored.path, stored.size, is_new=True)
        opened.arrive(stored.path, stored.size, sha256)
        self._progress.advance(1, stored.size)
        if stored.blob is not None:
            self._unsaved[stored.path] = stored.blob
            if time.monotonic() - self._noted >= _NOTE_S:
                self._save_progress()

    def _count(self, path: str, size: int, is_new: bool) -> None:
        if self._index.mark(path, size, self._round):
            self._totals.files += 1
            self._totals.bytes += size
            if is_new:
                self._totals.new_files += 1
                self._totals.new_bytes += size

    def _store_lists(self, opened: _OpenManifests) -> Iterator[ManifestState]:
        """Stores file lists: short ones several at once; a long one by itself, since its compression takes memory."""
        several = []
        for ready in opened.take_ready():
            task = FileListTask(self._task_access, *ready)
            if not self._copies:
                size = sum(file.size for file in task.files)
                yield ManifestState(task.path, task.blob, None, task.content, len(task.files), size)
            elif len(task.files) > _SHORT:
                yield store_file_list(task)
            else:
                several.append(task)
        if several:
            yield from self._engine.map(store_file_list, several, kind="io")

    def _copy_statistics(self, plan: CopyPlan, folders: CoveringFolders) -> Iterator[PathBlob]:
        tasks = [FileTask(self._access(plan.source), path, None) for path in plan.new_statistics]
        for stored in self._engine.map(store_file, tasks, kind="io"):
            if isinstance(stored, Vanished):
                raise VanishedError(stored)
            assert stored.blob is not None
            self._cover(folders, stored.path)
            yield PathBlob(stored.path, stored.blob)

    # -- the last backup

    def _load_last(self) -> _Last:
        found = self._repository.find_latest(self._uuid) if self._copies else None
        if found is None:
            return _Last()
        try:
            state = self._repository.read_state(found[1])
        except _UNREADABLE as error:
            log.warning("the last backup cannot be read; everything is compared again", error=error.in_one_line)
            return _Last()
        if self._distrusted:  # then its files are looked up one by one
            return _Last(found[1], manifests={m.path: m for m in state.manifests}, is_trusted=False)
        return _Last(
            found[1],
            {one.path: one.blob for one in state.manifest_lists},
            {one.path: one for one in state.manifests},
            {one.path: one for one in state.statistics},
            state.prefixes,
        )

    def _index_last(self) -> None:
        """Reads the file lists of the last backup."""
        if self._last_is_indexed:
            return
        self._last_is_indexed = True
        for manifest in self._last.manifests.values():
            if manifest.files is None or manifest.files in self._distrusted:
                continue
            try:
                files = list(self._repository.read_files(manifest))
            except _UNREADABLE as error:
                log.warning("a list of the last backup cannot be read", error=error.in_one_line)
                continue
            self._index.add_old(
                (f.path, f.size, f.sha256) for f in files if f.blob is not None and f.blob not in self._distrusted
            )

    # -- the end

    def _finish(
        self, plan: CopyPlan, manifests: list[ManifestState], statistics: list[PathBlob], folders: CoveringFolders
    ) -> BackedUpTable:
        source, metadata, put = plan.source, plan.metadata, self._repository.put_meta
        is_gzipped = source.data[:2] == b"\x1f\x8b"
        data = source.data if metadata is source.metadata else format_metadata(metadata, gzipped=is_gzipped)
        blob = put(data)
        state = TableState(
            PathBlob(source.location, blob), plan.manifest_lists, tuple(sorted(manifests, key=lambda m: m.path)),
            tuple(statistics), folders.list(),
        )  # fmt: skip
        self._count_known(plan)
        files, size = self._totals.files, self._totals.bytes
        last = self._last.table
        if plan.only_grew and last is not None:
            files, size = last.files + self._totals.new_files, last.bytes + self._totals.new_bytes
        stored = self._repository.put_state(state)
        reach("backup.create.state.stored")
        blobs = (blob, *(one.blob for one in plan.manifest_lists), *(one.blob for one in manifests))
        return BackedUpTable(
            identifier=source.identifier,
            catalog=self._care.catalog.name,
            catalog_kind=flavor_of(self._care.catalog, dict(self._care.store.catalog.properties)),
            uuid=source.uuid,
            location=str(metadata["location"]),
            format_version=int(metadata["format-version"]),
            current_snapshot_id=head_of(metadata),
            snapshots=len(snapshot_ids(metadata)),
            refs=tuple(sorted(metadata.get("refs") or {})),
            files=files,
            bytes=size,
            new_files=self._totals.new_files,
            new_bytes=self._totals.new_bytes,
            metadata_bytes=sum(one.size for one in blobs),
            state=stored,
        )

    def _count_known(self, plan: CopyPlan) -> None:
        """Counts the files of known manifests too, where the last backup had others besides."""
        if plan.only_grew or not plan.known:
            return
        self._index_last()
        for manifest in plan.known:
            with suppress(NotFoundError):  # the check for absent objects finds it, and then it is stored again
                for file in self._repository.read_files(manifest):
                    self._count(file.path, file.size, is_new=False)

    def _save_progress(self) -> None:
        """Notes what is copied. Without the note a later create only reads more again."""
        if not self._unsaved:
            return
        name = f"{self._id}-{len(self._notes)}"
        with suppress(FrazilError):
            self._repository.save_progress(self._uuid, name, self._unsaved)
            self._notes.append(name)
            reach("backup.create.progress.saved")
        self._unsaved = {}
        self._noted = time.monotonic()

    def _access(self, source: TableSource) -> Access:
        self._task_access = Access(source.storage, self._repository.access)
        return self._task_access


@dataclass
class _OpenManifest:
    """A manifest of which not every file is copied yet."""

    stored: StoredManifest
    sha256: list[str | None]
    left: int
    is_read: bool = False


class _OpenManifests:
    """Manifests whose files are under way, and which of them wait for which file."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], list[tuple[_OpenManifest, int]]] = {}
        self.ready: deque[_OpenManifest] = deque()
        self.ready_files = 0

    def open(self, stored: StoredManifest) -> _OpenManifest:
        return _OpenManifest(stored, [None] * len(stored.files), len(stored.files))

    def is_pending(self, file: LiveFile) -> bool:
        return (file.path, file.size) in self._waiting

    def wait(self, file: LiveFile, manifest: _OpenManifest, slot: int) -> None:
        self._waiting.setdefault((file.path, file.size), []).append((manifest, slot))

    def arrive(self, path: str, size: int, sha256: str | None) -> None:
        for manifest, slot in self._waiting.pop((path, size)):
            self.fill(manifest, slot, sha256)
            self.close_if_full(manifest, is_read=manifest.is_read)

    def fill(self, manifest: _OpenManifest, slot: int, sha256: str | None) -> None:
        manifest.sha256[slot] = sha256
        manifest.left -= 1

    def close_if_full(self, manifest: _OpenManifest, *, is_read: bool = True) -> None:
        manifest.is_read = is_read
        if is_read and manifest.left == 0:
            self.ready.append(manifest)
            self.ready_files += len(manifest.sha256)

    def take_ready(self) -> Iterator[tuple[str, BlobRef, int, tuple[CopiedFile, ...]]]:
        """Yields path, blob, content and files of each manifest that is done."""
        self.ready_files = 0
        while self.ready:
            manifest = self.ready.popleft()
            stored = manifest.stored
            files = tuple(
                CopiedFile(file.path, file.size, sha256, file.content, file.format)
                for file, sha256 in zip(stored.files, manifest.sha256, strict=True)
            )
            yield stored.path, stored.blob, stored.content, files
