"""Hadoop's file systems as an `ObjectStore` of Frazil and as a file system of PyIceberg, while there is a session."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem

from frazil.catalogs.file_systems import register_file_system
from frazil.errors import ConflictError, NotFoundError, UnsupportedError
from frazil.spark.hadoop import HadoopFile, HadoopFiles
from frazil.storage import provide_hadoop_stores
from frazil.storage.store import (
    CHUNK,
    Data,
    ObjectInfo,
    check_key,
    check_range,
    chunks_of,
    sha256_of,
    verified,
)
from frazil.storage.uri import HADOOP_SCHEMES, Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Bytes that are read from a file at a time.
_BUFFER = 1024 * 1024
#: Sessions that give access; the first one is in use.
_open: list[HadoopFiles] = []


@contextmanager
def provide_hadoop(spark: Callable[[], SparkSession]) -> Iterator[None]:
    """Lets all rooms read and write Hadoop's file systems in this process, until the block ends.

    Args:
        spark: gives a session; a JVM starts when a file is first opened.
    """
    files = HadoopFiles(spark)
    _open.append(files)
    for scheme in HADOOP_SCHEMES:
        register_file_system(scheme, _open_file_system)
    try:
        with provide_hadoop_stores(lambda location: HadoopStore(location, files)):
            yield
    finally:
        _open.remove(files)


def _open_file_system() -> PyFileSystem:
    return PyFileSystem(_Handler(_find_files()))


def _find_files() -> HadoopFiles:
    if not _open:
        raise UnsupportedError("HDFS needs Spark, which this command does not use", hint="frazil sql --engine spark")
    return _open[0]


class HadoopStore:
    """An `ObjectStore` on a folder, without conditional replacement. Content is in memory as a whole."""

    lists_in_key_order = False

    def __init__(self, location: Location, files: HadoopFiles) -> None:
        self.root = str(location)
        self._files = files

    def head(self, key: str) -> ObjectInfo:
        return self._info(self._files.measure(self._uri(key)))

    def get(self, key: str) -> bytes:
        return self._files.read(self._uri(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        return self._files.read_range(self._uri(key), start, length)

    def get_stream(self, key: str, *, start: int = 0, etag: str | None = None) -> Iterator[bytes]:
        check_range(key, start, 0)
        if etag is not None and self.head(key).etag != etag:
            raise ConflictError(f"{self._uri(key)} has changed", hint="read it again")
        while chunk := self.get_range(key, start, CHUNK):
            yield chunk
            start += len(chunk)

    def put(self, key: str, data: Data, *, sha256: str | None = None) -> str:
        return self._put(key, data, sha256, replace=True)

    def put_if_absent(self, key: str, data: bytes | Path, *, sha256: str | None = None) -> str:
        return self._put(key, data, sha256, replace=False)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        raise UnsupportedError(f"{self.root} cannot compare before it replaces", hint="a local disk, or a bucket")

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        prefix = prefix.strip("/")
        for file in self._files.list(self._uri(prefix) if prefix else self.root):
            info = self._info(file)
            if info.key > start_after and not info.key.endswith("._COPYING_"):
                yield info

    def copy(self, source: str, target: str) -> None:
        self.put(target, self.get(source))

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._files.delete(self._uri(key))

    def checksum(self, key: str) -> str:
        return sha256_of(self.get_stream(key))

    def _put(self, key: str, data: Data, sha256: str | None, *, replace: bool) -> str:
        uri = self._uri(key)
        self._files.write(uri, b"".join(verified(chunks_of(data), sha256, uri)), replace=replace)
        return self.head(key).etag

    def _uri(self, key: str) -> str:
        return f"{self.root}/{check_key(key)}"

    def _info(self, file: HadoopFile) -> ObjectInfo:
        size = file.size or 0
        modified = datetime.fromtimestamp(file.modified_ms / 1000, UTC)
        return ObjectInfo(file.path[len(self.root) + 1 :], size, f"{file.modified_ms}-{size}", modified)


class _Handler(FileSystemHandler):  # type: ignore[misc]
    """Files by URI for PyArrow, as far as PyIceberg asks for them."""

    def __init__(self, files: HadoopFiles) -> None:
        self._files = files

    def get_type_name(self) -> str:
        return "hadoop"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        sizes = ((path, self._files.size_of(path)) for path in paths)
        return [
            FileInfo(path, FileType.NotFound) if size is None else FileInfo(path, FileType.File, size=size)
            for path, size in sizes
        ]

    def open_input_file(self, path: str) -> pa.PythonFile:
        try:
            raw = _Reader(self._files, self._files.measure(path))
        except NotFoundError as error:
            raise FileNotFoundError(path) from error
        return pa.PythonFile(io.BufferedReader(raw, _BUFFER), mode="r")

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.PythonFile:
        return pa.PythonFile(_Writer(self._files, path), mode="w")

    def delete_file(self, path: str) -> None:
        self._files.delete(path)

    def _refuse(self, *_: object) -> Any:
        raise NotImplementedError("PyIceberg does not ask for this")

    get_file_info_selector: Callable[[FileSelector], list[FileInfo]] = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    move = copy_file = open_append_stream = _refuse


class _Reader(io.RawIOBase):
    """A file, of which parts are read."""

    def __init__(self, files: HadoopFiles, file: HadoopFile) -> None:
        self._files, self._file, self._position = files, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size or 0}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._files.read_range(self._file.path, self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Writer(io.BytesIO):
    """A file that is written when it is closed."""

    def __init__(self, files: HadoopFiles, path: str) -> None:
        super().__init__()
        self._files, self._path = files, path

    def close(self) -> None:
        if not self.closed:
            self._files.write(self._path, self.getvalue())
        super().close()
