"""A file system that is full soon."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """Mounts a tmpfs of a size such as "1m", and fails where that is not permitted."""
    folder = Path(tempfile.mkdtemp())
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        folder.rmdir()
        raise RuntimeError(f"'{' '.join(command)}' failed: {mounted.stderr.strip()}. Try: run the tests as root")
    try:
        yield folder
    finally:
        # Lazily: a test that failed may still have files open there.
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()
