"""Checks that a backup can be restored, by restoring it in memory: the deepest level of `frazil backup verify`.

Every manifest, list and delete file is relocated, read again, and compared with the source: each snapshot must have the
same files, in other places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import Any

from frazil.backup.format import BackedUpTable, BackupRecord, CopiedFile
from frazil.backup.references import iterate_references, key_of
from frazil.backup.repository import Repository
from frazil.backup.restore_contents import RestoreContents, list_source_folders, load_contents, map_folders
from frazil.backup.restore_tasks import ManifestTask, RestoreWork, relocate_one
from frazil.errors import FrazilError
from frazil.observe.cancellation import raise_if_stopped
from frazil.tables.relocation.engine import Engine, LocalEngine
from frazil.tables.relocation.manifests import (
    ManifestFileEntry,
    read_manifest_files,
    read_manifest_list,
    relocate_manifest_list,
)
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.table_metadata import list_metadata_paths, relocate_metadata
from frazil.tables.relocation.target_folder import TargetFolder

#: Where the table is restored to in memory. Nothing is written there.
_NOWHERE = "s3://frazil-dry-run/table"
#: Problems that are named, of each manifest.
_NAMED = 10


@dataclass(frozen=True)
class RestorableReport:
    """Whether a table of a backup can be restored.

    Attributes:
        files: live files of all manifests.
        problems: what stands against it, one sentence each.
    """

    backup: str
    table: str
    snapshots: int = 0
    manifests: int = 0
    files: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_restorable(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "problems": list(self.problems), "restorable": self.is_restorable}


@dataclass(frozen=True)
class ManifestCheck:
    """A manifest that was relocated in memory.

    Attributes:
        source: its path in the source.
        relocated: its new length; None where it could not be relocated.
        live: its live files.
    """

    source: str
    relocated: int | None
    live: int
    problems: tuple[str, ...] = field(default=())


def check_restorable(
    repository: Repository,
    record: BackupRecord,
    table: BackedUpTable,
    engine: Engine | None = None,
    stop: Event | None = None,
) -> RestorableReport:
    """Restores a table in memory and compares the files of each snapshot with those of the source.

    Reads metadata and position deletes; data files are left to the checksums of the other levels.

    Args:
        repository: that holds the backup.
        record: of the backup.
        table: of the record.
        engine: that runs the work; by default this process.
        stop: ends it.

    Raises:
        StoppedError: `stop` was set.
        UnavailableError: the repository cannot be reached.
    """
    report = RestorableReport(record.name, ".".join(table.identifier))
    try:
        state = repository.read_state(table)
        contents, _ = load_contents(repository, state)
        pairs = map_folders(list_source_folders(table, state), _NOWHERE, record.id)
        access = repository.access
        work = RestoreWork(
            access, TargetFolder(_NOWHERE, access.s3, access.network), PrefixMap(pairs), record.data == "copied", False
        )
        if engine is not None:
            return _check(report, repository, contents, work, engine, stop)
        with LocalEngine(stop=stop) as local:
            return _check(report, repository, contents, work, local, stop)
    except FrazilError as error:
        if error.retryable:
            raise
        return replace(report, problems=(error.in_one_line,))


def add_lost(
    repository: Repository, table: BackedUpTable, lost: Collection[str], report: RestorableReport
) -> RestorableReport:
    """Adds to a report which of the objects that the repository has lost the table needs.

    Args:
        repository: that holds the backup.
        table: that the report is about.
        lost: keys that `verify_repository` reports as missing or damaged.
        report: of the table.
    """
    needed = iterate_references(repository, [table], None, lambda key, error: None)
    found = dict.fromkeys(key for key in (key_of(kind, blob) for kind, blob in needed) if key in lost)
    problems = tuple(f"{key} is missing or damaged" for key in list(found)[:_NAMED])
    return replace(report, problems=(*report.problems, *problems))


def _check(
    report: RestorableReport,
    repository: Repository,
    contents: RestoreContents,
    work: RestoreWork,
    engine: Engine,
    stop: Event | None,
) -> RestorableReport:
    tasks = (ManifestTask(found, contents.first_row_ids.get(found.path)) for found in contents.manifests)
    problems: list[str] = []
    lengths: dict[str, int] = {}
    files = 0
    for done in engine.map(partial(check_manifest, work), tasks, kind="cpu"):
        raise_if_stopped(stop)
        problems += done.problems
        files += done.live
        if done.relocated is not None:
            lengths[done.source] = done.relocated
    if not problems:  # else the lists lack the lengths of manifests
        for path, data in _relocate_lists(repository, contents, work, lengths, problems):
            problems += _compare_lists(path, data, work, lengths)
        problems += _check_metadata(contents, work)
    return replace(
        report,
        snapshots=len(contents.metadata.get("snapshots") or ()),
        manifests=len(contents.manifests),
        files=files,
        problems=tuple(problems),
    )


def check_manifest(work: RestoreWork, task: ManifestTask) -> ManifestCheck:
    """Relocates a manifest in memory and compares its entries with the source's."""
    manifest = task.manifest
    try:
        return _check_manifest(work, task)
    except FrazilError as error:
        if error.retryable:
            raise
        return ManifestCheck(manifest.path, None, 0, (f"manifest {manifest.path}: {error.in_one_line}",))


