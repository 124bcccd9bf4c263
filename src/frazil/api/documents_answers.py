"""What the routes of documents share: the store of an app, moments and fields of a query, documents as answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Path, Query, Request
from fastapi.responses import Response

from frazil.api.documents_access import DocumentsAccess
from frazil.api.preconditions import etag_of
from frazil.api.reading import json_bytes
from frazil.api.request_body import JSON
from frazil.api.service import service_of
from frazil.documents.fields import CLOCK_TOLERANCE
from frazil.documents.lifecycle import RevisionMismatchError
from frazil.documents.model import FIELD_NAMES, Document, Revision, parse_time, plain_time
from frazil.documents.store import DocumentStore
from frazil.errors import NotFoundError, UsageError

ROOT = "/api/v1/documents"
#: An answer belongs to its moment: a cache has to ask again, with the ETag.
NO_CACHE = {"Cache-Control": "no-cache"}

DocumentId = Annotated[str, Path(description="its id, percent-encoded")]
AsOf = Annotated[
    str | None,
    Query(
        description="as it was at this moment: ISO 8601, UTC where it has no zone, or epoch seconds or milliseconds",
        examples=["2026-02-28T12:00:00Z"],
    ),
]
Fields = Annotated[
    str | None, Query(max_length=4096, description="names of the fields to return, with commas; by default all")
]
Select = Callable[[Document], Mapping[str, Any]]


def documents_of(request: Request) -> DocumentsAccess:
    return service_of(request).documents


def parse_moment(name: str, text: str | None) -> datetime | None:
    """Returns the moment of a query parameter. A '+' in a query stands for a space, and clients forget to write %2B."""
    return None if text is None else parse_time(text.replace(" ", "+") if "T" in text else text, name)


def parse_past(name: str, text: str | None) -> datetime | None:
    """Returns the moment of a query parameter about the past.

    Raises:
        UsageError: it is no time, or lies in the future, of which nothing is known.
    """
    moment, now = parse_moment(name, text), datetime.now(UTC)
    if moment is not None and moment > now + CLOCK_TOLERANCE:
        raise UsageError(
            f"the query parameter '{name}' lies in the future: {plain_time(moment)}",
            hint=f"now it is {plain_time(now)}",
        )
    return moment


def select_fields(store: DocumentStore, fields: str | None) -> Select:
    """Returns a function that makes the JSON of a document, of all its fields or of those that are named.

    Raises:
        UsageError: a field does not exist.
    """
    if fields is None:
        return Document.to_dict
    names = [name for name in (part.strip() for part in fields.split(",")) if name]
    added = () if set(names) <= set(FIELD_NAMES) else tuple(store.columns())
    for name in names:
        if name not in FIELD_NAMES and name not in added:
            raise UsageError(
                f"field '{name[:80]}' does not exist", hint=f"fields: {', '.join([*FIELD_NAMES, *added])}, with commas"
            )
    if not names:
        raise UsageError("the query parameter 'fields' names no field", hint="fields=document_id,filename")
    return lambda document: {
        name: plain_time(document[name] if name in FIELD_NAMES else document.columns.get(name)) for name in names
    }


def answer_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, headers, media_type=JSON)


def answer_document(
    document: Document, status: int = 200, *, select: Select = Document.to_dict, is_new: bool = False
) -> Response:
    headers = {"ETag": etag_of(document.revision), **NO_CACHE}
    if is_new:
        headers["Location"] = location_of(document.document_id)
    return answer_json(select(document), status, headers)


def location_of(document_id: str) -> str:
    return f"{ROOT}/{quote(document_id, safe=':@+=')}"


def revisions_json(revisions: Sequence[Revision]) -> list[dict[str, Any]]:
    return [revision.to_dict() for revision in revisions]


async def refuse_encoded_slash(request: Request) -> None:
    """Refuses `%2F` in a path: decoded it would look like a path below another document.

    Raises:
        NotFoundError: the path has one; no id contains a slash.
    """
    if b"%2f" in request.scope.get("raw_path", b"").partition(b"?")[0].lower():
        raise NotFoundError("no document has an id with a slash", hint=f"GET {ROOT}")


def refuse_revision(document_id: str, revision: int | None) -> RevisionMismatchError:
    """Returns the error of a request whose `If-Match` names other revisions than the document has."""
    is_there = f"has revision {revision}, which If-Match does not name" if revision else "does not exist"
    error = RevisionMismatchError(
        f"document '{document_id}' {is_there}", hint="read it again, and repeat the change on its new revision"
    )
    error.details["revision"] = revision
    return error
