"""Finds a JDK that Spark 4.1 can start on, or installs one where that needs no questions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frazil.errors import SetupError
from frazil.settings import environment

SUPPORTED = (17, 21)  # Spark 4.1 does not start on 25

_RELEASE_VERSION = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_PRINTED_VERSION = re.compile(r'version "([^"]+)"')
_WHERE_JDKS_LIE = (
    "/usr/lib/jvm",
    "/Library/Java/JavaVirtualMachines",
    "/opt/homebrew/opt",
    "/usr/local/opt",
    "/opt/java",
)


@dataclass(frozen=True)
class Java:
    home: Path
    version: str

    @property
    def major(self) -> int:
        return major_version(self.version)

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def major_version(version: str) -> int:
    """Returns 17 for ``17.0.15``, and 8 for ``1.8.0_392``."""
    parts = [int(n) for n in re.findall(r"\d+", version)]
    if not parts:
        return 0
    return parts[1] if parts[0] == 1 and len(parts) > 1 else parts[0]


def find_java(wanted: Path | None = None) -> Java:
    """Finds the JDK to run Spark on.

    Args:
        wanted: the one the user named (`spark.java_home`). It is taken or refused, never passed over in silence.
    """
    if wanted is not None:
        return _wanted(wanted)
    seen: list[Java] = []
    for home in _candidates():
        java = inspect_java(home)
        if java is None:
            continue
        if java.major in SUPPORTED:
            return java
        seen.append(java)
    found = ", ".join(f"Java {j.major} in {j.home}" for j in seen)
    raise SetupError(
        "Spark needs Java 17 or 21, but this machine has none",
        cause=f"found only {found}" if found else "no Java was found in JAVA_HOME, PATH or the usual folders",
        hint=install_hint(),
    )


def _wanted(home: Path) -> Java:
    java = inspect_java(home)
    if java is None:
        raise SetupError(
            f"spark.java_home is {home}, which has no bin/java", hint="set it to the folder of a JDK, or leave it empty"
        )
    if java.major not in SUPPORTED:
        raise SetupError(
            f"spark.java_home is {home}, which is Java {java.major}; Spark 4.1 needs 17 or 21",
            hint="set it to a JDK 17 or 21, or leave it empty to search for one",
        )
    return java


def inspect_java(home: Path) -> Java | None:
    """Inspects the Java in a folder; None if it does not run."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    release = home / "release"
    if release.is_file() and (match := _RELEASE_VERSION.search(release.read_text(errors="replace"))):
        return Java(home, match.group(1))
    try:
        printed = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _PRINTED_VERSION.search(printed.stderr)
    return Java(home, match.group(1)) if match else None


def _candidates() -> Iterator[Path]:
    if (home := environment.java_home()) is not None:
        yield home
    if (on_path := shutil.which("java")) is not None:
        yield Path(on_path).resolve().parent.parent
    for folder in _WHERE_JDKS_LIE:
        for entry in sorted(Path(folder).glob("*")):
            yield entry / "Contents" / "Home" if (entry / "Contents" / "Home").is_dir() else entry
            yield entry / "libexec" / "openjdk.jdk" / "Contents" / "Home"


def install_hint() -> str:
    if sys.platform == "darwin":
        return "brew install openjdk@17"
    if Path("/etc/debian_version").exists():
        return "sudo apt-get update && sudo apt-get install -y openjdk-17-jdk-headless"
    if shutil.which("dnf"):
        return "sudo dnf install -y java-17-openjdk-headless"
    if shutil.which("apk"):
        return "sudo apk add openjdk17-jdk bash"
    return "install a JDK 17 or 21, or set spark.java_home (FRAZIL_SPARK__JAVA_HOME) to one"


def can_install_java() -> bool:
    """Whether Java can be installed: on Debian and Ubuntu as root."""
    return Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None and os.geteuid() == 0


def install_java() -> Java:
    """Installs a JDK from Debian's packages and returns it."""
    _apt_get("update", "-q")
    _apt_get("install", "-y", "-q", _package_of_17_or_else_21())
    return find_java()


def _apt_get(*arguments: str) -> None:
    command, env = ["apt-get", *arguments], {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(
            f"'{' '.join(command)}' failed", cause=(done.stderr or done.stdout).strip()[-300:], hint=install_hint()
        )


def _package_of_17_or_else_21() -> str:
    """Returns the package to install: Debian 12 and Ubuntu have 17, Debian 13 only 21. Needs a fresh package list."""
    command = ["apt-cache", "policy", "openjdk-17-jdk-headless"]
    env = {**os.environ, "LC_ALL": "C"}  # else "Candidate" is in the user's language
    known = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    has_17 = "Candidate:" in known.stdout and "Candidate: (none)" not in known.stdout
    return "openjdk-17-jdk-headless" if has_17 else "openjdk-21-jdk-headless"
