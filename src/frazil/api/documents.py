"""`/api/v1/documents`: lists, streams and shows documents, their past, statistics and added columns."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from frazil.api.documents_answers import (
    NO_CACHE,
    AsOf,
    DocumentId,
    Fields,
    answer_document,
    answer_json,
    documents_of,
    parse_moment,
    parse_past,
    refuse_encoded_slash,
    refuse_revision,
    revisions_json,
    select_fields,
)
from frazil.api.documents_models import (
    DocumentColumns,
    DocumentHistory,
    DocumentPage,
    DocumentRecord,
    DocumentStatistics,
    RestoreStatus,
    Tier,
)
from frazil.api.documents_stream import DocumentLines, DocumentStream
from frazil.api.negotiation import prefers
from frazil.api.parameters import refuse_unknown_parameters
from frazil.api.preconditions import etag_of, read_tags
from frazil.api.problems import PREFIX
from frazil.api.request_body import JSON, NDJSON
from frazil.documents.store import DocumentFilter, DocumentStore
from frazil.errors import UsageError

router = APIRouter(
    prefix=PREFIX,
    tags=["documents"],
    dependencies=[Depends(refuse_encoded_slash), Depends(refuse_unknown_parameters)],
)

MAX_LIMIT = 1000
DEFAULT_LIMIT = 50
#: Revisions of one answer: each may have 64 KiB of attributes.
MAX_REVISIONS = 1000
DEFAULT_SORT = "-created_at"

Sort = Literal[
    "created_at", "-created_at", "updated_at", "-updated_at", "filename", "-filename", "size_bytes", "-size_bytes",
    "document_id", "-document_id",
]  # fmt: skip
Text = Annotated[str | None, Query(min_length=1, max_length=1024)]

_ETAG = {"ETag": {"description": "the revision, in double quotes", "schema": {"type": "string", "examples": ['"7"']}}}
_NOT_MODIFIED = {"description": "the revision is the one of `If-None-Match`"}
_LOCATION = {"Location": {"description": "path of the document", "schema": {"type": "string"}}}
DOCUMENT_ANSWER: dict[str, Any] = {"model": DocumentRecord, "headers": _ETAG}
CREATED_ANSWER: dict[str, Any] = {"model": DocumentRecord, "headers": {**_ETAG, **_LOCATION}}


@router.get(
    "/documents",
    responses={
        200: {
            "model": DocumentPage,
            "content": {NDJSON: {"schema": {"type": "string", "description": "one `DocumentRecord` per line"}}},
        }
    },
)
async def list_documents(
    request: Request,
    storage_tier: Annotated[Tier | None, Query(description="only of this tier")] = None,
    provider: Annotated[Text, Query(description="only of this provider")] = None,
    restore_status: Annotated[RestoreStatus | None, Query(description="only in this state of a restore")] = None,
    start_date: Annotated[Text, Query(description="created at this moment or later")] = None,
    end_date: Annotated[Text, Query(description="created before this moment")] = None,
    min_size: Annotated[int | None, Query(ge=0, lt=2**63, description="bytes, included")] = None,
    max_size: Annotated[int | None, Query(ge=0, lt=2**63, description="bytes, included")] = None,
    content_type: Annotated[Text, Query(description="only of this media type")] = None,
    bucket: Annotated[Text, Query(description="only of this bucket")] = None,
    object_key: Annotated[Text, Query(description="only with this key")] = None,
    tag: Annotated[
        list[str] | None, Query(description="`NAME`: has the tag, or `NAME=VALUE`; may be repeated, and all must hold")
    ] = None,
    name_prefix: Annotated[Text, Query(description="how the filename begins")] = None,
    words: Annotated[Text, Query(description="words that all occur in filename or tags, whatever their case")] = None,
    sort: Annotated[
        Sort | None, Query(description=f"a field; `-` before it: the greatest first; by default `{DEFAULT_SORT}`")
    ] = None,
    limit: Annotated[
        int | None, Query(ge=1, le=MAX_LIMIT, description=f"documents of a page; by default {DEFAULT_LIMIT}")
    ] = None,
    cursor: Annotated[
        str | None, Query(description="`next_cursor` of the page before, with the same other parameters")
    ] = None,
    as_of: AsOf = None,
    fields: Fields = None,
) -> Response:
    """Lists documents a page at a time; with `Accept: application/x-ndjson` streams all that match, one per line."""
    where = DocumentFilter(
        storage_tier=storage_tier, provider=provider, restore_status=restore_status,
        start_date=parse_moment("start_date", start_date), end_date=parse_moment("end_date", end_date),
        min_size=min_size, max_size=max_size, content_type=content_type, bucket=bucket, object_key=object_key,
        tags=_parse_tags(tag or []), name_prefix=name_prefix, words=words,
    )  # fmt: skip
    moment = parse_past("as_of", as_of)
    documents = documents_of(request)
    if prefers(request, NDJSON, JSON):
        given = {"sort": sort, "limit": limit, "cursor": cursor}
        for name in [name for name, value in given.items() if value is not None]:
            raise UsageError(f"a stream of all documents has no '{name}'", hint=f"leave it out, or Accept: {JSON}")
        return DocumentStream(
            documents, lambda store: DocumentLines(store.iterate(where, as_of=moment), select_fields(store, fields))
        )
    order = sort or DEFAULT_SORT

    def read(store: DocumentStore) -> Response:
        select = select_fields(store, fields)
        page = store.page(
            where, sort=order.lstrip("-"), descending=order.startswith("-"), limit=limit or DEFAULT_LIMIT,
            cursor=cursor, as_of=moment,
        )  # fmt: skip
        found = {"documents": [select(document) for document in page.documents], "next_cursor": page.next_cursor}
        return answer_json(found, headers={**NO_CACHE, "Vary": "Accept"})

    return await documents.read("list", read)


def _parse_tags(given: list[str]) -> dict[str, str | None]:
    tags: dict[str, str | None] = {}
    for text in given:
        name, equals, value = text.partition("=")
        wanted = value if equals else None
        if not name.strip():
            raise UsageError("a tag has no name", hint="tag=NAME, or tag=NAME=VALUE")
        if None not in (wanted, tags.get(name)) and wanted != tags[name]:
            raise UsageError(f"tag '{name[:80]}' cannot have two values", hint="give each tag once")
        tags[name] = wanted if wanted is not None else tags.get(name)
    return tags


@router.get("/documents/{document_id}", responses={200: DOCUMENT_ANSWER, 304: _NOT_MODIFIED})
@router.head("/documents/{document_id}", include_in_schema=False)
async def show_document(
    request: Request, document_id: DocumentId, as_of: AsOf = None, fields: Fields = None
) -> Response:
    """Shows a document, or the document as it was at a moment."""
    moment = parse_past("as_of", as_of)
    wanted, known = read_tags(request, "If-Match"), read_tags(request, "If-None-Match")

    def read(store: DocumentStore) -> Response:
        select = select_fields(store, fields)
        if moment is None:
            document = store.get_metadata(document_id)
        else:
            document = store.get_time_travel_snapshot(document_id, moment)
        if wanted is not None and not wanted.match_strongly(document.revision):
            raise refuse_revision(document_id, document.revision)
        if known is not None and known.match_weakly(document.revision):
            return Response(status_code=304, headers={"ETag": etag_of(document.revision), **NO_CACHE})
        return answer_document(document, select=select)

    return await documents_of(request).read("get", read)


@router.get("/documents/{document_id}/history", responses={200: {"model": DocumentHistory}})
async def show_history(
    request: Request,
    document_id: DocumentId,
    after: Annotated[int, Query(ge=0, lt=2**63, description="`next` of the page before")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_REVISIONS, description="revisions of a page")] = MAX_REVISIONS,
) -> Response:
    """Shows the revisions of a document, also of a deleted one, oldest first and a page at a time."""

    def read(store: DocumentStore) -> Response:
        found = store.history(document_id, after=after, limit=limit + 1)
        more = found[limit - 1].revision if len(found) > limit else None
        return answer_json({"document_id": document_id, "revisions": revisions_json(found[:limit]), "next": more})

    return await documents_of(request).read("history", read)


@router.get("/document-statistics", responses={200: {"model": DocumentStatistics}})
async def show_statistics(request: Request, as_of: AsOf = None) -> Response:
    """Counts the documents, and adds up their sizes."""
    moment = parse_past("as_of", as_of)
    return await documents_of(request).read("statistics", lambda store: answer_json(store.get_statistics(as_of=moment)))


@router.get("/document-columns", responses={200: {"model": DocumentColumns}})
async def list_columns(request: Request) -> Response:
    """Lists the columns that were added to the store."""

    def read(store: DocumentStore) -> Response:
        columns = sorted(store.columns().values(), key=lambda column: column.name)
        return answer_json({"columns": [asdict(column) for column in columns]})

    return await documents_of(request).read("columns", read)
