"""Records 2.x: the events that AWS sends to SQS, SNS and Lambda, and MinIO, Ceph, versitygw and others likewise."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from frazil.content.columns import CREATE, DELETE, UPDATE
from frazil.content.events.fields import (
    read_bucket_name,
    read_etag,
    read_key,
    read_size,
    read_text,
    read_texts,
    read_time,
    read_version,
    record_text,
)
from frazil.content.events.kinds import IGNORED, Kind, kind_of
from frazil.content.events.model import AUTO, AWS, CEPH, MINIO, OTHER, VERSITYGW, Change, Unreadable
from frazil.content.events.order import ceph_time, minio_time, normalize_sequencer

_NOTHING: Final[dict[str, Any]] = {}
_META: Final = "x-amz-meta-"
_ACCOUNT: Final = re.compile(r"[0-9]{12}", re.ASCII).fullmatch
#: The root user of an account, and a federated user.
_ACCOUNT_OF: Final = re.compile(r"(?:AWS:)?([0-9]{12})(?::.*)?", re.ASCII | re.DOTALL).fullmatch
#: These do not encode the key.
_PLAIN_KEYS: Final = (CEPH, VERSITYGW)


def is_record(value: dict[str, Any]) -> bool:
    return "eventName" in value and type(value.get("s3")) is dict


def read_record(record: dict[str, Any], dialect: str) -> Change | None:
    """Parses a record into a change; None if it changes nothing.

    Raises:
        Unreadable: it says nothing that could be used.
    """
    name = record["eventName"]
    kind = kind_of(name) if type(name) is str else None
    if kind is IGNORED:
        return None
    if kind is None:
        raise Unreadable("unknown_event", f"unknown event {name!r:.200}")
    _check_version(record.get("eventVersion"))
    s3 = record["s3"]
    thing = _part(s3, "object")
    sequencer = read_text(thing.get("sequencer"))
    if dialect == AUTO:
        dialect = _dialect_of(record, sequencer, kind)
    bucket = read_bucket_name(_part(s3, "bucket").get("name"))
    key = read_key(thing.get("key"), encoded=dialect not in _PLAIN_KEYS)
    version_id = read_version(thing.get("versionId"))
    sequence = normalize_sequencer(dialect, sequencer)
    time = _time_of(record, dialect, sequence)
    is_marker = kind.is_delete_marker
    has_body = not is_marker and kind.record_type != DELETE
    identity = _part(record, "userIdentity")
    raw, tie = record_text(record)
    change: Change = {
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
        "etag": read_etag(thing.get("eTag") or thing.get("etag")) if has_body else None,
        "size": read_size(thing.get("size")) if has_body else None,
        "storage_class": None,
        "content_type": None,
        "last_modified": time if kind.record_type == CREATE else None,
        "tags": None,
        "user_metadata": None,
        "is_delete_marker": is_marker,
        "is_latest": None,
        "requester": _requester(identity, dialect),
        "source_ip_address": read_text(_part(record, "requestParameters").get("sourceIPAddress")),
        "request_id": read_text(_part(record, "responseElements").get("x-amz-request-id")),
        "raw_event": raw,
    }
    if dialect == MINIO:
        _add_minio(change, record, thing, has_body=has_body)
    elif dialect == CEPH:
        _add_ceph(change, thing, has_body=has_body)
    elif kind.record_type == UPDATE:
        change["storage_class"] = _new_class(record, name)
    return change


def _requester(identity: dict[str, Any], dialect: str) -> str | None:
    """Returns the account, as in S3 Metadata, if AWS names it; else the principal: a user, a role, a service."""
    principal = read_text(identity.get("principalId") or identity.get("PrincipalId"))
    if dialect != AWS:
        return principal
    account = read_text(identity.get("accountId"))
    if account is not None and _ACCOUNT(account):
        return account
    found = _ACCOUNT_OF(principal) if principal else None
    return found[1] if found else principal


def _part(record: dict[str, Any], name: str) -> dict[str, Any]:
    part = record.get(name)
    return part if type(part) is dict else _NOTHING


def _check_version(version: object) -> None:
    """Accepts the same major version, with any additions of later minor ones."""
    if type(version) is not str or version.partition(".")[0] != "2":
        raise Unreadable("version", f"eventVersion is {version!r:.50}, only 2.x is supported")


def _dialect_of(record: dict[str, Any], sequencer: str | None, kind: Kind) -> str:
    source = record.get("eventSource")
    if source == "minio:s3":
        return MINIO
    if source == "ceph:s3":
        return CEPH
    if source != "aws:s3":
        return OTHER
    # versitygw claims to be AWS, but capitalizes this name.
    if "PrincipalId" in _part(record, "userIdentity"):
        return VERSITYGW
    # AWS gives every put and delete a sequencer; a source that does not only imitates it.
    return AWS if sequencer or kind.record_type == UPDATE else OTHER


def _time_of(record: dict[str, Any], dialect: str, sequence: str | None) -> datetime:
    try:
        return read_time(record.get("eventTime"))
    except Unreadable:
        # Ceph writes an unknown modification time as seconds.
        if dialect == CEPH and sequence is not None:
            return ceph_time(sequence)
        raise


def _add_minio(change: Change, record: dict[str, Any], thing: dict[str, Any], *, has_body: bool) -> None:
    """Adds MinIO's details of a created object; other fields are less reliable.

    Its sequencer is the object's modification time, which no tagging moves. A bulk delete stamps the event's own time
    instead. The removal of a delete marker is told as the creation of one, and an expiry that makes a delete marker as
    a delete, even if it failed.
    """
    kind, sequence = change["record_type"], change["sequence"]
    internal = read_text(_part(record, "source").get("userAgent"))
    if (
        kind == UPDATE
        or change["is_delete_marker"]
        or (kind == DELETE and (not change["version_id"] or (internal and internal.startswith("Internal:"))))
    ):
        change["needs_asking"] = True
    if kind == CREATE and sequence is not None:
        change["last_modified"] = minio_time(sequence)
    if not has_body:
        return
    told = read_texts(thing.get("userMetadata")) or {}
    change["content_type"] = read_text(thing.get("contentType")) or told.get("content-type")
    change["user_metadata"] = _user_metadata(told)
    if kind == CREATE:
        # It leaves out what is zero or the default.
        change["storage_class"] = told.get("x-amz-storage-class", "STANDARD")
        change["size"] = change["size"] or 0


def _add_ceph(change: Change, thing: dict[str, Any], *, has_body: bool) -> None:
    if has_body:
        change["tags"] = _pairs(thing.get("tags")) or None
        change["user_metadata"] = _user_metadata(_pairs(thing.get("metadata"))) or None


def _pairs(value: object) -> dict[str, str]:
    """Reads Ceph's list of `key` and `val`."""
    if type(value) is not list:
        return {}
    pairs = [(pair.get("key"), pair.get("val")) for pair in value if type(pair) is dict]
    return {key: val for key, val in pairs if type(key) is str and type(val) is str}


def _user_metadata(told: dict[str, str]) -> dict[str, str]:
    """Returns user metadata under the names in HEAD responses."""
    found = {name.lower(): text for name, text in told.items()}
    return {name[len(_META) :]: text for name, text in found.items() if name.startswith(_META)}


def _new_class(record: dict[str, Any], name: str) -> str | None:
    if "Transition" in name:
        transition = _part(_part(record, "lifecycleEventData"), "transitionEventData")
        return read_text(transition.get("destinationStorageClass"))
    if "ObjectRestore" in name:
        restore = _part(_part(record, "glacierEventData"), "restoreEventData")
        return read_text(restore.get("lifecycleRestoreStorageClass"))
    return "INTELLIGENT_TIERING" if "IntelligentTiering" in name else None
