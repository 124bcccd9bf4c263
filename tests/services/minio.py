"""MinIO: an S3 server that sends event notifications to a webhook. For tests only: it is AGPL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.handle import Handle
from tests.services.minio_build import install_minio
from tests.services.process import free_port, start, url_answers
from tests.services.s3_access import S3Access

EVERY_CHANGE = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*")


@dataclass(frozen=True, kw_only=True)
class MinIO(Handle):
    """`queue_arn` names the webhook it was started with, or is None."""

    access: S3Access
    queue_arn: str | None

    @property
    def credentials(self) -> str:
        return f"{self.access.access_key} / {self.access.secret_key}"

    def settings(self) -> dict[str, Any]:
        return {"s3": self.access.settings()}

    def notify(self, bucket: str, events: Sequence[str] = EVERY_CHANGE) -> None:
        """From now on the bucket's events go to the webhook."""
        assert self.queue_arn is not None, "this MinIO was started without a webhook"
        queue = {"QueueArn": self.queue_arn, "Events": list(events)}
        self.access.client().put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [queue]}
        )


def start_minio(folder: Path, *, webhook: str | None = None) -> MinIO:
    """Starts it; with a `webhook` URL, buckets can be told to `notify` it. The receiver may come up later."""
    port = free_port()
    access = S3Access(f"http://127.0.0.1:{port}")
    env = {
        "MINIO_ROOT_USER": access.access_key,
        "MINIO_ROOT_PASSWORD": access.secret_key,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
    }
    if webhook:
        env |= {
            "MINIO_NOTIFY_WEBHOOK_ENABLE_T1": "on",
            "MINIO_NOTIFY_WEBHOOK_ENDPOINT_T1": webhook,
            # Without a queue, events are lost while the receiver is down.
            "MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_T1": str(folder / "events"),
        }
    command: list[str | Path] = [install_minio(), "server", folder / "data", "--address", f"127.0.0.1:{port}"]
    process = start("minio", command, folder=folder, port=port, env=env)
    process.wait_ready(lambda: url_answers(f"{access.endpoint}/minio/health/ready"))
    return MinIO(
        url=access.endpoint, process=process, access=access, queue_arn="arn:minio:sqs::T1:webhook" if webhook else None
    )
