"""The conditions of a search in the spelling of users: the same on the command line, over HTTP and in Python.

Its imports are light: the command line reads it for `--help`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.content.query.filters import Search, Similar

#: Labels, tags, fields or words of one search: each is looked for in every row.
MAX_TERMS = 32


def _option(metavar: str, about: str, default: Any = None, **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"metavar": metavar, "about": about, **more})


@dataclass(frozen=True)
class SearchRequest:
    """All conditions must hold; None or empty: no condition.

    The metadata of a field are its description, what its value is called in help, and its `name` where that differs.
    """

    bucket: str | None = None
    label: Sequence[str] = _option(
        "WORDS", "with this label, or one that contains these words; `*` matches anything", ()
    )
    any_label: bool = _option("", "match any of the labels instead of all", default=False)
    camera: str | None = _option("TEXT", "taken with this camera: part of its name")
    taken: str | None = _option("TIME", "time taken: 2024, 2024-05, 2024-05-01, 2024-05..2024-08, 2024..")
    near: str | None = _option("LAT,LON", "taken near this place; nearest first")
    radius: str | None = _option("DISTANCE", "at most this far away: 800m, 5km, 3mi")
    box: str | None = _option("S,W,N,E", "taken inside this box, in degrees; W > E crosses the date line")
    tag: Sequence[str] = _option("TAG", "with this tag from users, or as KEY=VALUE from the object store", ())
    rating: str | None = _option("N", "with this rating: 5, 4..5, 4..")
    field: Sequence[str] = _option(
        "NAME=VALUE",
        "a column, or a path in metadata (exif.Model, $.labels[*].Name); also <, <=, >, >=, != and ~ for contains",
        (),
    )
    exif: Sequence[str] = _option("TAG=VALUE", "the same for an EXIF tag: ISOSpeedRatings>=800", ())
    text: str | None = _option("WORDS", "all words occur in title, author, note, key or text")
    path: str | None = _option("GLOB", "key matches this pattern: '*.jpg', '2024/**/*.png'")
    media_type: str | None = _option("TYPE", "of this media type or family: 'image/*'", name="type")
    min_size: int | None = _option("SIZE", "at least this large")
    max_size: int | None = _option("SIZE", "at most this large")
    status: str | None = _option("", "state of extraction: pending, ok, failed or erased")

    @classmethod
    def options(cls) -> list[dataclasses.Field[Any]]:
        """Returns the conditions that an interface offers as options or parameters: all but the bucket."""
        return [field for field in dataclasses.fields(cls) if field.metadata]

    @classmethod
    def of(cls, **values: Any) -> SearchRequest:
        """Returns a request with those values that are not None."""
        return cls(**{name: value for name, value in values.items() if value is not None})

    def parse(self, similar: Similar | None = None) -> Search:
        """Returns the search.

        Raises:
            UsageError: a condition makes no sense; the hint says what would.
        """
        from frazil.content.query.field_conditions import FieldCondition
        from frazil.content.query.filters import Search
        from frazil.content.query.geo import Box, Circle
        from frazil.content.query.time_range import TimeRange

        if self.radius is not None and self.near is None:
            raise UsageError("a radius requires a point", hint="near LATITUDE,LONGITUDE, such as 48.8584,2.2945")
        if self.text is not None and not self.text.split():
            raise UsageError("the text has no words", hint="words that are in a title, a note, a key or a text")
        fields = _terms((*self.field, *map(_of_exif, self.exif)), "fields")
        return Search(
            bucket=self.bucket,
            labels=_terms(self.label, "labels"),
            any_label=self.any_label,
            fields=tuple(map(FieldCondition.parse, fields)),
            tags=_terms(self.tag, "tags"),
            taken=None if self.taken is None else TimeRange.parse(self.taken),
            camera=self.camera,
            circle=None if self.near is None else Circle.parse(self.near, self.radius),
            box=None if self.box is None else Box.parse(self.box),
            min_size=self.min_size,
            max_size=self.max_size,
            media_type=self.media_type,
            words=_terms((self.text or "").split(), "words"),
            path=self.path,
            similar=similar,
            rating=None if self.rating is None else _rating(self.rating),
            status=self.status,
        )


def parse_search(*, similar: Similar | None = None, **values: Any) -> Search:
    """Returns the search that a request with these values describes."""
    return SearchRequest.of(**values).parse(similar)


def _terms(given: Sequence[str], what: str) -> tuple[str, ...]:
    """Removes duplicates, and limits the number of terms."""
    terms = tuple(dict.fromkeys(given))
    if len(terms) > MAX_TERMS:
        raise UsageError(f"a search has at most {MAX_TERMS} {what}, and this one has {len(terms):,}", hint="fewer")
    return terms


def _of_exif(text: str) -> str:
    return text if text.startswith(("$", "exif.")) else f"exif.{text}"


def _rating(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-5])?(\.\.)?([1-5])?", text.strip())
    if found is None or not (found[1] or found[3]) or (found[3] and not found[2]):
        raise UsageError(f"{text!r} is not a rating", hint="use 1 to 5, or a range: 4..5, 4.., ..2")
    least, most = int(found[1] or 1), int(found[3] or (5 if found[2] else found[1]))
    if most < least:
        raise UsageError(f"the rating range {least}..{most} is empty", hint="4..5")
    return least, most
