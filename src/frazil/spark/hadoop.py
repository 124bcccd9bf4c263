"""Files through Hadoop's file systems in Spark's JVM: HDFS and others that Frazil has no client for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from frazil.errors import FrazilError, NotAllowedError, NotFoundError, UnavailableError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
Entries: TypeAlias = list[tuple[str, int | None]]

_STATUS = re.compile(r"\{path=(.*?); isDirectory=(true|false)(?:; length=(\d+))?", re.DOTALL)
_MISSING = ("FileNotFoundException", "PathNotFoundException", "NoSuchFileException")
_REFUSED = ("AccessControlException", "AccessDeniedException")


class HadoopFiles:
    """Reads and writes whole files by URI. Thread safe.

    Args:
        spark: gives a session; the first call may start a JVM.
    """

    def __init__(self, spark: Callable[[], SparkSession]) -> None:
        self._spark = spark

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yields URI and size of the files below a folder. One request for each folder in it."""
        folders = [folder]
        while folders:
            for path, size in self.list_folder(folders.pop()):
                if size is None:
                    folders.append(path)
                else:
                    yield path, size

    def list_folder(self, folder: str) -> Entries:
        """Returns what lies in a folder itself, each with its size; None for a folder. Empty if there is no folder."""

        def list_now() -> Entries:
            system, path = self._open(folder)
            # As text, in one call: each call from Python to the JVM costs as much as a request.
            text = self._jvm.org.apache.commons.lang3.ArrayUtils.toString(system.listStatus(path))
            return [(found[1], int(found[3]) if found[2] == "false" else None) for found in _STATUS.finditer(text)]

        try:
            return self._call(list_now, folder)
        except NotFoundError:
            return []

    def size_of(self, uri: str) -> int | None:
        """Returns the size of a file; None if there is none."""

        def measure() -> int | None:
            system, path = self._open(uri)
            status = system.getFileStatus(path)
            return int(status.getLen()) if status.isFile() else None

        try:
            return self._call(measure, uri)
        except NotFoundError:
            return None

    def read(self, uri: str) -> bytes:
        """Returns the content of a file.

        Raises:
            NotFoundError: it does not exist.
        """

        def read_now() -> bytes:
            system, path = self._open(uri)
            stream = system.open(path)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

        return self._call(read_now, uri)

    def read_range(self, uri: str, start: int, length: int) -> bytes:
        """Returns a part of a file; less where it ends.

        Raises:
            NotFoundError: it does not exist.
        """

        def read_now() -> bytes:
            system, path = self._open(uri)
            count = min(length, int(system.getFileStatus(path).getLen()) - start)
            if count <= 0:
                return b""
            stream = system.open(path)
            try:
                stream.seek(start)
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream, count))
            finally:
                stream.close()

        return self._call(read_now, uri)

    def write(self, uri: str, data: bytes) -> None:
        """Writes a file under another name and renames it: readers see nothing or all of it."""

        def write_now() -> None:
            system, path = self._open(uri)
            temporary = self._jvm.org.apache.hadoop.fs.Path(f"{uri}._COPYING_")
            stream = system.create(temporary, True)
            try:
                stream.write(bytearray(data))
                hsync = getattr(stream, "hsync", None)
                if hsync is not None:
                    hsync()
            finally:
                stream.close()
            system.delete(path, False)
            if not system.rename(temporary, path):
                raise UnavailableError(f"cannot rename {temporary.toString()} to {uri}", hint="run the command again")

        self._call(write_now, uri)

    @property
    def _jvm(self) -> Any:
        return self._spark()._jvm

    def _open(self, uri: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(uri)
        return path.getFileSystem(self._spark()._jsc.hadoopConfiguration()), path

    def _call(self, function: Callable[[], T], uri: str) -> T:
        try:
            return function()
        except FrazilError:
            raise
        except Exception as error:
            # PySpark wraps some exceptions: an unknown host is an IllegalArgumentException.
            thrown = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
            if thrown is None:
                raise
            raise _translate(thrown, uri) from error


def _translate(thrown: Any, uri: str) -> FrazilError:
    name = str(thrown.getClass().getSimpleName())
    cause = first_line(Exception(f"{name}: {thrown.getMessage()}"))
    if name in _MISSING:
        return NotFoundError(f"{uri} does not exist", cause=cause)
    if name in _REFUSED:
        return NotAllowedError(f"cannot access {uri}", cause=cause, hint="check the user's rights")
    return UnavailableError(f"cannot reach {uri}", cause=cause, hint="check the name node and its address")
