"""Names of buckets: a name, `s3://name`, or a folder."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from frazil.errors import NotAllowedError, UsageError

#: Similarity above which a name is suggested.
_ALIKE = 0.6
_BUCKET = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_ADDRESS = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
_SCHEMES = ("s3://", "s3a://", "s3n://")


def bucket_of(text: str) -> str:
    """Returns the name of a bucket in the tables.

    Args:
        text: `name`, `s3://name`, a folder, or its URI. What begins with a slash, a dot or `~`, and what is the name of
            a folder here, is a folder.

    Raises:
        UsageError: it is empty, no text, or a place inside a bucket.
    """
    if not text.strip():
        raise UsageError("the name of the bucket is empty", hint="a bucket, s3://bucket or a folder")
    require_text(text, "bucket")
    if text.startswith("file:"):
        return _folder("/" + text.removeprefix("file:").lstrip("/"))
    for scheme in _SCHEMES:
        if text.startswith(scheme):
            return _name(text.removeprefix(scheme), text)
    if text.startswith(("/", ".", "~")) or Path(text).is_dir():
        return _folder(text)
    return text


def is_folder(bucket: str) -> bool:
    return bucket.startswith("file://")


def is_bucket_name(name: str) -> bool:
    """Whether a name is a valid S3 bucket name.

    Also of the older ones, with capitals and `_`. Nothing that could be a host, a port, a user or a path in a URL.
    """
    return _BUCKET.fullmatch(name) is not None and ".." not in name and _ADDRESS.fullmatch(name) is None


def leaves_bucket(key: str) -> bool:
    """Whether a key, read as a path, climbs above its bucket. S3 refuses such keys too."""
    if ".." not in key:
        return False
    depth = 0
    for part in key.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


def is_readable(bucket: str, patterns: Sequence[str] | None) -> bool:
    """Whether `content.buckets` lets a bucket or folder be read; None: it is not set, and all may be."""
    if patterns is None:
        return True
    of_kind = (p if p.startswith("file://") else f"file://{p}" if p.startswith("/") else p for p in patterns)
    return any(is_folder(p) == is_folder(bucket) and fnmatchcase(bucket, p) for p in of_kind)


def require_readable(bucket: str, patterns: Sequence[str] | None) -> None:
    """Raises NotAllowedError where `content.buckets` does not let a bucket or folder be read."""
    if not is_readable(bucket, patterns):
        raise NotAllowedError(
            f"'{bucket}' may not be read: the setting content.buckets does not name it",
            hint=f"content.buckets: {bucket.removeprefix('file://')}, beside what it has",
        )


def require_request(bucket: str, key: str = "") -> None:
    """Raises UsageError where bucket and key would make a URL that leads elsewhere than into this bucket.

    Names of new events are checked when they are read; this is for rows of older ones, and for whatever was overlooked.
    """
    if not is_bucket_name(bucket):
        raise UsageError(f"{bucket!r:.100} is not a valid bucket name", hint="letters, digits, '.', '-' and '_'")
    if leaves_bucket(key):
        raise UsageError(f"the key {key!r:.100} would lead out of its bucket", hint="a key without '..' at its start")


def folder_of(bucket: str) -> Path:
    """Returns the folder of a bucket that is a folder."""
    return Path(bucket.removeprefix("file://"))


def nearest(bucket: str, known: Collection[str]) -> str | None:
    """Returns the known bucket most similar to a name; folders are compared by their last parts."""

    def likeness(other: str) -> tuple[float, float]:
        return _likeness(_last(bucket), _last(other)), _likeness(bucket, other)

    best = max(known, key=likeness, default=None)
    return best if best is not None and likeness(best)[0] >= _ALIKE else None


def _last(bucket: str) -> str:
    return bucket.rsplit("/", 1)[-1] if is_folder(bucket) else bucket


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def require_text(text: str, what: str) -> None:
    """Raises UsageError where a name cannot be in a table: tables have UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the {what} {text!r} is not UTF-8", hint="names in the tables are UTF-8") from None


def _folder(path: str) -> str:
    """The path stands in the URI as it is, not percent-encoded: it is a name to compare, and people read it."""
    absolute = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - a link stays the name that was given
    return f"file://{absolute}"


def _name(rest: str, text: str) -> str:
    name, _, inside = rest.partition("/")
    if inside:
        raise UsageError(f"{text!r} is a place inside a bucket", hint=f"s3://{name} with --prefix {inside}")
    if not name:
        raise UsageError(f"{text!r} names no bucket", hint="s3://bucket")
    return name
