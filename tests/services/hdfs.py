"""HDFS: a name node and one data node in one process, by Hadoop's mini cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frazil.errors import FrazilError
from frazil.spark.jars import cached_jars, fetch_jars
from tests.machine import QUICK_JVM
from tests.services.handle import Handle
from tests.services.installs import cache_folder
from tests.services.jars import launcher, spark_jars
from tests.services.javas import find_jdk
from tests.services.process import free_port, start

#: Apart from those of the other servers, because only the deep tier needs it. Its version is that of Spark's client.
LOCK_FILE = Path(__file__).with_name("hdfs.lock.json")


@dataclass(frozen=True, kw_only=True)
class Hdfs(Handle):
    """`url` is `hdfs://localhost:PORT`."""


def install_hdfs() -> list[Path]:
    try:
        return cached_jars(cache_folder(), LOCK_FILE)
    except FrazilError:
        return fetch_jars(cache_folder(), find_jdk(), lock=LOCK_FILE)


def start_hdfs(folder: Path) -> Hdfs:
    port = free_port()
    classes = ":".join([*map(str, install_hdfs()), spark_jars()])
    command: list[str | Path] = [find_jdk().executable, "-Xmx512m", QUICK_JVM, "-cp", classes, launcher("Hdfs")]
    process = start("hdfs", [*command, folder / "data", str(port)], folder=folder, port=port, grace_seconds=0)
    process.wait_ready(lambda: (folder / "data" / "ready").exists(), seconds=180)
    return Hdfs(url=f"hdfs://localhost:{port}", process=process)
