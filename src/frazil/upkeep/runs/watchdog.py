"""A turn of upkeep seen from outside: it works in a sink's own thread, and another thread ends it in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from frazil.upkeep.jobs import Jobs

#: Seconds between two looks.
_POLL_S = 0.25


class Watchdog:
    """Looks at a turn for the time of a block.

    Args:
        jobs: those of this turn, and of no other.
        reason: says why the turn must end, or None; asked again and again.

    Attributes:
        jobs: for whoever works.
        stop: likewise; set when it is time to end.
        why: the reason, if it was one that ended the turn.
    """

    def __init__(self, jobs: Jobs, reason: Callable[[], str | None]) -> None:
        self.jobs = jobs
        self.stop = threading.Event()
        self.why: str | None = None
        self._reason = reason
        self._over = threading.Event()

    def end(self) -> None:
        """Ends the turn soon, as far as it can be: a commit under way is not disturbed."""
        self.stop.set()
        self.jobs.cancel()

    def _poll(self) -> None:
        while not self._over.wait(_POLL_S):
            if not self.stop.is_set():
                self.why = self._reason()
            if self.why is not None or self.stop.is_set():
                self.end()  # again and again: an action may begin another job before it is told of the end of one

    def __enter__(self) -> Watchdog:
        threading.Thread(target=self._poll, name="frazil-upkeep-watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self.jobs.leave()
