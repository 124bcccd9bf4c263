"""The errors of S3 as ours, with what to do about them in this room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from frazil.errors import CredentialsError, FrazilError, NotAllowedError, NotFoundError
from frazil.storage import s3_client

_MISSING_BUCKET = "bucket not found"


@contextmanager
def asking(bucket: str, key: str | None = None) -> Iterator[None]:
    """Within this block the errors of boto3 come out as ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise from_boto(error, bucket, key) from error


def from_boto(error: Exception, bucket: str, key: str | None = None) -> FrazilError:
    """Our error for one of boto3, which came for this bucket or key."""
    found = s3_client.from_boto(error, bucket, key)
    if isinstance(found, NotFoundError) and found.message.startswith(_MISSING_BUCKET):
        found.hint = f"check its name; if it was removed: frazil content reconcile s3://{bucket} --bucket-gone"
    elif isinstance(found, NotAllowedError) and not isinstance(found, CredentialsError):
        found.hint = "check the policy of user and bucket: s3:ListBucket, s3:ListBucketVersions and s3:GetObject"
    return found
