"""Where an object lies, as text and as parts. Pure: nothing here looks at a disk or a network.

Iceberg paths are not URL-encoded, so `%`, `+`, `?`, `#`, spaces and unicode are characters like any other.
One place may be written in several ways (`/x`, `file:/x`, `file:///x`; `s3`, `s3a`, `s3n`); `normalise` picks one.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frazil.errors import UsageError

Scheme = Literal["file", "s3", "abfss", "az", "gs"]

VALID_FORMS = "/path, file:///path, s3://bucket/key, abfss://container@account.dfs.core.windows.net/path, az://container/path, gs://bucket/key"  # noqa: E501 - one line in a message, one line here

_SCHEMES: dict[str, Scheme] = {
    "file": "file",
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "abfs": "abfss",
    "abfss": "abfss",
    "az": "az",
    "gs": "gs",
}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_SHORT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_AZURE = re.compile(r"(?P<container>[a-z0-9$][a-z0-9-]*)@(?P<account>[a-z0-9]+)\.(dfs|blob)\.[a-z0-9.-]+")


@dataclass(frozen=True)
class Location:
    """A folder or object: `s3://bucket/some/key` is scheme `s3`, authority `bucket`, key `some/key`.

    A local path has an empty authority, and a key without the leading slash.
    """

    scheme: Scheme
    authority: str
    key: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file:///{self.key}"
        return f"{self.scheme}://{self.authority}/{self.key}" if self.key else f"{self.scheme}://{self.authority}"

    @property
    def path(self) -> Path:
        """Returns the local path. Only for scheme `file`."""
        assert self.scheme == "file"
        return Path("/" + self.key)

    @property
    def bucket(self) -> str:
        """Returns the bucket or container, without the account of an Azure authority."""
        return self.authority.partition("@")[0]

    @property
    def account(self) -> str | None:
        """Returns the Azure account, if the URI names one."""
        match = _AZURE.fullmatch(self.authority)
        return match["account"] if match else None

    def child(self, key: str) -> Location:
        """Returns the location of `key` below this folder."""
        return Location(self.scheme, self.authority, f"{self.key}/{key}" if self.key else key)


def parse(uri: str, *, relative_to: Path | None = None) -> Location:
    """Parses a URI or local path; a relative path starts at `relative_to`, by default the working directory."""
    if not uri or "\0" in uri:
        raise _bad(uri, "is empty" if not uri else "contains a NUL character")
    match = _URI.fullmatch(uri)
    if match is None:
        return _local(_path_of(uri), relative_to)
    written, authority, rest = match.groups()
    scheme = _SCHEMES.get(written.lower())
    if scheme is None:
        raise _bad(uri, f"has the unknown scheme '{written}'")
    if scheme == "file":
        if authority not in ("", "localhost"):
            raise _bad(uri, f"names the host '{authority}'; a local path has three slashes")
        return _local(rest or "/", None)
    return Location(scheme, _authority(uri, scheme, authority), rest[1:].rstrip("/"))


def normalise(uri: str) -> str:
    """Returns the canonical spelling of a URI: equal for two URIs if, and only if, they mean the same place."""
    return str(parse(uri))


def join(uri: str, *keys: str) -> str:
    """Joins a folder and keys into a normalised URI; keys are taken literally."""
    location = parse(uri)
    for key in keys:
        location = location.child(key)
    return str(location)


def _path_of(uri: str) -> str:
    """Returns the path in `file:/x`, or a text without scheme itself; a name like `a:b` is a path."""
    match = _SHORT.fullmatch(uri)
    if match is None or match[1].lower() not in _SCHEMES:
        return uri
    if match[1].lower() == "file" and match[2].startswith("/"):
        return match[2]
    raise _bad(uri, f"lacks the slashes after '{match[1]}:'")


def _local(path: str, relative_to: Path | None) -> Location:
    if not path.startswith("/"):
        path = f"{relative_to or Path.cwd()}/{path}"
    return Location("file", "", posixpath.normpath(path).lstrip("/"))


def _authority(uri: str, scheme: Scheme, authority: str) -> str:
    if scheme == "abfss":
        if not _AZURE.fullmatch(authority.lower()):
            raise _bad(uri, f"does not name container and account: '{authority}'")
        return authority.lower()
    if not _BUCKET.fullmatch(authority):
        raise _bad(uri, f"has no valid bucket: '{authority}'")
    return authority


def _bad(uri: str, why: str) -> UsageError:
    return UsageError(f"'{uri}' is not a location: it {why}", hint=f"one of {VALID_FORMS}")
