"""The servers' own jars, fetched by Frazil's own code against a lock file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from frazil.errors import FrazilError
from frazil.spark.jars import cached_jars, fetch_jars
from tests.services.installs import InstallError, cache_folder
from tests.services.javas import find_jdk

LOCK_FILE = Path(__file__).with_name("jars.lock.json")


def install_jars() -> list[Path]:
    try:
        return cached_jars(cache_folder(), LOCK_FILE)
    except FrazilError:
        return fetch_jars(cache_folder(), find_jdk(), lock=LOCK_FILE)


def jar(artifact: str) -> Path:
    for path in install_jars():
        if path.name.startswith(f"{artifact}-"):
            return path
    raise InstallError(f"{artifact} is not in {LOCK_FILE}")


def launcher(name: str) -> Path:
    return Path(__file__).with_name("java") / f"{name}.java"


def spark_jars() -> str:
    """PySpark's jars as a class path."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "jars" / "*")
