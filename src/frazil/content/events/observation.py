"""Observations of buckets and folders: internal messages, and how they are parsed.

{"frazil": "observation", "version": 1, "bucket": "b", "source": "scan", "observed_at": "2026-11-15T18:00:00Z",
 "objects": [{"key": "a", "size": 1, …}, {"key": "gone", "exists": false}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from frazil.content.columns import CREATE, DELETE, OBSERVED
from frazil.content.events.fields import (
    read_bucket,
    read_etag,
    read_key,
    read_size,
    read_text,
    read_texts,
    read_time,
    read_version,
    record_text,
)
from frazil.content.events.model import Change, Parsed, Problem, Unreadable

_MARK: Final = "observation"
_VERSION: Final = 1


def observation(bucket: str, objects: Iterable[Mapping[str, Any]], observed_at: datetime, source: str) -> bytes:
    """Creates the message of an observation; see `observe`."""
    document = observe(bucket, objects, observed_at, source)
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def observe(bucket: str, objects: Iterable[Mapping[str, Any]], observed_at: datetime, source: str) -> dict[str, Any]:
    """Creates an observation of objects in a bucket.

    Args:
        bucket: its name, or the URI of a folder.
        objects: each with `key`, and what is known of `version_id`, `exists`, `size`, `etag`, `last_modified`,
            `storage_class`, `content_type`, `is_latest`, `is_delete_marker`, `tags`, `user_metadata`.
        observed_at: when the storage answered, by its own clock.
        source: which command observed them: scan, watch, reconcile, …
    """
    return {
        "frazil": _MARK,
        "version": _VERSION,
        "bucket": bucket,
        "source": source,
        "observed_at": _time_text(observed_at),
        "objects": [_object(thing) for thing in objects],
    }


def _object(thing: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _time_text(v) if isinstance(v, datetime) else v for name, v in thing.items() if v is not None}


def _time_text(time: datetime) -> str:
    aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return aware.isoformat(timespec="microseconds").replace("+00:00", "Z")


def is_observation(document: Any) -> bool:
    return type(document) is dict and document.get("frazil") == _MARK


def read_observation(message: dict[str, Any]) -> Parsed:
    """Parses an observation into one change for each object.

    Raises:
        Unreadable: nothing of the message can be used.
    """
    if message.get("version") != _VERSION:
        raise Unreadable(
            "version", f"an observation of version {message.get('version')!r:.50}, this version of Frazil reads 1"
        )
    bucket = read_bucket(message.get("bucket"))
    record_text(bucket)
    observed_at = read_time(message.get("observed_at"))
    source = read_text(message.get("source"))
    record_text(source)
    objects = message.get("objects")
    if type(objects) is not list:
        raise Unreadable("not_an_event", "an observation needs a list of objects")
    parsed = Parsed()
    for index, thing in enumerate(objects):
        try:
            change = _read_object(thing, bucket, observed_at, source)
        except Unreadable as error:
            parsed.problems.append(Problem(error.reason, str(error), index))
        else:
            change["index"] = index
            parsed.changes.append(change)
    return parsed


def _read_object(thing: Any, bucket: str, observed_at: datetime, source: str | None) -> Change:
    if type(thing) is not dict:
        raise Unreadable("not_an_event", f"an object must be a JSON object, not {thing!r:.50}")
    key = read_key(thing.get("key"), encoded=False)
    exists = thing.get("exists", True) is not False
    modified = thing.get("last_modified")
    is_latest = thing.get("is_latest")
    raw, tie = record_text(thing)
    return {
        "dialect": OBSERVED,
        "event_name": source,
        "record_type": CREATE if exists else DELETE,
        "bucket": bucket,
        "key": key,
        "version_id": read_version(thing.get("version_id")),
        "sequencer": None,
        "sequence": None,
        "tie": tie,
        "time": observed_at,
        "needs_asking": False,
        "etag": read_etag(thing.get("etag")),
        "size": read_size(thing.get("size")),
        "storage_class": read_text(thing.get("storage_class")),
        "content_type": read_text(thing.get("content_type")),
        "last_modified": None if modified is None else read_time(modified),
        "tags": read_texts(thing.get("tags")),
        "user_metadata": read_texts(thing.get("user_metadata")),
        "is_delete_marker": thing.get("is_delete_marker") is True,
        "is_latest": is_latest if type(is_latest) is bool else None,
        "requester": None,
        "source_ip_address": None,
        "request_id": None,
        "raw_event": raw,
    }
