"""What every object store does. The promises are tested on each of them by tests/contract/test_storage.py."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeAlias

from frazil.errors import IntegrityError, UsageError
from frazil.storage.faults import from_os

CHUNK = 8 * 1024 * 1024
"""Bytes that a stream holds at once; larger content is sent in parts of this size."""

ONE_REQUEST = 256 * 1024 * 1024
"""Bytes that a server gets in one request at most, where content in parts cannot be conditional. They are in memory."""

Data: TypeAlias = bytes | Path | Iterator[bytes]
"""What can be put: bytes, the file at a path, or chunks as they come (sent once; memory stays bounded)."""

_UNUSABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and what is no UTF-8


@dataclass(frozen=True)
class ObjectInfo:
    """What a store knows of an object without reading it."""

    key: str
    size: int
    etag: str
    """Changes with the content; some servers give equal content the same etag. Empty in the listing of a server that
    does not tell it there; `head` always has it."""
    last_modified: datetime


class ObjectStore(Protocol):
    """Objects by key, below one root.

    Keys are relative to the root: non-empty names joined by `/`, none of them `.` or `..`, without control characters.
    A put is atomic: readers see the old content or the new, and after an error the old.
    """

    @property
    def root(self) -> str:
        """Returns the normalised URI that keys are relative to."""

    @property
    def lists_in_key_order(self) -> bool:
        """Whether the last key seen is a place from which a listing can be resumed with `start_after`."""

    def head(self, key: str) -> ObjectInfo:
        """Returns size, etag and time of an object; raises `NotFoundError` if it does not exist."""

    def get(self, key: str) -> bytes: ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Reads at most `length` bytes from `start`: like a slice, fewer at the end, none beyond it."""

    def get_stream(self, key: str, *, start: int = 0, etag: str | None = None) -> Iterator[bytes]:
        """Yields the content from `start`, in chunks. With `etag`: of this version only, else `ConflictError`."""

    def put(self, key: str, data: Data, *, sha256: str | None = None) -> str:
        """Writes an object, replacing an existing one; returns its etag.

        With `sha256` (hex), content that differs fails with `IntegrityError` before anything becomes visible.
        """

    def put_if_absent(self, key: str, data: bytes | Path, *, sha256: str | None = None) -> str:
        """Writes an object if none exists, else raises `ConflictError`. Of concurrent writers one wins.

        Writers that must know who won put something of their own into the content: after a lost reply,
        an object with the very bytes that were sent counts as written by the sender. With `sha256` as in `put`.

        Raises `UnsupportedError` on disks without hard links, and on servers above `ONE_REQUEST` bytes.
        """

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replaces an object if it still has this etag, else (or if it is gone) raises `ConflictError`."""

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yields every object below the folder `prefix` once: `a` lists `a/b`, not `ab`. Fetches pages as needed.

        With `start_after`, exactly those whose key is greater. In key order where `lists_in_key_order` says so;
        some S3 servers list folder by folder (`a/b` before `a-b`), others are not known.
        """

    def copy(self, source: str, target: str) -> None:
        """Copies within the store, replacing an existing object."""

    def delete(self, *keys: str) -> None:
        """Deletes objects. A missing one counts as deleted."""

    def checksum(self, key: str) -> str:
        """Computes the SHA-256 of the content, in hex, from a stream."""


def check_key(key: str) -> str:
    """Returns the key if every store can hold it."""
    if all(part not in ("", ".", "..") for part in key.split("/")) and not _UNUSABLE.search(key):
        return key
    raise UsageError(
        f"{key!r} is not a key",
        hint="use names joined by '/', none of them empty, '.' or '..', without control characters",
    )


def check_range(key: str, start: int, length: int) -> None:
    if start < 0 or length < 0:
        raise UsageError(
            f"cannot read {length} bytes of '{key}' from offset {start}", hint="give a start and length of at least 0"
        )


def chunks_of(data: Data) -> Iterator[bytes]:
    """Yields data of any kind in pieces. A read error names the source, not the target."""
    try:
        if isinstance(data, bytes):
            yield data
        elif isinstance(data, Path):
            with data.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
        else:
            yield from data
    except OSError as error:
        raise from_os(error, str(error.filename or "the content to write")) from error


def verified(chunks: Iterable[bytes], sha256: str | None, where: str) -> Iterator[bytes]:
    """Yields the same chunks; raises `IntegrityError` at their end if the hash differs."""
    if sha256 is None:
        yield from chunks
        return
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != sha256.lower():
        raise IntegrityError(
            f"content for {where} has SHA-256 {digest.hexdigest()}, expected {sha256.lower()}",
            hint="nothing was written; check the source and send it again",
        )


def sha256_of(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
