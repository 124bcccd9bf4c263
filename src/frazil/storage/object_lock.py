"""S3 Object Lock, and the removal of versions: by boto3, since obstore knows neither.

Objects are locked in compliance mode: until the date is over no user can delete or replace the version, not even the
owner of the account. It can only be prolonged.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from frazil.errors import ConflictError, FrazilError, NotAllowedError, NotFoundError, UnsupportedError
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import Location, ObjectStore
from frazil.storage.bulk import Chunks, RemoteBulk, Source, rechunked
from frazil.storage.s3_client import client_of, from_boto, translated
from frazil.storage.store import CHUNK, verified

MODE = "COMPLIANCE"
_EXISTS = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_NO_LOCK = frozenset({"ObjectLockConfigurationNotFoundError", "NoSuchObjectLockConfiguration"})
_NO_RETENTION = frozenset({"NoSuchObjectLockConfiguration", "InvalidRequest", "ObjectLockConfigurationNotFoundError"})


@dataclass(frozen=True)
class BucketLock:
    """Whether a bucket can lock objects.

    Attributes:
        is_enabled: Object Lock is on.
        versioning: Enabled, Suspended or Off; None: the server does not say.
        default_days: retention that the bucket gives to all new objects; None: none.
        problem: why `backup.lock_days` cannot work there; None: it can.
    """

    is_enabled: bool
    versioning: str | None
    default_days: int | None = None
    problem: str | None = None


def check_object_lock(bucket: str, s3: S3Settings, network: NetworkSettings) -> BucketLock:
    """Asks a bucket for Object Lock and versions.

    Raises:
        NotFoundError: there is no such bucket.
        NotAllowedError: its settings may not be read (s3:GetBucketObjectLockConfiguration, s3:GetBucketVersioning).
    """
    client = client_of(s3, network)
    versioning = find_versioning(bucket, s3, network)
    off = "Object Lock is off: it can be turned on for a bucket with versions (S3 console, or when it is created)"
    try:
        with _answered(bucket):
            found = client.get_object_lock_configuration(Bucket=bucket).get("ObjectLockConfiguration", {})
    except UnsupportedError:
        return BucketLock(False, versioning, problem="the server does not support Object Lock")
    except NotFoundError as error:
        if _code(error.__cause__) not in _NO_LOCK:
            raise
        return BucketLock(False, versioning, problem=off)
    if found.get("ObjectLockEnabled") != "Enabled":
        return BucketLock(False, versioning, problem=off)
    rule = found.get("Rule", {}).get("DefaultRetention", {})
    days = rule.get("Days") or (rule["Years"] * 365 if rule.get("Years") else None)
    return BucketLock(True, versioning, days)


def find_versioning(bucket: str, s3: S3Settings, network: NetworkSettings) -> str | None:
    """Returns whether a bucket keeps versions: Enabled, Suspended or Off; None: the server does not say."""
    try:
        with _answered(bucket):
            answer = client_of(s3, network).get_bucket_versioning(Bucket=bucket)
    except UnsupportedError:
        return None
    return str(answer.get("Status") or "Off")


class LockedBulk(RemoteBulk):
    """A `BulkStore` that writes objects under retention, and prolongs that of objects that are there."""

    def __init__(
        self, store: ObjectStore, location: Location, s3: S3Settings, network: NetworkSettings, until: datetime
    ) -> None:
        super().__init__(store, network)
        self._bucket, self._prefix = location.bucket, f"{location.key}/" if location.key else ""
        self._client = client_of(s3, network)
        self.until = until

    def holds(self, key: str, size: int) -> bool:
        try:
            with translated(self._bucket, self._prefix + key):
                answer = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
        except NotFoundError:
            return False
        if answer["ContentLength"] != size:
            return False
        found = answer.get("ObjectLockRetainUntilDate")
        if found is None or found < self.until:
            self.keep(key)
        return True

    def keep(self, key: str) -> None:
        """Prolongs the retention of an object. One that is longer already stays.

        Raises:
            NotFoundError: there is no such object.
        """
        retention = {"Mode": MODE, "RetainUntilDate": self.until}
        try:
            with _answered(self._bucket, self._prefix + key):
                self._client.put_object_retention(Bucket=self._bucket, Key=self._prefix + key, Retention=retention)
        except NotAllowedError:
            # S3 does not let a retention be shortened, and gives the same answer to those who lack the right.
            found = find_retention(self._client, self._bucket, self._prefix + key)
            if found is None or found < self.until:
                raise

    def send(self, key: str, data: bytes, *, condition: bool) -> None:
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        extra = {"IfNoneMatch": "*"} if condition else {}
        with _answered(self._bucket, self._prefix + key):
            self._client.put_object(
                Bucket=self._bucket, Key=self._prefix + key, Body=data, ChecksumAlgorithm="SHA256",
                ChecksumSHA256=digest, **self._retention, **extra,
            )  # fmt: skip

    def upload(self, key: str, source: Source, size: int, sha256: str) -> None:
        from boto3.s3.transfer import TransferConfig

        chunks = verified(rechunked(source.read()), sha256, f"s3://{self._bucket}/{self._prefix}{key}")
        content = io.BufferedReader(_Reader(chunks), CHUNK)  # a part must not be shorter than it was asked for
        # S3 takes 10,000 parts at most.
        part = max(CHUNK, -(-size // 9_000))
        with _answered(self._bucket, self._prefix + key):
            self._client.upload_fileobj(
                content, self._bucket, self._prefix + key, ExtraArgs={**self._retention, "ChecksumAlgorithm": "SHA256"},
                Config=TransferConfig(multipart_threshold=part, multipart_chunksize=part, max_concurrency=4),
            )  # fmt: skip

    @property
    def _retention(self) -> dict[str, Any]:
        return {"ObjectLockMode": MODE, "ObjectLockRetainUntilDate": self.until}


class Versions:
    """The versions of a bucket's objects, to remove them."""

    def __init__(self, location: Location, s3: S3Settings, network: NetworkSettings) -> None:
        self._bucket, self._prefix = location.bucket, f"{location.key}/" if location.key else ""
        self._client = client_of(s3, network)

    def remove(self, key: str) -> datetime | None:
        """Removes all versions and delete markers of an object; if one is locked, nothing.

        Returns:
            None: it is gone; else the end of the retention. `datetime.max` stands for a legal hold.
        """
        versions, markers = self._list(key)
        locked = [until for version in versions if (until := self.find_lock(key, version)) is not None]
        if locked:
            return max(locked)
        for version in [*versions, *markers]:
            try:
                with _answered(self._bucket, self._prefix + key):
                    self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key, VersionId=version)
            except NotFoundError:
                continue
            except NotAllowedError:
                # Locked since, or the lock cannot be read.
                until = self.find_lock(key, version)
                if until is None:
                    raise
                return until
        return None

    def find_lock(self, key: str, version: str | None = None) -> datetime | None:
        """Returns the end of the retention of an object; None: it is not locked, or is not there."""
        where = {"VersionId": version} if version else {}
        try:
            with _answered(self._bucket, self._prefix + key):
                answer = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key, **where)
        except NotFoundError:
            return None
        if answer.get("ObjectLockLegalHoldStatus") == "ON":
            return datetime.max.replace(tzinfo=UTC)
        until: datetime | None = answer.get("ObjectLockRetainUntilDate")
        return until if until is not None and until > _date(answer) else None

    def _list(self, key: str) -> tuple[list[str], list[str]]:
        versions, markers = [], []
        pages = self._client.get_paginator("list_object_versions")
        with _answered(self._bucket, self._prefix + key):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + key):
                versions += [v["VersionId"] for v in page.get("Versions", []) if v["Key"] == self._prefix + key]
                markers += [m["VersionId"] for m in page.get("DeleteMarkers", []) if m["Key"] == self._prefix + key]
        return versions, markers


