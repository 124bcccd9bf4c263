"""Limits of what a broker's clients may have open at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from frazil.errors import UnavailableError


class Streams:
    """Counts the open streams of producers and readers. Each one occupies a thread of the broker."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self._lock = threading.Lock()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Counts one stream while the block runs. Raises UnavailableError at the limit."""
        with self._lock:
            if self._open >= self._most:
                raise UnavailableError(
                    f"the broker has {self._most:,} streams of producers and readers open, and takes no more",
                    hint="close some, try again later, or raise serve.max_streams",
                )
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
