"""The Iceberg project's own REST catalog server, on an SQLite file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machine import QUICK_JVM
from tests.services.handle import Handle
from tests.services.jars import jar, launcher
from tests.services.javas import find_jdk
from tests.services.process import free_port, start, url_answers
from tests.services.s3_access import S3Access


@dataclass(frozen=True, kw_only=True)
class Rest(Handle):
    """`warehouse` is where the server puts tables; clients need not name it. `access` is set when that is on S3."""

    warehouse: str
    access: S3Access | None

    @property
    def credentials(self) -> str:
        return f"S3: {self.access.access_key} / {self.access.secret_key}" if self.access else "none needed"

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {"catalog": {"kind": "rest", "uri": self.url}}
        if self.access:
            found["s3"] = self.access.settings()
        return found


def start_rest(
    folder: Path, *, name: str = "rest", warehouse: str | None = None, access: S3Access | None = None
) -> Rest:
    """Starts it with tables in `folder`, or in the S3 `warehouse` that `access` opens."""
    port = free_port()
    warehouse = warehouse or (folder / "warehouse").as_uri()
    command: list[str | Path] = [
        find_jdk().executable,
        "-Xmx384m",
        QUICK_JVM,
        "-cp",
        jar("iceberg-open-api"),
        launcher("RestMain"),
        "127.0.0.1",
        str(port),
    ]
    command += [f"jdbc:sqlite:{folder / 'catalog.db'}", warehouse]
    if access:
        command += [
            "io-impl=org.apache.iceberg.aws.s3.S3FileIO",
            f"client.region={access.region}",
            "s3.path-style-access=true",
        ]
        command += [f"{key}={value}" for key, value in access.pyiceberg().items() if key != "s3.region"]
    process = start(name, command, folder=folder, port=port)
    url = f"http://127.0.0.1:{port}"
    process.wait_ready(lambda: url_answers(f"{url}/v1/config"))
    return Rest(url=url, process=process, warehouse=warehouse, access=access)
