"""A file for libraries that swallow errors, and then fail elsewhere or return incomplete results."""

from __future__ import annotations

from typing import BinaryIO


class GuardedFile:
    """A file that records why a read failed: a limit, or an object that is gone or has changed.

    Attributes:
        failure: of the first read that failed; None if none did.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self.failure: Exception | None = None
        self.closed = False
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int = -1) -> bytes:
        """Reads like a file, without allocating more than its size."""
        if not 0 <= count <= self._size:
            count = max(0, self._size - self._file.tell())
        try:
            return self._file.read(count)
        except Exception as failure:
            self.failure = self.failure or failure
            raise

    def close(self) -> None:
        """Does nothing: the item caches what was read."""
        self.closed = True
