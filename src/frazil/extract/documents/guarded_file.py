"""A file for libraries that catch whatever goes wrong and go on, to fail elsewhere or to tell half the truth."""

from __future__ import annotations

from typing import BinaryIO


class Watched:
    """A file that remembers why a read has failed: a limit, an object that is gone or has changed.

    Attributes:
        failure: of the first read that failed; None: all went well.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self.failure: Exception | None = None
        self.closed = False
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int = -1) -> bytes:
        """As a file does; no room is made for more than there is."""
        if not 0 <= count <= self._size:
            count = max(0, self._size - self._file.tell())
        try:
            return self._file.read(count)
        except Exception as failure:
            self.failure = self.failure or failure
            raise

    def close(self) -> None:
        """Nothing to do: the item keeps what was read."""
        self.closed = True
