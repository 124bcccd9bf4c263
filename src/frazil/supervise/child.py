"""Runs a `frazil` command that ends when its supervisor does, whatever ends that one.

python -m frazil.supervise.child PARENT COMMAND…
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Requests SIGTERM for the end of the parent, also if it is killed. Linux only; no effect elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has gone already
        sys.exit(0)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    importlib.import_module("frazil.__main__").main(sys.argv[2:])