def find_retention(client: Any, bucket: str, key: str) -> datetime | None:
    try:
        with _answered(bucket, key):
            found: datetime | None = client.head_object(Bucket=bucket, Key=key).get("ObjectLockRetainUntilDate")
    except NotFoundError:
        return None
    return found


def server_time(location: Location, key: str, s3: S3Settings, network: NetworkSettings) -> datetime:
    """Returns the time by the clock of an S3 server, to the second.

    Args:
        location: a folder of a bucket.
        key: any object there.
        s3: access.
        network: patience.
    """
    with _answered(location.bucket, location.child(key).key):
        answer = client_of(s3, network).head_object(Bucket=location.bucket, Key=location.child(key).key)
    return _date(answer)


def _date(answer: dict[str, Any]) -> datetime:
    """Returns the time of the response by the server's clock."""
    from email.utils import parsedate_to_datetime

    header = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if not header:
        raise UnsupportedError("the server of the repository does not state its time", hint="another S3 server")
    return parsedate_to_datetime(header).astimezone(UTC)


@contextmanager
def _answered(bucket: str, key: str | None = None) -> Iterator[None]:
    """Raises the errors of boto3 within this block as ours, those of a condition as `ConflictError`."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError) as error:
        if _code(error) in _EXISTS:
            raise ConflictError(f"s3://{bucket}/{key} already exists", cause=_code(error)) from error
        raise _explained(from_boto(error, bucket, key), error) from error


def _explained(found: FrazilError, error: Exception) -> FrazilError:
    if _code(error) in _NO_RETENTION and not isinstance(found, NotFoundError):
        return UnsupportedError(
            f"{found.message}: the bucket has no Object Lock",
            cause=found.cause,
            hint="a bucket with Object Lock, or no backup.lock_days",
        )
    return found


def _code(error: BaseException | None) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


class _Reader(io.RawIOBase):
    """Chunks as a file that is read once."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._held: memoryview = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._held = memoryview(chunk)
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size
