"""The steps of a backup that run in parallel, here or on Spark: each reads something of the table and stores it.

A file of the table that is not there is a result, `Vanished`, and no error: it may have been expired.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from frazil.backup.format import BlobRef, CopiedFile, ManifestState
from frazil.backup.repository import DataSource, RepositoryAccess
from frazil.errors import IntegrityError, NotFoundError
from frazil.observe.faultpoints import reach
from frazil.tables.metadata.locations import UriStorage
from frazil.tables.relocation.manifests import ManifestListEntry, read_manifest_files, read_manifest_list

_EXISTING = 0


@dataclass(frozen=True)
class Access:
    """How a task reaches the table's files and the repository, in any process."""

    storage: UriStorage
    repository: RepositoryAccess


@dataclass(frozen=True)
class Vanished:
    """A file that is not there."""

    path: str
    error: NotFoundError


@dataclass(frozen=True)
class ListTask:
    """A manifest list to store, or to read from the repository if that has it.

    Attributes:
        known: its blob there.
    """

    access: Access
    path: str
    known: BlobRef | None = None


@dataclass(frozen=True)
class StoredList:
    path: str
    blob: BlobRef
    manifests: tuple[ManifestListEntry, ...]


@dataclass(frozen=True)
class ManifestTask:
    """A manifest to store."""

    access: Access
    path: str
    content: int
    listed: int


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A live file of a manifest; `was_there` if an older manifest had it first."""

    path: str
    size: int
    content: int
    format: str
    was_there: bool


@dataclass(frozen=True)
class StoredManifest:
    """A manifest that is in the repository now.

    Attributes:
        listed: entries, as its list counts them.
        files: live ones.
        folders: that deleted entries and references to data files name; a restore maps these paths too.
    """

    path: str
    blob: BlobRef
    content: int
    listed: int
    files: tuple[LiveFile, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True)
class FileTask:
    """A file to copy.

    Attributes:
        size: as its manifest says; None where none says it.
        known: its blob, according to a create that did not finish.
        copies: False: only make sure that it is there.
    """

    access: Access
    path: str
    size: int | None
    known: BlobRef | None = None
    copies: bool = True


@dataclass(frozen=True)
class StoredFile:
    """A file that is in the repository now, or was found (then there is no blob).

    Attributes:
        was_copied: its bytes were read.
    """

    path: str
    size: int
    blob: BlobRef | None
    was_copied: bool


@dataclass(frozen=True)
class FileListTask:
    """The file list of a manifest to store."""

    access: Access
    path: str
    blob: BlobRef
    content: int
    files: tuple[CopiedFile, ...]


def store_list(task: ListTask) -> StoredList | Vanished:
    repository = task.access.repository.open()
    blob = task.known
    if blob is not None:
        data = repository.get_meta(blob)
    else:
        try:
            data = _shared(task.access.storage).read(task.path)
        except NotFoundError as error:
            return Vanished(task.path, error)
        blob = repository.put_meta(data)
    reach("backup.create.list.stored")
    return StoredList(task.path, blob, tuple(read_manifest_list(data, task.path)))


def store_manifest(task: ManifestTask) -> StoredManifest | Vanished:
    try:
        data = _shared(task.access.storage).read(task.path)
    except NotFoundError as error:
        return Vanished(task.path, error)
    files: dict[str, LiveFile] = {}
    folders: dict[str, None] = {}
    for entry in read_manifest_files(data, task.path):
        if entry.is_live:
            is_existing = entry.status == _EXISTING
            files[entry.path] = LiveFile(entry.path, entry.size, entry.content, entry.format, is_existing)
        else:
            folders.setdefault(entry.path.rpartition("/")[0])
        if entry.referenced:
            folders.setdefault(entry.referenced.rpartition("/")[0])
    blob = task.access.repository.open().put_meta(data)
    reach("backup.create.manifest.stored")
    return StoredManifest(task.path, blob, task.content, task.listed, tuple(files.values()), tuple(folders))


def store_file(task: FileTask) -> StoredFile | Vanished:
    """Copies a file, unless the repository has it.

    Raises:
        IntegrityError: it does not have the size that its manifest says.
    """
    repository = task.access.repository.open()
    if task.known is not None and repository.has_data(task.known):
        return StoredFile(task.path, task.known.size, task.known, False)
    storage = _shared(task.access.storage)
    reach("backup.create.file.before")
    if not task.copies:
        try:
            size = storage.measure(task.path)
        except NotFoundError as error:
            return Vanished(task.path, error)
        _require_size(task, size)
        return StoredFile(task.path, size, None, False)
    try:
        blob = repository.put_data(DataSource(task.path, task.size, storage.s3, storage.network))
    except NotFoundError as error:
        if _is_there(storage, task.path):
            raise  # something of the repository is missing
        return Vanished(task.path, error)
    _require_size(task, blob.size)
    reach("backup.create.file.stored")
    return StoredFile(task.path, blob.size, blob, True)


def store_file_list(task: FileListTask) -> ManifestState:
    files = task.access.repository.open().put_files(task.files)
    size = sum(file.size for file in task.files)
    return ManifestState(task.path, task.blob, files, task.content, len(task.files), size)


@lru_cache(maxsize=64)
def _shared(storage: UriStorage) -> UriStorage:
    """The storage that earlier tasks of this process have opened: each task from another process brings a copy."""
    return storage


def _is_there(storage: UriStorage, path: str) -> bool:
    try:
        storage.measure(path)
    except NotFoundError:
        return False
    return True


def _require_size(task: FileTask, size: int) -> None:
    if task.size is not None and size != task.size:
        raise IntegrityError(
            f"{task.path} has {size:,} bytes, its manifest says {task.size:,}",
            cause="the file is cut off or was replaced, or the manifest is wrong",
            hint="bring the file back, or delete its rows and expire the snapshots that refer to it",
        )
