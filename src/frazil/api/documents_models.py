"""The JSON of `/api/v1/documents`. docs/http-documents.md is checked against it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue

from frazil.api.models import Answered, Sent
from frazil.documents.decide import MAX_WRITES
from frazil.documents.fields import MAX_ATTRIBUTES_BYTES, MAX_TAG, MAX_TAGS
from frazil.documents.model import Operation

Tier = Literal["standard", "infrequent", "archive", "deep_archive"]
RestoreStatus = Literal["none", "requested", "in_progress", "restored", "expired", "failed"]
ColumnType = Literal["string", "long", "double", "boolean", "timestamp"]
GivenTime = str | int | float

_EXAMPLE: dict[str, Any] = {
    "filename": "report.pdf",
    "content_type": "application/pdf",
    "size_bytes": 52_431,
    "checksum": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "provider": "aws",
    "bucket": "archive",
    "object_key": "2026/report.pdf",
    "version_id": None,
    "storage_tier": "archive",
    "restore_status": "none",
    "restore_requested_at": None,
    "restore_expiry": None,
    "created_at": "2026-02-28T12:00:00.000000Z",
    "tags": {"project": "apollo"},
    "attributes": {"pages": 12},
}
_ANSWER: dict[str, Any] = {
    "document_id": "0195f1d2-7c00-7abc-8def-0123456789ab",
    **_EXAMPLE,
    "updated_at": "2026-02-28T12:00:00.000000Z",
    "revision": 1,
}
_REVISION: dict[str, Any] = {"operation": "put", "valid_from": "2026-02-28T12:00:00.000000Z", **_ANSWER}


class DocumentChanges(Answered):
    """Fields to change, as a JSON merge patch (RFC 7396). Columns that were added to the store stand beside them."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [{"storage_tier": "deep_archive", "tags": {"project": None, "audited": "2026"}}]
        },
    )

    filename: str | None = Field(None, description="name of the file; every document has one")
    content_type: str | None = Field(None, description="media type, such as `application/pdf`")
    size_bytes: int | None = Field(None, ge=0, lt=2**63, description="bytes of the file")
    checksum: str | None = Field(None, description="algorithm and digest, such as `sha256:9f86d081…`")
    provider: str | None = Field(None, description="who stores the file, such as `aws`")
    bucket: str | None = Field(None, description="bucket of the file")
    object_key: str | None = Field(None, description="key of the file in its bucket")
    version_id: str | None = Field(None, description="version of the object")
    storage_tier: Tier | None = Field(
        None, description="`standard`, `infrequent`, `archive` or `deep_archive`; an archive is left by a restored copy"
    )
    restore_status: RestoreStatus | None = Field(
        None, description="`none`, `requested`, `in_progress`, `restored`, `expired` or `failed`"
    )
    restore_requested_at: GivenTime | None = Field(None, description="when the restore was requested")
    restore_expiry: GivenTime | None = Field(None, description="until when the restored copy exists")
    tags: dict[str, str | None] | None = Field(
        None, description=f"names and values: at most {MAX_TAGS}, each of at most {MAX_TAG} bytes"
    )
    attributes: dict[str, JsonValue] | None = Field(
        None, description=f"a JSON object of your own, of at most {MAX_ATTRIBUTES_BYTES:,} bytes"
    )


