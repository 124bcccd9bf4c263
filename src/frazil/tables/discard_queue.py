"""Files that nothing refers to any more, deleted when the readers which planned on them have had their time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.tables.metrics import DISCARDED

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

log = get_logger(__name__)


class DiscardQueue:
    """A queue with a delay. A thread empties it, which starts with the first file and ends when there are none.

    It lives in memory: what waits when the process ends stays in storage, for upkeep's search of orphans.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay = delay_s
        self._waiting: deque[tuple[float, FileIO, str]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, io: FileIO, paths: Iterable[str]) -> None:
        due = time.monotonic() + self._delay
        with self._changed:
            if self._closed:
                return
            self._waiting.extend((due, io, path) for path in paths)
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="frazil-discards", daemon=True)
                self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Deletes what is due and leaves the rest."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, io, path = self._waiting.popleft()
            delete(io, [path])

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed or not self._waiting:
                    self._thread = None
                    return
                due, io, path = self._waiting[0]
                if (wait := due - time.monotonic()) > 0:
                    self._changed.wait(wait)
                    continue
                self._waiting.popleft()
            delete(io, [path])


def delete(io: FileIO, paths: Iterable[str]) -> None:
    """Deletes files that are of no use. One that cannot be deleted costs room, not rows: it is left for upkeep."""
    for path in paths:
        reach("tables.discard.before")
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - each file system fails in its own way
            log.warning("an unreferenced file could not be deleted", path=path, error=str(error))
            continue
        DISCARDED.inc()
        reach("tables.discard.after")
