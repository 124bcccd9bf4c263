"""Errors below `/api/v1` as problem details (RFC 9457). The older paths answer in the form of `frazil.api.failures`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Literal

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field
from starlette.routing import Match

from frazil.api.models import Answered
from frazil.api.reading import json_bytes
from frazil.errors import FrazilError, UsageError

PREFIX = "/api/v1"
PROBLEM = "application/problem+json"
#: A kind of error as a URI. It names the kind, and is not to be opened.
_TYPE = "urn:frazil:error:"
#: An error whose kind says no more than the HTTP status.
_BLANK = "about:blank"
_MAX_TEXT = 1000
_MAX_ERRORS = 20

_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "UsageError": "The request is not valid",
        "ConfigError": "A setting of the server is wrong",
        "NotFoundError": "Not found",
        "ConflictError": "The request conflicts with the present state",
        "RevisionMismatchError": "The document has another revision",
        "LockedError": "Held by another process",
        "NotAllowedError": "Not allowed",
        "IntegrityError": "The data is not what it should be",
        "UnsupportedError": "Not supported",
        "UnavailableError": "Not available now",
        "FrazilError": "The request failed",
    }
)


class ProblemPart(Answered):
    location: str = Field(description="where: `query.limit`, `body.writes.3.operation` (counted from 0), …")
    detail: str = Field(description="what is wrong there")


class Problem(Answered):
    """Every answer of `/api/v1` with a status of 400 and above: problem details, as in RFC 9457."""

    type: str = Field(
        description="kind of the problem: a URI that names it; `about:blank`: no more than the status says",
        examples=["urn:frazil:error:NotFoundError"],
    )
    title: str = Field(description="the kind in words; always the same for a type", examples=["Not found"])
    status: int = Field(description="HTTP status", examples=[404])
    detail: str = Field(description="what happened, and where", examples=["document 'a-7' does not exist"])
    instance: str = Field(description="path of the request", examples=["/api/v1/documents/a-7"])
    error: str = Field(description="kind of the error, as in docs/errors.md", examples=["NotFoundError"])
    cause: str | None = Field(None, description="why, as far as it is known")
    hint: str | None = Field(None, description="the next thing to do", examples=["list them: frazil docs list"])
    retryable: bool = Field(description="the same request may succeed later", examples=[False])
    revision: int | None = Field(
        None, description="only with status 412: the revision that the document has; null: it does not exist"
    )
    write: int | None = Field(None, description="only of a batch: which write was refused, counted from 1")
    stored: Literal["no"] | None = Field(
        None, description="only of a write with status 503: `no` if it certainly was not applied"
    )
    errors: list[ProblemPart] | None = Field(None, description="only if several things are wrong: each of them")


def has_problems(request: Request) -> bool:
    """Whether errors of a request are answered as problem details."""
    path: str = request.scope["path"]
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def build_problem(request: Request, error: FrazilError, status: int) -> Response:
    """Returns the answer to a failed request; `details` of the error become further fields."""
    problem = {
        **_kind(error, status),
        "status": status,
        "detail": _short(error.message),
        "instance": _short(request.scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")),
        "error": type(error).__name__,
        "cause": None if error.cause is None else _short(error.cause),
        "hint": error.hint,
        "retryable": error.retryable,
        **error.details,
    }
    return Response(json_bytes(problem), status, media_type=PROBLEM)


def _kind(error: FrazilError, status: int) -> dict[str, str]:
    # An error that is wrong only in the terms of HTTP has a status of its own, as 405 and 415.
    if status != error.http_status:
        return {"type": _BLANK, "title": HTTPStatus(status).phrase}
    title = next(_TITLES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _TITLES)
    return {"type": _TYPE + type(error).__name__, "title": title}


def build_invalid(problems: Sequence[Any]) -> UsageError:
    """Returns the error of a request that pydantic found wrong; more than one problem is listed in `errors`."""
    parts = [{"location": ".".join(map(str, p["loc"])), "detail": p["msg"]} for p in problems[:_MAX_ERRORS]]
    error = UsageError(
        f"the request is not valid at {_short(parts[0]['location'])}", cause=parts[0]["detail"], hint="/openapi.json"
    )
    if len(parts) > 1:
        error.details["errors"] = parts
    return error


def allowed_methods(request: Request) -> list[str]:
    """Returns the methods that a path takes: Starlette's answer names only those of the first route."""
    return sorted(set(_methods(request)))


def _methods(request: Request) -> Iterator[str]:
    for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            yield method


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
