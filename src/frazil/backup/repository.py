"""A backup repository on a local folder or in a bucket; docs/backup-repository.md describes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from frazil.backup.format import (
    BackedUpTable,
    BackupRecord,
    BlobRef,
    CopiedFile,
    DamagedRecord,
    ManifestState,
    TableState,
    Tombstone,
)
from frazil.settings.model import NetworkSettings, S3Settings


@dataclass(frozen=True)
class DataSource:
    """A file to copy into the repository. Picklable.

    Attributes:
        uri: where it lies, in any spelling that Iceberg uses.
        size: as its manifest says; None where that is not known. The bytes that are read decide.
    """

    uri: str
    size: int | None
    s3: S3Settings
    network: NetworkSettings


@dataclass(frozen=True)
class RepositoryAccess:
    """How to reopen a repository in another process. Picklable; `open` returns one `Repository` per process."""

    root: str
    id: str
    s3: S3Settings
    network: NetworkSettings
    lock_until: datetime | None = None

    def open(self) -> Repository:
        raise NotImplementedError


class Repository:
    """A repository. Thread safe.

    Attributes:
        root: its normalised URI.
        id: a UUID.
        access: to reopen it in another process.
        lock_until: the end of the Object Lock retention of what is written now; None without `backup.lock_days`.
    """

    root: str
    id: str
    access: RepositoryAccess
    lock_until: datetime | None

    @classmethod
    def open(
        cls,
        root: str,
        *,
        s3: S3Settings,
        network: NetworkSettings,
        create: bool = False,
        lock_days: int | None = None,
    ) -> Repository:
        """Opens a repository.

        Args:
            root: a folder, or s3://bucket/prefix.
            s3: access to the repository itself.
            network: patience with it.
            create: make it where there is none.
            lock_days: write everything under S3 Object Lock for so long.

        Raises:
            NotFoundError: there is none.
            IntegrityError: its header is damaged, missing or not Frazil's.
            UnsupportedError: it is newer than this version of Frazil; or `lock_days` where the bucket cannot lock.
        """
        raise NotImplementedError

    def now(self) -> datetime:
        """Returns the time by the storage's clock."""
        raise NotImplementedError

    # -- blobs

    def put_data(self, source: DataSource) -> BlobRef:
        """Copies a file into the repository, if it does not have its content yet. Durable after `flush`.

        Raises:
            NotFoundError: there is no such file.
        """
        raise NotImplementedError

    def has_data(self, blob: BlobRef) -> bool:
        """Returns whether the repository holds a blob of this name and size. One request."""
        raise NotImplementedError

    def open_data(self, blob: BlobRef) -> Iterator[bytes]:
        """Streams a blob, and compares size and SHA-256 at its end.

        Raises:
            NotFoundError: it is missing.
            ErasedError: it was erased on purpose.
            IntegrityError: it is damaged.
        """
        raise NotImplementedError

    def copy_data_to(self, blob: BlobRef, target_uri: str, *, s3: S3Settings, network: NetworkSettings) -> None:
        """Copies a blob to a place outside the repository, replacing what is there.

        Bytes that pass through this process are compared with size and SHA-256, before the target gets its name. Where
        both lie on one S3 server, that server copies, and says the SHA-256 of the copy. Local targets are durable after
        `bulk.flush`.

        Raises:
            NotFoundError: the blob is missing.
            ErasedError: it was erased on purpose.
            IntegrityError: it is damaged.
        """
        raise NotImplementedError

    def put_meta(self, data: bytes) -> BlobRef:
        """Stores metadata, compressed, if it is not there yet. Durable after `flush`."""
        raise NotImplementedError

    def has_meta(self, blob: BlobRef) -> bool:
        """Returns whether the repository holds this metadata. One request; nothing is read."""
        raise NotImplementedError

    def get_meta(self, blob: BlobRef) -> bytes:
        """Returns metadata.

        Raises:
            NotFoundError: it is missing.
            IntegrityError: it is damaged.
        """
        raise NotImplementedError

    def put_state(self, state: TableState) -> BlobRef:
        """Stores the state of a table."""
        raise NotImplementedError

    def put_files(self, files: Iterable[CopiedFile]) -> BlobRef:
        """Stores the file list of a manifest."""
        raise NotImplementedError

    def read_state(self, table: BackedUpTable) -> TableState:
        """Returns the state that a record names."""
        raise NotImplementedError

    def read_files(self, manifest: ManifestState) -> Iterator[CopiedFile]:
        """Yields the live files of a manifest; none where the data is referenced."""
        raise NotImplementedError

    def flush(self) -> None:
        """Returns when everything that was written so far, by any process of this machine, survives a power cut."""
        raise NotImplementedError

    # -- records

    def write_record(self, record: BackupRecord) -> BackupRecord:
        """Writes the record of a backup, with the repository's id, after a flush. From now on the backup exists.

        `prune.check_marks` must have passed just before.

        Raises:
            ConflictError: there is a backup of this name.
        """
        raise NotImplementedError

    def read_record(self, name: str) -> BackupRecord:
        """Returns a record.

        Raises:
            NotFoundError: there is none; the hint offers near names.
            UsageError: that cannot be a name.
            IntegrityError: it is damaged, or belongs to another repository or another name.
            UnsupportedError: it is newer than this version of Frazil.
        """
        raise NotImplementedError

    def list_records(self) -> list[BackupRecord | DamagedRecord]:
        """Returns all records, the oldest first; those that cannot be read come last."""
        raise NotImplementedError

    def find_latest(self, table_uuid: str) -> tuple[BackupRecord, BackedUpTable] | None:
        """Returns the newest readable record of a table whose data was copied."""
        raise NotImplementedError

    # -- progress of creates

    def save_progress(self, table_uuid: str, backup_id: str, files: Mapping[str, BlobRef]) -> None:
        """Flushes, and stores which paths are copied already. At most every 5 s."""
        raise NotImplementedError

    def read_progress(self, table_uuid: str) -> dict[str, BlobRef]:
        """Returns what creates of a table that did not finish have copied: blobs by path. Damaged notes are left out."""
        raise NotImplementedError

    def clear_progress(self, table_uuid: str, backup_ids: Collection[str] | None = None) -> None:
        """Removes the progress of these creates, by default of all creates of a table."""
        raise NotImplementedError

    # -- content erased on purpose

    def erase(self, blob: BlobRef, reason: str) -> Tombstone:
        """Replaces a blob of data by a tombstone: that first, then the blob is deleted.

        Raises:
            NotFoundError: there is no such blob.
            LockedError: its Object Lock retention is not over.
        """
        raise NotImplementedError

    def read_tombstone(self, blob: BlobRef) -> Tombstone | None:
        """Returns the tombstone of a blob; None: it was not erased."""
        raise NotImplementedError
