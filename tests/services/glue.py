"""AWS Glue as moto plays it, with moto's S3 beside it. It accepts any keys, and forgets concurrent commits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.handle import Handle
from tests.services.installs import installed_script
from tests.services.process import free_port, start, url_answers
from tests.services.s3_access import S3Access


@dataclass(frozen=True, kw_only=True)
class Glue(Handle):
    """`url` serves Glue, S3 and the rest of AWS; `warehouse` is a bucket that exists."""

    access: S3Access
    warehouse: str

    @property
    def credentials(self) -> str:
        return f"{self.access.access_key} / {self.access.secret_key} (any others too)"

    def settings(self) -> dict[str, Any]:
        catalog = {"kind": "glue", "uri": "glue", "endpoint": self.url, "warehouse": self.warehouse}
        return {"catalog": catalog, "s3": self.access.settings()}


def start_glue(folder: Path, *, bucket: str = "warehouse") -> Glue:
    port = free_port()
    process = start(
        "glue",
        [installed_script("moto_server", "'moto[server]'"), "-H", "127.0.0.1", "-p", str(port)],
        folder=folder,
        port=port,
    )
    url = f"http://127.0.0.1:{port}"
    process.wait_ready(lambda: url_answers(f"{url}/moto-api/"))
    access = S3Access(url)
    access.client().create_bucket(Bucket=bucket)
    return Glue(url=url, process=process, access=access, warehouse=f"s3://{bucket}")
