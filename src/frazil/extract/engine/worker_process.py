"""A worker process, as seen by the task that started it."""

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

#: Size of the pipe for jobs, if the system allows it; further jobs wait in this process.
_PIPE = 1 << 20
#: Bytes of the process's output that are kept, to explain its end.
_OUTPUT_KEPT = 4096
_KILL_TIMEOUT_S = 5.0
_POLL_S = 0.002


class WorkerProcess:
    """A process and its pipes. It is killed when the thread that started it ends.

    Args:
        config: its configuration.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.ready = False
        self.taken = 0
        """Number of jobs it was given."""
        self._frames = FrameDecoder()
        self._output = b""
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
                with suppress(OSError):  # users with many pipes may be limited to small ones
                    fcntl.fcntl(self._jobs, fcntl.F_SETPIPE_SZ, _PIPE)
            for one in (self._jobs, self.results, self.noise):
                os.set_blocking(one, False)
            given = (jobs, results, file)
            # Without -P modules in the current folder, such as one of photos, could shadow others.
            command = [sys.executable, "-P", "-m", "frazil.extract.engine.worker", *map(str, given), str(os.getpid())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=noise,
                stderr=noise,
                pass_fds=given,
                start_new_session=True,  # Ctrl-C is for the process that started the task
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_modules()), "PYTHONSAFEPATH": "1"},
            )
            self._closing = ours.pop_all()
        self.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs. Does not reap it: until then no other process group can get its id."""
        if self._process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # reaped elsewhere
            return self._process.poll() is None

    @property
    def waits_for(self) -> list[int]:
        """The pipe for jobs, if some are not sent yet."""
        return [self._jobs] if self._unsent else []

    def send(self, jobs: Sequence[Job]) -> None:
        """Sends jobs without blocking. That a process is gone is noticed when its results are read."""
        self.taken += len(jobs)
        self._unsent += encode_frame([job.pack() for job in jobs])
        self.flush()

    def flush(self) -> None:
        """Writes as much as the pipe accepts."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self._jobs, self._unsent)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent.clear()

    def receive(self) -> tuple[list[tuple[Any, bytes]], bool]:
        """Returns the results that have arrived, and whether more can follow."""
        self.flush()
        self._read_output()
        found: list[tuple[Any, bytes]] = []
        while True:
            try:
                data = os.read(self.results, 1 << 20)
            except BlockingIOError:
                return found, True
            if not data:
                return found, False
            for message, extra in self._frames.feed(data):
                if "ready" in message:
                    self.ready = True
                else:
                    found.append((message, extra))

    def _read_output(self) -> None:
        try:
            while data := os.read(self.noise, 1 << 16):
                self._output = (self._output + data)[-_OUTPUT_KEPT:]
        except BlockingIOError:
            return

    def busy(self) -> list[ThreadStatus]:
        """Returns the threads that are busy, or were when it died."""
        return self._board.busy()

    def kill(self) -> None:
        self._kill_all()
        self._wait()

    def _kill_all(self) -> None:
        """Kills the process and its child processes, which would survive a crash."""
        if self._process.returncode is None:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def last_output_line(self) -> str:
        self._read_output()
        lines = self._output.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def how_it_ended(self) -> str:
        """Returns why it ended. Call after its results are exhausted."""
        code = self._wait()
        if (
            "memory allocation of" in (words := self.last_output_line())
            or "MemoryError" in words
            or "bad_alloc" in words
        ):
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
        """Returns the exit code; None if the process is stuck in the kernel and was abandoned."""
        until = now() + _KILL_TIMEOUT_S
        while self.is_alive and now() < until:
            time.sleep(_POLL_S)
        self._kill_all()
        try:
            return self._process.wait(_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        if self._process.returncode is None:
            self.kill()
        self._closing.close()


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Opens a pipe, and registers who closes its ends."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _modules() -> list[str]:
    """Returns the module paths of this process, without the current folder unless the user named it."""
    here, named = Path.cwd(), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in sys.path if Path(path).is_absolute() and (Path(path) != here or path in named)]


# -- idle processes ----------------------------------------------------------------------------------------------------

_idle: list[WorkerProcess] = []
_lock = threading.Lock()


def acquire_worker(config: WorkerConfig) -> WorkerProcess:
    """Returns an idle worker of this process with the same configuration, or a new one."""
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
    """Keeps a worker for the next task of this process. It ends by itself if none comes."""
    with _lock:
        _idle.append(child)


def close_idle_workers() -> None:
    with _lock:
        while _idle:
            _idle.pop().close()


atexit.register(close_idle_workers)


def now() -> float:
    return time.monotonic()
