"""Checks whether everything that a version refers to has arrived: with the right size, and readable."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from frazil.errors import IntegrityError, NotFoundError
from frazil.observe.cancellation import raise_if_stopped
from frazil.replica.candidates import MetadataCandidate
from frazil.replica.scan import ReplicaFiles, map_in_threads
from frazil.tables.metadata.manifest_entries import POSITION_DELETES
from frazil.tables.relocation import PrefixMap, UnmappedPathError
from frazil.tables.relocation.manifests import (
    ManifestListEntry,
    read_manifest_files,
    read_manifest_list,
)
from frazil.tables.relocation.table_metadata import list_metadata_paths

#: Missing files that are named.
MOST_NAMED = 100
#: Data files that are measured together: where listing is cheap, all of a folder's should be.
_MEASURED = 300_000

FileKind = Literal["manifest list", "manifest", "data", "deletes", "statistics"]


@dataclass(frozen=True)
class MissingFile:
    """A file that has not arrived.

    Attributes:
        path: where it should be.
        kind: what it is.
        expected: its size; None where metadata does not say.
        found: the size it has now; None if it does not exist.
        reason: for files that exist with the right size and cannot be read.
    """

    path: str
    kind: FileKind
    expected: int | None
    found: int | None
    reason: str | None = None

    def __str__(self) -> str:
        what = f"{self.kind} {self.path}"
        if self.reason is not None:
            return f"{what}: {self.reason}"
        size = "" if self.expected is None else f" of {self.expected} bytes"
        return f"{what}: " + ("not there" if self.found is None else f"{self.found}{size}")


@dataclass(frozen=True)
class KnownFiles:
    """What arrived before: not read or measured again.

    Attributes:
        manifest_lists: source paths.
        manifests: source path and length.
        statistics: source paths.
    """

    manifest_lists: Collection[str] = frozenset()
    manifests: Collection[tuple[str, int]] = frozenset()
    statistics: Collection[str] = frozenset()


@dataclass(frozen=True)
class Closure:
    """The files of a version.

    Attributes:
        missing: the first of them, at most `MOST_NAMED`.
        missing_count: all of them.
        manifest_lists: source paths of those that are not known.
        manifests: that are not known, by their source path. A length of 0: it is inline in a version 1 table.
        statistics: source paths of those that are not known.
        files: data and delete files that were measured.
        bytes: of these.
        deletes: source paths of the position deletes in a manifest, by its source path.
    """

    missing: tuple[MissingFile, ...]
    missing_count: int
    manifest_lists: tuple[str, ...]
    manifests: tuple[ManifestListEntry, ...]
    statistics: tuple[str, ...]
    files: int
    bytes: int
    deletes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return not self.missing_count


def check_closure(
    candidate: MetadataCandidate,
    files: ReplicaFiles,
    places: PrefixMap,
    known: KnownFiles | None = None,
    stop: threading.Event | None = None,
) -> Closure:
    """Returns what a version refers to beyond the known files, and what of it has not arrived.

    Args:
        candidate: the version.
        files: the replicated storage.
        places: where the source's paths landed.
        known: what arrived before; None checks everything.
        stop: ends the check between two files.

    Raises:
        UnmappedPathError: no prefix covers a path.
        UnsupportedError: files are encrypted, or of a newer format version.
        StoppedError: `stop` was set.
    """
    check = _Check(files, places, known or KnownFiles(), stop)
    paths = list_metadata_paths(candidate.metadata)
    check.add_statistics(candidate.metadata)
    check.read_lists(candidate.metadata)
    check.add_inline(paths.inline_manifests)
    check.read_manifests()
    check.measure_data(at_least=1)
    return Closure(
        tuple(check.missing), check.missing_count, tuple(check.lists), tuple(check.manifests.values()),
        tuple(check.statistics), check.files_checked, check.bytes_checked, check.deletes,
    )  # fmt: skip


@dataclass
class _Check:
    """One call of `check_closure`."""

    files: ReplicaFiles
    places: PrefixMap
    known: KnownFiles
    stop: threading.Event | None
    missing: list[MissingFile] = field(default_factory=list)
    missing_count: int = 0
    lists: list[str] = field(default_factory=list)
    manifests: dict[str, ManifestListEntry] = field(default_factory=dict)
    statistics: list[str] = field(default_factory=list)
    deletes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    files_checked: int = 0
    bytes_checked: int = 0
    _pending: dict[str, tuple[int, FileKind]] = field(default_factory=dict)

    def add_statistics(self, metadata: dict[str, Any]) -> None:
        for entry in (*(metadata.get("statistics") or ()), *(metadata.get("partition-statistics") or ())):
            path = entry["statistics-path"]
            if path not in self.known.statistics:
                self.statistics.append(path)
                self._pending[self.places.map(path)] = int(entry["file-size-in-bytes"]), "statistics"

    def read_lists(self, metadata: dict[str, Any]) -> None:
        """Reads the manifest lists that are not known. Metadata does not have their sizes: they must be readable."""
        snapshots = [s for s in metadata.get("snapshots") or () if s.get("manifest-list")]
        totals = {snapshot["manifest-list"]: _count_files(snapshot) for snapshot in snapshots}
        self.lists = [path for path in totals if path not in self.known.manifest_lists]

        def read(path: str) -> list[ManifestListEntry] | MissingFile:
            raise_if_stopped(self.stop)
            target = self.places.map(path)
            try:
                entries = read_manifest_list(self.files.read(target), target)
            except NotFoundError:
                return MissingFile(target, "manifest list", None, None)
            except IntegrityError:
                return MissingFile(target, "manifest list", None, None, "it is cut off or damaged")
            if totals[path] and not entries:  # cut off right behind its head
                return MissingFile(target, "manifest list", None, None, "it names no manifests yet")
            return entries

        for found in map_in_threads(read, self.lists):
            if isinstance(found, MissingFile):
                self._miss(found)
                continue
            for entry in found:
                if (entry.path, entry.length) not in self.known.manifests:
                    self.manifests.setdefault(entry.path, entry)

    def add_inline(self, paths: Iterable[str]) -> None:
        for path in paths:
            if (path, 0) not in self.known.manifests:
                self.manifests.setdefault(path, ManifestListEntry(path, 0, 0))

    def read_manifests(self) -> None:
        targets = {path: self.places.map(path) for path in self.manifests}
        sizes = self.files.find_sizes(targets.values())
        arrived = []
        for path, entry in self.manifests.items():
            size = sizes.get(targets[path])
            if size is None or (entry.length and size != entry.length):
                self._miss(MissingFile(targets[path], "manifest", entry.length or None, size))
            else:
                arrived.append(path)
        read = map_in_threads(lambda path: self._read_manifest(targets[path]), arrived)
        for path, found in zip(arrived, read, strict=True):
            if found is None:
                size = sizes[targets[path]]
                self._miss(MissingFile(targets[path], "manifest", size, size, "it cannot be read"))
                continue
            pending, deletes = found
            if deletes:
                self.deletes[path] = deletes
            self._pending |= pending
            self.measure_data(at_least=_MEASURED)

    def measure_data(self, *, at_least: int) -> None:
        """Compares the sizes of files once there are so many."""
        if len(self._pending) < at_least:
            return
        raise_if_stopped(self.stop)
        sizes = self.files.find_sizes(self._pending)
        for path, (size, kind) in self._pending.items():
            self.files_checked += 1
            self.bytes_checked += size
            if sizes.get(path) != size:
                self._miss(MissingFile(path, kind, size, sizes.get(path)))
        self._pending = {}

    def _read_manifest(self, target: str) -> tuple[dict[str, tuple[int, FileKind]], tuple[str, ...]] | None:
        """Returns the files to measure, and the source paths of position deletes; None if it cannot be read."""
        raise_if_stopped(self.stop)
        place = self.places.map
        kinds: tuple[FileKind, ...] = ("data", "deletes", "deletes")
        try:
            live = [file for file in read_manifest_files(self.files.read(target), target) if file.is_live]
            deletes = tuple(dict.fromkeys(file.path for file in live if file.content == POSITION_DELETES))
            return {place(file.path): (file.size, kinds[file.content]) for file in live}, deletes
        except (IntegrityError, NotFoundError) as error:
            if isinstance(error, UnmappedPathError):
                raise error.adding(f"{target} has it") from None
            return None

    def _miss(self, file: MissingFile) -> None:
        self.missing_count += 1
        if len(self.missing) < MOST_NAMED:
            self.missing.append(file)


def _count_files(snapshot: dict[str, Any]) -> int:
    """Returns how many files a snapshot's summary states; 0 where it states nothing."""
    summary = snapshot.get("summary") or {}
    counts = (str(summary.get(name, "0")) for name in ("total-data-files", "total-delete-files"))
    return sum(int(count) for count in counts if count.isdecimal())
