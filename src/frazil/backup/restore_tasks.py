"""The work of a restore, file by file: functions of one task each, for any engine, and what they need. Picklable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from frazil.backup.format import BlobRef, CopiedFile, ManifestState, PathBlob
from frazil.backup.repository import RepositoryAccess
from frazil.errors import IntegrityError, NotFoundError
from frazil.observe.faultpoints import reach
from frazil.storage import parse
from frazil.storage.bulk import read_file
from frazil.tables.metadata.locations import UriStorage
from frazil.tables.relocation.manifests import (
    FileSize,
    OmittedCounts,
    RelocatedManifest,
    read_manifest_files,
    relocate_manifest,
    relocate_manifest_list,
)
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.target_folder import TargetFolder, relocate_deletes

_NOTHING = OmittedCounts()
#: Files whose content names data files: position deletes, deletion vectors among them.
POSITION_DELETES = 1


@dataclass(frozen=True)
class RestoreWork:
    """What all tasks of a restore share.

    Attributes:
        access: to the repository.
        target: where the table will lie.
        prefixes: source folders and their targets.
        moves_data: whether data files move; not if the backup refers to them where they are.
        is_resumed: whether files may be there already.
        omit: source paths of data files that are left out.
    """

    access: RepositoryAccess
    target: TargetFolder
    prefixes: PrefixMap
    moves_data: bool
    is_resumed: bool
    omit: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CopyTask:
    files: tuple[tuple[BlobRef, str], ...]


@dataclass(frozen=True)
class CopyResult:
    files: int
    bytes: int
    skipped_files: int
    skipped_bytes: int


@dataclass(frozen=True)
class ManifestTask:
    """A manifest to relocate.

    Attributes:
        first_row_id: as its list says; for format version 3.
    """

    manifest: ManifestState
    first_row_id: int | None


@dataclass(frozen=True)
class ManifestResult:
    """A relocated manifest.

    Attributes:
        source: path of the manifest in the source.
        relocated: its length, or the manifest itself where entries were left out.
        written: path and size of each file that was written, delete files included.
    """

    source: str
    relocated: RelocatedManifest | int
    written: tuple[tuple[str, int], ...]


def copy_files(work: RestoreWork, task: CopyTask) -> CopyResult:
    """Copies files whose content does not change. Those that an earlier run has copied are left alone."""
    repository = work.access.open()
    files = size = skipped_files = skipped_bytes = 0
    for blob, path in task.files:
        if work.is_resumed and _is_copied(work, blob, path):
            skipped_files, skipped_bytes = skipped_files + 1, skipped_bytes + blob.size
            continue
        reach("restore.copy.before")
        repository.copy_data_to(blob, path, s3=work.target.s3, network=work.target.network)
        reach("restore.copy.after")
        files, size = files + 1, size + blob.size
    return CopyResult(files, size, skipped_files, skipped_bytes)


def _is_copied(work: RestoreWork, blob: BlobRef, path: str) -> bool:
    """Whether an earlier run has copied a file.

    A local one is read: after a power cut it may have its name and size, and other bytes.
    """
    if not work.target.has(path, blob.size):
        return False
    place = parse(path)
    if place.scheme != "file":
        return True
    digest = hashlib.sha256()
    for chunk in read_file(place.path):
        digest.update(chunk)
    return digest.hexdigest() == blob.sha256


def restore_manifest(work: RestoreWork, task: ManifestTask) -> ManifestResult:
    """Rewrites the position deletes of a manifest, and then the manifest, so that all sizes are measured."""
    relocated, deletes = relocate_one(work, task)
    written = []
    for path, data in deletes:
        reach("restore.deletes.before")
        work.target.write(path, data)
        reach("restore.deletes.after")
        written.append((path, len(data)))
    path = work.prefixes.map(task.manifest.path)
    reach("restore.manifest.before")
    work.target.write(path, relocated.data)
    reach("restore.manifest.after")
    written.append((path, len(relocated.data)))
    short = len(relocated.data) if relocated.omitted == _NOTHING else relocated
    return ManifestResult(task.manifest.path, short, tuple(written))


def relocate_one(work: RestoreWork, task: ManifestTask) -> tuple[RelocatedManifest, list[tuple[str, bytes]]]:
    """Returns a relocated manifest, and its rewritten delete files with their paths. Writes nothing."""
    repository, manifest = work.access.open(), task.manifest
    data = repository.get_meta(manifest.blob)
    if not work.moves_data:
        return RelocatedManifest(data), []
    sizes: dict[str, FileSize] = {}
    deletes: list[tuple[str, bytes]] = []
    for file in repository.read_files(manifest) if manifest.content != 0 else ():
        if file.content == POSITION_DELETES and file.path not in sizes:
            rewritten, sizes[file.path] = rewrite_deletes(work, file)
            deletes.append((work.prefixes.map(file.path), rewritten))
    relocated = relocate_manifest(
        data,
        work.prefixes,
        sizes if manifest.content != 0 else None,
        work.omit,
        first_row_id=task.first_row_id,
        where=manifest.path,
    )
    return relocated, deletes


def rewrite_deletes(work: RestoreWork, file: CopiedFile) -> tuple[bytes, FileSize]:
    """Returns a position-delete file or deletion vectors with relocated paths, and its measurements.

    Deletes outlive data files: some name files that compaction took out of the table long ago, in a folder that nothing
    else of the table is in. They are kept, under paths that no file has.

    Raises:
        IntegrityError: the file is not in the repository, or damaged.
    """
    if file.blob is None:
        raise IntegrityError(f"the backup has no copy of {file.path}", hint="frazil backup verify")
    data = b"".join(work.access.open().open_data(file.blob))
    prefixes = PrefixMap(work.prefixes.pairs, strays=f"{work.target.location}/relocated/gone")
    return relocate_deletes(data, file.format, prefixes)


def restore_list(
    work: RestoreWork, manifests: Mapping[str, RelocatedManifest | int], found: PathBlob
) -> tuple[str, int]:
    """Relocates a manifest list, and returns its path and size."""
    data = relocate_manifest_list(work.access.open().get_meta(found.blob), work.prefixes, manifests, where=found.path)
    path = work.prefixes.map(found.path)
    reach("restore.list.before")
    work.target.write(path, data)
    reach("restore.list.after")
    return path, len(data)


def find_missing_files(work: RestoreWork, manifest: ManifestState) -> list[str]:
    """Returns the live files of a manifest that are not where it says: of a backup that refers to them."""
    data = work.access.open().get_meta(manifest.blob)
    files = UriStorage(work.target.s3, work.target.network)
    missing = []
    for entry in read_manifest_files(data, manifest.path):
        if entry.is_live:
            store, key = files.find(entry.path)
            try:
                found = store.head(key).size == entry.size
            except NotFoundError:
                found = False
            if not found:
                missing.append(entry.path)
    return missing


def batch_files(files: Iterator[tuple[BlobRef, str]], most_files: int, most_bytes: int) -> Iterator[CopyTask]:
    """Groups files into tasks."""
    batch: list[tuple[BlobRef, str]] = []
    size = 0
    for blob, path in files:
        batch.append((blob, path))
        size += blob.size
        if len(batch) >= most_files or size >= most_bytes:
            yield CopyTask(tuple(batch))
            batch, size = [], 0
    if batch:
        yield CopyTask(tuple(batch))
