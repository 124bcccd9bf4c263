"""Files of replicated storage: local folders (OneFS too), S3, ADLS and Google Cloud, and HDFS through Spark's JVM."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from frazil.errors import NotFoundError, UsageError
from frazil.settings import NetworkSettings, S3Settings
from frazil.storage import parse
from frazil.storage.faults import from_os
from frazil.storage.uri import HADOOP_SCHEMES
from frazil.tables.metadata.locations import UriStorage, canonical_folder, canonical_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
Paths: TypeAlias = list[str]  # in the classes below, `list` is a method

#: Requests at a time.
THREADS = 16
#: Files that are measured one by one, and not by a listing.
_FEW = 32
#: Files of a listing that cost as much as one request among `THREADS`.
_LISTED_PER_REQUEST = 60
#: Local files that one thread measures in a row.
_IN_A_ROW = 512
#: Files in one folder of HDFS from which on the folder is listed.
_FEW_IN_FOLDER = 3
_HADOOP = tuple(f"{scheme}:" for scheme in HADOOP_SCHEMES)


@dataclass(frozen=True, slots=True)
class ReplicatedFile:
    """A file that has arrived, at least in part.

    Attributes:
        path: its canonical URI.
        size: in bytes.
    """

    path: str
    size: int


class _Backend(Protocol):
    def list(self, folder: str, *, recursive: bool) -> Iterator[ReplicatedFile]: ...

    def size_of(self, path: str) -> int | None: ...

    def find_sizes(self, paths: Collection[str]) -> dict[str, int]: ...

    def read(self, path: str) -> bytes: ...

    def read_range(self, path: str, start: int, length: int) -> bytes: ...


class ReplicaFiles:
    """Reads what a replication has written. Thread safe. Never writes.

    Attributes:
        root: canonical URI of the replicated folder. Files elsewhere can be read too, by their URI.
    """

    def __init__(
        self,
        root: str,
        s3: S3Settings,
        network: NetworkSettings,
        spark: Callable[[], SparkSession] | None = None,
    ) -> None:
        self.root = canonical_path(root)
        self._local = _LocalFiles()
        self._stored = _StoredFiles(UriStorage(s3, network))
        self._hadoop = _HadoopFiles(spark)

    def list(self, folder: str = "", *, recursive: bool = True) -> Iterator[ReplicatedFile]:
        """Yields the files below a folder, which is a URI or relative to the root. None if there is no such folder."""
        is_absolute = folder.startswith("/") or ":/" in folder
        uri = canonical_path(folder) if is_absolute else f"{self.root}/{folder}".rstrip("/")
        return self._backend_of(uri).list(uri, recursive=recursive)

    def size_of(self, path: str) -> int | None:
        """Returns the size of a file; None if there is none."""
        return self._backend_of(path).size_of(path)

    def find_sizes(self, paths: Collection[str]) -> dict[str, int]:
        """Returns the sizes of those files that exist, by listing or by single requests, whichever is cheaper."""
        groups: dict[int, list[str]] = defaultdict(list)
        backends: dict[int, _Backend] = {}
        for path in paths:
            backend = self._backend_of(path)
            backends[id(backend)] = backend
            groups[id(backend)].append(path)
        found: dict[str, int] = {}
        for key, some in groups.items():
            found |= backends[key].find_sizes(some)
        return found

    def read(self, path: str) -> bytes:
        """Returns the content of a file.

        Raises:
            NotFoundError: it does not exist.
        """
        return self._backend_of(path).read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Returns a part of a file; less where it ends.

        Raises:
            NotFoundError: it does not exist.
        """
        return self._backend_of(path).read_range(path, start, length)

    def _backend_of(self, uri: str) -> _Backend:
        if uri.startswith(("file:", "/")):
            return self._local
        return self._hadoop if uri.startswith(_HADOOP) else self._stored


def open_replica_files(
    root: str, *, s3: S3Settings, network: NetworkSettings, spark: Callable[[], SparkSession] | None = None
) -> ReplicaFiles:
    """Opens a replicated folder. Nothing is read yet.

    Args:
        root: a path or URI; HDFS too.
        s3: access to S3.
        network: patience with its servers.
        spark: gives a session, for HDFS.

    Raises:
        UsageError: this is no location.
    """
    return ReplicaFiles(root, s3, network, spark)


def canonical_path(path: str) -> str:
    """The canonical URI of a folder."""
    return canonical_folder(path)


