"""Listings of buckets and folders, page by page.

A target is divided into shards, each of which can be listed independently and resumed at a position. Objects are plain
dictionaries, as in observations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from frazil.errors import FrazilError, UsageError
from frazil.settings import Settings

if TYPE_CHECKING:
    from frazil.content.scan.bucket import Versions

#: Maximum objects of a page, and of an observation.
PAGE = 1000
#: Maximum shards of one prefix; a prefix with more subfolders is listed as a whole.
_WIDEST = 10_000
_LEVELS = 2

Object = dict[str, Any]


@dataclass(frozen=True)
class Shard:
    """The keys with a prefix; if not `deep`, only those without a further slash."""

    prefix: str
    deep: bool = True


@dataclass(frozen=True)
class Skipped:
    """Something that is not an object, or that cannot be read."""

    key: str
    """Ends with a slash if it is a folder, which stands for everything below it."""
    reason: str
    unknown: bool = True
    """Whether there may be an object."""

    def hides(self, key: str) -> bool:
        """Whether nothing is known of a key because of this entry."""
        return self.unknown and (key == self.key or (self.key.endswith("/") and key.startswith(self.key)))


@dataclass(frozen=True)
class Page:
    objects: list[Object]
    observed_at: datetime
    """By the clock of the storage, and no later than the listing."""
    next: str | None
    """The position of the next page; None after the last one."""
    skipped: tuple[Skipped, ...] = ()


class ScanTarget(Protocol):
    """A bucket or folder that can be listed. It can be pickled for executors."""

    @property
    def bucket(self) -> str:
        """Its name in the tables."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether other machines may not see it."""
        ...

    def now(self) -> datetime:
        """Returns the time by the clock of the storage.

        Raises:
            FrazilError: it does not exist, or may not be listed.
        """
        ...

    def pages(self, shard: Shard, position: str | None = None) -> Iterator[Page]: ...

    def children(self, prefix: str, at_most: int) -> list[str] | None:
        """Returns the prefixes one level deeper; None if there are more than `at_most`."""
        ...

    def look_up(self, keys: Sequence[tuple[str, str]]) -> Iterator[tuple[datetime, list[Object]]]:
        """Yields the current state of keys and versions, whether they exist or not, with the time of each answer."""
        ...


def resolve_target(text: str, settings: Settings, versions: Versions | None = None, *, look: bool = True) -> ScanTarget:
    """Returns the bucket or folder that a user names.

    Args:
        text: s3://bucket, a bucket's name, or a folder.
        settings: the settings.
        versions: of a bucket: all, or only the latest; None: all if it has versions.
        look: whether to check that a bucket exists and may be listed.

    Raises:
        FrazilError: it does not exist, or may not be listed.
    """
    from frazil.content.buckets import bucket_of, is_folder, require_readable, require_request
    from frazil.content.scan.bucket import Bucket, open_bucket
    from frazil.content.scan.folder import open_folder

    bucket = bucket_of(text)
    if is_folder(bucket):
        return open_folder(bucket, settings)
    if text == bucket and Path(text).is_file():
        raise UsageError(
            f"'{text}' is a file, and a folder or bucket is needed", hint=f"its folder: .; or a bucket: s3://{text}"
        )
    require_readable(bucket, settings.model.content.buckets)
    require_request(bucket)
    if not look:
        return Bucket(bucket, settings.model.s3, settings.model.network)
    try:
        return open_bucket(bucket, settings, versions)
    except FrazilError as error:
        if text == bucket:
            raise error.adding(f"there is no folder '{text}' here, so it was taken for a bucket") from error.__cause__
        raise


def open_target(
    text: str, settings: Settings, prefix: str = "", *, versions: bool | None = None, look: bool = True
) -> ScanTarget:
    """Opens a bucket or folder before anything is started, so that a misspelt name changes nothing.

    Args:
        text: s3://bucket, a bucket's name, or a folder.
        settings: the settings.
        prefix: only keys that begin with it.
        versions: of a bucket, whether all versions are listed or only the latest; None: all if it has versions.
        look: whether to check that a bucket exists and may be listed.

    Raises:
        FrazilError: it does not exist, or may not be listed.
        UsageError: the prefix is invalid for the target.
    """
    from frazil.content.buckets import require_text
    from frazil.content.scan.folder import Folder, check_prefix

    require_text(prefix, "prefix")
    place = resolve_target(text, settings, None if versions is None else "all" if versions else "latest", look=look)
    if isinstance(place, Folder):
        check_prefix(prefix)
    return place


def split_shards(place: ScanTarget, prefix: str, wanted: int) -> list[Shard]:
    """Divides a target into shards: at least as many as wanted, if two levels of folders give that many."""
    shards = [Shard(prefix)]
    for _ in range(_LEVELS):
        if len(shards) >= wanted:
            break
        shards = [part for shard in shards for part in _parts(place, shard)]
    return shards


def _parts(place: ScanTarget, shard: Shard) -> list[Shard]:
    children = place.children(shard.prefix, _WIDEST) if shard.deep else None
    if not children:
        return [shard]
    return [Shard(shard.prefix, deep=False), *(Shard(child) for child in children)]


def utc_text(time: datetime) -> str:
    """Formats a time as in observations."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
