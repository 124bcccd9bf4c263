"""strace, which shows what a program asks of the kernel."""

from __future__ import annotations

from pathlib import Path

from tests.services.debian import find_program, install_packages
from tests.services.installs import InstallError


def install_strace() -> Path:
    if find_program("strace") is None:
        install_packages("strace")
    if (found := find_program("strace")) is None:
        raise InstallError("the package strace has no program strace. Try: apt-get install --reinstall strace")
    return found
