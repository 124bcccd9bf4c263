"""Calls of coroutines that cannot go yet: the topic is not ready, or a buffer is full.

Those of one event loop go in the order in which they came, and no other coroutine of it overtakes them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from frazil.log.protocol import Ack

Loop = asyncio.AbstractEventLoop
Answer = asyncio.Future[Ack]


Go = Callable[[], Answer | None]
"""A call; it gives None where it still cannot go."""


class BlockedCalls(dict[Loop, deque[tuple[Answer, Go]]]):
    """The calls of each loop, touched by its own thread alone. A dict, since all look whether it is empty."""

    def wait(self, loop: Loop, go: Go) -> Answer:
        """Keeps a call, and gives the answer to come. Who brings the first of its loop sees to it that it is let in."""
        if loop not in self:
            for ended in [other for other in list(self) if other.is_closed()]:
                self.pop(ended, None)
        answer: Answer = loop.create_future()
        self.setdefault(loop, deque()).append((answer, go))
        return answer

    def let_in(self, loop: Loop, may_go: Callable[[], bool] = lambda: True) -> None:
        """Lets calls go, one by one, as long as they may; the others stay.

        Each gets what `may_go` or itself raises, if it does. One that was cancelled meanwhile does not go.
        """
        waiting = self[loop]
        while waiting:
            call = waiting.popleft()  # also where Ctrl-C comes in the middle of it
            answer, go = call
            if answer.done():
                continue
            try:
                real = go() if may_go() else None
                if real is None:
                    waiting.appendleft(call)
                    return
                _answer_with(answer, real)
            except asyncio.CancelledError:  # the loop ends
                answer.cancel()
            except Exception as error:  # noqa: BLE001  # it is the answer, whatever it is
                answer.set_exception(error)
        del self[loop]


def _answer_with(answer: Answer, real: Answer) -> None:
    def copy(_: Answer) -> None:
        error = None if real.cancelled() else real.exception()
        if answer.done():
            return
        if real.cancelled():
            answer.cancel()
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(real.result())

    if real.done():
        copy(real)
    else:
        real.add_done_callback(copy)
