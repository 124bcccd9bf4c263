"""Worker processes that run functions for `engine`, one call at a time, over a pair of pipes.

Unlike `multiprocessing` they do not import the caller's main program, so that a script without `if __name__ ==
"__main__"` can use them, and they end when their parent does, however it ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, TypeVar

from frazil.errors import FrazilError, UnavailableError, first_line

T = TypeVar("T")
R = TypeVar("R")

_LENGTH = struct.Struct(">Q")
_START = "from frazil.tables.relocation.worker import serve; serve()"


class Worker:
    """A process that runs one function after the other. Not for several threads at once."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def call(self, function: Callable[[T], R], task: T) -> R:
        """Returns what the function returns for a task, or raises what it raises.

        Raises:
            UnavailableError: the process ended, for example for lack of memory.
        """
        try:
            _write(self._to, (function, task))
            succeeded, value = _read(self._from)
        except (OSError, EOFError) as error:
            code = self._process.wait()
            raise UnavailableError(
                "a worker process ended before its work was done",
                cause=f"signal {-code}" if code < 0 else f"exit code {code}",
                hint="look at the memory of the machine, then repeat the command",
            ) from error
        if not succeeded:
            raise value
        result: R = value
        return result

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        with suppress(OSError):
            self._to.close()
        self._from.close()
        self._process.wait()


def serve() -> None:
    """Runs calls from standard input until it ends. What functions print goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            function, task = _read(sys.stdin.buffer)
        except EOFError:
            return
        _write(answers, run_captured(function, task))


def run_captured(function: Callable[[Any], Any], task: Any) -> tuple[bool, Any]:
    """Returns (True, the result), or (False, the error), which can be pickled."""
    try:
        return True, function(task)
    except FrazilError as error:
        return False, error
    except Exception as error:  # noqa: BLE001 - it is raised again by the caller; not every error can be pickled
        return False, FrazilError(
            f"{type(error).__name__}: {first_line(error)}", cause="", hint="the same with -v shows the stack"
        )


def _write(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _read(stream: IO[bytes]) -> Any:
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return pickle.loads(_exactly(stream, length))  # noqa: S301 - from our own process


def _exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) != length:
        raise EOFError
    return data
