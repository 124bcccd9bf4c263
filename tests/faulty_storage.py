"""Storage that fails now and then: a table's files through a FileIO that counts reads, and lets some of them fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table import Table

Fault = Callable[[int], OSError | None]


def every_third(number: int) -> OSError | None:
    """As an object store under load: now a 503, now a connection that is cut."""
    if number % 3:
        return None
    if number % 2:
        return ConnectionResetError(104, "Connection reset by peer")
    return OSError("When reading information for key: AWS Error SLOW_DOWN during GetObject: HTTP response code: 503")


class FaultyIO(FileIO):
    """The same files. Before each read `fault` is asked, with the read's number from 1 on, whether it fails."""

    def __init__(self, inner: FileIO, fault: Fault) -> None:
        super().__init__(inner.properties)
        self._inner, self._fault = inner, fault
        self._lock = threading.Lock()
        self.reads = self.failed = 0

    def check(self) -> None:
        with self._lock:
            self.reads += 1
            error = self._fault(self.reads)
            self.failed += error is not None
        if error is not None:
            raise error

    def new_input(self, location: str) -> Any:
        return _Input(self._inner.new_input(location), self)

    def new_output(self, location: str) -> Any:
        return self._inner.new_output(location)

    def delete(self, location: Any) -> None:
        self._inner.delete(location)


class _Input:
    def __init__(self, inner: Any, io: FaultyIO) -> None:
        self._inner, self._io = inner, io

    def open(self, seekable: bool = True) -> _File:
        return _File(self._inner.open(seekable=seekable), self._io)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _File:
    """Only what readers of Parquet and Avro need: PyArrow takes shortcuts past `read` where it sees any."""

    def __init__(self, inner: Any, io: FaultyIO) -> None:
        self._inner, self._io = inner, io
        self.seek, self.tell, self.close = inner.seek, inner.tell, inner.close

    def read(self, *size: int) -> bytes:
        self._io.check()
        return bytes(self._inner.read(*size))

    @property
    def closed(self) -> bool:
        return bool(self._inner.closed)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def on_faulty_storage(table: Table, fault: Fault) -> FaultyIO:
    """From now on the table reads its files through the fault."""
    io = FaultyIO(table.io, fault)
    table.io = io
    return io
