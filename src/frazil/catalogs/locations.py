"""Where files lie: `/x`, `file:/x` and `file:///x` are one place."""

from __future__ import annotations

import re

_FILE = re.compile(r"file:(?://([^/]*))?(/.*)", re.DOTALL | re.IGNORECASE)


def local_path(uri: str) -> str | None:
    """Returns the absolute path of a local URI, or None for other URIs.

    Iceberg does not URL-encode, so `%`, `?` and `#` are characters like any other.
    """
    match = _FILE.fullmatch(uri)
    host, path = match.groups() if match else (None, uri)
    is_local = path.startswith("/") and host in (None, "", "localhost")
    return "/" + path.lstrip("/") if is_local else None
