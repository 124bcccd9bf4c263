"""The filters of documents as options, for `frazil docs list` and `export`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from frazil.cli.docs_session import moment
from frazil.cli.invocation import Run

if TYPE_CHECKING:
    from frazil.documents.store import DocumentFilter


class TierChoice(StrEnum):
    standard = "standard"
    infrequent = "infrequent"
    archive = "archive"
    deep_archive = "deep_archive"


class RestoreChoice(StrEnum):
    none = "none"
    requested = "requested"
    in_progress = "in_progress"
    restored = "restored"
    expired = "expired"
    failed = "failed"


def _text(metavar: str, about: str, *names: str) -> Any:
    return Annotated[str | None, typer.Option(*names, metavar=metavar, help=about)]


_OPTIONS: dict[str, Any] = {
    "storage_tier": Annotated[TierChoice | None, typer.Option(help="only in this tier")],
    "provider": _text("NAME", "only of this provider"),
    "restore_status": Annotated[RestoreChoice | None, typer.Option(help="only in this restore state")],
    "start_date": _text("TIME", "created at this time or later: 2026-01-31, epoch seconds or milliseconds, or 7d ago"),
    "end_date": _text("TIME", "created before this time"),
    "min_size": _text("SIZE", "at least so large, such as 1MB"),
    "max_size": _text("SIZE", "at most so large"),
    "content_type": _text("TYPE", "only of this content type", "--type"),
    "bucket": _text("NAME", "only in this bucket"),
    "object_key": _text("KEY", "only with this object key", "--key"),
    "tag": Annotated[
        list[str] | None, typer.Option(metavar="NAME[=VALUE]", help="only with this tag; may be repeated")
    ],
    "name_prefix": _text("TEXT", "only with filenames that begin so"),
    "words": _text("TEXT", "only where all these words occur in filename or tags"),
}


def has_filters(where: DocumentFilter) -> bool:
    from frazil.documents.store import DocumentFilter

    return where != DocumentFilter()


def filtered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options of filters. Its second parameter is a `DocumentFilter`."""
    hints = get_type_hints(function, include_extras=True, localns={"DocumentFilter": Any})
    run, _, *own = inspect.signature(function).parameters.values()

    @functools.wraps(function)
    def wrapper(run: Run, **values: Any) -> Any:
        return function(run, _filter({name: values.pop(name) for name in _OPTIONS}), **values)

    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=None)
        for name, kind in _OPTIONS.items()
    ]
    arguments = [p for p in own if p.default is inspect.Parameter.empty]
    parameters = [run, *arguments, *options, *(p for p in own if p not in arguments)]
    parameters = [
        p.replace(annotation=hints.get(p.name, p.annotation), kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters
    ]
    parameters[0] = run.replace(annotation=Run)
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapper.__wrapped__  # its hints would be looked up where the function was
    return wrapper


def _filter(given: dict[str, Any]) -> DocumentFilter:
    from frazil.cli.amounts import size
    from frazil.documents.store import DocumentFilter

    values = {name: value for name, value in given.items() if value is not None}
    for name in ("storage_tier", "restore_status"):
        if name in values:
            values[name] = values[name].value
    for name in ("min_size", "max_size"):
        if name in values:
            values[name] = size(values[name])
    for name in ("start_date", "end_date"):
        if name in values:
            values[name] = moment(values[name], name)
    tags = {}
    for text in values.pop("tag", ()):
        name, equals, value = text.partition("=")
        tags[name] = value if equals else None
    return DocumentFilter(**values, tags=tags)
