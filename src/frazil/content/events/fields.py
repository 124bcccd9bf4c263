"""Readers of single values in events. An invalid value makes its record unreadable, nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, NoReturn
from urllib.parse import unquote_to_bytes

from frazil.content.buckets import is_bucket_name
from frazil.content.events.model import Unreadable

#: S3's own limit, in bytes of UTF-8.
MAX_KEY: Final = 1024
_MAX_SIZE: Final = 2**63
_NO_VERSION: Final = (None, "", "null")


def _no_constant(name: str) -> NoReturn:
    raise Unreadable("bad_number", f"{name} is not a JSON number")


_decode = json.JSONDecoder(parse_constant=_no_constant).decode
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def load(text: str) -> Any:
    """Parses JSON.

    Raises:
        Unreadable: it is none, too deep, or has a number that is none.
    """
    try:
        return _decode(text)
    except json.JSONDecodeError as error:
        raise Unreadable("not_json", f"not JSON: {error}") from None
    except RecursionError:
        raise Unreadable("too_deep", "the JSON is nested too deep") from None
    except ValueError as error:
        raise Unreadable("bad_number", f"a number of the JSON is too long: {error}") from None


def record_text(record: Any) -> tuple[str, str]:
    """Returns a record as canonical JSON, and its digest.

    Raises:
        Unreadable: the record cannot be written as JSON in UTF-8.
    """
    try:
        text = _encode(record)
        return text, sha256(text.encode()).hexdigest()[:16]
    except UnicodeEncodeError:
        raise Unreadable("bad_text", "a string has a lone surrogate, which UTF-8 cannot encode") from None
    except RecursionError:
        raise Unreadable("too_deep", "the JSON is nested too deep") from None
    except ValueError as error:
        raise Unreadable("bad_number", f"a number cannot be kept: {error}") from None


def read_bucket(value: object) -> str:
    if type(value) is not str or not value:
        raise Unreadable("no_bucket", "the bucket has no name")
    return value


def read_bucket_name(value: object) -> str:
    """Reads the bucket of an event: a valid S3 name, never a folder of this machine nor part of a URL."""
    name = read_bucket(value)
    if not is_bucket_name(name):
        raise Unreadable("bad_bucket", f"{name!r:.100} is not a valid bucket name: letters, digits, '.', '-' and '_'")
    return name


def read_key(value: object, *, encoded: bool) -> str:
    """Reads a key; `encoded`: it is form-encoded, with `+` and `%`."""
    if type(value) is not str or not value:
        raise Unreadable("no_key", "the object has no key")
    try:
        if encoded and ("%" in value or "+" in value):
            raw = unquote_to_bytes(value.replace("+", " "))
            key, length = raw.decode(), len(raw)
        else:
            key, length = value, len(value) if value.isascii() else len(value.encode())
    except UnicodeError as error:
        raise Unreadable("bad_key", f"the key is not UTF-8: {error}") from None
    if length > MAX_KEY:
        raise Unreadable("bad_key", f"the key has {length:,} bytes, a key has at most {MAX_KEY:,}")
    return key


def read_version(value: object) -> str:
    """Reads a version id; empty for any form of "no versions"."""
    if value in _NO_VERSION:
        return ""
    if type(value) is not str:
        raise Unreadable("bad_version_id", "the version id is not a string")
    return value


def read_size(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is str and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < _MAX_SIZE:
        raise Unreadable("bad_number", "the size is not a whole number of bytes")
    return value


def read_time(value: object) -> datetime:
    """Reads a time in UTC; one without a time zone is taken for UTC."""
    if type(value) is not str:
        raise Unreadable("bad_time", "there is no time")
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is UTC:
            return time
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Unreadable("bad_time", f"the time cannot be read: {error}") from None


def read_etag(value: object) -> str | None:
    text = read_text(value)
    return text.strip('"') or None if text else None


def read_text(value: object) -> str | None:
    """Reads an optional string; any other type counts as missing."""
    return value if type(value) is str and value else None


def read_texts(value: object) -> dict[str, str] | None:
    """Reads names and strings; None if missing or not strings."""
    if type(value) is not dict:
        return None
    return {name: text for name, text in value.items() if type(text) is str}
