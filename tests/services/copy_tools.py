"""rsync and rclone, which copy files as replications do."""

from __future__ import annotations

from pathlib import Path

from tests.services.debian import find_program, install_packages
from tests.services.installs import InstallError


def install_copy_tool(name: str) -> Path:
    """Returns the program rsync or rclone, installed first if it is missing."""
    if find_program(name) is None:
        install_packages(name)
    if (found := find_program(name)) is None:
        raise InstallError(f"the package {name} has no program {name}. Try: apt-get install --reinstall {name}")
    return found
