"""One process that looks inside, as the task sees it that has started it."""

from __future__ import annotations

import atexit
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from frazil.content.extract.wire import Board, Config, Frames, Job, Line, frame, write_all

#: Bytes that jobs may lie in their pipe, so that handing them over never waits for a process that hangs.
_PIPE = 1 << 20
#: The last words of a process, for the reason of its end.
_NOISE = 4096
_SECONDS_TO_DIE = 5.0


class Child:
    """A process with its pipes. It dies with the thread that has made it.

    Args:
        config: what it must know.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ready = False
        self.taken = 0
        """Jobs that it was given."""
        self._frames = Frames()
        self._noise = b""
        jobs, self._jobs = os.pipe()
        self.results, results = os.pipe()
        self.noise, noise = os.pipe()
        file = Board.make(config.threads)
        self._board = Board(file, config.threads)
        given = (jobs, results, file)
        command = [sys.executable, "-m", "frazil.content.extract.worker", *map(str, given), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=noise,
                stderr=noise,
                pass_fds=given,
                start_new_session=True,  # Ctrl-C is for the one who started the task
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            for one in (*given, noise):
                os.close(one)
        if sys.platform == "linux":
            fcntl.fcntl(self._jobs, fcntl.F_SETPIPE_SZ, _PIPE)
        for one in (self.results, self.noise):
            os.set_blocking(one, False)
        self._write(frame([], pickle.dumps(config)))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, jobs: Sequence[Job]) -> None:
        """Hands jobs over. Where the process is gone, that is seen when its results are read."""
        self.taken += len(jobs)
        self._write(frame([job.packed() for job in jobs]))

    def _write(self, data: bytes) -> None:
        try:
            write_all(self._jobs, data)
        except BrokenPipeError:
            return

    def receive(self) -> tuple[list[tuple[Any, bytes]], bool]:
        """The results that are there, and whether more can come."""
        self._hear()
        found: list[tuple[Any, bytes]] = []
        while True:
            try:
                data = os.read(self.results, 1 << 20)
            except BlockingIOError:
                return found, True
            if not data:
                return found, False
            for told, extra in self._frames.feed(data):
                if "ready" in told:
                    self.ready = True
                else:
                    found.append((told, extra))

    def _hear(self) -> None:
        try:
            while data := os.read(self.noise, 1 << 16):
                self._noise = (self._noise + data)[-_NOISE:]
        except BlockingIOError:
            return

    def busy(self) -> list[Line]:
        """What it is doing, or was doing when it died."""
        return self._board.busy()

    def kill(self) -> None:
        self._process.kill()
        self._wait()

    def last_words(self) -> str:
        self._hear()
        lines = self._noise.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def how_it_ended(self) -> str:
        """In words, after its results have come to their end."""
        code = self._wait()
        if "memory allocation of" in (words := self.last_words()) or "MemoryError" in words or "bad_alloc" in words:
            return f"took more than {self.config.limits.max_memory_bytes / 2**30:g} GiB of memory"
        if code is None:
            return "hangs, and cannot be ended"
        if code >= 0:
            return f"ended the process (exit code {code})"
        try:
            return f"crashed the process ({signal.Signals(-code).name})"
        except ValueError:
            return f"crashed the process (signal {-code})"

    def _wait(self) -> int | None:
        """The exit code; None: it is stuck in the kernel, and is left behind."""
        try:
            return self._process.wait(_SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        if self.is_alive:
            self.kill()
        for one in (self._jobs, self.results, self.noise):
            os.close(one)
        self._board.close()


# -- those that wait for the next task ---------------------------------------------------------------------------------

_idle: list[Child] = []
_lock = threading.Lock()


def borrow(config: Config) -> Child:
    """One that has been used before by this process and has nothing to do, or a new one."""
    with _lock:
        for child in [child for child in _idle if not child.is_alive]:
            _idle.remove(child)
            child.close()
        for child in _idle:
            if child.config == config:
                _idle.remove(child)
                return child
    return Child(config)


def give_back(child: Child) -> None:
    """For the next task of this process. It ends by itself when none comes."""
    with _lock:
        _idle.append(child)


def close_idle() -> None:
    with _lock:
        while _idle:
            _idle.pop().close()


atexit.register(close_idle)


def now() -> float:
    return time.monotonic()
