"""Calls of coroutines that are blocked: the topic is not ready, or a buffer is full.

Blocked calls of one event loop keep their order, and no later call of that loop overtakes them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from frazil.log.protocol import Ack

Loop = asyncio.AbstractEventLoop
Outcome = asyncio.Future[Ack]


Call = Callable[[], Outcome | None]
"""Starts a call; returns None if it is still blocked."""


class BlockedCalls(dict[Loop, deque[tuple[Outcome, Call]]]):
    """Blocked calls by loop; each entry is touched only by its loop's thread.

    A dict, so that the check for emptiness is cheap.
    """

    def block(self, loop: Loop, start: Call) -> Outcome:
        """Stores a call and returns its future outcome.

        The caller that blocks first in a loop must schedule `admit`.
        """
        if loop not in self:
            for ended in [other for other in list(self) if other.is_closed()]:
                self.pop(ended, None)
        outcome: Outcome = loop.create_future()
        self.setdefault(loop, deque()).append((outcome, start))
        return outcome

    def admit(self, loop: Loop, has_room: Callable[[], bool] = lambda: True) -> None:
        """Starts blocked calls one by one while there is room; the others stay blocked.

        An error of `has_room` or of the call becomes its outcome. Cancelled calls are dropped.
        """
        waiting = self[loop]
        while waiting:
            call = waiting.popleft()  # before the call, so that Ctrl-C cannot start it twice
            outcome, start = call
            if outcome.done():
                continue
            try:
                started = start() if has_room() else None
                if started is None:
                    waiting.appendleft(call)
                    return
                _copy_outcome(outcome, started)
            except asyncio.CancelledError:  # the loop is shutting down
                outcome.cancel()
            except Exception as error:  # noqa: BLE001  # it is the answer, whatever it is
                outcome.set_exception(error)
        del self[loop]


def _copy_outcome(outcome: Outcome, started: Outcome) -> None:
    def copy(_: Outcome) -> None:
        error = None if started.cancelled() else started.exception()
        if outcome.done():
            return
        if started.cancelled():
            outcome.cancel()
        elif error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(started.result())

    if started.done():
        copy(started)
    else:
        started.add_done_callback(copy)
