"""Runs a tier of the test suite on several workers: `python -m tests.run TIER [options of pytest]`.

pytest-xdist hands whole files to the workers, longest first by the durations recorded in tests/durations.json. Most
tests wait for a JVM, a server or a signal, so there are more workers than cores. The workers share the servers of the
services kit, which this process owns; each worker has at most one Spark session. The last line of the output states
the result. Up to three tests that failed run once more, alone (decision 0027).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.services.sharing import share_services

#: What each tier runs. A test without a marker belongs to `make test`.
TIERS: dict[str, tuple[str, ...]] = {
    "check": ("-m", "not deep and not slow and not soak", "tests/unit"),
    "test": ("-m", "not deep and not slow and not soak"),
    "deep": ("-m", "deep and not slow and not soak"),
}
_MORE_WORKERS_THAN_CORES = 2
_FAILED, _NOTHING_COLLECTED = 1, 5
#: More failures than this are no accident.
_FEW = 3


def main(arguments: Sequence[str]) -> int:
    """Returns pytest's exit code for the tier, or 0 if the options leave none of its tests."""
    if not arguments or arguments[0] not in TIERS:
        print(f"usage: python -m tests.run {{{','.join(TIERS)}}} [options of pytest]", file=sys.stderr)
        return 2
    tier, options = arguments[0], arguments[1:]
    reset_signals()
    began = time.monotonic()
    with share_services() as environment, tempfile.TemporaryDirectory(prefix="frazil-run-") as folder:
        failed = Path(folder, "failed")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.report", "--tier", tier]
        plan = [*_distribution(), "--failed-file", str(failed), *TIERS[tier], *options]
        environment = {**os.environ, **environment}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles all of its imports: seconds
        code = _wait(subprocess.Popen([*command, *plan], env=environment))
        again = failed.read_text().splitlines() if failed.exists() else []
        if code == _FAILED and tier != "check" and 0 < len(again) <= _FEW:
            print(f"\n===== again, alone: {' '.join(again)}\n", flush=True)
            code = _wait(subprocess.Popen([*command, *again], env=environment))
        else:
            again = []
    if code == _NOTHING_COLLECTED and options:
        code = 0
    print(f"make {'test-deep' if tier == 'deep' else tier}: {_describe(code, again)}, {_elapsed(began)}", flush=True)
    return code


def worker_count() -> int:
    """Returns the number of workers: TEST_WORKERS, or two more than there are cores."""
    return int(os.environ.get("TEST_WORKERS") or len(os.sched_getaffinity(0)) + _MORE_WORKERS_THAN_CORES)


def reset_signals() -> None:
    """Restores the default signal handlers that a shell switches off for a background job (`nohup … &`)."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that pytest is ended too


def _describe(code: int, again: Sequence[str]) -> str:
    if code:
        return f"RED (exit code {code})"
    if again:
        return f"green, but UNSTEADY: {', '.join(again)} failed beside others and passed alone"
    return "green"


def _elapsed(began: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    return f"{minutes} min {seconds:02} s on {worker_count()} workers"


def _distribution() -> list[str]:
    return ["-n", str(worker_count()), "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart", "0"]


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the terminal has sent it to pytest too, which ends its workers
                continue
    finally:
        process.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
