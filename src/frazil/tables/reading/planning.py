"""Plans a scan with patience: a plan of many manifests does not begin anew because one of them could not be read."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from pyiceberg.io import FileIO, InputFile, OutputFile

from frazil.settings import NetworkSettings
from frazil.tables.reading.retrying import read_with_retry

if TYPE_CHECKING:
    from pyiceberg.table import DataScan, FileScanTask


def plan_files(scan: DataScan, network: NetworkSettings) -> list[FileScanTask]:
    """Plans the files of a scan.

    Raises:
        FileNotFoundError: its snapshot has expired.
        OSError: storage does not answer, and patience has ended.
    """
    scan.io = _RetryingFileIO(scan.io, network)
    return list(scan.plan_files())


class _RetryingFileIO(FileIO):
    """The same files, each read as a whole: those of a table's metadata are small."""

    def __init__(self, inner: FileIO, network: NetworkSettings) -> None:
        super().__init__(inner.properties)
        self._inner, self._network = inner, network

    def new_input(self, location: str) -> InputFile:
        return _WholeInputFile(self._inner.new_input(location), self._network)

    def new_output(self, location: str) -> OutputFile:
        return self._inner.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._inner.delete(location)


class _WholeInputFile(InputFile):
    def __init__(self, inner: InputFile, network: NetworkSettings) -> None:
        super().__init__(inner.location)
        self._inner, self._network = inner, network

    def __len__(self) -> int:
        return read_with_retry(self._inner.__len__, self._network)

    def exists(self) -> bool:
        return read_with_retry(self._inner.exists, self._network)

    def open(self, seekable: bool = True) -> Any:
        def read() -> BytesIO:
            with self._inner.open(seekable=seekable) as stream:
                return BytesIO(stream.read())

        return read_with_retry(read, self._network)
