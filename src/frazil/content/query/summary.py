"""The summary of a bucket or folder after a scan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from frazil.content.query.duplicates import duplicates
from frazil.content.query.facets import facets
from frazil.content.query.filters import Search
from frazil.content.query.search import find, largest
from frazil.content.tables import ContentTables
from frazil.errors import NotFoundError
from frazil.tables.cache import ByteCache

#: Groups that are shown, by what they are groups of; as `facets` calls it, and as people do.
_SHOWN = {"type": "kind", "camera": "camera", "year": "year", "label": "label"}
_TOP = 5
_LARGEST = 3
_REASONS = 3
#: Groups that are counted, objects whose failure is read.
_MANY = 10_000
_FAILURES = 500
_PASSES = 64 << 20


@dataclass(frozen=True)
class Share:
    """Objects that have something in common."""

    name: str
    objects: int
    bytes: int


@dataclass(frozen=True)
class Summary:
    """A place in a few numbers.

    Attributes:
        shares: by kind, camera, year and label; the greatest first, years in their order.
        more: of each of these how many there are beyond.
        months: the first and the last in which a picture was taken, as `2024-05`; None: none is known.
        with_place: objects whose position on the map is known.
        where: whole degrees where most of them lie.
        largest: key and bytes.
        copies: objects whose content another one has too.
        wasted: bytes of these.
        statuses: objects by the status of their extraction; None: nothing was to be looked into.
        reasons: why extractors failed, and how often, the most frequent first.
    """

    shares: dict[str, list[Share]] = field(default_factory=dict)
    more: dict[str, int] = field(default_factory=dict)
    months: tuple[str, str] | None = None
    with_place: int = 0
    where: str | None = None
    largest: list[tuple[str, int]] = field(default_factory=list)
    copies: int = 0
    wasted: int = 0
    statuses: dict[str | None, int] = field(default_factory=dict)
    reasons: list[tuple[str, int]] = field(default_factory=list)


def summary_of(tables: ContentTables, bucket: str, prefix: str = "") -> Summary:
    """What the table says of a place now. Of one that it has nothing of, an empty one."""
    search = Search(bucket=bucket, path=_below(prefix))
    try:
        return _summary(tables, search)
    except NotFoundError:
        return Summary()


def _summary(tables: ContentTables, search: Search) -> Summary:
    cache = ByteCache(_PASSES)  # the same columns are asked for again and again

    def counted(by: str) -> list[dict[str, Any]]:
        return facets(tables, search, by, _MANY, cache=cache).groups

    statuses = {group["value"]: group["objects"] for group in counted("status")}
    if not statuses:
        return Summary()
    groups = {name: [g for g in counted(by) if g["value"] is not None] for by, name in _SHOWN.items()}
    months = sorted(g["value"] for g in counted("month") if g["value"] is not None)
    places = [g for g in counted("place") if g["value"] is not None]
    same = duplicates(tables, search, 0, cache=cache)
    return Summary(
        {name: _top(found, in_order=name == "year") for name, found in groups.items()},
        {name: max(0, len(found) - _TOP) for name, found in groups.items()},
        (months[0], months[-1]) if months else None,
        sum(group["objects"] for group in places),
        places[0]["value"] if places else None,
        [(row["key"], row["size"] or 0) for row in largest(tables, search, _LARGEST, cache=cache)],
        same.objects,
        same.wasted_bytes,
        statuses,
        _reasons(tables, search, cache) if statuses.get("failed") else [],
    )


def _top(groups: Sequence[dict[str, Any]], *, in_order: bool) -> list[Share]:
    shares = [Share(str(group["value"]), group["objects"], group["bytes"]) for group in groups[:_TOP]]
    return sorted(shares, key=lambda share: share.name) if in_order else shares


def _reasons(tables: ContentTables, search: Search, cache: ByteCache) -> list[tuple[str, int]]:
    failed = Search(bucket=search.bucket, path=search.path, status="failed")
    rows = find(tables, failed, limit=_FAILURES, columns=("extraction",), cache=cache).rows
    told = Counter(
        f"{name}: {state['reason']}"
        for row in rows
        for name, state in (row["extraction"] or {}).items()
        if state["status"] == "failed"
    )
    return told.most_common(_REASONS)


def _below(prefix: str) -> str | None:
    """All keys that begin with a prefix, as a pattern; with a slash, or it would be about names alone."""
    plain = "".join(f"[{char}]" if char in "*?[" else char for char in prefix)
    return f"{plain}**/**" if prefix else None
