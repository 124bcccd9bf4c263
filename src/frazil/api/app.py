"""The app: its routes, its errors, and its description at `/openapi.json`."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI
from pydantic.json_schema import models_json_schema

from frazil.api import (
    content,
    documents,
    documents_internal,
    documents_writes,
    edits,
    events,
    health,
    messages,
    search,
    topics,
)
from frazil.api.documents_access import OpenStore
from frazil.api.failures import answer_errors
from frazil.api.models import Failure
from frazil.api.origin_check import refuse_other_sites
from frazil.api.problems import PREFIX, PROBLEM, Problem
from frazil.api.reading import ReaderOf
from frazil.api.service import Service
from frazil.log.log import Log
from frazil.settings import SettingsModel
from frazil.version import __version__

_SCHEMA = "#/components/schemas/{model}"
_PROBLEM_SCHEMA = _SCHEMA.format(model=Problem.__name__)


class Api(FastAPI):
    """FastAPI, with the schemas of bodies that are read piece by piece and not by FastAPI itself."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            described = super().openapi()
            parts = (messages, topics, edits, documents_writes)
            models = [(model, "validation") for part in parts for model in part.EXTRA_MODELS]
            models.append((Problem, "serialization"))
            _, more = models_json_schema(models, ref_template=_SCHEMA)  # type: ignore[arg-type]
            schemas = described["components"]["schemas"]
            schemas.update(more["$defs"])
            for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own form of errors; ours is Failure
                schemas.pop(unused, None)
            for path, operations in described["paths"].items():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    if path.startswith(PREFIX):
                        operation["responses"]["default"]["content"] = {PROBLEM: {"schema": {"$ref": _PROBLEM_SCHEMA}}}
        return self.openapi_schema or {}


def create_app(
    log: Log,
    settings: SettingsModel,
    reader_of: ReaderOf | None = None,
    tables_of: content.TablesOf | None = None,
    open_documents: OpenStore | None = None,
) -> Api:
    """The HTTP API around a log that is open in this process.

    Args:
        log: open; it stays the caller's to close, after `app.state.service.close()`.
        settings: those in force.
        reader_of: who reads a topic; by default the log alone.
        tables_of: opens the tables of content; without it nobody can ask about objects.
        open_documents: opens the document store, when it is needed; without it there is none.
    """
    app = Api(
        title="Frazil",
        version=__version__,
        summary="Durable topics, and metadata of objects and documents, over HTTP",
        # The pages at /docs would load scripts from another server.
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(refuse_other_sites)],
        responses={"default": {"model": Failure, "description": "what went wrong"}},
    )
    app.state.service = Service(log, settings, reader_of, open_documents)
    app.state.event_gatherer = events.gatherer(app.state.service)
    app.state.content = content.ContentLooks(tables_of)
    app.state.searches = search.Searches(settings)
    answer_errors(app)
    about_documents = (documents, documents_writes, documents_internal)
    for part in (health, topics, messages, events, content, edits, search, *about_documents):
        app.include_router(part.router)
    return app
