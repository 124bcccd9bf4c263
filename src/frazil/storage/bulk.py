"""Many files at once: written without a sync of their own, and made durable together by one `flush`.

`LocalStore` syncs each file and its folder, which costs more than the file itself. Here a file takes its name by a
rename, so that a reader never sees a part of it, but only `flush` makes it survive a power cut.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeAlias

from frazil.atomic_files import build_temporary_path
from frazil.errors import ConflictError, IntegrityError, NotFoundError
from frazil.observe.resilience import retry
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import Location, ObjectStore, open_store, parse
from frazil.storage.faults import from_os
from frazil.storage.store import CHUNK, check_key

#: Content up to this size is sent in one request, from memory; larger content in parts.
WHOLE = 64 * 1024 * 1024
#: Bytes of such content that a process holds at once.
_IN_MEMORY = 4 * WHOLE
#: Small enough to stay in the processor's cache between reading, hashing and writing.
_COPY_CHUNK = 256 * 1024
#: Buffers of files that were read, for those that follow.
_buffers: deque[bytearray] = deque(maxlen=64)

Chunks: TypeAlias = Iterator[bytes | memoryview]
KeyOf: TypeAlias = Callable[[int, str], str]
"""The key of content, from its size and SHA-256."""


class Source(Protocol):
    """Content that can be read again."""

    @property
    def size(self) -> int | None:
        """Returns the size, if it is known before reading."""

    def read(self) -> Chunks:
        """Yields the content. A chunk is valid until the next one is taken."""


class BulkStore(Protocol):
    """Writes objects whose key follows from their content. Thread safe."""

    def write(self, key: str, data: bytes) -> None:
        """Writes an object, unless the store has it."""

    def write_hashed(self, source: Source, key_of: KeyOf) -> tuple[int, str]:
        """Writes content under the key that it has by its size and SHA-256, which are returned."""

    def flush(self) -> None:
        """Returns when everything written so far is durable."""


class FileSource:
    """A file or object as a `Source`."""

    def __init__(self, uri: str, size: int | None, s3: S3Settings, network: NetworkSettings) -> None:
        self.location = parse(uri)
        self.size = size
        self._s3, self._network = s3, network

    def read(self) -> Chunks:
        if self.location.scheme == "file":
            return read_file(self.location.path)
        return self._read_remote()

    def _read_remote(self) -> Chunks:
        store, key = find_object(self.location, self._s3, self._network)
        if self.size is not None and self.size <= WHOLE:
            yield store.get(key)  # one request; a stream takes two
        else:
            yield from store.get_stream(key)


@lru_cache(maxsize=64)
def _bucket(root: str, s3: S3Settings, network: NetworkSettings) -> ObjectStore:
    return open_store(root, s3=s3, network=network)


def find_object(location: Location, s3: S3Settings, network: NetworkSettings) -> tuple[ObjectStore, str]:
    """Returns the store of a whole bucket, opened once per process, and the key of an object there."""
    return _bucket(str(Location(location.scheme, location.authority, "")), s3, network), location.key


def read_file(path: Path) -> Iterator[memoryview]:
    """Yields a local file through one buffer, which is used again: faulting in fresh pages costs as much as the read.

    A chunk is valid until the next one is taken, the last one until the iterator ends.
    """
    try:
        buffer = _buffers.pop()
    except IndexError:
        buffer = bytearray(_COPY_CHUNK)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as file:
            while length := file.readinto(buffer):
                yield view[:length]
    except OSError as error:
        raise from_os(error, str(path)) from error
    finally:
        _buffers.append(buffer)


class LocalBulk:
    """A `BulkStore` in a folder. What it has just read replaces what is there, so that a damaged copy is healed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, key: str, data: bytes) -> None:
        self.write_hashed(_Bytes(data), lambda *_: key)

    def write_hashed(self, source: Source, key_of: KeyOf) -> tuple[int, str]:
        temporary = build_temporary_path(self.folder / "x")
        with _translated(self.folder):
            handle = _create(temporary)
        try:
            size, sha256 = _copy(source, handle, temporary)
            target = self.folder / check_key(key_of(size, sha256))
            with _translated(target):
                _rename(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        return size, sha256

    def flush(self) -> None:
        with _translated(self.folder):
            sync_file_system(self.folder)


def _create(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


def _copy(source: Source, handle: int, path: Path) -> tuple[int, str]:
    """Writes a source to a file handle, which is closed; returns size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    with open(handle, "wb", buffering=0) as file:
        for chunk in source.read():
            digest.update(chunk)
            view = memoryview(chunk)
            with _translated(path):
                while view:
                    view = view[file.write(view) :]
            size += len(chunk)
    return size, digest.hexdigest()


def _rename(temporary: Path, target: Path) -> None:
    try:
        temporary.replace(target)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(target)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise from_os(error, str(path)) from error


class RemoteBulk:
    """A `BulkStore` in a bucket. An object that is there with the right size is not sent again."""

    def __init__(self, store: ObjectStore, network: NetworkSettings) -> None:
        self._store, self._network = store, network
        self._memory = _Budget(_IN_MEMORY)

    def write(self, key: str, data: bytes) -> None:
        self.create(key, data, is_replaceable=False)

    def write_hashed(self, source: Source, key_of: KeyOf) -> tuple[int, str]:
        if source.size is None or source.size > WHOLE:
            return self._write_large(source, key_of)
        with self._memory.taking(source.size):
            data = _take(source.read(), WHOLE)
            if data is None:  # larger than was said
                return self._write_large(source, key_of)
            size, sha256 = len(data), hashlib.sha256(data).hexdigest()
            self.create(key_of(size, sha256), data, is_replaceable=True)
            return size, sha256

    def _write_large(self, source: Source, key_of: KeyOf) -> tuple[int, str]:
        digest, size = hashlib.sha256(), 0
        for chunk in source.read():
            digest.update(chunk)
            size += len(chunk)
        sha256 = digest.hexdigest()
        key = key_of(size, sha256)
        if not self.holds(key, size):
            retry(lambda: self.upload(key, source, size, sha256), self._network, operation="storage.upload")
        return size, sha256

    def holds(self, key: str, size: int) -> bool:
        """Returns whether there is an object of this size. A store that locks objects extends its retention."""
        try:
            return self._store.head(key).size == size
        except NotFoundError:
            return False

    def create(self, key: str, data: bytes, *, is_replaceable: bool) -> None:
        """Writes a small object under a key that follows from its content.

        Args:
            key: the key.
            data: its content.
            is_replaceable: replace an object of another size, which is damaged.
        """
        try:
            self.send(key, data, condition=True)
        except ConflictError:
            if is_replaceable and not self.holds(key, len(data)):
                self.send(key, data, condition=False)
            elif not is_replaceable:
                self.keep(key)

    def keep(self, key: str) -> None:
        """Handles an object that exists already."""

    def send(self, key: str, data: bytes, *, condition: bool) -> None:
        """Sends a small object; with a condition it fails with `ConflictError` where there is one."""
        if condition:
            self._store.put_if_absent(key, data)
        else:
            self._store.put(key, data)

    def upload(self, key: str, source: Source, size: int, sha256: str) -> None:
        """Sends a large object in parts. Nothing becomes visible if its content has changed since it was hashed."""
        self._store.put(key, read_ahead(rechunked(source.read())), sha256=sha256)

    def flush(self) -> None:
        """Returns at once: an object is durable when the server has answered."""


def _take(chunks: Chunks, most: int) -> bytes | None:
    """Returns the whole content, or None if it is larger than `most`."""
    taken, size = [], 0
    for chunk in chunks:
        size += len(chunk)
        if size > most:
            return None
        taken.append(chunk if isinstance(chunk, bytes) else bytes(chunk))
    return taken[0] if len(taken) == 1 else b"".join(taken)


def rechunked(chunks: Chunks) -> Iterator[bytes]:
    """Yields the same content in chunks of a size that suits multipart uploads."""
    held = bytearray()
    for chunk in chunks:
        if not held and len(chunk) >= CHUNK:
            yield bytes(chunk)
            continue
        held += chunk
        if len(held) >= CHUNK:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def read_ahead(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the same chunks, read ahead by a thread, so that reading and sending overlap.

    obstore takes chunks in a thread in which it cannot be called, which a source in a bucket would do.
    """
    held: queue.Queue[bytes | BaseException | None] = queue.Queue(2)
    is_abandoned = threading.Event()

    def hold(one: bytes | BaseException | None) -> bool:
        while not is_abandoned.is_set():
            with suppress(queue.Full):
                held.put(one, timeout=0.2)
                return True
        return False

    def read() -> None:
        try:
            if all(hold(chunk) for chunk in chunks):
                hold(None)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that takes the chunks
            hold(error)

    threading.Thread(target=read, name="frazil-read-ahead", daemon=True).start()
    try:
        while (one := held.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        is_abandoned.set()


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size: int | None = len(data)

    def read(self) -> Chunks:
        return iter([self._data])


class _Budget:
    """Bytes of memory that threads share."""

    def __init__(self, size: int) -> None:
        self._size = self._left = size
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, size: int) -> Iterator[None]:
        size = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()


# -- targets outside a repository


def write_file(uri: str, source: Source, size: int, sha256: str, *, s3: S3Settings, network: NetworkSettings) -> None:
    """Writes a file that must have this size and SHA-256, replacing what is there. Local files: durable after `flush`.

    Raises:
        IntegrityError: the content is another; the target is as it was.
    """
    location = parse(uri)
    if location.scheme == "file":
        _write_local(location.path, source, size, sha256)
        return
    store, key = find_object(location, s3, network)
    if size > WHOLE:
        # Content from an iterator is sent once: another try reads the source again.
        retry(
            lambda: store.put(key, read_ahead(rechunked(source.read())), sha256=sha256),
            network,
            operation="storage.upload",
        )
        return
    data = _take(source.read(), WHOLE)
    found = None if data is None else (len(data), hashlib.sha256(data).hexdigest())
    _require(uri, found, (size, sha256))
    assert data is not None
    store.put(key, data)


def _write_local(path: Path, source: Source, size: int, sha256: str) -> None:
    temporary = build_temporary_path(path)
    with _translated(path):
        handle = _create(temporary)
    try:
        _require(path, _copy(source, handle, path), (size, sha256))
        with _translated(path):
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _require(target: str | Path, found: tuple[int, str] | None, expected: tuple[int, str]) -> None:
    if found != expected:
        raise IntegrityError(
            f"the content for {target} does not have the expected {expected[0]:,} bytes with SHA-256 {expected[1]}",
            hint="nothing was written; verify the source",
        )


def flush(uri: str) -> None:
    """Returns when everything below a folder is durable. Objects of a bucket are when the server has answered."""
    location = parse(uri)
    if location.scheme == "file":
        with _translated(location.path):
            sync_file_system(location.path)


def sync_file_system(folder: Path) -> None:
    """Returns when all changes of the file system that a folder lies in are on disk: one call for any number of files.

    Raises:
        OSError: some could not be written.
    """
    libc = _libc()
    if not hasattr(libc, "syncfs"):  # not Linux
        os.sync()
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc.syncfs(handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(handle)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
