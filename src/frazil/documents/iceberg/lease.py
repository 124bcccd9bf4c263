"""The log for a moment: without a server, the process that writes documents is the owner while it writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from frazil.documents.iceberg.keeper import AskedTables, ProjectionKeeper
from frazil.documents.iceberg.owner import DocumentOwner
from frazil.documents.iceberg.projection import ProjectionFolder
from frazil.errors import LockedError, UnsupportedError
from frazil.log.owner import read_owner
from frazil.topics.connection import log_folder, open_log
from frazil.topics.handover import REQUEST, take_log

if TYPE_CHECKING:
    from frazil.log.log import Log
    from frazil.settings import Settings

#: Seconds that the log stays open for the next write.
_LINGER_S: Final = 0.05
#: Seconds after which it is closed for a moment, so that other processes get it.
_LONGEST_S: Final = 1.0
_PAUSE_S: Final = 0.03


class OwnerLease:
    """Opens the log when this process needs it. The threads that write at the same time share it.

    Args:
        settings: the settings.
        folder: of the projection.
        now: the clock of revisions.
    """

    def __init__(self, settings: Settings, folder: ProjectionFolder, now: Callable[[], datetime]) -> None:
        self._settings, self._folder, self._now = settings, folder, now
        self._asked = AskedTables()
        self._changed = threading.Condition()
        self._users = 0
        self._opened: DocumentOwner | None = None
        self._close: Callable[[], None] = lambda: None
        self._since = self._closed_at = 0.0
        self._timer: threading.Timer | None = None
        self._thread = threading.local()

    @contextmanager
    def owner(self) -> Iterator[DocumentOwner]:
        """The owner, for a few calls. A thread that has it gets it again.

        Raises:
            LockedError: another process has the log.
        """
        if (held := getattr(self._thread, "owner", None)) is not None:
            yield held
            return
        taken = self._thread.owner = self._take()
        try:
            yield taken
        finally:
            self._thread.owner = None
            self._give_back()

    def close(self) -> None:
        """Closes the log. Who uses it goes on first."""
        with self._changed:
            self._changed.wait_for(lambda: not self._users)
            self._close_now()

    def _take(self) -> DocumentOwner:
        with self._changed:
            self._stop_timer()
            # Who has it long enough lets go of it, even if more writes come.
            self._changed.wait_for(lambda: self._opened is None or not self._is_overdue() or not self._users)
            if self._opened is not None and self._is_overdue():
                self._close_now()
            if self._opened is None:
                time.sleep(max(0.0, self._closed_at + _PAUSE_S - time.monotonic()) if self._since else 0.0)
                self._opened = self._open()
                self._since = time.monotonic()
            self._users += 1
            return self._opened

    def _give_back(self) -> None:
        with self._changed:
            self._users -= 1
            if self._users == 0:
                if self._is_overdue():
                    self._close_now()
                else:
                    self._timer = threading.Timer(_LINGER_S, self._close_if_idle)
                    self._timer.daemon = True
                    self._timer.start()
            self._changed.notify_all()

    def _is_overdue(self) -> bool:
        return time.monotonic() > self._since + _LONGEST_S or (log_folder(self._settings) / REQUEST).exists()

    def _close_if_idle(self) -> None:
        with self._changed:
            if not self._users:
                self._close_now()

    def _close_now(self) -> None:
        self._stop_timer()
        close, self._close, self._opened = self._close, lambda: None, None
        close()
        self._closed_at = time.monotonic()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _open(self) -> DocumentOwner:
        with ExitStack() as stack:
            opened = self._open_log()
            stack.callback(opened.close)
            opened.offer_handover()
            keeper = ProjectionKeeper(self._settings, opened, self._folder, self._asked)
            stack.callback(keeper.close)
            owner = DocumentOwner(self._settings, opened, keeper, now=self._now)
            self._close = stack.pop_all().close
        return owner

    def _open_log(self) -> Log:
        folder = log_folder(self._settings)
        if self._settings.model.log.broker is not None and read_owner(folder) is None:
            raise UnsupportedError(
                "documents in Iceberg are written by the process that has the log, and the log is behind the broker at "
                f"{self._settings.model.log.broker}",
                hint="use the HTTP API of the server there: /api/v1/documents",
            )
        try:
            return open_log(self._settings)
        except LockedError:
            owner = read_owner(folder)
            if owner is None or not owner.yields or "flight" not in owner.addresses:
                raise
        return take_log(self._settings)  # a pipeline without a server, which hands the log over
