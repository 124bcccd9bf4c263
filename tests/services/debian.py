"""Programs that come as Debian packages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.services.installs import InstallError, only_one, run

# A package's own start-up script would start a second server on the standard port; runlevel 1 keeps it from doing so.
_QUIET = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin")


def find_program(name: str, folders: Sequence[Path] = ()) -> Path | None:
    searched = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS, *map(str, folders)])
    found = shutil.which(name, path=searched)
    return Path(found) if found else None


def install_packages(*packages: str) -> None:
    """Installs packages as root on Debian or Ubuntu; anywhere else it is the owner's decision."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise InstallError(f"missing. Try: sudo apt-get install {' '.join(packages)}")
    with only_one("debian"):
        patient = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=600"]
        run([*patient, "update"], env=_QUIET)
        run([*patient, "install", "--no-install-recommends", *packages], env=_QUIET)
