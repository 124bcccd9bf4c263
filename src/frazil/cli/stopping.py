"""Ends a command that works in threads: the first signal asks it to end, the second one ends it, and so does time."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from frazil.errors import FrazilError, InterruptedByUser

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds that Python has to end in after the command has left threads behind, before it is made to.
_TO_LEAVE_S = 3.0
_OVER = 0


class Stopping:
    """Listens for Ctrl-C, SIGTERM and SIGHUP as long as its block runs.

    Python runs its handlers in the main thread alone, which may hang; and a handler that takes a lock, as
    `Event.set` does, waits for ever where the main thread has that lock at this moment. So the handlers here do
    nothing. The interpreter writes each signal into a pipe, whatever its threads do, and a thread reads it there.

    Args:
        bound_s: seconds after the first signal in which the process is gone.
        late: the error to tell where that had to be made true.
        kill: ends what would outlive the process.
        json_output: how the error is told.
    """

    def __init__(
        self, bound_s: float, late: Callable[[], FrazilError], *, kill: Callable[[], None], json_output: bool
    ) -> None:
        self.asked = threading.Event()
        """Set by the first signal."""
        self._bound_s, self._late, self._kill, self._json = bound_s, late, kill, json_output
        self._gentle = False
        self._deadline: float | None = None

    def __enter__(self) -> Self:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        taken = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup
        self._before = {number: signal.getsignal(number) for number in taken}
        for number in taken:
            if number != signal.SIGINT:
                signal.signal(number, self._as_ctrl_c)
        self._thread = threading.Thread(target=self._listen, name="frazil-stopping", daemon=True)
        self._thread.start()
        return self

    def be_gentle(self) -> None:
        """From now on the first signal only sets `asked`. Before, it interrupts the main thread as Ctrl-C does."""
        self._gentle = True
        if signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, _nothing)

    def _as_ctrl_c(self, _number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)  # Spark's session has one of its own
        if not self._gentle and callable(handler):
            handler(signal.SIGINT, frame)

    def _listen(self) -> None:
        heard = 0
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if not select.select([self._read_end], [], [], left)[0]:
                self._end(self._late())
            for number in os.read(self._read_end, 256):
                if number == _OVER:
                    return
                if number not in self._before:
                    continue
                heard += 1
                if heard > 1:
                    self._end(InterruptedByUser("interrupted twice; ended immediately"))
                self.asked.set()
                self._deadline = time.monotonic() + self._bound_s

    def _end(self, error: FrazilError) -> None:
        """Ends the process without asking anybody."""
        if self._json:
            print(json.dumps(error.to_dict(), ensure_ascii=False), file=sys.stderr, flush=True)
        else:
            why = f"\n  why: {error.cause}" if error.cause else ""
            print(f"error: {error.message}{why}", file=sys.stderr, flush=True)
        self._kill()
        os._exit(error.exit_code)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.write(self._write_end, bytes([_OVER]))
        self._thread.join()
        os.close(self._read_end)
        os.close(self._write_end)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """There has to be a handler, or the signal would end the process."""


def leave_soon(code: int) -> None:
    """For a command that is about to end with this code, and leaves threads behind that Python would wait for."""

    def leave() -> None:
        time.sleep(_TO_LEAVE_S)
        os._exit(code)

    threading.Thread(target=leave, name="frazil-leaving", daemon=True).start()
