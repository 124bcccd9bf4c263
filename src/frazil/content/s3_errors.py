"""Translates errors of S3, with hints for buckets and objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from frazil.errors import CredentialsError, FrazilError, NotAllowedError, NotFoundError
from frazil.storage import s3_client

_MISSING_BUCKET = "bucket not found"


@contextmanager
def asking(bucket: str, key: str | None = None) -> Iterator[None]:
    """Translates errors of boto3 raised in the block."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise from_boto(error, bucket, key) from error


def from_boto(error: Exception, bucket: str, key: str | None = None) -> FrazilError:
    """Translates an error of boto3 about a bucket or key."""
    found = s3_client.from_boto(error, bucket, key)
    if isinstance(found, NotFoundError) and found.message.startswith(_MISSING_BUCKET):
        found.hint = f"check its name; if it was removed: frazil content reconcile s3://{bucket} --bucket-gone"
    elif isinstance(found, NotAllowedError) and not isinstance(found, CredentialsError):
        found.hint = "check the policy of user and bucket: s3:ListBucket, s3:ListBucketVersions and s3:GetObject"
    return found
