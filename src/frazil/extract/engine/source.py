"""The edge between the engine and storage: which content to read, and a source that reads it by ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ObjectGone(Exception):  # noqa: N818 - an answer, not a failure
    """The object is not there any more."""


class ObjectChanged(Exception):  # noqa: N818 - an answer, not a failure
    """Under its key lies another content now."""


class RangeBeyondEnd(ObjectChanged):
    """It ends before the bytes that were asked for."""


class StorageError(Exception):
    """The storage did not give the bytes. The reason is its text."""


@dataclass(frozen=True)
class ObjectRef:
    """Which content of which object is to be read.

    Attributes:
        bucket: its bucket, or the URI of a folder.
        key: its key.
        version_id: its version; empty: it has none.
        is_latest: whether it is the newest version of its key.
        etag: of the content; None: it is not known.
        size: bytes; None: it is not known.
    """

    bucket: str
    key: str
    version_id: str = ""
    is_latest: bool = True
    etag: str | None = None
    size: int | None = None


class Source(Protocol):
    """The bytes of one object. Its reads raise Gone, Changed, StorageError, or Unsupported."""

    def fetch(self, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`; fewer where there are no more."""
        ...

    def total(self) -> int:
        """How many there are, asked of the storage."""
        ...

    def check(self) -> None:
        """Raises where what was read is not what was wanted, after all."""
        ...

    def close(self) -> None: ...
