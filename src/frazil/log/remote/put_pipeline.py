"""Pipelines a stream of large batches in the broker: the next ones arrive while the last ones are written."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

#: Size from which a second thread pays off. Small batches wait for the disk, not for each other.
LARGE_BATCH = 64 * 1024
_MAX_QUEUED = 8 * 1024 * 1024


class PutPipeline:
    """Hands messages over in order, as many at once as have arrived.

    Args:
        take: appends messages and answers them; runs in a thread of its own.
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
        """Queues a message. Blocks while too many bytes are queued.

        Raises:
            BaseException: the error of `take`; nothing is handed over after it.
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
            except BaseException as error:  # noqa: BLE001 - raised again by `put` or `__exit__`
                with self._changed:
                    self._error = error
                    self._queue.clear()
                    self._changed.notify_all()
                return
            del messages  # keep no memory while waiting for the next ones

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until all messages are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
