"""Where the kit keeps what it installs, and how two runs at once do not disturb each other."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class InstallError(Exception):
    """Something is missing that only the owner of the machine can install; the message says what and how."""


def cache_folder() -> Path:
    base = os.environ.get("FRAZIL_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frazil"
    folder = Path(base) / "services"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def only_one(name: str) -> Iterator[None]:
    """Holds back every other process that installs the same thing."""
    with (cache_folder() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def installed_script(name: str, wheel: str) -> Path:
    """A program that came with a wheel of this environment."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.is_file():
        raise InstallError(f"{path} is missing. Try: uv pip install {wheel}")
    return path


def run(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, user: str | None = None) -> str:
    """Runs a program to its end and returns what it printed; raises with the end of that where it failed."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        user=user,
        group=user,
        extra_groups=[] if user else None,
    )
    if done.returncode != 0:
        raise InstallError(f"'{' '.join(map(str, command))}' failed with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout
