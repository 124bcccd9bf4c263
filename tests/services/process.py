"""Starts a server as a process of its own, waits until it answers, and ends it by its process id."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

# Below the range from which the kernel takes ports for outgoing connections, so that none of those is in the way.
_PORTS = range(12_000, 22_000)
_TAIL_LINES = 25
_handed_out: dict[int, socket.socket | None] = {}
_handing_out = threading.Lock()

# The kernel sends the death signal when the *thread* that forked ends. This one lives as long as Python does.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-starter")
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


class ServerError(Exception):
    """A server did not come up; the message ends with the tail of its log."""


@dataclass(frozen=True)
class ServerProcess:
    name: str
    log: Path
    port: int
    popen: subprocess.Popen[bytes] = field(repr=False)
    grace_seconds: float

    def __getstate__(self) -> dict[str, object]:
        """Leaves the process handle behind: another process may use the server, and not stop it."""
        return {**self.__dict__, "popen": None}

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def wait_ready(self, answers: Callable[[], bool], *, seconds: float = 120) -> None:
        """Returns once `answers` says so. A server that ends or stays silent is stopped, and raises with its log."""
        try:
            self._wait(answers, seconds)
        except BaseException:
            self.stop()
            raise

    def _wait(self, answers: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not _quietly(answers):
            if not self.is_running:
                raise ServerError(f"{self.name} ended with code {self.popen.returncode}\n{log_tail(self.log)}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} did not answer within {seconds:.0f} s\n{log_tail(self.log)}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends the server and what it started. Without a grace it is killed at once."""
        if self.grace_seconds and self.is_running:
            _signal_group(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(self.grace_seconds)
        _signal_group(self.pid, signal.SIGKILL)
        self.popen.wait()


def start(
    name: str,
    command: Sequence[str | Path],
    *,
    folder: Path,
    port: int,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    grace_seconds: float = 5.0,
) -> ServerProcess:
    """Starts the command in its own session, in `folder`, where it also leaves its log.

    The server dies with this process, however this process ends (on Linux).
    """
    log = folder / f"{name}.log"
    with log.open("ab") as output:

        def spawn() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**_plain_environment(), **(env or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent,
                user=user,
                group=user,
                extra_groups=[] if user else None,
            )

        popen = _starter.submit(spawn).result()
    return ServerProcess(name, log, port, popen, grace_seconds)


def free_port(*, also_free_at: int = 0) -> int:
    """A port nobody listens on, given out once, also to processes of tests that run beside this one (on Linux).

    Args:
        also_free_at: an offset; the port this far above is free too.
    """
    with _handing_out:
        for _ in range(10_000):
            port = random.choice(_PORTS)
            if port not in _handed_out and _is_free(port) and _is_free(port + also_free_at) and _reserve(port):
                return port
    raise ServerError(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def port_answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def url_answers(url: str) -> bool:
    """True when the server gives any HTTP answer that is not its own failure."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500


def log_tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join([f"--- the end of {log}:", *lines])


def _plain_environment() -> dict[str, str]:
    # SeaweedFS makes an administrator of AWS_ACCESS_KEY_ID, and the JVMs would sign with the caller's own keys.
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _reserve(port: int) -> bool:
    """Keeps a port from others who ask for one, as long as this process runs: a server needs seconds to listen."""
    mark = None
    if sys.platform == "linux":
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0frazil-tests-port-{port}")  # a name without a file
        except OSError:
            mark.close()
            return False
    _handed_out[port] = mark
    return True


def _quietly(answers: Callable[[], bool]) -> bool:
    try:
        return answers()
    except OSError:
        return False


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
