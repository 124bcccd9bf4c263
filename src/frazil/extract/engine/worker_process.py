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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from frazil.extract.engine.wire import FrameDecoder, Job, StatusBoard, ThreadStatus, WorkerConfig, encode_frame

#: Bytes of jobs that lie in their pipe, where the system allows so many; the others wait in this process.
_PIPE = 1 << 20
#: The last words of a process, for the reason of its end.
_NOISE = 4096
_SECONDS_TO_DIE = 5.0
_LOOK_S = 0.002


class WorkerProcess:
    """A process with its pipes. It dies with the thread that has made it.

    Args:
        config: what it must know.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.ready = False
        self.taken = 0
        """Jobs that it was given."""
        self._frames = FrameDecoder()
        self._noise = b""
        self._unsent = bytearray(encode_frame([], pickle.dumps(config)))
        with ExitStack() as ours, ExitStack() as theirs:
            jobs, self._jobs = _pipe(theirs, ours)
            self.results, results = _pipe(ours, theirs)
            self.noise, noise = _pipe(ours, theirs)
            file = StatusBoard.make(config.threads)
            theirs.callback(os.close, file)
            self._board = StatusBoard(file, config.threads)
            ours.callback(self._board.close)
            if sys.platform == "linux":
                with suppress(OSError):  # whoever has many pipes may have small ones only
                    fcntl.fcntl(self._jobs, fcntl.F_SETPIPE_SZ, _PIPE)
            for one in (self._jobs, self.results, self.noise):
                os.set_blocking(one, False)
            given = (jobs, results, file)
            # Without -P the folder that somebody stands in, such as one of photos, could bring its own modules.
            command = [sys.executable, "-P", "-m", "frazil.extract.engine.worker", *map(str, given), str(os.getpid())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=noise,
                stderr=noise,
                pass_fds=given,
                start_new_session=True,  # Ctrl-C is for the one who started the task
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_modules()), "PYTHONSAFEPATH": "1"},
            )
            self._closing = ours.pop_all()
        self.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Does not reap it: as long as nobody has, no other process group can have its number."""
        if self._process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # somebody else has
            return self._process.poll() is None

    @property
    def waits_for(self) -> list[int]:
        """Where it can be written to when more of the jobs can be handed over."""
        return [self._jobs] if self._unsent else []

    def send(self, jobs: Sequence[Job]) -> None:
        """Hands jobs over, without waiting. Where the process is gone, that is seen when its results are read."""
        self.taken += len(jobs)
        self._unsent += encode_frame([job.packed() for job in jobs])
        self.flush()

    def flush(self) -> None:
        """Hands over as much as the process takes just now."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self._jobs, self._unsent)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent.clear()

    def receive(self) -> tuple[list[tuple[Any, bytes]], bool]:
        """The results that are there, and whether more can come."""
        self.flush()
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

    def busy(self) -> list[ThreadStatus]:
        """What it is doing, or was doing when it died."""
        return self._board.busy()

    def kill(self) -> None:
        self._kill_all()
        self._wait()

    def _kill_all(self) -> None:
        """The process, and what it has started, which would go on when it has crashed."""
        if self._process.returncode is None:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

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
        until = now() + _SECONDS_TO_DIE
        while self.is_alive and now() < until:
            time.sleep(_LOOK_S)
        self._kill_all()
        try:
            return self._process.wait(_SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        if self._process.returncode is None:
            self.kill()
        self._closing.close()


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe, and who closes its ends."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _modules() -> list[str]:
    """Where this process finds its modules, without the current folder, unless the user has named it."""
    here, named = Path.cwd(), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in sys.path if Path(path).is_absolute() and (Path(path) != here or path in named)]


# -- those that wait for the next task ---------------------------------------------------------------------------------

_idle: list[WorkerProcess] = []
_lock = threading.Lock()


def acquire_worker(config: WorkerConfig) -> WorkerProcess:
    """One that has been used before by this process and has nothing to do, or a new one."""
    with _lock:
        for child in [child for child in _idle if not child.is_alive]:
            _idle.remove(child)
            child.close()
        for child in _idle:
            if child.config == config:
                _idle.remove(child)
                return child
    return WorkerProcess(config)


def release_worker(child: WorkerProcess) -> None:
    """For the next task of this process. It ends by itself when none comes."""
    with _lock:
        _idle.append(child)


def close_idle_workers() -> None:
    with _lock:
        while _idle:
            _idle.pop().close()


atexit.register(close_idle_workers)


def now() -> float:
    return time.monotonic()
