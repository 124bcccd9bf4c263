"""What only other processes of the same installation may ask the owner of documents in Iceberg. Not in OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from frazil.api.documents_access import stating_nothing_stored
from frazil.api.documents_answers import answer_json, documents_of
from frazil.api.messages import Shared
from frazil.api.request_body import declared_size, read_body
from frazil.api.strict_json import parse_object
from frazil.documents.iceberg.client import INTERNAL_PATH
from frazil.documents.store import DocumentStore
from frazil.errors import NotAllowedError, UnsupportedError
from frazil.log.trust import KEY_METADATA, is_valid_proof

router = APIRouter()


@router.post(INTERNAL_PATH, include_in_schema=False)
async def answer_internal(request: Request, service: Shared) -> Response:
    """Passes a request on to the store, after the client has proved that it has the key of the log.

    Raises:
        NotAllowedError: it has not. The body is not looked at.
    """
    if not is_valid_proof(request.headers.get(KEY_METADATA, ""), service.log.key):
        raise NotAllowedError(
            "only processes of the same installation may use this path",
            cause="the key of the log is missing or wrong",
            hint="set log.key, the same on both sides, or share the folder of the log",
        )
    with stating_nothing_stored():
        service.must_run()
    size = declared_size(request)
    async with service.bodies.reserve(service.body_limit if size is None else min(size, service.body_limit)):
        body = await read_body(request, service.body_limit)
        documents = documents_of(request)
        asked = await documents.run(lambda: parse_object(body))
        return await documents.write("internal", lambda store: _answer(store, asked))


def _answer(store: DocumentStore, asked: Mapping[str, Any]) -> Response:
    answer = getattr(store, "answer_internal", None)
    if answer is None:
        raise UnsupportedError(f"a store of kind '{store.kind}' has no other processes to answer")
    return answer_json(answer(asked))
