"""A Hive metastore on Derby, from the jars inside PySpark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.machine import QUICK_JVM
from tests.services.handle import Handle
from tests.services.jars import launcher, spark_jars
from tests.services.javas import find_jdk
from tests.services.process import free_port, port_answers, start


@dataclass(frozen=True, kw_only=True)
class Hive(Handle):
    warehouse: str

    def settings(self) -> dict[str, Any]:
        return {"catalog": {"kind": "hive", "uri": self.url, "warehouse": self.warehouse}}


def start_hive(folder: Path) -> Hive:
    port, warehouse = free_port(), folder / "warehouse"
    warehouse.mkdir()
    (folder / "conf").mkdir()
    (folder / "conf" / "hive-site.xml").write_text(_site(folder, warehouse.as_uri()))
    command: list[str | Path] = [
        find_jdk().executable,
        "-Xmx512m",
        QUICK_JVM,
        f"-Dhive.log.dir={folder}",
        f"-Dderby.system.home={folder}",
    ]
    command += ["-cp", f"{folder / 'conf'}:{spark_jars()}", launcher("HmsLocal"), "127.0.0.1", str(port)]
    process = start("hive", command, folder=folder, port=port)
    process.wait_ready(lambda: port_answers(port), seconds=120)
    return Hive(url=f"thrift://127.0.0.1:{port}", process=process, warehouse=warehouse.as_uri())


def _site(folder: Path, warehouse: str) -> str:
    properties = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'metastore_db'};create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "hive.metastore.warehouse.dir": warehouse,
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.async.log.enabled": "false",
        # Hive's own default pool is not among Spark's jars, and a lock without a pool fails.
        "datanucleus.connectionPoolingType": "HIKARICP",
        # Iceberg's schema changes look incompatible to Hive, which does not read these tables itself.
        "hive.metastore.disallow.incompatible.col.type.changes": "false",
    }
    rows = [f"  <property><name>{k}</name><value>{escape(v)}</value></property>" for k, v in properties.items()]
    return "\n".join(["<configuration>", *rows, "</configuration>", ""])
