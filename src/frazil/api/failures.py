"""Errors as HTTP answers: the same JSON as on the command line, with the status that fits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from frazil.api.problems import allowed_methods, build_invalid, build_problem, has_problems
from frazil.errors import FrazilError, NotFoundError, UnavailableError, UsageError
from frazil.log.protocol import NOT_TAKEN
from frazil.observe.logs import get_logger

#: Seconds that a client is asked to wait when the log takes no more for now.
RETRY_AFTER = 1

log = get_logger(__name__)


class RequestError(UsageError):
    """An invalid request for which HTTP has a specific status: 405, 408, 413, 415."""

    def __init__(self, message: str, *, status: int = 400, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, cause=cause, hint=hint)
        self.status = status


def status_of(error: FrazilError) -> int:
    return error.status if isinstance(error, RequestError) else error.http_status


def answer_to(error: FrazilError) -> JSONResponse:
    status = status_of(error)
    headers = {"Retry-After": str(RETRY_AFTER)} if isinstance(error, UnavailableError) else None
    return JSONResponse(error.to_dict(), status, headers)


@contextmanager
def telling_what_is_stored() -> Iterator[None]:
    """Of a request to publish, which is one batch: what refuses it says whether it may be in the log all the same."""
    try:
        yield
    except FrazilError as error:
        sure = isinstance(error, (RequestError, *NOT_TAKEN))
        # The log tells all who wait for one commit by the same error; each request has its own.
        told = error if isinstance(error, RequestError) else copy.copy(error)
        told.details |= {"acknowledged": 0, "stored": "no" if sure else "unknown"}
        if not sure:
            told.adding("whether the messages of this request are in the log is not known")
        raise told from error.__cause__


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def publishes(endpoint: Endpoint) -> Endpoint:
    """Marks an endpoint whose refusals say that nothing was stored, also those that come before it is called."""
    endpoint.publishes = True  # type: ignore[attr-defined]
    return endpoint


def _refusal(request: Request, error: FrazilError) -> Response:
    if has_problems(request):
        return _problem(request, error)
    if getattr(request.scope.get("endpoint"), "publishes", False) and "stored" not in error.details:
        error.details |= {"acknowledged": 0, "stored": "no"}  # else `telling_what_is_stored` has said it
    return answer_to(error)


def _problem(request: Request, error: FrazilError) -> Response:
    answer = build_problem(request, error, status_of(error))
    if isinstance(error, UnavailableError):
        answer.headers["Retry-After"] = str(RETRY_AFTER)
    return answer


def answer_errors(app: FastAPI) -> None:
    """Whatever goes wrong in a request of this app is answered in our own form."""
    app.add_exception_handler(FrazilError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _unexpected)


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, FrazilError)
    return _refusal(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if has_problems(request):
        return _problem(request, build_invalid(error.errors()))
    problems = [{**e, "loc": e["loc"][1:]} for e in error.errors()]  # query, path, …
    return _refusal(request, invalid("the request", problems))


def invalid(what: str, problems: Sequence[Any]) -> UsageError:
    """The first thing that pydantic found wrong, and where."""
    first = problems[0]
    place = ".".join(map(str, first["loc"]))
    return UsageError(f"{what} is not valid{f' at {place}' if place else ''}", cause=first["msg"], hint="/openapi.json")


async def _refused(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        unknown = NotFoundError(f"there is nothing at {request.url.path}", hint="/openapi.json lists all paths")
        return _problem(request, unknown) if has_problems(request) else answer_to(unknown)
    refused = RequestError(
        f"{request.method} {request.url.path}: {error.detail}", status=error.status_code, hint="/openapi.json"
    )
    answer = _problem(request, refused) if has_problems(request) else answer_to(refused)
    answer.headers.update(error.headers or {})
    if has_problems(request) and error.status_code == 405:
        answer.headers["Allow"] = ", ".join(allowed_methods(request))
    return answer


async def _left(_request: Request, _error: Exception) -> Response:
    """The client has gone in the middle of its body. Nothing was taken, and nobody reads this."""
    return Response(status_code=499)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("unexpected error in a request", method=request.method, path=request.url.path, exc_info=error)
    unexpected = FrazilError(f"unexpected {type(error).__name__}", hint="the server's log says more")
    return _problem(request, unexpected) if has_problems(request) else answer_to(unexpected)
