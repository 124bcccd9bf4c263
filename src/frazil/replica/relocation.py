"""Relocates the metadata of a version: what the served one does not have yet, beside the replicated folder.

The work of a file is a function of one task, for any engine; tasks can be pickled. What is done is noted now and then,
so that a sync that is interrupted goes on there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Literal, Protocol

from frazil.errors import FrazilError
from frazil.observe.cancellation import raise_if_stopped
from frazil.observe.faultpoints import reach
from frazil.observe.progress import Progress
from frazil.replica.places import compute_signature, needs_jvm
from frazil.replica.state import KnownLater, RelocatedDeletes, RelocatedFiles
from frazil.tables.metadata.manifest_entries import POSITION_DELETES
from frazil.tables.relocation.engine import Engine, LocalEngine
from frazil.tables.relocation.manifests import (
    ManifestListEntry,
    read_manifest_files,
    read_manifest_list,
    relocate_manifest,
    relocate_manifest_list,
)
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.target_folder import TargetFolder, relocate_deletes

if TYPE_CHECKING:
    from frazil.replica.plan import SyncPlan

#: Seconds between two notes of how far a sync has come, so that one that is interrupted need not begin anew.
CHECKPOINT_S = 5.0
_PROGRESS_NAME = "replica-progress.json"


class Files(Protocol):
    """Reads replicated files."""

    def read(self, path: str, /) -> bytes: ...


@dataclass(frozen=True)
class RelocationWork:
    """What all tasks of a sync share.

    Attributes:
        files: the replicated storage.
        target: the folder of the replica's table.
        places: where the primary's paths landed: data, equality deletes and statistics are served from there.
        homes: where relocated files go: metadata, position deletes and deletion vectors.
        takes_lists: whether lists of files may lie in the table's folder: a service that has made it may refuse them.
    """

    files: Files
    target: TargetFolder
    places: PrefixMap
    homes: PrefixMap
    takes_lists: bool = True

    @property
    def is_in_place(self) -> bool:
        """Whether the storage was copied to the same paths, so that no file has to change."""
        return self.places.is_identity

    @property
    def signature(self) -> str:
        """Changes when relocated files would."""
        return compute_signature(self.places, self.homes)


@dataclass(frozen=True)
class ManifestTask:
    """A manifest to relocate.

    Attributes:
        path: in the source.
        length: as its list says; 0 where it has none.
        has_deletes: whether its files are deletes.
        relocated: position deletes in it that were relocated before, for another manifest.
    """

    path: str
    length: int
    has_deletes: bool
    relocated: Mapping[str, RelocatedDeletes] = field(default_factory=dict)


@dataclass(frozen=True)
class ManifestResult:
    """A relocated manifest.

    Attributes:
        path: in the source.
        length: as the task has it.
        relocated: its length.
        deletes: its relocated position deletes, by their source paths.
        bytes: written.
    """

    path: str
    length: int
    relocated: int
    deletes: Mapping[str, RelocatedDeletes] = field(default_factory=dict)
    bytes: int = 0


@dataclass(frozen=True)
class ListResult:
    """A relocated manifest list.

    Attributes:
        path: in the source.
        manifests: source paths of those that it names.
        bytes: written.
    """

    path: str
    manifests: tuple[str, ...]
    bytes: int = 0


def relocate_one_manifest(work: RelocationWork, task: ManifestTask) -> ManifestResult:
    """Rewrites the position deletes of a manifest, and then the manifest, so that all sizes are measured."""
    if work.is_in_place:
        return ManifestResult(task.path, task.length, task.length)
    data = work.files.read(work.places.map(task.path))
    deletes: dict[str, RelocatedDeletes] = {}
    size = 0
    for file in read_manifest_files(data, task.path) if task.has_deletes else ():
        if file.content == POSITION_DELETES and file.is_live and file.path not in deletes:
            known = task.relocated.get(file.path)
            if known is not None and known.source_size == file.size:
                deletes[file.path] = known
                continue
            content = work.files.read(work.places.map(file.path))
            rewritten, measured = relocate_deletes(content, file.format, work.places)
            deletes[file.path] = RelocatedDeletes(file.size, measured)
            reach("replica.deletes.before")
            work.target.write(work.homes.map(file.path), rewritten)
            reach("replica.deletes.after")
            size += len(rewritten)
    sizes = {path: found.measured for path, found in deletes.items()} if task.has_deletes else None
    relocated = relocate_manifest(data, work.places, sizes, position_deletes=work.homes, where=task.path).data
    reach("replica.manifest.before")
    work.target.write(work.homes.map(task.path), relocated)
    reach("replica.manifest.after")
    return ManifestResult(task.path, task.length, len(relocated), deletes, size + len(relocated))


def relocate_one_list(work: RelocationWork, lengths: Mapping[str, int], path: str) -> ListResult:
    """Rewrites a manifest list."""
    data = work.files.read(work.places.map(path))
    manifests = tuple(entry.path for entry in read_manifest_list(data, path))
    if work.is_in_place:
        return ListResult(path, manifests)
    relocated = relocate_manifest_list(data, work.homes, {name: lengths[name] for name in manifests}, where=path)
    reach("replica.list.before")
    work.target.write(work.homes.map(path), relocated)
    reach("replica.list.after")
    return ListResult(path, manifests, len(relocated))


class Relocation:
    """The relocation of one version's files.

    Attributes:
        files: that are relocated.
        manifests: that this run has relocated.
        bytes: that it has written.
        notes: path of what it has noted of its progress; None: nothing.
    """

    def __init__(
        self, plan: SyncPlan, work: RelocationWork, engine: Engine, progress: Progress | None, stop: Event
    ) -> None:
        assert plan.newest.closure is not None
        self._closure, self._name = plan.newest.closure, plan.table.name
        self._is_local = needs_jvm(plan.files.root, work.target.location)  # threads of this process, on any engine
        self._work, self._progress, self._stop = work, progress, stop
        self._engine = LocalEngine(stop=stop) if self._is_local else engine
        self.manifests = self.bytes = 0
        self.notes: str | None = None
        self.files = self._load(plan.known)

    def run(self) -> None:
        """Relocates what is new.

        Raises:
            StoppedError: the stop event was set.
        """
        self._relocate_manifests()
        self._relocate_lists()
        self.files.statistics.update(self._closure.statistics)

    @property
    def _progress_path(self) -> str:
        return f"{self._work.target.location}/metadata/{_PROGRESS_NAME}"

    def _load(self, known: KnownLater) -> RelocatedFiles:
        """The files of the served version, and of a run that was interrupted."""
        signature = self._work.signature
        if not self._work.takes_lists:
            return RelocatedFiles(signature)
        files = known.files if known.signature == signature else RelocatedFiles(signature)
        begun = KnownLater(self._work.target, self._progress_path, signature).files
        if begun.manifests:
            self.notes = self._progress_path
        for path, found in begun.manifests.items():
            names = begun.deletes.get(path, ())
            # Older notes do not have the deletes' sizes: such a manifest is relocated again.
            if path not in files.manifests and all(name in begun.relocated_deletes for name in names):
                deletes = {name: begun.relocated_deletes[name] for name in names}
                files.add_manifest(path, found[0], found[1], deletes)
        return files

    def _relocate_manifests(self) -> None:
        wanted = [entry for entry in self._closure.manifests if not self.files.has_manifest(entry)]
        self._begin("manifests", len(wanted))
        noted = time.monotonic()
        try:
            tasks = map(self._make_task, wanted)
            kind: Literal["io", "cpu"] = "io" if self._is_local else "cpu"
            for done in self._engine.map(partial(relocate_one_manifest, self._work), tasks, kind=kind):
                self.files.add_manifest(done.path, done.length, done.relocated, done.deletes)
                self.manifests, self.bytes = self.manifests + 1, self.bytes + done.bytes
                self._advance(done.bytes)
                if time.monotonic() - noted >= CHECKPOINT_S:
                    self._note()
                    noted = time.monotonic()
        except FrazilError:
            with suppress(FrazilError):
                self._note()
            raise
        self._end()

    def _make_task(self, entry: ManifestListEntry) -> ManifestTask:
        known = self.files.relocated_deletes
        relocated = {path: known[path] for path in self._closure.deletes.get(entry.path, ()) if path in known}
        # A manifest of version 1 says only inside what it holds: data.
        return ManifestTask(entry.path, entry.length, entry.content != 0, relocated)

    def _note(self) -> None:
        """Notes how far this run has come."""
        if self._work.is_in_place or not self._work.takes_lists:
            return
        self._work.target.flush()
        reach("replica.checkpoint.before")
        self._work.target.write(self._progress_path, self.files.encode())
        reach("replica.checkpoint.after")
        self.notes = self._progress_path

    def _relocate_lists(self) -> None:
        order = {path: number for number, path in enumerate(self._closure.manifest_lists)}
        wanted = sorted((path for path in order if path not in self.files.lists), key=order.__getitem__)
        lengths = self.files.measure()
        self._begin("manifest lists", len(wanted))
        done = {}
        for result in self._engine.map(partial(relocate_one_list, self._work, lengths), wanted, kind="io"):
            done[result.path] = result
            self.bytes += result.bytes
            self._advance(result.bytes)
        for path in wanted:
            self.files.add_list(path, done[path].manifests)
        self._end()

    def _begin(self, stage: str, files: int) -> None:
        raise_if_stopped(self._stop)
        if self._progress is not None:
            self._progress.begin(stage, self._name, files=files)

    def _advance(self, size: int) -> None:
        if self._progress is not None:
            self._progress.advance(1, size)

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.end()