class NewDocument(DocumentChanges):
    """Metadata of a document. What is left out gets its default. `revision` and `updated_at` are ignored."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [{"filename": "report.pdf", "storage_tier": "archive", "tags": {"project": "apollo"}}]
        },
    )

    document_id: str | None = Field(
        None,
        max_length=255,
        description="letters, digits and `. _ : @ + = -`; by default a new UUIDv7. With PUT the one of the path",
    )
    filename: str = Field(description="name of the file; every document has one")
    created_at: GivenTime | None = Field(
        None, description="when the document was created; by default now. It cannot be changed"
    )


class DocumentRecord(Answered):
    """A document. Columns that were added to the store stand beside these fields. Times are ISO 8601, in UTC."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [_ANSWER]})

    document_id: str = Field(description="its id; never used for another document")
    filename: str = Field(description="name of the file")
    content_type: str | None = Field(description="media type")
    size_bytes: int | None = Field(description="bytes of the file")
    checksum: str | None = Field(description="algorithm and digest")
    provider: str | None = Field(description="who stores the file")
    bucket: str | None = Field(description="bucket of the file")
    object_key: str | None = Field(description="key of the file in its bucket")
    version_id: str | None = Field(description="version of the object")
    storage_tier: Tier = Field(description="storage class of the file, which a restore does not change")
    restore_status: RestoreStatus = Field(description="state of the restore from an archive tier")
    restore_requested_at: str | None = Field(description="when the restore was requested")
    restore_expiry: str | None = Field(description="until when the restored copy exists")
    created_at: str = Field(description="when the document was created")
    updated_at: str = Field(description="when this revision was acknowledged")
    tags: dict[str, str] = Field(description="names and values")
    attributes: dict[str, JsonValue] = Field(description="a JSON object of your own")
    revision: int = Field(description="one more with each change; the `ETag` of the document")


class DocumentPage(Answered):
    documents: list[DocumentRecord] = Field(description="in the order of `sort`; with `fields` only those")
    next_cursor: str | None = Field(description="`cursor` of the next page; null: this is the last one")


class DocumentRevision(DocumentRecord):
    """One change of a document, and the document as it was from then on."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [_REVISION]})

    operation: Operation = Field(description="`put`, `update`, `delete` or `undelete`; a delete has the last state")
    valid_from: str = Field(description="when it was acknowledged")


class DocumentHistory(Answered):
    document_id: str = Field(description="its id")
    revisions: list[DocumentRevision] = Field(description="oldest first")
    next: int | None = Field(description="`after` of the next page; `null`: this is the last one", examples=[None])


class DocumentStatistics(Answered):
    total_documents: int = Field(description="documents that are not deleted", examples=[10_000])
    total_size_bytes: int = Field(description="sum of their `size_bytes`", examples=[524_310_000])
    by_provider: dict[str, int] = Field(description="documents of each provider", examples=[{"aws": 10_000}])
    by_tier: dict[str, int] = Field(description="documents in each tier", examples=[{"archive": 10_000}])
    by_restore_status: dict[str, int] = Field(
        description="documents in each state of a restore", examples=[{"none": 10_000}]
    )


class DocumentWrite(Sent):
    """One write of a batch."""

    operation: Operation = Field(description="`put`, `update`, `delete` or `undelete`")
    document_id: str | None = Field(
        None, description="of which document; only a `put` may leave it out: then it is as `values` say, or a new one"
    )
    values: dict[str, Any] = Field(
        default_factory=dict,
        description="`put`: a `NewDocument`; `update`: `DocumentChanges`; the others have none",
    )
    if_match: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None, description="the revision that was read; 0: the document must not exist; null: any"
    )
    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None, description="repeated with the same write: the first result again, and nothing is written"
    )


class DocumentBatch(Sent):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "writes": [
                        {"operation": "put", "document_id": "a-7", "values": {"filename": "a.pdf"}, "if_match": 0},
                        {"operation": "update", "document_id": "a-6", "values": {"tags": {"audited": "yes"}}},
                        {"operation": "delete", "document_id": "a-5", "if_match": 3},
                    ]
                }
            ]
        }
    )

    writes: Annotated[list[DocumentWrite], Field(min_length=1, max_length=MAX_WRITES)] = Field(
        description=f"applied together, in this order, all or none; at most {MAX_WRITES:,}"
    )


class DocumentRevisions(Answered):
    revisions: list[DocumentRevision] = Field(description="the result of each write, in the order of the batch")


class DocumentColumn(Sent):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "department", "type": "string"}]})

    name: str = Field(description="lower-case letters, digits and `_`, at most 63, beginning with a letter")
    type: ColumnType = Field(description="`string`, `long`, `double`, `boolean` or `timestamp`")


class DocumentColumns(Answered):
    columns: list[DocumentColumn] = Field(description="columns that were added to the store, by name")
