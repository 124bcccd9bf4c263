"""Objects as files below a folder, written so that they survive a crash.

A write goes to a temporary file in the same folder, is synced, takes its name by rename (or by `link`, where the name
must be new), and the folder is synced. Every step that gives or takes a name holds the folder's lock, so that
"compare the etag, then replace" is one step to all writers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from frazil.atomic_files import TEMPORARY_SUFFIX, build_temporary_path, sync_folder
from frazil.errors import ConflictError, UnsupportedError, UsageError
from frazil.storage.faults import from_os
from frazil.storage.store import CHUNK, Data, ObjectInfo, check_key, check_range, chunks_of, sha256_of, verified
from frazil.storage.uri import Location

_LOCK = ".frazil-lock"
_LOOK_FIRST = "read the existing object, then decide"
# What `flock` on a folder answers where the file system cannot (NFS among them); a lock file does there.
_NO_FOLDER_LOCK = {errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOTSUP, errno.ENOLCK}

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}


class LocalStore:
    """An `ObjectStore` on a folder. Links to folders inside it are followed by key, but not listed."""

    lists_in_key_order = True

    def __init__(self, location: Location) -> None:
        self.root = str(location)
        self._folder = location.path

    def head(self, key: str) -> ObjectInfo:
        with self._explained(key):
            return _info(key, self._object(key).stat())

    def get(self, key: str) -> bytes:
        return b"".join(self.get_stream(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        with self._explained(key), self._object(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def get_stream(self, key: str, *, start: int = 0, etag: str | None = None) -> Iterator[bytes]:
        check_range(key, start, 0)
        with self._explained(key), self._object(key).open("rb") as file:
            if etag is not None:
                self._require(key, etag, _etag(os.fstat(file.fileno())))
            file.seek(start)
            while chunk := file.read(CHUNK):
                yield chunk

    def put(self, key: str, data: Data, *, sha256: str | None = None) -> str:
        path = self._path(key)
        chunks = verified(chunks_of(data), sha256, self._uri(key))
        with self._temporary(key, path, chunks) as temporary, _locked(path.parent):
            temporary.replace(path)
            return _etag(path.stat())

    def put_if_absent(self, key: str, data: bytes | Path, *, sha256: str | None = None) -> str:
        path = self._path(key)
        chunks = verified(chunks_of(data), sha256, self._uri(key))
        with self._temporary(key, path, chunks) as temporary, _locked(path.parent):
            try:
                path.hardlink_to(temporary)
            except FileExistsError:
                raise ConflictError(f"{self._uri(key)} already exists", hint=_LOOK_FIRST) from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise UnsupportedError(
                    f"hard links are not supported in {path.parent}", hint="use a local disk, or S3"
                ) from error
            return _etag(path.stat())

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        path = self._path(key)
        with self._explained(key):
            self._require(key, etag, _current_etag(path))  # before a folder is made for an object that is gone
        with self._temporary(key, path, iter([data])) as temporary, _locked(path.parent):
            self._require(key, etag, _current_etag(path))
            temporary.replace(path)
            return _etag(path.stat())

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        prefix = prefix.strip("/")
        folder = self._folder / check_key(prefix) if prefix else self._folder
        with self._explained(prefix):
            yield from _walk(folder, f"{prefix}/" if prefix else "", start_after)

    def copy(self, source: str, target: str) -> None:
        self.put(target, self.get_stream(source))

    def delete(self, *keys: str) -> None:
        folders = set()
        for key in keys:
            path = self._path(key)
            with self._explained(key), suppress(FileNotFoundError, NotADirectoryError), _locked(path.parent):
                if not path.is_dir():
                    path.unlink()
                    folders.add(path.parent)
        for folder in folders:
            with self._explained(str(folder)):
                sync_folder(folder)

    def checksum(self, key: str) -> str:
        return sha256_of(self.get_stream(key))

    def _path(self, key: str) -> Path:
        if any(_is_ours(part) for part in key.split("/")):
            raise UsageError(
                f"'{key}' is a name that Frazil reserves", hint=f"choose a key without {TEMPORARY_SUFFIX} and {_LOCK}"
            )
        return self._folder / check_key(key)

    def _object(self, key: str) -> Path:
        """Returns the path of a key to read. A folder is not an object."""
        path = self._path(key)
        if path.is_dir():
            raise FileNotFoundError(errno.ENOENT, "is a folder", str(path))
        return path

    def _uri(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    def _require(self, key: str, etag: str, found: str | None) -> None:
        if found != etag:
            happened = "no longer exists" if found is None else f"has changed: etag {found}"
            raise ConflictError(f"{self._uri(key)} {happened}, expected {etag}", hint=_LOOK_FIRST)

    @contextmanager
    def _temporary(self, key: str, path: Path, chunks: Iterator[bytes]) -> Iterator[Path]:
        """Writes a synced file beside `path`; syncs the folder after the caller has renamed it."""
        with self._explained(key):
            _make_folder(path.parent)
            temporary = build_temporary_path(path)
            try:
                with temporary.open("xb") as file:
                    _write(file, chunks)
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(path.parent)

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise from_os(error, self._uri(key)) from error


def _write(file: BinaryIO, chunks: Iterator[bytes]) -> None:
    file.writelines(chunks)
    file.flush()
    # The kernel stamps files by its tick of some milliseconds, and inode numbers come back: two writes of the same size
    # could look alike. Our own stamp in nanoseconds makes the etag differ on every write without reading the content.
    now = time.time_ns()
    os.utime(file.fileno(), ns=(now, now))
    os.fsync(file.fileno())


def _etag(stat: os.stat_result) -> str:
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _current_etag(path: Path) -> str | None:
    return _etag(path.stat()) if path.is_file() else None


def _info(key: str, stat: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, stat.st_size, _etag(stat), datetime.fromtimestamp(stat.st_mtime, UTC))


def _is_ours(name: str) -> bool:
    return name == _LOCK or name.endswith(TEMPORARY_SUFFIX)


def _walk(folder: Path, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """Objects in key order: a folder sorts as its name with the slash, since `a-b` comes before `a/b`."""
    try:
        with os.scandir(folder) as found:
            entries = {e.name + "/" * e.is_dir(follow_symlinks=False): e for e in found if not _is_ours(e.name)}
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(entries):
        key, entry = prefix + name, entries[name]
        if name.endswith("/"):
            if key > start_after or start_after.startswith(key):
                yield from _walk(folder / entry.name, key, start_after)
        elif key > start_after and entry.is_file():
            with suppress(FileNotFoundError):  # deleted since
                yield _info(key, entry.stat())


def _make_folder(folder: Path) -> None:
    """Creates the folder and its missing parents, each entry synced."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    sync_folder(folder.parent)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock against threads and processes. It ends with the file handle, also in a crash."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_FOLDER_LOCK:
                raise
            os.close(handle)
            handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
