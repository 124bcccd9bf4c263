"""How a client reaches one of the S3 servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config


@dataclass(frozen=True)
class S3Access:
    endpoint: str
    access_key: str = "frazil-key"
    secret_key: str = "frazil-secret"
    region: str = "us-east-1"

    def client(self, service: str = "s3") -> Any:
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2}),
        )

    def settings(self) -> dict[str, str]:
        """The `s3` section of a frazil.yaml."""
        return {
            "endpoint": self.endpoint,
            "region": self.region,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
        }

    def pyiceberg(self) -> dict[str, str]:
        """The same for PyIceberg's own properties."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": self.region,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
        }
