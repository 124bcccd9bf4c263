"""Filters of a list of objects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Literal

from frazil.errors import UsageError

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

Deleted = Literal["no", "too", "only"]


@dataclass(frozen=True)
class Choice:
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


def plain_version(version_id: str | None) -> str | None:
    """S3 calls the version of a bucket without versions `null`; the table has an empty text for it."""
    return "" if version_id == "null" else version_id


def all_of(terms: list[BooleanExpression]) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And

    everything: BooleanExpression = AlwaysTrue()
    return reduce(And, terms, everything)
