"""What somebody looks for. The command line and HTTP say it in the same words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from frazil.content.buckets import require_text
from frazil.content.query.field_conditions import Field
from frazil.content.query.geo import Box, Circle
from frazil.content.query.time_range import Span
from frazil.content.query.words import is_pattern
from frazil.errors import UsageError

STATUSES = ("pending", "ok", "failed", "erased")
#: Bits of 64 in which pictures that look alike may differ, where nobody says more.
DISTANCE = 10
#: Labels, tags, fields or words of one search: each is looked for in every row.
MAX_TERMS = 32


@dataclass(frozen=True)
class Similar:
    """Pictures whose perceptual hash differs from this one in at most so many bits."""

    hash: int
    distance: int = DISTANCE

    def __post_init__(self) -> None:
        if not 0 <= self.distance <= 64:
            raise UsageError(f"{self.distance} is no distance of pictures", hint="0 (the same) to 64; 10 is alike")


@dataclass(frozen=True)
class Search:
    """Objects that are there now, and of which all this is true; None or empty: whatever it is.

    Attributes:
        bucket: the bucket, as the tables have it.
        labels: what is to be seen: each a label, or words of it; `*` is anything.
        any_label: one of the labels is enough.
        fields: conditions on columns and on `metadata`.
        tags: what people have tagged it; `KEY=VALUE` is a tag of the object store too.
        taken: when.
        camera: part of its name.
        circle: around a point.
        box: between degrees.
        min_size: bytes, included.
        max_size: bytes, included.
        media_type: as it was detected, else as it was uploaded: a type, or a family, as `image/*`.
        words: all of them are in title, author, note, key or text.
        path: which keys; `*` stays in a folder, `**` does not; without a slash it is about the name alone.
        similar: looks like a picture.
        rating: the least and the greatest.
        status: of its extraction.
    """

    bucket: str | None = None
    labels: tuple[str, ...] = ()
    any_label: bool = False
    fields: tuple[Field, ...] = ()
    tags: tuple[str, ...] = ()
    taken: Span | None = None
    camera: str | None = None
    circle: Circle | None = None
    box: Box | None = None
    min_size: int | None = None
    max_size: int | None = None
    media_type: str | None = None
    words: tuple[str, ...] = ()
    path: str | None = None
    similar: Similar | None = None
    rating: tuple[int, int] | None = None
    status: str | None = None

    def __post_init__(self) -> None:
        if self.min_size is not None and self.max_size is not None and self.max_size < self.min_size:
            raise UsageError(f"no size lies between {self.min_size} and {self.max_size}", hint="a larger max size")
        if self.status is not None and self.status not in STATUSES:
            raise UsageError(f"{self.status!r} is no status of an extraction", hint=", ".join(STATUSES))
        texts = {"label": self.labels, "tag": self.tags, "text": self.words}
        texts |= {"camera": (self.camera,), "type": (self.media_type,), "path": (self.path,)}  # type: ignore[dict-item]
        for what, values in texts.items():
            for value in values:
                if value is not None and not value.strip():
                    raise UsageError(f"the {what} is empty", hint=f"a {what}, or none at all")
                require_text(value or "", what)
        if self.path is not None and not is_pattern(self.path):
            raise UsageError(f"{self.path!r} is no pattern of keys", hint="'*.jpg', '2024/**/*.png'")


def asked(
    *,
    bucket: str | None = None,
    label: Sequence[str] = (),
    any_label: bool = False,
    field: Sequence[str] = (),
    exif: Sequence[str] = (),
    tag: Sequence[str] = (),
    taken: str | None = None,
    camera: str | None = None,
    near: str | None = None,
    radius: str | None = None,
    box: str | None = None,
    min_size: int | None = None,
    max_size: int | None = None,
    media_type: str | None = None,
    text: str | None = None,
    path: str | None = None,
    similar: Similar | None = None,
    rating: str | None = None,
    status: str | None = None,
) -> Search:
    """A search out of texts as people write them.

    Raises:
        UsageError: one of them makes no sense; the hint says what would.
    """
    if radius is not None and near is None:
        raise UsageError("a radius needs a point to be around", hint="near LATITUDE,LONGITUDE, such as 48.8584,2.2945")
    if text is not None and not text.split():
        raise UsageError("the text has no words", hint="words that are in a title, a note, a key or a text")
    fields = _terms((*field, *map(_of_exif, exif)), "fields")
    return Search(
        bucket=bucket,
        labels=_terms(label, "labels"),
        any_label=any_label,
        fields=tuple(map(Field.parse, fields)),
        tags=_terms(tag, "tags"),
        taken=None if taken is None else Span.parse(taken),
        camera=camera,
        circle=None if near is None else Circle.parse(near, radius),
        box=None if box is None else Box.parse(box),
        min_size=min_size,
        max_size=max_size,
        media_type=media_type,
        words=_terms((text or "").split(), "words"),
        path=path,
        similar=similar,
        rating=None if rating is None else _rating(rating),
        status=status,
    )


def _terms(given: Sequence[str], what: str) -> tuple[str, ...]:
    """Each once."""
    terms = tuple(dict.fromkeys(given))
    if len(terms) > MAX_TERMS:
        raise UsageError(f"a search has at most {MAX_TERMS} {what}, and this one has {len(terms):,}", hint="fewer")
    return terms


def _of_exif(text: str) -> str:
    return text if text.startswith(("$", "exif.")) else f"exif.{text}"


def _rating(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-5])?(\.\.)?([1-5])?", text.strip())
    if found is None or not (found[1] or found[3]) or (found[3] and not found[2]):
        raise UsageError(f"{text!r} is no rating", hint="1 to 5, or from one to another: 4..5, 4.., ..2")
    least, most = int(found[1] or 1), int(found[3] or (5 if found[2] else found[1]))
    if most < least:
        raise UsageError(f"no rating lies between {least} and {most}", hint="4..5")
    return least, most
