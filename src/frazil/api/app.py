"""The app: its routes, its errors, and its description at `/openapi.json`."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI
from pydantic.json_schema import models_json_schema

from frazil.api import content, edits, events, health, messages, search, topics
from frazil.api.failures import answer_errors
from frazil.api.guard import refuse_other_sites
from frazil.api.models import Failure
from frazil.api.reading import ReaderOf
from frazil.api.service import Service
from frazil.log.log import Log
from frazil.settings import SettingsModel
from frazil.version import __version__


class Api(FastAPI):
    """FastAPI, with the schemas of bodies that are read piece by piece and not by FastAPI itself."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            described = super().openapi()
            models = [
                (model, "validation") for model in (*messages.EXTRA_MODELS, *topics.EXTRA_MODELS, *edits.EXTRA_MODELS)
            ]
            _, more = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
            schemas = described["components"]["schemas"]
            schemas.update(more["$defs"])
            for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own form of errors; ours is Failure
                schemas.pop(unused, None)
            for path in described["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
        return self.openapi_schema or {}


def create_app(
    log: Log, settings: SettingsModel, reader_of: ReaderOf | None = None, tables_of: content.TablesOf | None = None
) -> Api:
    """The HTTP API around a log that is open in this process.

    Args:
        log: open; it stays the caller's to close, after `app.state.service.close()`.
        settings: those in force.
        reader_of: who reads a topic; by default the log alone.
        tables_of: opens the tables of content; without it nobody can ask about objects.
    """
    app = Api(
        title="Frazil",
        version=__version__,
        summary="Durable topics over HTTP",
        # The pages at /docs would load scripts from another server.
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(refuse_other_sites)],
        responses={"default": {"model": Failure, "description": "what went wrong"}},
    )
    app.state.service = Service(log, settings, reader_of)
    app.state.event_gatherer = events.gatherer(app.state.service)
    app.state.content = content.ContentLooks(tables_of)
    app.state.searches = search.Searches(settings)
    answer_errors(app)
    for part in (health, topics, messages, events, content, edits, search):
        app.include_router(part.router)
    return app
