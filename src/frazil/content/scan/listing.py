"""What is in a bucket or folder, page by page.

A place is cut into shards, each of which can be listed by itself and taken up again at a position. Objects are plain
dictionaries as an observation has them.
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

#: Objects of a page, and of an observation.
PAGE = 1000
#: Parts of the key space that one prefix is cut into at most; one that has more is listed as a whole.
_WIDEST = 10_000
_LEVELS = 2

Object = dict[str, Any]


@dataclass(frozen=True)
class Shard:
    """The keys that begin with a prefix; where it is not deep, only those without a further slash."""

    prefix: str
    deep: bool = True


@dataclass(frozen=True)
class Skipped:
    """Something that is no object, or that nobody may look at."""

    key: str
    """Ends with a slash where it is a folder, with all that is in it."""
    reason: str
    unknown: bool = True
    """Whether an object may be there; else there is none."""

    def hides(self, key: str) -> bool:
        """Whether nothing is known of a key because of this."""
        return self.unknown and (key == self.key or (self.key.endswith("/") and key.startswith(self.key)))


@dataclass(frozen=True)
class Page:
    objects: list[Object]
    observed_at: datetime
    """By the clock of the storage, and no later than what was seen."""
    next: str | None
    """Where the shard goes on; None: this was its last page."""
    skipped: tuple[Skipped, ...] = ()


class ScanTarget(Protocol):
    """A bucket or a folder. It can be pickled, so that executors can look too."""

    @property
    def bucket(self) -> str:
        """As it is called in the tables."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether only this machine can see it for sure."""
        ...

    def now(self) -> datetime:
        """What time it is there.

        Raises:
            FrazilError: it is not there, or may not be looked at.
        """
        ...

    def pages(self, shard: Shard, position: str | None = None) -> Iterator[Page]: ...

    def children(self, prefix: str, at_most: int) -> list[str] | None:
        """The prefixes one slash further; None if there are more than `at_most`."""
        ...

    def ask(self, keys: Sequence[tuple[str, str]]) -> Iterator[tuple[datetime, list[Object]]]:
        """What is true now of keys and versions, whether they exist or not, with the time of each answer."""
        ...


def resolve_target(text: str, settings: Settings, versions: Versions | None = None, *, look: bool = True) -> ScanTarget:
    """The bucket or folder that a user means.

    Args:
        text: s3://bucket, a bucket's name, or a folder.
        settings: the settings.
        versions: of a bucket: all, or only the latest; None: all if it has versions.
        look: whether a bucket has to prove that it is there, and may be listed.

    Raises:
        FrazilError: it is not there, or may not be looked at.
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
            raise error.adding(
                f"there is no folder '{text}' here, so that it was taken for a bucket"
            ) from error.__cause__
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
        look: whether a bucket has to prove that it exists and may be listed.

    Raises:
        FrazilError: it does not exist, or may not be listed.
        UsageError: the prefix cannot be one of the place.
    """
    from frazil.content.buckets import require_text
    from frazil.content.scan.folder import Folder, check_prefix

    require_text(prefix, "prefix")
    place = resolve_target(text, settings, None if versions is None else "all" if versions else "latest", look=look)
    if isinstance(place, Folder):
        check_prefix(prefix)
    return place


def split_shards(place: ScanTarget, prefix: str, wanted: int) -> list[Shard]:
    """The place as shards, at least as many as are wanted where two levels of slashes give that many."""
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


def utc_text(moment: datetime) -> str:
    """As observations have times."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
