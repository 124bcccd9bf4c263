"""Translates filters, orders and cursors into SQL conditions, the same for the present and for a past moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, or_, tuple_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Boolean

from frazil.documents.fields import check_text
from frazil.documents.model import RESTORE_STATES, TIERS, parse_time, to_micros
from frazil.documents.sql.rows import tag_text
from frazil.documents.sql.schema import document_history, documents
from frazil.documents.store import SORT_FIELDS, DocumentFilter
from frazil.errors import UsageError

MAX_LIMIT = 10_000
_MAX_WORDS = 32
_EQUAL = ("storage_tier", "provider", "restore_status", "content_type", "bucket", "object_key")
_ALLOWED: Mapping[str, Mapping[str, Any]] = {"storage_tier": TIERS, "restore_status": RESTORE_STATES}
_LAST_CHAR, _SURROGATES, _AFTER_SURROGATES = "\U0010ffff", "\ud7ff", "\ue000"


class contains(FunctionElement[bool]):  # noqa: N801 - a function in SQL
    """Whether a text has another one in it, as it is: LIKE ignores case on some databases."""

    type = Boolean()
    inherit_cache = True


@compiles(contains)
def _contains(element: Any, compiler: Any, **options: Any) -> str:
    return f"instr({compiler.process(element.clauses, **options)}) > 0"


@compiles(contains, "postgresql")
def _contains_postgres(element: Any, compiler: Any, **options: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **options)}) > 0"


@dataclass(frozen=True)
class Listing:
    """Which documents, of which moment, in which order.

    Attributes:
        conditions: the filter with its values in the types of the tables.
        sort: a field of `SORT_FIELDS`. Documents with equal values are ordered by their id.
        descending: the greatest first.
        as_of: the moment in microseconds; None: the present.
    """

    conditions: Mapping[str, Any]
    sort: str = "created_at"
    descending: bool = False
    as_of: int | None = None

    @property
    def table(self) -> Table:
        return documents if self.as_of is None else document_history

    def to_dict(self) -> dict[str, Any]:
        """Returns what a cursor is bound to."""
        return asdict(self)


def make_listing(
    where: DocumentFilter | None, sort: str = "created_at", descending: bool = False, as_of: Any = None
) -> Listing:
    """Checks a request for documents.

    Raises:
        UsageError: a value is wrong; the message names it.
    """
    if sort not in SORT_FIELDS:
        raise UsageError(f"sort field '{str(sort)[:80]}' does not exist", hint=f"one of: {', '.join(SORT_FIELDS)}")
    return Listing(check_filter(where or DocumentFilter()), sort, bool(descending), check_moment(as_of))


def check_moment(as_of: Any, name: str = "as_of") -> int | None:
    return None if as_of is None else to_micros(parse_time(as_of, name))


def check_limit(limit: Any) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"limit is invalid: {str(limit)[:80]}", hint=f"a whole number from 1 to {MAX_LIMIT:,}")
    return limit


def check_filter(where: DocumentFilter) -> dict[str, Any]:
    """Returns the conditions of a filter that are given, in the types of the tables."""
    made: dict[str, Any] = {}
    for name in (*_EQUAL, "name_prefix"):
        value = check_text(name, getattr(where, name))
        if value is not None:
            made[name] = value
            if value not in _ALLOWED.get(name, (value,)):
                raise UsageError(
                    f"filter '{name}' is invalid: {value[:80]!r}", hint=f"one of: {', '.join(_ALLOWED[name])}"
                )
    for name in ("start_date", "end_date"):
        if (moment := getattr(where, name)) is not None:
            made[name] = to_micros(parse_time(moment, name))
    for name in ("min_size", "max_size"):
        size = getattr(where, name)
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or not -(2**63) <= size < 2**63:
                raise UsageError(f"filter '{name}' is invalid: {str(size)[:80]!r}", hint="a whole number of bytes")
            made[name] = size
    if where.tags:
        made["tags"] = _check_tags(where.tags)
    if words := (check_text("words", where.words) or "").split():
        if len(words) > _MAX_WORDS:
            raise UsageError(f"filter 'words' has {len(words):,} words", hint=f"at most {_MAX_WORDS}")
        made["words"] = sorted({word.casefold() for word in words})
    return made


def conditions_of(listing: Listing) -> list[ColumnElement[bool]]:
    """Returns the conditions of a listing on its table."""
    c = listing.table.c
    made: list[ColumnElement[bool]] = []
    if listing.as_of is not None:
        made += at_moment(listing.as_of)
    for name, value in listing.conditions.items():
        match name:
            case "start_date":
                made.append(c.created_at >= value)
            case "end_date":
                made.append(c.created_at < value)
            case "min_size":
                made.append(c.size_bytes >= value)
            case "max_size":
                made.append(c.size_bytes <= value)
            case "name_prefix":
                made += _begins_with(c.filename, value)
            case "tags":
                made += [contains(c.search_text, tag_text(tag, text)) for tag, text in value.items()]
            case "words":
                made += [contains(c.search_text, word) for word in value]
            case _:
                made.append(c[name] == value)
    return made


def at_moment(micros: int) -> list[ColumnElement[bool]]:
    """Returns the conditions on the history for the documents that existed at a moment."""
    c = document_history.c
    return [c.valid_from <= micros, c.valid_to > micros, c.operation != "delete"]


def order_of(listing: Listing, dialect: str) -> list[ColumnElement[Any]]:
    """Returns the order of a listing: rows without a value are the smallest."""
    c = listing.table.c
    columns = [c[listing.sort]] if listing.sort == "document_id" else [c[listing.sort], c.document_id]
    made: list[Any] = [column.desc() if listing.descending else column.asc() for column in columns]
    if listing.sort == "size_bytes" and dialect == "postgresql":
        made[0] = made[0].nulls_last() if listing.descending else made[0].nulls_first()
    return made


def place_of(listing: Listing, document_id: str, value: Any) -> list[Any]:
    return [document_id] if listing.sort == "document_id" else [value, document_id]


def after_place(listing: Listing, place: list[Any], dialect: str) -> ColumnElement[bool]:
    """Returns the condition for the rows that follow a place in the order of a listing."""
    c = listing.table.c
    column, document_id = c[listing.sort], place[-1]
    beyond: ColumnElement[bool] = c.document_id < document_id if listing.descending else c.document_id > document_id
    if listing.sort == "document_id":
        return beyond
    value = place[0]
    if value is None:
        return and_(column.is_(None), beyond) if listing.descending else or_(column.is_not(None), beyond)
    if dialect in ("sqlite", "postgresql"):
        pair, limit = tuple_(column, c.document_id), tuple_(value, document_id)
        further: ColumnElement[bool] = pair < limit if listing.descending else pair > limit
    else:  # MySQL uses its index for this form only
        greater = column < value if listing.descending else column > value
        further = or_(greater, and_(column == value, beyond))
    return or_(further, column.is_(None)) if listing.descending and column.nullable else further


def _begins_with(column: Any, prefix: str) -> list[ColumnElement[bool]]:
    """A range, in which an index helps: texts compare by code point."""
    if not prefix:
        return []
    kept = prefix.rstrip(_LAST_CHAR)
    if not kept:
        return [column >= prefix]
    last = _AFTER_SURROGATES if kept[-1] == _SURROGATES else chr(ord(kept[-1]) + 1)
    return [column >= prefix, column < kept[:-1] + last]


def _check_tags(tags: Any) -> dict[str, str | None]:
    if not isinstance(tags, Mapping) or len(tags) > _MAX_WORDS:
        raise UsageError("filter 'tags' is invalid", hint=f'a map of at most {_MAX_WORDS}, such as {{"project": "x"}}')
    made = {}
    for name, value in tags.items():
        if not check_text("tags", name):
            raise UsageError("filter 'tags' has a tag without a name", hint='{"project": "apollo"}')
        made[name] = check_text("tags", value)
    return made
