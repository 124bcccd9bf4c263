"""A bucket of S3, or of a server that speaks its protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Literal

from frazil.content.s3_errors import asking
from frazil.content.scan.listing import PAGE, Object, Page, Shard, utc_text
from frazil.errors import ConflictError, NotAllowedError, NotFoundError, UnsupportedError, UsageError
from frazil.settings import Settings
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage.s3_client import client_of

Versions = Literal["all", "latest"]

#: Seconds for which the existence of a bucket is cached.
_BELIEVED_S = 10.0
#: Separates key and version in a position; no key contains it.
_MARK = "\0"


@dataclass(frozen=True)
class Bucket:
    """A bucket as a `ScanTarget`.

    Attributes:
        bucket: its name.
        s3: how to reach it.
        network: patience.
        versions: what is listed of a bucket that has versions; None: it has none.
    """

    bucket: str
    s3: S3Settings
    network: NetworkSettings
    versions: Versions | None = None

    is_local = False

    @property
    def _client(self) -> Any:
        return client_of(self.s3, self.network)

    def now(self) -> datetime:
        began = datetime.now(UTC)
        with asking(self.bucket):
            return _time_of(self._client.list_objects_v2(Bucket=self.bucket, MaxKeys=1), began)

    def confirm_missing(self) -> datetime:
        """Returns the store's time of its answer that this bucket does not exist.

        Raises:
            ConflictError: the bucket exists.
            FrazilError: the store gave another answer, or none: neither proves anything.
        """
        began = datetime.now(UTC)
        try:
            self.now()
        except NotFoundError as error:
            answer = getattr(error.__cause__, "response", {})
            if answer.get("Error", {}).get("Code") != "NoSuchBucket":
                raise
            return _time_of(answer, began)
        raise ConflictError(
            f"the bucket s3://{self.bucket} exists", hint=f"frazil content reconcile s3://{self.bucket}"
        )

    def pages(self, shard: Shard, position: str | None = None) -> Iterator[Page]:
        while True:
            page = self._page(shard, position)
            yield page
            if page.next is None:
                return
            position = page.next

    def _page(self, shard: Shard, position: str | None) -> Page:
        try:
            return self._page_at(shard, position)
        except UsageError:
            if position is None:
                raise
            return self._page_at(shard, None)  # it has forgotten the position: telling things twice does no harm

    def _page_at(self, shard: Shard, position: str | None) -> Page:
        asked: dict[str, Any] = {"Bucket": self.bucket, "Prefix": shard.prefix}
        if not shard.deep:
            asked["Delimiter"] = "/"
        return self._versions_at(asked, position) if self.versions else self._objects_at(asked, position)

    def _objects_at(self, asked: dict[str, Any], position: str | None) -> Page:
        if position is not None:
            asked["ContinuationToken"] = position
        began = datetime.now(UTC)
        with asking(self.bucket):
            answer = self._client.list_objects_v2(**asked)
        objects = [_seen(found) for found in answer.get("Contents", ())]
        following = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
        return Page(objects, _time_of(answer, began), following)

    def _versions_at(self, asked: dict[str, Any], position: str | None) -> Page:
        if position is not None:
            asked["KeyMarker"], _, version = position.partition(_MARK)
            if version:
                asked["VersionIdMarker"] = version
        began = datetime.now(UTC)
        with asking(self.bucket):
            answer = self._client.list_object_versions(**asked)
        objects = [_seen(found) for found in answer.get("Versions", ())]
        objects += [_marker(found) for found in answer.get("DeleteMarkers", ())]
        if self.versions == "latest":
            objects = [found for found in objects if found["is_latest"]]
        following = None
        if answer.get("IsTruncated"):
            following = f"{answer['NextKeyMarker']}{_MARK}{answer.get('NextVersionIdMarker') or ''}"
        return Page(objects, _time_of(answer, began), following)

    def children(self, prefix: str, at_most: int) -> list[str] | None:
        found: list[str] = []
        ask = self._client.list_object_versions if self.versions else self._client.list_objects_v2
        asked: dict[str, Any] = {"Bucket": self.bucket, "Prefix": prefix, "Delimiter": "/"}
        for _ in range(at_most // PAGE + 1):
            with asking(self.bucket):
                answer = ask(**asked)
            found += [part["Prefix"] for part in answer.get("CommonPrefixes", ())]
            if not answer.get("IsTruncated"):
                return found
            if self.versions:
                asked |= {
                    "KeyMarker": answer["NextKeyMarker"],
                    "VersionIdMarker": answer.get("NextVersionIdMarker") or "",
                }
            else:
                asked |= {"ContinuationToken": answer["NextContinuationToken"]}
        return None  # many prefixes, or many objects beside them

    def look_up(self, keys: Sequence[tuple[str, str]]) -> Iterator[tuple[datetime, list[Object]]]:
        if not self.versions:
            for key, version in keys:
                yield self._head(key, version)
            return
        versions: dict[str, set[str]] = {}
        for key, version in keys:
            versions.setdefault(key, set()).add(version)
        for key, asked in versions.items():
            yield self._versions_of(key, asked)

    def _head(self, key: str, version: str) -> tuple[datetime, list[Object]]:
        """Sends one HEAD request. If the answer shows that the bucket has versions, they are listed."""
        from botocore.exceptions import ClientError

        began = datetime.now(UTC)
        try:
            with asking(self.bucket, key):
                answer = self._client.head_object(Bucket=self.bucket, Key=key)
        except NotFoundError as error:
            if not isinstance(error.__cause__, ClientError):
                raise
            answer = error.__cause__.response
            if version or answer["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-delete-marker") == "true":
                return replace(self, versions="all")._versions_of(key, {version})
            _require_bucket(self, int(time.monotonic() / _BELIEVED_S))
            return _time_of(answer, began), [{"key": key, "version_id": "", "exists": False}]
        if version or _version(answer):
            return replace(self, versions="all")._versions_of(key, {version})
        seen = {
            **_seen({**answer, "Key": key, "Size": answer["ContentLength"]}),
            "content_type": answer.get("ContentType"),
            "user_metadata": answer.get("Metadata"),
        }
        return _time_of(answer, began), [seen]

    def _versions_of(self, key: str, versions: set[str]) -> tuple[datetime, list[Object]]:
        """Returns the requested versions of a key. Lists all of them, because which one is latest depends on all."""
        found: list[Object] = []
        first: datetime | None = None
        for page in self.pages(Shard(key)):
            first = first or page.observed_at
            found += [seen for seen in page.objects if seen["key"] == key]
            if any(seen["key"] != key for seen in page.objects):
                break  # keys come in order, and those of one key together
        assert first is not None, "a listing has a page"
        there = {seen["version_id"] for seen in found}
        gone = [{"key": key, "version_id": version, "exists": False} for version in sorted(versions - there)]
        return first, found + gone


def open_bucket(name: str, settings: Settings, versions: Versions | None) -> Bucket:
    """Opens a bucket after checking that it answers.

    Args:
        name: of the bucket.
        settings: the settings.
        versions: what to list of its versions; None: all if it has some.

    Raises:
        NotFoundError: there is none of that name.
        NotAllowedError: it may not be listed.
    """
    place = Bucket(name, settings.model.s3, settings.model.network)
    place.now()
    return replace(place, versions=versions or "all") if _has_versions(place, versions) else place


@lru_cache(maxsize=64)
def _require_bucket(place: Bucket, _period: int) -> None:
    """Raises NotFoundError if the bucket does not exist; a request for a key cannot tell the difference."""
    place.now()


def _has_versions(place: Bucket, asked: Versions | None) -> bool:
    try:
        with asking(place.bucket):
            return bool(place._client.get_bucket_versioning(Bucket=place.bucket).get("Status"))
    except UnsupportedError:
        return asked == "all"  # then listing its versions will tell
    except NotAllowedError as error:
        if asked is not None:
            return asked == "all"
        raise NotAllowedError(
            f"whether s3://{place.bucket} has versions may not be asked",
            cause=error.cause,
            hint="allow s3:GetBucketVersioning; or tell a scan: --versions or --no-versions",
        ) from error


def _seen(found: dict[str, Any]) -> Object:
    return {
        "key": found["Key"],
        "version_id": _version(found),
        "exists": True,
        "size": found.get("Size"),
        "etag": (found.get("ETag") or "").strip('"') or None,
        "last_modified": utc_text(found["LastModified"]) if found.get("LastModified") else None,
        "storage_class": found.get("StorageClass") or "STANDARD",
        "is_latest": found.get("IsLatest", True),
        "is_delete_marker": False,
    }


def _marker(found: dict[str, Any]) -> Object:
    return {
        "key": found["Key"],
        "version_id": _version(found),
        "exists": True,
        "last_modified": utc_text(found["LastModified"]) if found.get("LastModified") else None,
        "is_latest": found.get("IsLatest", False),
        "is_delete_marker": True,
    }


def _version(found: dict[str, Any]) -> str:
    """Returns the version id; empty for S3's `null`, the version of buckets without versioning."""
    version = found.get("VersionId") or ""
    return "" if version == "null" else str(version)


def _time_of(answer: dict[str, Any], began: datetime) -> datetime:
    """Returns the time by the server's clock, no later than the listing.

    The answer's head tells whole seconds. Where the clocks agree, the time of the question tells where in that second:
    two looks within one are then not taken for simultaneous.
    """
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        second = parsedate_to_datetime(text).astimezone(UTC)
    except (TypeError, ValueError):
        return began
    return began if second <= began < second + timedelta(seconds=1) else second
