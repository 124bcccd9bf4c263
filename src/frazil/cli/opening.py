"""Opens files with the program that the desktop has for them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frazil.cli.invocation import Run
from frazil.errors import NotFoundError, UnsupportedError, UsageError

MAX_OPENED = 20
_PATIENCE = 2.0


def open_files(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """Opens objects that are files of this machine.

    Raises:
        UsageError: they are too many, or lie in a bucket.
        NotFoundError: one is not there any more.
        UnsupportedError: this machine has no program that opens files, or it does not.
    """
    if len(rows) > MAX_OPENED:
        raise UsageError(
            f"{len(rows)} files match; at most {MAX_OPENED} can be opened at once", hint=f"--limit {MAX_OPENED}"
        )
    files = [_file(row["bucket"], row["key"]) for row in rows]
    program = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    if program is None:
        raise UnsupportedError("no program to open files is installed", hint="install xdg-open (package xdg-utils)")
    for file in files:
        _start(program, file)
    run.printer.note(f"opened: {len(files)}")


def _file(bucket: str, key: str) -> Path:
    from frazil.content.buckets import folder_of, is_folder

    if not is_folder(bucket):
        raise UsageError(f"'{key}' is in bucket '{bucket}'; only local files can be opened", hint="without --open")
    folder = folder_of(bucket)
    file = folder / key
    if ".." in Path(key).parts or Path(key).is_absolute():
        raise UsageError(f"'{key}' is not a file inside {folder}", hint="without --open")
    if not file.is_file():
        raise NotFoundError(f"{file} no longer exists", hint=f"frazil content scan {folder}")
    return file


def _start(program: str, file: Path) -> None:
    """A viewer may stay open, so that only a quick failure is waited for."""
    started = subprocess.Popen(
        [program, str(file)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        code = started.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        return
    if code:
        raise UnsupportedError(
            f"{file} could not be opened: {Path(program).name} exited with code {code}",
            hint="run this in a desktop session",
        )