def _check_manifest(work: RestoreWork, task: ManifestTask) -> ManifestCheck:
    repository, manifest = work.access.open(), task.manifest
    entries = list(read_manifest_files(repository.get_meta(manifest.blob), manifest.path))
    copied = {file.path: file for file in repository.read_files(manifest)} if work.moves_data else {}
    relocated, deletes = relocate_one(work, task)
    sizes = {path: len(data) for path, data in deletes}
    results = list(read_manifest_files(relocated.data, manifest.path))
    problems = []
    if len(entries) != len(results):
        problems.append(f"{len(results)} of {len(entries)} entries are left")
    for entry, result in zip(entries, results, strict=False):
        if result != _expect(entry, work, sizes):
            problems.append(f"the entry of {entry.path} becomes one of {result.path} that differs")
        if work.moves_data and entry.is_live:
            problems += _check_copy(entry, copied.get(entry.path))
    live = len({entry.path for entry in entries if entry.is_live})  # deletion vectors share files
    if live != manifest.entries:
        problems.append(f"it has {live} live files, and the backup says {manifest.entries}")
    shown = [f"manifest {manifest.path}: {text}" for text in problems[:_NAMED]]
    if len(problems) > _NAMED:
        shown.append(f"manifest {manifest.path}: {len(problems) - _NAMED} further problems")
    return ManifestCheck(manifest.path, len(relocated.data), live, tuple(shown))


def _expect(entry: ManifestFileEntry, work: RestoreWork, sizes: dict[str, int]) -> ManifestFileEntry:
    """Returns what a source entry must have become."""
    if not work.moves_data:
        return entry
    path = work.prefixes.map(entry.path)
    referenced = work.prefixes.map(entry.referenced) if entry.referenced else entry.referenced
    return replace(entry, path=path, referenced=referenced, size=sizes.get(path, entry.size))


def _check_copy(entry: ManifestFileEntry, file: CopiedFile | None) -> Iterator[str]:
    if file is None or file.blob is None:
        yield f"the backup has no copy of {entry.path}"
    elif file.size != entry.size:
        yield f"the copy of {entry.path} has {file.size} bytes, and the manifest says {entry.size}"


def _relocate_lists(
    repository: Repository,
    contents: RestoreContents,
    work: RestoreWork,
    lengths: dict[str, int],
    problems: list[str],
) -> Iterator[tuple[str, tuple[bytes, bytes]]]:
    for found in contents.manifest_lists:
        try:
            data = repository.get_meta(found.blob)
            yield found.path, (data, relocate_manifest_list(data, work.prefixes, lengths, where=found.path))
        except FrazilError as error:
            if error.retryable:
                raise
            problems.append(f"manifest list {found.path}: {error.in_one_line}")


def _compare_lists(path: str, lists: tuple[bytes, bytes], work: RestoreWork, lengths: dict[str, int]) -> Iterator[str]:
    before, after = (read_manifest_list(data, path) for data in lists)
    expected = [
        replace(entry, path=work.prefixes.map(entry.path), length=lengths.get(entry.path, entry.length))
        for entry in before
    ]
    if expected != after:
        yield f"manifest list {path}: the relocated list names other manifests than the source's"


def _check_metadata(contents: RestoreContents, work: RestoreWork) -> Iterator[str]:
    before = list_metadata_paths(contents.metadata)
    after = list_metadata_paths(relocate_metadata(contents.metadata, work.prefixes, metadata_log="drop"))
    for name in ("manifest_lists", "inline_manifests", "statistics", "partition_statistics", "locations"):
        if tuple(work.prefixes.map(path) for path in getattr(before, name)) != getattr(after, name):
            yield f"metadata.json: {name.replace('_', ' ')} are not relocated as they should be"
