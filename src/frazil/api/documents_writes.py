"""`/api/v1/documents`: creates, replaces, changes, deletes and brings back documents; batches; added columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from frazil.api.documents import CREATED_ANSWER, DOCUMENT_ANSWER
from frazil.api.documents_access import stating_nothing_stored
from frazil.api.documents_answers import (
    DocumentId,
    answer_document,
    answer_json,
    documents_of,
    refuse_encoded_slash,
    refuse_revision,
    revisions_json,
)
from frazil.api.documents_models import (
    DocumentBatch,
    DocumentChanges,
    DocumentColumn,
    DocumentRevisions,
    DocumentWrite,
    NewDocument,
)
from frazil.api.failures import RequestError
from frazil.api.messages import Shared
from frazil.api.parameters import refuse_unknown_parameters
from frazil.api.preconditions import EntityTags, read_idempotency_key, read_tags
from frazil.api.problems import PREFIX, build_invalid
from frazil.api.request_body import JSON, content_type, declared_size, read_body
from frazil.api.service import Service
from frazil.api.strict_json import parse_object
from frazil.documents.lifecycle import RevisionMismatchError
from frazil.documents.model import Revision
from frazil.documents.store import DocumentStore, Write
from frazil.errors import ConflictError, NotFoundError, UsageError

router = APIRouter(
    prefix=PREFIX,
    tags=["documents"],
    dependencies=[Depends(refuse_encoded_slash), Depends(refuse_unknown_parameters)],
)

MERGE_PATCH = "application/merge-patch+json"
#: Bytes of a body with one document.
MAX_DOCUMENT = 1024 * 1024
#: A body up to this size is parsed in the event loop: handing it to a thread would take longer.
_INLINE = 16 * 1024
#: Tries of a request whose condition allows several revisions, while others change the document.
_TRIES = 10
#: Schemas that no route declares by itself.
EXTRA_MODELS = (NewDocument, DocumentChanges, DocumentBatch, DocumentWrite, DocumentColumn)

_HEADERS = {
    "If-Match": "the `ETag` that was read: 412 if the document has another revision; `*`: the document must exist",
    "If-None-Match": "`*`: the document must not exist; 412 if it does",
    "Idempotency-Key": "1 to 200 visible ASCII characters: the same request with the same key is applied once",
}


@dataclass(frozen=True)
class Condition:
    """What the headers of a write require of the present document."""

    tags: EntityTags | None
    is_absent: bool
    key: str | None


def _describe(model: type[BaseModel] | None, *headers: str, kinds: tuple[str, ...] = (JSON,)) -> dict[str, Any]:
    """Returns what OpenAPI says of a body and of headers that FastAPI does not read."""
    described: dict[str, Any] = {
        "parameters": [
            {"name": name, "in": "header", "schema": {"type": "string"}, "description": _HEADERS[name]}
            for name in headers
        ]
    }
    if model is not None:
        extra: Any = model.model_config["json_schema_extra"]
        content = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}, "example": extra["examples"][0]}
        described["requestBody"] = {"required": True, "content": dict.fromkeys(kinds, content)}
    return described


@router.post(
    "/documents",
    status_code=201,
    responses={201: CREATED_ANSWER},
    openapi_extra=_describe(NewDocument, "If-None-Match", "Idempotency-Key"),
)
async def create_document(request: Request, service: Shared) -> Response:
    """Creates a document; 409 if there is one with its id. A deleted one comes back."""
    condition = _read_condition(request)
    if condition.tags is not None:
        raise UsageError("a new document has no revision that If-Match could name", hint="PUT or PATCH changes one")

    def write(store: DocumentStore, values: Mapping[str, Any]) -> Response:
        try:
            made = store.write([Write("put", None, values, 0, condition.key)])[0]
        except RevisionMismatchError as error:
            if condition.is_absent:
                raise
            raise ConflictError(
                f"document '{values.get('document_id')}' exists already",
                hint="PUT replaces its metadata, PATCH changes some fields; or leave document_id out",
            ) from error
        return answer_document(made.document, 201, is_new=True)

    return await _write(request, service, "create", write)


@router.put(
    "/documents/{document_id}",
    responses={200: DOCUMENT_ANSWER, 201: {**CREATED_ANSWER, "description": "it is new"}},
    openapi_extra=_describe(NewDocument, "If-Match", "If-None-Match", "Idempotency-Key"),
)
async def put_document(request: Request, document_id: DocumentId, service: Shared) -> Response:
    """Replaces the metadata of a document, or creates it: fields that are left out get their defaults."""
    condition = _read_condition(request)

    def write(store: DocumentStore, values: Mapping[str, Any]) -> Response:
        made = _apply(store, Write("put", document_id, values), condition)
        is_new = made.revision == 1
        return answer_document(made.document, 201 if is_new else 200, is_new=is_new)

    return await _write(request, service, "put", write)


@router.patch(
    "/documents/{document_id}",
    responses={200: DOCUMENT_ANSWER},
    openapi_extra=_describe(DocumentChanges, "If-Match", "Idempotency-Key", kinds=(MERGE_PATCH, JSON)),
)
async def update_document(request: Request, document_id: DocumentId, service: Shared) -> Response:
    """Changes some fields by a JSON merge patch (RFC 7396): null clears a field, objects are merged key by key."""
    condition = _read_condition(request)

    def write(store: DocumentStore, values: Mapping[str, Any]) -> Response:
        return answer_document(_apply(store, Write("update", document_id, values), condition).document)

    return await _write(request, service, "update", write, kinds=(MERGE_PATCH, JSON))


@router.delete(
    "/documents/{document_id}", status_code=204, openapi_extra=_describe(None, "If-Match", "Idempotency-Key")
)
async def delete_document(request: Request, document_id: DocumentId, service: Shared) -> Response:
    """Deletes a document. Its history stays, and it can be brought back."""
    _must_run(service)
    condition = _read_condition(request)

    def write(store: DocumentStore) -> Response:
        _apply(store, Write("delete", document_id), condition)
        return Response(status_code=204)

    return await documents_of(request).write("delete", write)


@router.post(
    "/documents/{document_id}:undelete",
    responses={200: DOCUMENT_ANSWER},
    openapi_extra=_describe(None, "If-Match", "Idempotency-Key"),
)
async def undelete_document(request: Request, document_id: DocumentId, service: Shared) -> Response:
    """Brings a deleted document back, with the metadata that it had."""
    _must_run(service)
    condition = _read_condition(request)

    def write(store: DocumentStore) -> Response:
        return answer_document(_apply(store, Write("undelete", document_id), condition).document)

    return await documents_of(request).write("undelete", write)


@router.post(
    "/documents:batch",
    responses={200: {"model": DocumentRevisions}},
    openapi_extra=_describe(DocumentBatch, "Idempotency-Key"),
)
async def write_batch(request: Request, service: Shared) -> Response:
    """Applies several writes in order, all or none."""
    key = read_idempotency_key(request)

    def write(store: DocumentStore, values: Mapping[str, Any]) -> Response:
        batch = _validate(DocumentBatch, values)
        writes = [_batched(number, given, key) for number, given in enumerate(batch.writes, 1)]
        return answer_json({"revisions": revisions_json(store.write(writes))})

    return await _write(request, service, "batch", write, limit=service.body_limit)


@router.post(
    "/document-columns",
    status_code=201,
    responses={
        200: {"model": DocumentColumn, "description": "the store has it already"},
        201: {"model": DocumentColumn},
    },
    openapi_extra=_describe(DocumentColumn),
)
async def add_column(request: Request, service: Shared) -> Response:
    """Adds a column to the store without rewriting data; 409 if it has another type there."""

    def write(store: DocumentStore, values: Mapping[str, Any]) -> Response:
        wanted = _validate(DocumentColumn, values)
        is_known = wanted.name in store.columns()
        column = store.add_column(wanted.name, wanted.type)
        return answer_json(asdict(column), 200 if is_known else 201)

    return await _write(request, service, "add_column", write)


async def _write(
    request: Request,
    service: Service,
    operation: str,
    write: Callable[[DocumentStore, Mapping[str, Any]], Response],
    *,
    kinds: tuple[str, ...] = (JSON,),
    limit: int = MAX_DOCUMENT,
) -> Response:
    """Reads a body, and writes what it says. Its memory counts until the answer is made."""
    _must_run(service)
    if content_type(request) not in kinds:
        raise RequestError(
            f"a body of type {content_type(request)[:80] or '(none)'} is not understood",
            status=415,
            hint=f"Content-Type: {' or '.join(kinds)}",
        )
    size = declared_size(request)
    async with service.bodies.reserve(limit if size is None else min(size, limit)):
        body = await read_body(request, limit)
        documents = documents_of(request)
        values = parse_object(body) if len(body) <= _INLINE else await documents.run(lambda: parse_object(body))
        return await documents.write(operation, lambda store: write(store, values))


def _must_run(service: Service) -> None:
    with stating_nothing_stored():
        service.must_run()


def _read_condition(request: Request) -> Condition:
    absent, tags = read_tags(request, "If-None-Match"), read_tags(request, "If-Match")
    key = read_idempotency_key(request)
    if absent is not None and not absent.is_any:
        raise UsageError("If-None-Match of a write can only be *", hint="If-Match compares revisions")
    if absent is not None and (tags is not None or request.method not in ("POST", "PUT")):
        raise UsageError("If-None-Match makes no sense here", hint="If-Match: the ETag that was read")
    if key is not None and tags is not None and (len(tags.strong) > 1 or (tags.is_any and request.method == "PUT")):
        raise UsageError(
            "an Idempotency-Key needs a request that means the same each time",
            cause="If-Match allows several revisions",
            hint="If-Match: one ETag, or leave one of the headers out",
        )
    return Condition(tags, absent is not None, key)


def _apply(store: DocumentStore, write: Write, condition: Condition) -> Revision:
    """Applies a write of one document if its condition holds.

    Raises:
        RevisionMismatchError: it does not.
    """
    write, tags = replace(write, idempotency_key=condition.key), condition.tags
    if tags is None or (tags.is_any and write.operation != "put"):
        return store.write([replace(write, if_match=0 if condition.is_absent else None)])[0]
    if tags.is_any or not tags.strong:
        return _apply_to_present(store, write, tags)
    *others, last = sorted(tags.strong, reverse=True)
    for revision in others:
        with suppress(RevisionMismatchError):
            return store.write([replace(write, if_match=revision)])[0]
    return store.write([replace(write, if_match=last)])[0]


def _apply_to_present(store: DocumentStore, write: Write, tags: EntityTags) -> Revision:
    """Applies a write to whatever revision the document has; it must exist, and its tags must not all be foreign."""
    assert write.document_id is not None
    for _ in range(_TRIES):
        try:
            found = store.get_metadata(write.document_id).revision
        except NotFoundError as error:
            if write.operation != "put":
                raise
            raise refuse_revision(write.document_id, None) from error
        if not tags.match_strongly(found):
            raise refuse_revision(write.document_id, found)
        with suppress(RevisionMismatchError):
            return store.write([replace(write, if_match=found)])[0]
    raise ConflictError(f"document '{write.document_id}' is changed all the time", hint="send it again")


def _batched(number: int, given: DocumentWrite, key: str | None) -> Write:
    if given.values and given.operation in ("delete", "undelete"):
        error = UsageError(f"write {number} of the batch is a {given.operation}, which has no values")
        error.details["write"] = number
        raise error
    own = given.idempotency_key or (None if key is None else f"{key}:{number}")
    return Write(given.operation, given.document_id, given.values, given.if_match, own)


Model = TypeVar("Model", bound=BaseModel)


def _validate(model: type[Model], values: Mapping[str, Any]) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise build_invalid([{**problem, "loc": ("body", *problem["loc"])} for problem in problems]) from None
