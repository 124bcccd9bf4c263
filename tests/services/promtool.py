"""promtool, which checks alert rules as Prometheus evaluates them."""

from __future__ import annotations

from pathlib import Path

from tests.services.debian import find_program, install_packages
from tests.services.installs import InstallError


def install_promtool() -> Path:
    if find_program("promtool") is None:
        install_packages("prometheus")
    if (found := find_program("promtool")) is None:
        raise InstallError("the package prometheus has no promtool. Try: apt-get install --reinstall prometheus")
    return found
