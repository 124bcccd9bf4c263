"""The options that `search`, `facets`, `duplicates` and `export` have in common: what is looked for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from frazil.cli.invocation import Run
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.content.query.request import Search
    from frazil.content.tables import ContentTables


class StatusChoice(StrEnum):
    pending = "pending"
    ok = "ok"
    failed = "failed"
    erased = "erased"


def _text(metavar: str, about: str, *names: str) -> tuple[Any, Any]:
    return Annotated[str | None, typer.Option(*names, metavar=metavar, help=about)], None


def _texts(metavar: str, about: str) -> tuple[Any, Any]:
    return Annotated[list[str] | None, typer.Option(metavar=metavar, help=f"{about}; may be repeated")], None


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "label": _texts("WORDS", "with this label, or a label with these words; `*` is anything"),
    "any_label": (Annotated[bool, typer.Option("--any-label", help="one of the labels is enough")], False),
    "camera": _text("TEXT", "taken with such a camera: part of its name"),
    "taken": _text("TIME", "taken then: 2024, 2024-05, 2024-05-01, 2024-05..2024-08, 2024.."),
    "near": _text("LAT,LON", "taken near this place; the nearest first"),
    "radius": _text("DISTANCE", "and no further away than this: 800m, 5km, 3mi"),
    "box": _text("S,W,N,E", "taken between these degrees; W > E goes across the date line"),
    "tag": _texts("TAG", "tagged so by people, or as KEY=VALUE by the object store"),
    "rating": _text("N", "rated so: 5, 4..5, 4.."),
    "field": _texts(
        "NAME=VALUE",
        "a column, or a path in metadata (exif.Model, $.labels[*].Name); also <, <=, >, >=, != and ~ for contains",
    ),
    "exif": _texts("TAG=VALUE", "the same for a tag of EXIF: ISOSpeedRatings>=800"),
    "text": _text("WORDS", "all words are in title, author, note, key or text"),
    "path": _text("GLOB", "with such a key: '*.jpg', '2024/**/*.png'"),
    "media_type": _text("TYPE", "of this media type, or family: 'image/*'", "--type"),
    "min_size": _text("SIZE", "at least so large, such as 1MB"),
    "max_size": _text("SIZE", "at most so large"),
    "status": (Annotated[StatusChoice | None, typer.Option(help="whether it was looked into")], None),
}


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
        from frazil.content.query.request import asked

        values = {name: value for name, value in self.values.items() if value is not None}
        for name in ("min_size", "max_size"):
            if name in values:
                values[name] = size(values[name])
        found = asked(bucket=self.bucket, **values)
        if similar is None:
            if distance is not None:
                raise UsageError("a distance needs a picture to be distant from", hint="--similar FILE")
            return found
        return asked(bucket=self.bucket, similar=similar_to(tables, self.bucket, similar, distance), **values)


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
