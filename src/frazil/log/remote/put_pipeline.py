"""The broker's end of a stream of large batches: the next ones arrive while the last ones are on their way to disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

#: From this size on a batch is worth a second thread. Small ones wait for the disk, not for each other.
LARGE_BATCH = 64 * 1024
_MAX_QUEUED = 8 * 1024 * 1024


class PutPipeline:
    """Hands over messages in order, as many at once as have come.

    Args:
        take: is given messages, and answers them all; runs in a thread of its own.
    """

    def __init__(self, take: Callable[[list[memoryview]], None]) -> None:
        self._take = take
        self._changed = threading.Condition()
        self._queue: deque[memoryview] = deque()
        self._size = 0
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="frazil-broker-pipe", daemon=True)
        self._thread.start()

    def put(self, message: memoryview) -> None:
        """Queues a message. Blocks while too much waits.

        Raises:
            BaseException: what `take` has raised; nothing is taken after that.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._size < _MAX_QUEUED or self._error is not None)
            if self._error is not None:
                raise self._error
            self._queue.append(message)
            self._size += len(message)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                messages, self._queue = list(self._queue), deque()
                self._size = 0
                self._changed.notify_all()
            try:
                self._take(messages)
            except BaseException as error:  # noqa: BLE001 - told to the one who puts, or closes
                with self._changed:
                    self._error = error
                    self._queue.clear()
                    self._changed.notify_all()
                return
            del messages  # while it waits for the next ones, it holds nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until all is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
