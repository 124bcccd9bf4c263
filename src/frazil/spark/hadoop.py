"""Files through Hadoop's file systems in Spark's JVM: HDFS and others that Frazil has no client for."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from frazil.errors import ConflictError, FrazilError, NotAllowedError, NotFoundError, UnavailableError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HadoopFile:
    """A file or folder.

    Attributes:
        path: its URI.
        size: in bytes; None for a folder.
        modified_ms: when it was written.
    """

    path: str
    size: int | None
    modified_ms: int


Entries: TypeAlias = list[HadoopFile]

_STATUS = re.compile(r"\{path=(.*?); isDirectory=(true|false)(?:; length=(\d+))?.*?modification_time=(\d+)", re.DOTALL)
_MISSING = ("FileNotFoundException", "PathNotFoundException", "NoSuchFileException")
_EXISTS = ("FileAlreadyExistsException",)
_REFUSED = ("AccessControlException", "AccessDeniedException")


class HadoopFiles:
    """Reads and writes whole files by URI. Thread safe.

    Args:
        spark: gives a session; the first call may start a JVM.
    """

    def __init__(self, spark: Callable[[], SparkSession]) -> None:
        self._spark = spark

    def list(self, folder: str) -> Iterator[HadoopFile]:
        """Yields the files below a folder. One request for each folder in it."""
        folders = [folder]
        while folders:
            for found in self.list_folder(folders.pop()):
                if found.size is None:
                    folders.append(found.path)
                else:
                    yield found

    def list_folder(self, folder: str) -> Entries:
        """Returns what lies in a folder itself, with URIs that begin with its own. Empty if there is no folder."""

        def list_now() -> Entries:
            system, path = self._open(folder)
            # As text, in one call: each call from Python to the JVM costs as much as a request.
            text = self._jvm.org.apache.commons.lang3.ArrayUtils.toString(system.listStatus(path))
            base = folder.removesuffix("/")
            entries = []
            for listed, is_folder, size, modified in _STATUS.findall(text):
                name = listed.rpartition("/")[2]  # Hadoop adds the name node to a URI that has none
                entries.append(HadoopFile(f"{base}/{name}", int(size) if is_folder == "false" else None, int(modified)))
            is_itself = len(entries) == 1 and entries[0].path == f"{base}/{base.rpartition('/')[2]}"
            if is_itself and system.getFileStatus(path).isFile():
                return []  # Hadoop lists a file as if it were in itself
            return entries

        try:
            return self._call(list_now, folder)
        except NotFoundError:
            return []

    def size_of(self, uri: str) -> int | None:
        """Returns the size of a file; None if there is none."""
        try:
            return self.measure(uri).size
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

    def write(self, uri: str, data: bytes, *, replace: bool = True) -> None:
        """Writes a file under another name and renames it: readers see nothing or all of it.

        Raises:
            ConflictError: it exists (without `replace`). Of several writers at once, one wins on HDFS.
        """

        def write_now() -> None:
            system, path = self._open(uri)
            temporary = self._jvm.org.apache.hadoop.fs.Path(f"{uri}.{uuid.uuid4()}._COPYING_")
            stream = system.create(temporary, True)
            try:
                try:
                    stream.write(bytearray(data))
                    stream.hsync()
                finally:
                    stream.close()
                self._rename(temporary, path, replace=replace)
            except Exception:
                with suppress(Exception):  # the error that led here counts
                    system.delete(temporary, False)
                raise

        self._call(write_now, uri)

    def delete(self, uri: str) -> None:
        """Deletes a file. One that does not exist counts as deleted."""

        def delete_now() -> None:
            system, path = self._open(uri)
            system.delete(path, False)

        self._call(delete_now, uri)

    def measure(self, uri: str) -> HadoopFile:
        """Returns what is known of a file.

        Raises:
            NotFoundError: it does not exist, or is a folder.
        """

        def measure_now() -> HadoopFile:
            system, path = self._open(uri)
            status = system.getFileStatus(path)
            if not status.isFile():
                raise NotFoundError(f"{uri} is a folder")
            return HadoopFile(uri, int(status.getLen()), int(status.getModificationTime()))

        return self._call(measure_now, uri)

    @property
    def _jvm(self) -> Any:
        return self._spark()._jvm

    def _rename(self, source: Any, target: Any, *, replace: bool) -> None:
        hadoop, configuration = self._jvm.org.apache.hadoop.fs, self._spark()._jsc.hadoopConfiguration()
        choices = getattr(hadoop, "Options$Rename")
        options = self._spark().sparkContext._gateway.new_array(choices, 1)
        options[0] = choices.OVERWRITE if replace else choices.NONE
        hadoop.FileContext.getFileContext(target.toUri(), configuration).rename(source, target, options)

    def _open(self, uri: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(uri)
        return path.getFileSystem(self._spark()._jsc.hadoopConfiguration()), path

    def _call(self, function: Callable[[], T], uri: str) -> T:
        from py4j.protocol import Py4JError

        try:
            return function()
        except FrazilError:
            raise
        except Exception as error:
            # PySpark wraps some exceptions: an unknown host is an IllegalArgumentException.
            thrown = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
            if thrown is not None:
                raise _translate(thrown, uri) from error
            if isinstance(error, (Py4JError, OSError)):
                raise UnavailableError(
                    f"cannot reach {uri}: Spark's JVM does not answer",
                    cause=first_line(error),
                    hint="run the command again; its Spark session has ended",
                ) from error
            raise


def _translate(thrown: Any, uri: str) -> FrazilError:
    name = str(thrown.getClass().getSimpleName())
    cause = first_line(Exception(f"{name}: {thrown.getMessage()}"))
    if name in _MISSING:
        return NotFoundError(f"{uri} does not exist", cause=cause)
    if name in _EXISTS:
        return ConflictError(f"{uri} already exists", cause=cause, hint="read what is there, then decide")
    if name in _REFUSED:
        return NotAllowedError(f"cannot access {uri}", cause=cause, hint="check the user's rights")
    return UnavailableError(f"cannot reach {uri}", cause=cause, hint="check the name node and its address")