def map_in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yields results in the order of the items, with a bounded number of them in memory."""
    remaining = iter(items)
    batch = list(islice(remaining, THREADS))
    if len(batch) < 2:
        yield from map(function, batch)
        return
    with ThreadPoolExecutor(THREADS, "frazil-replica") as pool:
        while batch:
            yield from pool.map(function, batch)
            batch = list(islice(remaining, 4 * THREADS))


class _LocalFiles:
    """Local files, by the system's calls: `ObjectStore` sorts, and makes an etag of each."""

    def list(self, folder: str, *, recursive: bool) -> Iterator[ReplicatedFile]:
        folders = [_local_path(folder)]
        while folders:
            path = folders.pop()
            try:
                with os.scandir(path) as entries:
                    found = [*_measure_entries(entries, folders)]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise from_os(error, path) from error
            yield from found
            if not recursive:
                return

    def size_of(self, path: str) -> int | None:
        try:
            found = os.stat(_local_path(path))  # noqa: PTH116 - a Path for each of a million files takes seconds
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise from_os(error, path) from error
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def find_sizes(self, paths: Collection[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for sizes in map_in_threads(self._measure, _batches(paths, _IN_A_ROW)):  # on NFS each one is a request
            found |= sizes
        return found

    def read(self, path: str) -> bytes:
        try:
            with open(_local_path(path), "rb") as file:  # noqa: PTH123 - as above
                return file.read()
        except OSError as error:
            raise from_os(error, path) from error

    def read_range(self, path: str, start: int, length: int) -> bytes:
        try:
            with open(_local_path(path), "rb") as file:  # noqa: PTH123 - as above
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise from_os(error, path) from error

    def _measure(self, paths: Paths) -> dict[str, int]:
        sizes = ((path, self.size_of(path)) for path in paths)
        return {path: size for path, size in sizes if size is not None}


class _StoredFiles:
    """Objects in S3, ADLS or Google Cloud."""

    def __init__(self, storage: UriStorage) -> None:
        self._storage = storage

    def list(self, folder: str, *, recursive: bool) -> Iterator[ReplicatedFile]:
        location = parse(folder)
        bucket = str(type(location)(location.scheme, location.authority, ""))
        store, _ = self._storage.find(f"{bucket}/any")
        start = len(location.key) + 1 if location.key else 0
        for info in store.list(location.key):
            if recursive or "/" not in info.key[start:]:
                yield ReplicatedFile(f"{bucket}/{info.key}", info.size)

    def size_of(self, path: str) -> int | None:
        try:
            return self._storage.measure(path)
        except NotFoundError:
            return None

    def find_sizes(self, paths: Collection[str]) -> dict[str, int]:
        """Lists the folder that holds all paths, unless that turns out to cost more than a request for each path."""
        wanted = {canonical_uri(path): path for path in paths}
        found: dict[str, int] = {}
        if len(wanted) > _FEW:
            for folder, inside in _common_folders(wanted).items():
                listed = self.list(folder, recursive=True)
                missing = set(inside)
                for file in islice(listed, _LISTED_PER_REQUEST * len(inside)):
                    if file.path in missing:
                        found[wanted.pop(file.path)] = file.size
                        missing.discard(file.path)
                        if not missing:
                            break
        rest = list(wanted.values())
        sizes = zip(rest, map_in_threads(self.size_of, rest), strict=True)
        return found | {path: size for path, size in sizes if size is not None}

    def read(self, path: str) -> bytes:
        return self._storage.read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        store, key = self._storage.find(path)
        return store.get_range(key, start, length)


class _HadoopFiles:
    """Files that Spark's JVM reads."""

    def __init__(self, spark: Callable[[], SparkSession] | None) -> None:
        self._spark = spark
        self._opened: Any = None

    def list(self, folder: str, *, recursive: bool) -> Iterator[ReplicatedFile]:
        files = self._files(folder)
        found = files.list(folder) if recursive else files.list_folder(folder)
        for file in found:
            if file.size is not None:
                yield ReplicatedFile(file.path, file.size)

    def size_of(self, path: str) -> int | None:
        size: int | None = self._files(path).size_of(path)
        return size

    def find_sizes(self, paths: Collection[str]) -> dict[str, int]:
        folders: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            folders[path.rpartition("/")[0]].append(path)
        found: dict[str, int] = {}
        for folder, inside in folders.items():
            if len(inside) < _FEW_IN_FOLDER:
                sizes = {path: self.size_of(path) for path in inside}
            else:
                listed = {file.path.rpartition("/")[2]: file.size for file in self._files(folder).list_folder(folder)}
                sizes = {path: listed.get(path.rpartition("/")[2]) for path in inside}
            found |= {path: size for path, size in sizes.items() if size is not None}
        return found

    def read(self, path: str) -> bytes:
        data: bytes = self._files(path).read(path)
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        data: bytes = self._files(path).read_range(path, start, length)
        return data

    def _files(self, path: str) -> Any:
        if self._opened is None:
            if self._spark is None:
                raise UsageError(f"{path} needs Spark", hint="--engine spark")
            from frazil.spark.hadoop import HadoopFiles

            self._opened = HadoopFiles(self._spark)
        return self._opened


def _local_path(uri: str) -> str:
    if uri.startswith("/"):
        return uri
    return uri[7:] if uri.startswith("file:///") else str(parse(uri).path)


def _measure_entries(entries: Iterator[os.DirEntry[str]], folders: list[str]) -> Iterator[ReplicatedFile]:
    """Yields the files of a folder, and adds the folders in it to a list."""
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
                continue
            found = entry.stat()
        except FileNotFoundError:  # removed since, or a link to nothing
            continue
        if stat.S_ISREG(found.st_mode):
            yield ReplicatedFile(f"file://{entry.path}", found.st_size)


def _common_folders(uris: Iterable[str]) -> dict[str, list[str]]:
    """Returns for each bucket the deepest folder that holds all files in it, with these."""
    buckets: dict[str, list[str]] = defaultdict(list)
    for uri in uris:
        scheme, _, rest = uri.partition("://")
        buckets[f"{scheme}://{rest.partition('/')[0]}"].append(uri)
    return {_shared_start(min(inside), max(inside)).rpartition("/")[0]: inside for inside in buckets.values()}


def _shared_start(one: str, other: str) -> str:
    length = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return one[:length]


def _batches(items: Iterable[str], size: int) -> Iterator[Paths]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
