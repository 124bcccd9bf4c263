"""Runs the tests in two processes side by side: `python -m tests.lanes [check] [options of pytest]`.

Most tests wait: for a JVM to start, a server, a signal, a time-out. Two lanes on two cores take little more than half
the time of one. Each has servers and a Spark session of its own. What the second says is printed when both have ended.
`check` takes the unit tests alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
#: Whole commands that mostly wait, so that both lanes are of about the same length.
_MOVED = ("tests/e2e/test_content_scan_stop.py",)
#: The first is shown while it runs.
LANES = (
    ("tests/unit", "tests/component", "tests/contract", "tests/e2e", *(f"--ignore={path}" for path in _MOVED)),
    ("tests/integration", *_MOVED),
)
#: The unit tests, in two halves of about the same length.
_HALF = ("test_extract*.py", "test_log*.py", "test_catalog*.py")
CHECK = (
    ("tests/unit", *(f"--ignore-glob=*/{names}" for names in _HALF)),
    tuple(sorted(f"tests/unit/{path.name}" for names in _HALF for path in (_ROOT / "tests" / "unit").glob(names))),
)
_NOTHING_COLLECTED = 5


def main(options: list[str]) -> int:
    lanes, options = (CHECK, options[1:]) if options[:1] == ["check"] else (LANES, options)
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        # The signals of this process, and not those that a shell gives to what runs in the background.
        second = _start(lanes[1], options, stdout=output, stderr=subprocess.STDOUT)
        first = _start(lanes[0], options)
        try:
            codes = [first.wait(), second.wait()]
        except KeyboardInterrupt:
            codes = [first.wait(), second.wait()]
        output.seek(0)
        print(f"\n===== {' '.join(lanes[1])}\n", flush=True)
        sys.stdout.buffer.write(output.read())
        sys.stdout.flush()
    for lane, code in zip(lanes, codes, strict=True):
        print(f"{'passed' if code in (0, _NOTHING_COLLECTED) else f'FAILED ({code})'}: {' '.join(lane)}")
    print(f"both lanes: {time.monotonic() - began:.0f} s")
    if all(code == _NOTHING_COLLECTED for code in codes):
        return _NOTHING_COLLECTED
    return max(0 if code == _NOTHING_COLLECTED else abs(code) for code in codes)


def _start(folders: tuple[str, ...], options: list[str], **streams: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "pytest", *folders, *options], **streams)  # type: ignore[call-overload,no-any-return]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
