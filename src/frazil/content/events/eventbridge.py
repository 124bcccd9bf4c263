"""EventBridge: another form of AWS's events, with the same sequencers and unencoded keys."""

from __future__ import annotations

from typing import Any, Final

from frazil.content.columns import CREATE, DELETE, UPDATE
from frazil.content.events.fields import (
    read_bucket_name,
    read_etag,
    read_key,
    read_size,
    read_text,
    read_time,
    read_version,
    record_text,
)
from frazil.content.events.kinds import IGNORED, kind_of_detail
from frazil.content.events.model import AUTO, AWS, OTHER, Change, Unreadable
from frazil.content.events.order import normalize_sequencer

_NOTHING: Final[dict[str, Any]] = {}


def is_eventbridge(value: dict[str, Any]) -> bool:
    return value.get("source") == "aws.s3" and type(value.get("detail")) is dict


def read_eventbridge(event: dict[str, Any], dialect: str) -> Change | None:
    """Parses an event into a change; None if it changes nothing.

    Raises:
        Unreadable: it says nothing that could be used.
    """
    name, detail = event.get("detail-type"), event["detail"]
    kind = kind_of_detail(name, detail.get("deletion-type")) if type(name) is str else None
    if kind is IGNORED:
        return None
    if kind is None:
        told = f"{name!r:.200} with deletion-type {detail.get('deletion-type')!r:.50}"
        raise Unreadable("unknown_event", f"unknown event {told}")
    if event.get("version") != "0":
        raise Unreadable("version", f"version is {event.get('version')!r:.50}, only '0' is supported")
    thing = _part(detail, "object")
    sequencer = read_text(thing.get("sequencer"))
    if dialect == AUTO:
        dialect = AWS if sequencer or kind.record_type == UPDATE else OTHER
    bucket = read_bucket_name(_part(detail, "bucket").get("name"))
    key = read_key(thing.get("key"), encoded=False)
    version_id = read_version(thing.get("version-id"))
    sequence = normalize_sequencer(dialect, sequencer)
    time = read_time(event.get("time"))
    has_body = not kind.is_delete_marker and kind.record_type != DELETE
    raw, tie = record_text(event)
    return {
        "dialect": dialect,
        "event_name": name,
        "record_type": kind.record_type,
        "bucket": bucket,
        "key": key,
        "version_id": version_id,
        "sequencer": sequencer,
        "sequence": sequence,
        "tie": tie,
        "time": time,
        "needs_asking": sequence is None or kind.ask,
        "etag": read_etag(thing.get("etag") or thing.get("eTag")) if has_body else None,
        "size": read_size(thing.get("size")) if has_body else None,
        "storage_class": _new_class(detail, name) if kind.record_type == UPDATE else None,
        "content_type": None,
        "last_modified": time if kind.record_type == CREATE else None,
        "tags": None,
        "user_metadata": None,
        "is_delete_marker": kind.is_delete_marker,
        "is_latest": None,
        "requester": read_text(detail.get("requester")),
        "source_ip_address": read_text(detail.get("source-ip-address")),
        "request_id": read_text(detail.get("request-id")),
        "raw_event": raw,
    }


def _part(event: dict[str, Any], name: str) -> dict[str, Any]:
    part = event.get(name)
    return part if type(part) is dict else _NOTHING


def _new_class(detail: dict[str, Any], name: object) -> str | None:
    if name == "Object Storage Class Changed":
        return read_text(detail.get("destination-storage-class"))
    if name == "Object Access Tier Changed":
        return "INTELLIGENT_TIERING"
    return read_text(detail.get("source-storage-class"))
