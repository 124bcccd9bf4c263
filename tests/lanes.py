"""Runs the tests in two processes side by side: `python -m tests.lanes [check] [options of pytest]`.

Most tests wait: for a JVM to start, a server, a signal, a time-out. Two lanes on two cores take little more than half
the time of one. Each has servers and a Spark session of its own. What the second says is printed when both have ended.
A few that failed are run again alone, and named at the end either way (decision 0027). `check` takes the unit tests
alone, and runs nothing twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.failed import FAILED, VARIABLE, WHOLE

_ROOT = Path(__file__).resolve().parents[1]
Lane = tuple[str, ...]
#: Of about the same length. The first is shown while it runs.
LANES: tuple[Lane, Lane] = (
    ("tests/unit", "tests/component", "tests/contract", "tests/e2e"),
    ("tests/integration",),
)
#: The unit tests, in two halves of about the same length.
_HALF = ("test_extract*.py", "test_log*.py", "test_catalog*.py")
CHECK: tuple[Lane, Lane] = (
    ("tests/unit", *(f"--ignore-glob=*/{names}" for names in _HALF)),
    tuple(sorted(f"tests/unit/{path.name}" for names in _HALF for path in (_ROOT / "tests" / "unit").glob(names))),
)
#: More than so many that fail are no accident.
_FEW = 3
_FAILED, _NOTHING_COLLECTED = 1, 5


def main(options: list[str]) -> int:
    if options[:1] == ["check"]:
        return run(CHECK, options[1:], few=0)
    return run(LANES, options, few=_FEW)


def run(lanes: tuple[Lane, Lane], options: Sequence[str], *, few: int) -> int:
    """The exit code of pytest for both lanes together; up to `few` tests that failed are run again."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="frazil-lanes-") as folder:
        codes = _both(lanes, options, Path(folder))
        failed, whole = (_noted(Path(folder, name)) for name in (FAILED, WHOLE))
    for lane, code in zip(lanes, codes, strict=True):
        print(f"{'passed' if code in (0, _NOTHING_COLLECTED) else f'FAILED ({code})'}: {' '.join(lane)}")
    print(f"both lanes: {time.monotonic() - began:.0f} s", flush=True)
    if all(code == _NOTHING_COLLECTED for code in codes):
        return _NOTHING_COLLECTED
    were_all_run = len(whole) == len(lanes) and set(codes) <= {0, _FAILED, _NOTHING_COLLECTED}
    if were_all_run and 0 < len(failed) <= few:
        return _again(failed, options)
    return max(0 if code == _NOTHING_COLLECTED else abs(code) for code in codes)


def _both(lanes: tuple[Lane, Lane], options: Sequence[str], notes: Path) -> list[int]:
    options, env = ["-p", "tests.failed", *options], {**os.environ, VARIABLE: str(notes)}
    with tempfile.TemporaryFile() as output:
        # The signals of this process, and not those that a shell gives to what runs in the background.
        second = _start(lanes[1], options, env=env, stdout=output, stderr=subprocess.STDOUT)
        first = _start(lanes[0], options, env=env)
        try:
            codes = [first.wait(), second.wait()]
        except KeyboardInterrupt:
            codes = [first.wait(), second.wait()]
        output.seek(0)
        print(f"\n===== {' '.join(lanes[1])}\n", flush=True)
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    return codes


def _again(failed: Sequence[str], options: Sequence[str]) -> int:
    print(f"\n===== again, alone: {' '.join(failed)}\n", flush=True)
    code = _start(failed, options).wait()
    word = "UNSTEADY (failed beside others, passed alone)" if code == 0 else f"FAILED twice ({code})"
    print("\n".join(f"{word}: {test}" for test in failed), flush=True)
    return abs(code)


def _noted(file: Path) -> list[str]:
    return sorted(set(file.read_text().splitlines())) if file.exists() else []


def _start(tests: Sequence[str], options: Sequence[str], **more: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "pytest", *tests, *options], **more)  # type: ignore[call-overload,no-any-return]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
