"""Tables on Hadoop's file systems: files are read and written through Spark's JVM while there is a session."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem

from frazil.errors import NotFoundError, UnsupportedError
from frazil.spark.hadoop import HadoopFile, HadoopFiles
from frazil.spark.hadoop_store import HadoopStore
from frazil.storage import provide_hadoop_stores
from frazil.storage.uri import HADOOP_SCHEMES
from frazil.tables.file_io import register_file_system

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
        if self.closed:
            return
        try:
            self._files.write(self._path, self.getvalue())
        finally:
            super().close()  # else the garbage collector closes it, and writes again
