"""The edge between the engine and storage: which content to read, and a source that reads it by ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ObjectGone(Exception):  # noqa: N818 - an answer, not a failure
    """The object does not exist any more."""


class ObjectChanged(Exception):  # noqa: N818 - an answer, not a failure
    """The content of the object is not the one that was listed."""


class RangeBeyondEnd(ObjectChanged):
    """The object ends before the requested range."""


class StorageError(Exception):
    """The storage did not return the bytes. The message is the reason."""


@dataclass(frozen=True)
class ObjectRef:
    """The content of an object to read.

    Attributes:
        bucket: its bucket, or the URI of a folder.
        key: its key.
        version_id: its version; empty if it has none.
        is_latest: whether it is the newest version of its key.
        etag: of the content; None if unknown.
        size: bytes; None if unknown.
    """

    bucket: str
    key: str
    version_id: str = ""
    is_latest: bool = True
    etag: str | None = None
    size: int | None = None


class Source(Protocol):
    """The bytes of one object. Reads raise ObjectGone, ObjectChanged, StorageError or Unsupported."""

    def fetch(self, start: int, end: int) -> bytes:
        """Returns the bytes from `start` up to `end`; fewer at the end of the object."""
        ...

    def total(self) -> int:
        """Returns the size, as the storage reports it."""
        ...

    def check(self) -> None:
        """Raises if the bytes that were read are not of the requested content."""
        ...

    def close(self) -> None: ...
