"""A file system that is soon full."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A folder with so much room, as mount's option `size` says. Who may not mount anything skips the test."""
    folder = Path(tempfile.mkdtemp())
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        folder.rmdir()
        pytest.skip("cannot mount a small file system here")
    try:
        yield folder
    finally:
        # Lazily: a test that failed may still have files open there.
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()
