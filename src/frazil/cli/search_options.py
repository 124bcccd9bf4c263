"""The options that `search`, `facets`, `duplicates` and `export` have in common: what is looked for."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from frazil.cli.invocation import Run
from frazil.content.query.request import SearchRequest
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.content.query.filters import Search
    from frazil.content.tables import ContentTables


class StatusChoice(StrEnum):
    pending = "pending"
    ok = "ok"
    failed = "failed"
    erased = "erased"


def _option(option: dataclasses.Field[Any]) -> tuple[Any, Any]:
    """The annotation of a condition's option, and its default."""
    about = option.metadata["about"]
    if option.name == "status":
        return Annotated[StatusChoice | None, typer.Option(help=about)], None
    if option.name == "any_label":
        return Annotated[bool, typer.Option("--any-label", help=about)], False
    metavar = option.metadata["metavar"]
    if option.default == ():
        return Annotated[list[str] | None, typer.Option(metavar=metavar, help=f"{about}; may be repeated")], None
    if option.name.endswith("_size"):
        about += ", such as 1MB"
    names = [f"--{option.metadata['name']}"] if "name" in option.metadata else []
    return Annotated[str | None, typer.Option(*names, metavar=metavar, help=about)], None


_OPTIONS: dict[str, tuple[Any, Any]] = {option.name: _option(option) for option in SearchRequest.options()}


@dataclass(frozen=True)
class Wanted:
    """What the options said."""

    bucket: str | None
    values: dict[str, Any]

    def search(self, tables: ContentTables, *, similar: str | None = None, distance: int | None = None) -> Search:
        """The search.

        Args:
            tables: where a picture's hash is looked up.
            similar: a file on this machine, or the key of an object.
            distance: bits in which its hash may differ.

        Raises:
            UsageError: an option makes no sense.
            NotFoundError: there is no such picture.
        """
        from frazil.cli.amounts import size
        from frazil.content.query.picture_hash import similar_to

        sizes = {name: size(self.values[name]) for name in ("min_size", "max_size") if self.values[name] is not None}
        request = SearchRequest.of(bucket=self.bucket, **{**self.values, **sizes})
        if similar is None and distance is not None:
            raise UsageError("--distance requires a picture to compare with", hint="--similar FILE")
        request.parse()  # before a picture is read
        return request.parse(None if similar is None else similar_to(tables, self.bucket, similar, distance))


def searching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options of a search. Its second parameter is a `Wanted`; `place` names the bucket."""
    hints = get_type_hints(function, include_extras=True)
    run, _, *own = inspect.signature(function).parameters.values()
    has_place = any(p.name == "place" for p in own)

    @functools.wraps(function)
    def wrapper(run: Run, **values: Any) -> Any:
        from frazil.content.buckets import bucket_of

        taken = {name: values.pop(name) for name in _OPTIONS}
        taken["status"] = taken["status"].value if taken["status"] is not None else None
        place = values.pop("place") if has_place else None
        more = {"place": place} if has_place else {}
        return function(run, Wanted(None if place is None else bucket_of(place), taken), **more, **values)

    places = [p for p in own if p.name in ("place", "places")]
    others = [p for p in own if p not in places]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in _OPTIONS.items()
    ]
    parameters = [run, *places, *options, *others]
    parameters = [
        p.replace(annotation=hints.get(p.name, p.annotation), kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters
    ]
    parameters[0] = run.replace(annotation=Run)
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapper.__wrapped__  # its hints would be looked up where the function was
    return wrapper
