"""Whole files as objects, with storage class, version and checksum: what documents need beyond `ObjectStore`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from frazil.errors import ConflictError, IntegrityError, NotFoundError, UnsupportedError
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import open_store
from frazil.storage.faults import from_os
from frazil.storage.store import CHUNK, ObjectStore, sha256_of
from frazil.storage.uri import Location

RestoreTier = Literal["Standard", "Bulk", "Expedited"]
RestoreAnswer = Literal["accepted", "extended", "in_progress"]
#: S3 takes 10,000 parts at most.
_MOST_PARTS = 9_000
#: Storage classes of S3 whose objects cannot be read until they are restored.
ARCHIVE_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})


class ArchivedError(ConflictError):
    """The object is in an archive storage class, and no restored copy of it exists."""


@dataclass(frozen=True)
class RestoredCopy:
    """The restore of an archived object: under way, or done and readable until `expiry`."""

    is_ongoing: bool
    expiry: datetime | None = None


@dataclass(frozen=True)
class StoredFile:
    """An object as the store describes it.

    Attributes:
        version_id: empty where the bucket keeps no versions.
        storage_class: S3's word for it; None where the store has none.
        restored: set for archived objects that were asked for.
    """

    size: int
    etag: str
    last_modified: datetime
    version_id: str = ""
    storage_class: str | None = None
    content_type: str | None = None
    restored: RestoredCopy | None = None

    @property
    def is_readable(self) -> bool:
        if self.storage_class not in ARCHIVE_CLASSES:
            return True
        return self.restored is not None and not self.restored.is_ongoing


@dataclass(frozen=True)
class FileDigests:
    """What a file on this machine contains, as a whole and by the parts in which it is uploaded."""

    size: int
    sha256: str
    part_size: int
    parts_sha256: tuple[bytes, ...]
    parts_md5: tuple[bytes, ...]

    @classmethod
    def of(cls, file: Path) -> FileDigests:
        """Reads a file once.

        Raises:
            FrazilError: it cannot be read.
        """
        part_size = CHUNK
        whole, sha256, md5 = hashlib.sha256(), [], []
        try:
            part_size = max(CHUNK, -(-file.stat().st_size // _MOST_PARTS))
            for part in read_parts(file, part_size):
                whole.update(part)
                sha256.append(hashlib.sha256(part).digest())
                md5.append(hashlib.md5(part, usedforsecurity=False).digest())
            size = file.stat().st_size
        except OSError as error:
            raise from_os(error, str(file)) from error
        return cls(size, whole.hexdigest(), part_size, tuple(sha256), tuple(md5))


def read_parts(file: Path, part_size: int) -> Iterator[bytes]:
    """Yields the parts of a file, at least one."""
    with file.open("rb") as opened:
        part = opened.read(part_size)
        while True:
            yield part
            part = opened.read(part_size)
            if not part:
                return


def replaced(where: str) -> ConflictError:
    """Returns the error of an upload that is not there any more when it is to be verified."""
    return ConflictError(
        f"{where} was replaced or removed during the upload", hint="check the file, then run the command again"
    )


class FileStore(Protocol):
    """Files in one bucket or folder, by key."""

    def find(self, key: str, version_id: str = "") -> StoredFile | None:
        """Describes an object; None: there is none."""
        ...

    def holds(self, key: str, found: StoredFile, digests: FileDigests) -> bool | None:
        """Whether an object has this content; None: that cannot be told without restoring it."""
        ...

    def upload(
        self, key: str, file: Path, digests: FileDigests, *, storage_class: str, content_type: str, replace: bool
    ) -> StoredFile:
        """Uploads a file, in parts where it is large, and verifies what was stored.

        Args:
            key: of the object.
            file: on this machine.
            digests: of its content.
            storage_class: S3's word for it.
            content_type: of the file.
            replace: replace an object that exists.

        Raises:
            ConflictError: an object exists, and `replace` is false; or another writer has replaced it in between.
            IntegrityError: the file changed meanwhile, or the store holds something else than was sent.
            UnsupportedError: the store has no such storage class.
        """
        ...

    def read(self, key: str, found: StoredFile) -> Iterator[bytes]:
        """Streams the content of exactly this version.

        Raises:
            ArchivedError: it must be restored first.
            ConflictError: it was replaced meanwhile.
        """
        ...

    def restore(self, key: str, version_id: str, days: int, tier: RestoreTier) -> RestoreAnswer:
        """Asks for a readable copy of an archived object, for so many days.

        Returns:
            accepted: the restore has begun; extended: a copy exists and now stays longer; in_progress: an earlier
            request is not done yet.

        Raises:
            UnsupportedError: the store has no archive.
        """
        ...


def open_files(location: Location, *, s3: S3Settings, network: NetworkSettings) -> FileStore:
    """Opens the bucket or folder of a location; keys are relative to its authority, or to the folder itself."""
    if location.scheme == "s3":
        from frazil.storage.s3_files import S3Files

        return S3Files(location.bucket, s3, network)
    root = location if location.scheme == "file" else Location(location.scheme, location.authority, "")
    return PlainFiles(open_store(str(root), s3=s3, network=network))


class PlainFiles:
    """Files in a store without storage classes: a local folder, Azure, Google Cloud."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def find(self, key: str, version_id: str = "") -> StoredFile | None:
        del version_id
        try:
            info = self._store.head(key)
        except NotFoundError:
            return None
        return StoredFile(info.size, info.etag, info.last_modified)

    def holds(self, key: str, found: StoredFile, digests: FileDigests) -> bool | None:
        if found.size != digests.size:
            return False
        return sha256_of(self._store.get_stream(key, etag=found.etag)) == digests.sha256

    def upload(
        self, key: str, file: Path, digests: FileDigests, *, storage_class: str, content_type: str, replace: bool
    ) -> StoredFile:
        del content_type
        where = f"{self._store.root}/{key}"
        if storage_class != "STANDARD":
            raise UnsupportedError(
                f"{self._store.root} has no storage classes", hint="omit --storage-tier, or use an S3 bucket"
            )
        etag = self._put(key, file, digests, where, replace=replace)
        found = self.find(key)
        if found is not None and self.holds(key, found, digests):
            return found
        if found is None or found.etag != etag:
            raise replaced(where)
        raise IntegrityError(
            f"{where} does not match what was written: SHA-256 {digests.sha256}", hint="check the disk"
        )

    def _put(self, key: str, file: Path, digests: FileDigests, where: str, *, replace: bool) -> str:
        if not replace:
            with suppress(UnsupportedError):
                return self._store.put_if_absent(key, file, sha256=digests.sha256)
            if self.find(key) is not None:
                raise ConflictError(f"{where} already exists")
        return self._store.put(key, file, sha256=digests.sha256)

    def read(self, key: str, found: StoredFile) -> Iterator[bytes]:
        return self._store.get_stream(key, etag=found.etag)

    def restore(self, key: str, version_id: str, days: int, tier: RestoreTier) -> RestoreAnswer:
        del version_id, days, tier
        raise UnsupportedError(f"{self._store.root}/{key} is not archived", hint="frazil docs fetch reads it directly")
