"""Nessie: an Iceberg REST catalog with branches. Its tables lie on an S3 server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machine import QUICK_JVM
from tests.services.handle import Handle
from tests.services.jars import jar
from tests.services.javas import find_java21
from tests.services.process import free_port, start, url_answers
from tests.services.s3_access import S3Access


@dataclass(frozen=True, kw_only=True)
class Nessie(Handle):
    """`url` is the Iceberg REST endpoint; `warehouse` is the name a client gives, not a location."""

    warehouse: str
    access: S3Access

    @property
    def credentials(self) -> str:
        return f"S3: {self.access.access_key} / {self.access.secret_key}"

    def settings(self) -> dict[str, Any]:
        return {"catalog": {"kind": "rest", "uri": self.url, "warehouse": self.warehouse}, "s3": self.access.settings()}


def start_nessie(folder: Path, *, access: S3Access, location: str) -> Nessie:
    """Starts it with an empty version store in memory and tables below `location` (s3://bucket/…)."""
    port, management, warehouse = free_port(), free_port(), "lake"
    s3 = "nessie.catalog.service.s3.default-options"
    properties = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management,
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": warehouse,
        f"nessie.catalog.warehouses.{warehouse}.location": location,
        f"{s3}.endpoint": access.endpoint,
        f"{s3}.path-style-access": "true",
        f"{s3}.region": access.region,
        # Clients bring their own keys: SeaweedFS knows nothing of Nessie's signing service.
        f"{s3}.request-signing-enabled": "false",
        f"{s3}.access-key": "urn:nessie-secret:quarkus:nessie.s3key",
        "nessie.s3key.name": access.access_key,
        "nessie.s3key.secret": access.secret_key,
    }
    command: list[str | Path] = [find_java21().executable, "-Xmx512m", QUICK_JVM]
    command += [f"-D{key}={value}" for key, value in properties.items()]
    process = start("nessie", [*command, "-jar", jar("nessie-quarkus")], folder=folder, port=port)
    process.wait_ready(lambda: url_answers(f"http://127.0.0.1:{management}/q/health/ready"), seconds=120)
    return Nessie(url=f"http://127.0.0.1:{port}/iceberg", process=process, warehouse=warehouse, access=access)
