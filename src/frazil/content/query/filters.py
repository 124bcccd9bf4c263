"""Filters of objects: of a list, and of a search."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Literal

from frazil.content.buckets import require_text
from frazil.content.query.field_conditions import FieldCondition
from frazil.content.query.geo import Box, Circle
from frazil.content.query.time_range import TimeRange
from frazil.content.query.words import is_pattern
from frazil.errors import UsageError

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

Deleted = Literal["no", "too", "only"]


@dataclass(frozen=True)
class ObjectFilter:
    """Objects for which all of this is true; None: no condition.

    Attributes:
        bucket: the bucket, as the tables have it.
        key: exactly this key.
        prefix: how the key begins.
        version_id: exactly this version; `null` is the one of a bucket without versions.
        min_size: bytes, included.
        max_size: bytes, included.
        since: last modified at this time or later.
        until: last modified before this time.
        storage_class: the class, in upper case or as it is.
        content_type: the type, or a family of them, as `image/*`.
        tags: each `key` or `key=value`; all must hold.
        versions: old versions too.
        markers: delete markers too.
        deleted: tombstones `no`, `too` or `only`.
    """

    bucket: str | None = None
    key: str | None = None
    prefix: str | None = None
    version_id: str | None = None
    min_size: int | None = None
    max_size: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    storage_class: str | None = None
    content_type: str | None = None
    tags: tuple[str, ...] = ()
    versions: bool = False
    markers: bool = False
    deleted: Deleted = "no"

    def __post_init__(self) -> None:
        if self.min_size is not None and self.max_size is not None and self.max_size < self.min_size:
            raise UsageError(f"no size lies between {self.min_size} and {self.max_size}", hint="a larger max size")
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise UsageError(
                f"no time lies between {self.since.isoformat()} and {self.until.isoformat()}", hint="a later until"
            )
        if any(not tag.partition("=")[0] for tag in self.tags):
            raise UsageError("a tag has no key", hint="KEY or KEY=VALUE, such as project=birds")

    def to_expression(self) -> BooleanExpression:
        """Returns everything but the tags as an expression of Iceberg."""
        from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, In, LessThan, LessThanOrEqual, StartsWith

        terms: list[BooleanExpression] = [self._state()]
        same = {"bucket": self.bucket, "key": self.key, "version_id": plain_version(self.version_id)}
        terms += [EqualTo(term=k, value=v) for k, v in same.items() if v is not None]
        if self.prefix:
            terms.append(StartsWith(term="key", value=self.prefix))
        if self.min_size is not None:
            terms.append(GreaterThanOrEqual(term="size", value=self.min_size))
        if self.max_size is not None:
            terms.append(LessThanOrEqual(term="size", value=self.max_size))
        if self.since is not None:
            terms.append(GreaterThanOrEqual(term="last_modified", value=self.since.isoformat()))
        if self.until is not None:
            terms.append(LessThan(term="last_modified", value=self.until.isoformat()))
        if self.storage_class is not None:
            terms.append(In(term="storage_class", literals={self.storage_class, self.storage_class.upper()}))
        if self.content_type is not None:
            family = self.content_type.removesuffix("*")
            term = StartsWith(term="content_type", value=family)
            terms.append(term if family != self.content_type else EqualTo(term="content_type", value=family))
        return all_of(terms)

    def _state(self) -> BooleanExpression:
        from pyiceberg.expressions import AlwaysTrue, And, EqualTo, Or

        wanted: list[BooleanExpression] = []
        if self.deleted != "only":
            alive: BooleanExpression = EqualTo(term="is_deleted", value=False)
            wanted.append(alive if self.versions else And(alive, EqualTo(term="is_latest", value=True)))
        if self.deleted != "no":
            wanted.append(EqualTo(term="is_deleted", value=True))
        either = reduce(Or, wanted)
        return And(either, AlwaysTrue() if self.markers else EqualTo(term="is_delete_marker", value=False))


STATUSES = ("pending", "ok", "failed", "erased")
#: Bits of 64 in which pictures that look alike may differ by default.
DISTANCE = 10


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
    fields: tuple[FieldCondition, ...] = ()
    tags: tuple[str, ...] = ()
    taken: TimeRange | None = None
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


def plain_version(version_id: str | None) -> str | None:
    """S3 calls the version of a bucket without versions `null`; the table has an empty text for it."""
    return "" if version_id == "null" else version_id


def all_of(terms: list[BooleanExpression]) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And

    everything: BooleanExpression = AlwaysTrue()
    return reduce(And, terms, everything)
