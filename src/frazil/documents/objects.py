"""The object of a document: where it lies, the tier of its storage class, and what a new content changes. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from frazil.documents.lifecycle import allowed_tiers
from frazil.documents.model import Document
from frazil.documents.store import Write
from frazil.errors import UsageError
from frazil.settings.model import S3Settings
from frazil.storage.uri import Location, parse

#: The storage class of S3 that an upload to a tier gets.
STORAGE_CLASSES: Mapping[str, str] = MappingProxyType(
    {"standard": "STANDARD", "infrequent": "STANDARD_IA", "archive": "GLACIER", "deep_archive": "DEEP_ARCHIVE"}
)
#: The tier of every storage class of S3. Objects of all but the last two can be read at once.
TIER_OF_CLASS: Mapping[str, str] = MappingProxyType(
    {
        "STANDARD": "standard",
        "REDUCED_REDUNDANCY": "standard",
        "EXPRESS_ONEZONE": "standard",
        "INTELLIGENT_TIERING": "standard",
        "OUTPOSTS": "standard",
        "SNOW": "standard",
        "STANDARD_IA": "infrequent",
        "ONEZONE_IA": "infrequent",
        "GLACIER_IR": "infrequent",
        "GLACIER": "archive",
        "DEEP_ARCHIVE": "deep_archive",
    }
)
#: In `attributes`: what was last heard of the object, by which late and repeated events are recognised.
OBJECT_ATTRIBUTE = "object"

_NAMESPACE = uuid.UUID("6f1d0bd2-4f0e-5a34-9c58-5a0c0f6c1c11")
_SCHEMES = {"local": "file", "gcp": "gs", "azure": "az"}


def tier_of(storage_class: str | None) -> str:
    """Returns the tier of a storage class; one that S3 has introduced since counts as standard."""
    return TIER_OF_CLASS.get(storage_class or "STANDARD", "standard")


def provider_of(location: Location, s3: S3Settings) -> str:
    """Returns who keeps the objects of a location, for the field `provider`."""
    if location.scheme != "s3":
        return {"file": "local", "gs": "gcp"}.get(location.scheme, "azure")
    host = urlsplit(s3.endpoint).hostname if s3.endpoint else None
    return "aws" if host is None or host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else "s3"


def bucket_of(location: Location) -> str:
    """Returns the field `bucket`: a bucket's name, or the path of a folder."""
    return str(location.path) if location.scheme == "file" else location.authority


def id_of_object(provider: str, bucket: str, key: str) -> str:
    """Returns the id of the document that is made for an object: the same whoever makes it, and however often."""
    scheme = _SCHEMES.get(provider, "s3")
    return str(uuid.uuid5(_NAMESPACE, f"{scheme}\0{bucket}\0{key}"))


def location_of(document: Document) -> tuple[Location, str]:
    """Returns the bucket or folder of a document's object, and the object's key there.

    Raises:
        UsageError: the document does not say where its object lies.
    """
    bucket, key = document.bucket, document.object_key
    if not bucket or not key:
        missing = "bucket" if not bucket else "object_key"
        raise UsageError(
            f"document '{document.document_id}' has no object: field '{missing}' is empty",
            hint=f"frazil docs update {document.document_id} --set {missing}=…",
        )
    if document.provider == "local" or bucket.startswith("/"):
        return parse(bucket), key
    scheme = "abfss" if "@" in bucket else _SCHEMES.get(document.provider or "", "s3")
    return parse(f"{scheme}://{bucket}"), key


def content_writes(document: Document, changes: Mapping[str, Any]) -> list[Write]:
    """Returns the writes that give a document a new object: also in a tier that the old one could not move to."""
    tier = changes.get("storage_tier", document.storage_tier)
    cleared = {"restore_status": "none", "restore_requested_at": None, "restore_expiry": None}
    can_move = tier == document.storage_tier or tier in allowed_tiers(document)
    if can_move and document.restore_status != "in_progress":
        return [Write("update", document.document_id, {**changes, **cleared}, document.revision)]
    kept = {name: value for name, value in document.items() if value is not None and name not in cleared}
    attributes = {**document.attributes, **changes.get("attributes", {})}
    return [
        Write("delete", document.document_id, {}, document.revision),
        Write("put", document.document_id, {**kept, **changes, "attributes": attributes}),
    ]
