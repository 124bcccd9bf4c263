"""A backup repository on a local folder or in a bucket; docs/backup-repository.md describes it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from frazil.atomic_files import build_temporary_path
from frazil.backup.format import (
    DAMAGED_HINT,
    BackedUpTable,
    BackupRecord,
    BlobRef,
    CopiedFile,
    DamagedRecord,
    ManifestState,
    TableState,
    Tombstone,
    check_name,
    compress,
    decompress,
    encode_files,
    encode_state,
    parse_files,
    parse_state,
    seal,
    unseal,
)
from frazil.errors import (
    ConflictError,
    IntegrityError,
    LockedError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from frazil.observe import faultpoints
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import ObjectInfo, ObjectStore, bulk, open_store, parse
from frazil.storage.bulk import BulkStore, FileSource, LocalBulk, RemoteBulk
from frazil.storage.faults import from_os
from frazil.storage.object_lock import LockedBulk, Versions, check_object_lock, find_versioning, server_time
from frazil.storage.server_copy import ServerCopies

HEADER = "repository.json"
#: Requests of one kind that are made at once.
THREADS = 16
T = TypeVar("T")


class ErasedError(NotFoundError):
    """The content was erased on purpose; its tombstone says when and why."""


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
        return _reopen(self)


@lru_cache(maxsize=8)
def _reopen(access: RepositoryAccess) -> Repository:
    return Repository(access)


def data_key(blob: BlobRef) -> str:
    return f"data/{blob.shard}/{blob}"


def meta_key(blob: BlobRef) -> str:
    return f"meta/{blob.shard}/{blob}.zst"


def tombstone_key(blob: BlobRef) -> str:
    return f"{data_key(blob)}.erased"


def record_key(name: str) -> str:
    return f"backups/{check_name(name)}.json"


class Repository:
    """A repository. Thread safe.

    Attributes:
        root: its normalised URI.
        id: a UUID.
        access: to reopen it in another process.
        lock_until: the end of the Object Lock retention of what is written now; None without `backup.lock_days`.
    """

    def __init__(self, access: RepositoryAccess) -> None:
        self.access = access
        self.root, self.id, self.lock_until = access.root, access.id, access.lock_until
        self.location = parse(access.root)
        self.store: ObjectStore = open_store(access.root, s3=access.s3, network=access.network)
        self.bulk = self._open_bulk()
        self._copies = ServerCopies(access.s3, access.network)
        self._known: dict[ObjectInfo, BackupRecord] = {}

    def _open_bulk(self) -> BulkStore:
        if self.is_local:
            return LocalBulk(self.location.path)
        if self.lock_until is None:
            return RemoteBulk(self.store, self.access.network)
        return LockedBulk(self.store, self.location, self.access.s3, self.access.network, self.lock_until)

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
        location = parse(root)
        if lock_days is not None:
            require_object_lock(root, s3, network)
        access = RepositoryAccess(str(location), "", s3, network)
        store = open_store(access.root, s3=s3, network=network)
        where = f"{access.root}/{HEADER}"
        try:
            header = store.get(HEADER)
        except NotFoundError as error:
            if error.message.startswith("bucket not found"):
                raise
            header = _create_header(store, access.root, is_wanted=create)
        found = unseal(header, where, what="header of a backup repository")
        if not isinstance(found.get("id"), str) or not found["id"]:
            raise IntegrityError(f"{where} has no id", hint="restore it from a copy of the repository")
        repository = cls(replace(access, id=found["id"]))
        if lock_days is None:
            return repository
        return cls(replace(repository.access, lock_until=lock_end(repository.now(), lock_days)))

    @property
    def is_local(self) -> bool:
        return self.location.scheme == "file"

    def now(self) -> datetime:
        """Returns the time by the storage's clock."""
        if self.is_local:
            return _local_time(self)
        if self.location.scheme == "s3":
            return server_time(self.location, HEADER, self.access.s3, self.access.network)
        key = f"prune/clock-{uuid.uuid4().hex}"
        self.store.put(key, b"frazil reads the time")
        try:
            return self.store.head(key).last_modified
        finally:
            with suppress(UnavailableError):
                self.store.delete(key)

    # -- blobs

    def put_data(self, source: DataSource) -> BlobRef:
        """Copies a file into the repository, if it does not have its content yet. Durable after `flush`.

        Raises:
            NotFoundError: there is no such file.
        """
        faultpoints.reach("backup.put_data")
        blob = self._put_by_server(source)
        if blob is None:
            file = FileSource(source.uri, source.size, source.s3, source.network)
            blob = BlobRef(*self.bulk.write_hashed(file, lambda size, sha256: data_key(BlobRef(size, sha256))))
        return blob

    def _put_by_server(self, source: DataSource) -> BlobRef | None:
        """Has the server copy the file, if it vouches for its SHA-256."""
        if self.location.scheme != "s3" or source.s3 != self.access.s3:
            return None
        location = parse(source.uri)
        if location.scheme != "s3" or (found := self._copies.find_sha256(location)) is None:
            return None
        if not self._has_verified_copies:
            return None
        blob = BlobRef(*found)
        if self.has_data(blob):
            self.protect([data_key(blob)])
            return blob
        target = self.location.child(data_key(blob))
        return blob if self._copies.copy(location, target, blob.size, blob.sha256, self.lock_until) else None

    @cached_property
    def _has_verified_copies(self) -> bool:
        """Whether the server states the SHA-256 of copies: tried first where an unverified copy does no harm."""
        data = self.store.get(HEADER)
        key = f"progress/copy-{uuid.uuid4().hex}"
        sha256 = hashlib.sha256(data).hexdigest()
        try:
            return self._copies.copy(self.location.child(HEADER), self.location.child(key), len(data), sha256, None)
        finally:
            self.discard(key)

    def has_data(self, blob: BlobRef) -> bool:
        """Returns whether the repository holds a blob of this name and size. One request."""
        try:
            return self.store.head(data_key(blob)).size == blob.size
        except NotFoundError:
            return False

    def open_data(self, blob: BlobRef) -> Iterator[bytes]:
        """Streams a blob, and compares size and SHA-256 at its end.

        Raises:
            NotFoundError: it is missing.
            ErasedError: it was erased on purpose.
            IntegrityError: it is damaged.
        """
        for chunk in self._read_data(blob):
            yield bytes(chunk)

    def _read_data(self, blob: BlobRef) -> Iterator[bytes | memoryview]:
        digest, size = hashlib.sha256(), 0
        key = data_key(blob)
        source = FileSource(f"{self.root}/{key}", blob.size, self.access.s3, self.access.network)
        try:
            for chunk in source.read():
                digest.update(chunk)
                size += len(chunk)
                yield chunk
        except NotFoundError as error:
            raise self.explain_missing(blob) from error
        if (size, digest.hexdigest()) != (blob.size, blob.sha256):
            raise IntegrityError(
                f"{self.root}/{key} is damaged",
                cause=f"it has {size:,} bytes with SHA-256 {digest.hexdigest()}",
                hint=DAMAGED_HINT,
            )

    def explain_missing(self, blob: BlobRef) -> NotFoundError:
        """Returns the error for a blob that is not there."""
        tombstone = self.read_tombstone(blob)
        where = f"{self.root}/{data_key(blob)}"
        if tombstone is None:
            return NotFoundError(f"{where} is missing", hint="frazil backup verify tells which backups need it")
        return ErasedError(
            f"{where} was erased on {tombstone.erased_at:%Y-%m-%d %H:%M} UTC",
            cause=tombstone.reason,
            hint="restore without the erased files: --allow-erased",
        )

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
        target = parse(target_uri)
        if target.scheme == self.location.scheme == "s3" and s3 == self.access.s3:
            source = self.location.child(data_key(blob))
            if self._copies.copy(source, target, blob.size, blob.sha256, None):
                return
        content = _Blob(blob.size, lambda: self._read_data(blob))
        bulk.write_file(target_uri, content, blob.size, blob.sha256, s3=s3, network=network)

    def put_meta(self, data: bytes) -> BlobRef:
        """Stores metadata, compressed. Durable after `flush`."""
        faultpoints.reach("backup.put_meta")
        blob = BlobRef.of(data)
        self.bulk.write(meta_key(blob), compress(data))
        return blob

    def has_meta(self, blob: BlobRef) -> bool:
        """Returns whether the repository holds this metadata. One request; nothing is read."""
        try:
            return self.store.head(meta_key(blob)).size > 0
        except NotFoundError:
            return False

    def get_meta(self, blob: BlobRef) -> bytes:
        """Returns metadata.

        Raises:
            NotFoundError: it is missing.
            IntegrityError: it is damaged.
        """
        key = meta_key(blob)
        where = f"{self.root}/{key}"
        try:
            data = self.store.get(key)
        except NotFoundError as error:
            raise NotFoundError(
                f"{where} is missing", hint="frazil backup verify tells which backups need it"
            ) from error
        content = decompress(data, where)
        if BlobRef.of(content) != blob:
            raise IntegrityError(f"{where} has the content of another blob: {BlobRef.of(content)}", hint=DAMAGED_HINT)
        return content

    def put_state(self, state: TableState) -> BlobRef:
        """Stores the state of a table."""
        return self.put_meta(encode_state(state))

    def put_files(self, files: Iterable[CopiedFile]) -> BlobRef:
        """Stores the file list of a manifest."""
        return self.put_meta(encode_files(files))

    def read_state(self, table: BackedUpTable) -> TableState:
        """Returns the state that a record names."""
        return parse_state(self.get_meta(table.state), f"{self.root}/{meta_key(table.state)}")

    def read_files(self, manifest: ManifestState) -> Iterator[CopiedFile]:
        """Yields the live files of a manifest; none where the data is referenced."""
        if manifest.files is not None:
            yield from parse_files(self.get_meta(manifest.files), f"{self.root}/{meta_key(manifest.files)}")

    def flush(self) -> None:
        """Returns when everything that was written so far, by any process of this machine, survives a power cut."""
        faultpoints.reach("backup.flush")
        self.bulk.flush()

    # -- records

    def write_record(self, record: BackupRecord, *, prune_wait_s: float | None = None) -> BackupRecord:
        """Writes the record of a backup, with the repository's id, after a flush. From now on the backup exists.

        `prune.check_marks` must have passed just before.

        Args:
            record: the record.
            prune_wait_s: as it was given to `check_marks`. A record that took longer to be written is removed again.

        Raises:
            ConflictError: there is a backup of this name; or it took too long.
        """
        record = replace(record, repository=self.id)
        key = record_key(record.name)
        self.flush()
        faultpoints.reach("backup.before_record")
        if prune_wait_s is not None and self.now() - record.started_at >= timedelta(seconds=prune_wait_s):
            raise too_long(prune_wait_s)
        try:
            self._create_locked(key, record.to_json())
        except ConflictError as error:
            raise ConflictError(
                f"there is a backup '{record.name}' already", cause="", hint="another name: --name NAME"
            ) from error
        faultpoints.reach("backup.after_record")
        if prune_wait_s is not None and self._is_late(key, record.started_at + timedelta(seconds=prune_wait_s)):
            self.remove(key)
            raise too_long(prune_wait_s)
        if self.lock_until is not None:
            self.protect([HEADER])
        return record

    def _is_late(self, key: str, deadline: datetime) -> bool:
        try:
            return self.store.head(key).last_modified >= deadline
        except NotFoundError:
            return False  # a prune dropped it already

    def _create_locked(self, key: str, data: bytes) -> None:
        if isinstance(self.bulk, LockedBulk):
            self.bulk.send(key, data, condition=True)
        else:
            self.store.put_if_absent(key, data)

    def read_record(self, name: str) -> BackupRecord:
        """Returns a record.

        Raises:
            NotFoundError: there is none; the hint offers near names.
            UsageError: that cannot be a name.
            IntegrityError: it is damaged, or belongs to another repository or another name.
            UnsupportedError: it is newer than this version of Frazil.
        """
        key = record_key(name)
        try:
            data = self.store.get(key)
        except NotFoundError as error:
            raise self._no_backup(name) from error
        return self._parse_record(name, data)

    def _parse_record(self, name: str, data: bytes) -> BackupRecord:
        where = f"{self.root}/{record_key(name)}"
        record = BackupRecord.parse(data, where)
        if record.name != name:
            raise IntegrityError(f"{where} is the record of another backup: '{record.name}'", hint="rename it back")
        if record.repository != self.id:
            raise IntegrityError(
                f"{where} belongs to another repository",
                cause=f"its repository is {record.repository}, this one is {self.id}",
                hint="move it back to where it came from",
            )
        return record

    def _no_backup(self, name: str) -> NotFoundError:
        names = self.list_names()
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        return NotFoundError(
            f"there is no backup '{name}' in {self.root}", hint=f"{hint}all backups: frazil backup list"
        )

    def list_names(self) -> list[str]:
        """Returns the names of all backups, without reading their records."""
        return sorted(name for info in self.store.list("backups") if (name := _name_of(info.key)) is not None)

    def list_records(self) -> list[BackupRecord | DamagedRecord]:
        """Returns all records, the oldest first; those that cannot be read come last. Each version is read once."""
        infos = [info for info in self.store.list("backups") if _name_of(info.key) is not None]
        found = dict(zip(infos, self.map(self._try_record, infos), strict=True))
        # Without an etag a replaced record would look the same.
        self._known = {info: one for info, one in found.items() if isinstance(one, BackupRecord) and info.etag}
        records = [one for one in found.values() if isinstance(one, BackupRecord)]
        damaged = [one for one in found.values() if isinstance(one, DamagedRecord)]
        return [*sorted(records, key=lambda r: (r.created_at, r.name)), *damaged]

    def _try_record(self, info: ObjectInfo) -> BackupRecord | DamagedRecord | None:
        if (known := self._known.get(info)) is not None:
            return known
        name = str(_name_of(info.key))
        try:
            return self._parse_record(name, self.store.get(info.key))
        except NotFoundError:
            return None  # removed since it was listed
        except (IntegrityError, UnsupportedError, UsageError) as error:
            return DamagedRecord(name, error)

    def find_latest(self, table_uuid: str) -> tuple[BackupRecord, BackedUpTable] | None:
        """Returns the newest readable record of a table whose data was copied."""
        for record in reversed(self.list_records()):
            if isinstance(record, BackupRecord) and record.data == "copied":
                for table in record.tables:
                    if table.uuid == table_uuid:
                        return record, table
        return None

    # -- progress of creates

    def save_progress(self, table_uuid: str, backup_id: str, files: Mapping[str, BlobRef]) -> None:
        """Flushes, and stores which paths are copied already. At most every 5 s."""
        self.flush()
        listed = {path: str(blob) for path, blob in files.items()}
        self.store.put(_progress_key(table_uuid, backup_id), seal({"files": listed}))

    def read_progress(self, table_uuid: str) -> dict[str, BlobRef]:
        """Returns what creates of a table that did not finish have copied, by path. Damaged notes are left out."""
        files: dict[str, BlobRef] = {}
        for info in sorted(self.store.list(_progress_folder(table_uuid)), key=lambda info: info.last_modified):
            with suppress(NotFoundError, IntegrityError, UnsupportedError):
                found = unseal(self.store.get(info.key), f"{self.root}/{info.key}", what="progress of a backup")
                files |= {path: BlobRef.parse(blob) for path, blob in found["files"].items()}
        return files

    def clear_progress(self, table_uuid: str, backup_ids: Collection[str] | None = None) -> None:
        """Removes the progress of these creates, by default of all creates of a table."""
        keys = [info.key for info in self.store.list(_progress_folder(table_uuid))]
        chosen = None if backup_ids is None else {_progress_key(table_uuid, one) for one in backup_ids}
        for key in keys:
            if chosen is None or key in chosen:
                self.discard(key)

    # -- content erased on purpose

    def erase(self, blob: BlobRef, reason: str) -> Tombstone:
        """Replaces a blob of data by a tombstone: that first, then the blob is deleted.

        Raises:
            NotFoundError: there is no such blob.
            LockedError: its Object Lock retention is not over.
        """
        key = data_key(blob)
        if not self.has_data(blob):
            raise self.explain_missing(blob)
        if (until := self.find_lock(key)) is not None:
            raise LockedError(
                f"{self.root}/{key} is locked until {until:%Y-%m-%d %H:%M} UTC", hint="repeat when that is over"
            )
        tombstone = Tombstone(blob, reason, self.now())
        self.store.put(tombstone_key(blob), tombstone.to_json())
        faultpoints.reach("backup.erase.marked")
        self.remove(key)
        faultpoints.reach("backup.erase.removed")
        return tombstone

    def read_tombstone(self, blob: BlobRef) -> Tombstone | None:
        """Returns the tombstone of a blob; None: it was not erased.

        Raises:
            IntegrityError: the tombstone is damaged.
        """
        key = tombstone_key(blob)
        try:
            data = self.store.get(key)
        except NotFoundError:
            return None
        where = f"{self.root}/{key}"
        tombstone = Tombstone.parse(data, where)
        if tombstone.blob != blob:
            raise IntegrityError(f"{where} is the tombstone of another blob: {tombstone.blob}")
        return tombstone

    # -- removal and retention

    @cached_property
    def _versions(self) -> Versions | None:
        """The versions of the bucket; None where there are none."""
        if self.location.scheme != "s3":
            return None
        found = find_versioning(self.location.bucket, self.access.s3, self.access.network)
        return None if found in (None, "Off") else Versions(self.location, self.access.s3, self.access.network)

    def find_lock(self, key: str) -> datetime | None:
        """Returns the end of an object's retention; None: it can be removed."""
        return None if self._versions is None else self._versions.find_lock(key)

    def remove(self, key: str) -> datetime | None:
        """Removes an object with all its versions. One that is locked stays: the end of its retention is returned."""
        if self._versions is not None:
            return self._versions.remove(key)
        self.store.delete(key)
        return None

    def remove_many(self, keys: Collection[str]) -> dict[str, datetime]:
        """Removes objects; returns those that are locked, with the end of their retention."""
        if self._versions is None:
            self.store.delete(*keys)
            return {}
        ends = zip(keys, self.map(self.remove, keys), strict=True)
        return {key: until for key, until in ends if until is not None}

    def discard(self, key: str) -> None:
        """Removes an object that says something of the moment only. Where it is locked, it is hidden."""
        if self.remove(key) is not None:
            self.store.delete(key)

    def protect(self, keys: Collection[str]) -> list[str]:
        """Prolongs the retention of objects, if this repository locks; returns those that are missing."""
        locked = self.bulk
        if not isinstance(locked, LockedBulk):
            return []

        def keep(key: str) -> str | None:
            try:
                locked.keep(key)
            except NotFoundError:
                return key
            return None

        return [key for key in self.map(keep, keys) if key is not None]

    def map(self, function: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
        """Applies a function to items, several at once, in their order; memory is bounded by the results in flight."""
        if self.is_local:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(THREADS, "frazil-backup") as threads:
            yield from _bounded(threads, function, items)


def _bounded(threads: ThreadPoolExecutor, function: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
    from collections import deque

    pending: deque[Any] = deque()
    try:
        for item in items:
            pending.append(threads.submit(function, item))
            if len(pending) >= 2 * THREADS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


class _Blob:
    """A blob as a `Source` for a target outside the repository."""

    def __init__(self, size: int, read: Callable[[], Iterator[bytes | memoryview]]) -> None:
        self.size: int | None = size
        self.read = read


def lock_end(now: datetime, lock_days: int) -> datetime:
    """Returns the end of a retention: `lock_days` from now, rounded up so that backups share it for a third of that.

    Most objects of a backup are those of the one before. Only where this date has moved must theirs be prolonged.
    """
    step = timedelta(days=max(1, lock_days // 3))
    start = datetime(2000, 1, 1, tzinfo=UTC)
    steps = -((start - now - timedelta(days=lock_days)) // step)
    return start + steps * step


def too_long(prune_wait_s: float) -> ConflictError:
    return ConflictError(
        f"the backup took longer than backup.prune_wait_s ({prune_wait_s:,.0f} s): a prune may have deleted parts",
        hint="raise backup.prune_wait_s for all users of the repository, then repeat; no file is copied twice",
    )


def _create_header(store: ObjectStore, root: str, *, is_wanted: bool) -> bytes:
    """Makes the header of a new repository; of two at once, one wins."""
    for folder in ("backups", "data", "meta"):
        if next(iter(store.list(folder)), None) is not None:
            raise IntegrityError(
                f"{root}/{HEADER} is missing, though there is a repository",
                hint="restore that file from a copy; docs/backup-repository.md says how to write it anew",
            )
    if not is_wanted:
        raise NotFoundError(
            f"there is no backup repository at {root}",
            hint="check backup.bucket; the first `frazil backup create` makes a new repository there",
        )
    header = build_header(str(uuid.uuid4()), datetime.now(UTC))
    try:
        store.put_if_absent(HEADER, header)
    except ConflictError:
        return store.get(HEADER)
    return header


def build_header(repository_id: str, created_at: datetime) -> bytes:
    text = created_at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return seal({"kind": "frazil-backup-repository", "id": repository_id, "created_at": text})


def require_object_lock(root: str, s3: S3Settings, network: NetworkSettings) -> None:
    """Checks that a place for a repository can lock objects.

    Raises:
        UnsupportedError: it is not a bucket of S3, or one without Object Lock.
    """
    location = parse(root)
    if location.scheme != "s3":
        raise UnsupportedError(
            f"backup.lock_days is set, and {root} is not a bucket of S3", hint="backup.bucket: s3://bucket/prefix"
        )
    lock = check_object_lock(location.bucket, s3, network)
    if lock.problem is not None:
        raise UnsupportedError(
            f"backup.lock_days is set, and bucket s3://{location.bucket} cannot lock objects",
            cause=lock.problem,
            hint="a bucket that was created with Object Lock, or no backup.lock_days",
        )


def _name_of(key: str) -> str | None:
    """The name of the backup that a record below `backups` is of; None: it is something else."""
    name = key.removeprefix("backups/")
    return name.removesuffix(".json") if name.endswith(".json") and "/" not in name else None


def _progress_folder(table_uuid: str) -> str:
    return f"progress/{check_name(table_uuid)}"


def _progress_key(table_uuid: str, backup_id: str) -> str:
    return f"{_progress_folder(table_uuid)}/{check_name(backup_id)}.json"


def _local_time(repository: Repository) -> datetime:
    """The time of the file system: it may be another machine's."""
    path = build_temporary_path(repository.location.path / "x")
    try:
        path.touch(exist_ok=False)
        try:
            return datetime.fromtimestamp(path.stat().st_mtime, UTC)
        finally:
            path.unlink()
    except OSError as error:
        raise from_os(error, repository.root) from error
