"""Conditions of lists and searches: as expressions of Iceberg, which skip files without hits, and on rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.query import column_tests
from frazil.content.query.field_conditions import JsonCondition
from frazil.content.query.filters import ObjectFilter, Search, all_of, plain_version
from frazil.content.query.geo import Box
from frazil.content.query.words import WordsInside, key_pattern, literal_prefix
from frazil.tables.reading.column_blocks import WIDE, Block

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression


@dataclass(frozen=True)
class Condition:
    """A question about some columns of a row.

    Attributes:
        columns: which; all are there in the table.
        holds: columns of some rows → a truth per row.
    """

    columns: tuple[str, ...]
    holds: Callable[..., Any]


class Conditions:
    """All that must be true of a row.

    Args:
        selection: the search, or the filter of a list.
        schema: the columns that the table has. A question about one that it lacks is true of no row.

    Raises:
        UsageError: a field names no column, or its value is not of the column's type.
    """

    def __init__(self, selection: Search | ObjectFilter, schema: pa.Schema) -> None:
        search = selection if isinstance(selection, Search) else Search()
        self._never = False
        self._narrow: list[Condition] = []
        self._wide: list[Condition] = []
        for condition in _conditions(selection, schema):
            self._never = self._never or not set(condition.columns) <= set(schema.names)
            (self._wide if set(condition.columns) & WIDE else self._narrow).append(condition)
        found = [field.bind(schema) for field in search.fields]
        self._inside = [f for f in found if isinstance(f, JsonCondition)]
        self._never = self._never or (bool(self._inside) and "metadata" not in schema.names)
        self._words = WordsInside(search.words, schema) if search.words else None

    def match(self, block: Block) -> Any:
        """Returns the rows of a block that match: their positions in it, ascending."""
        if self._never:
            return np.empty(0, np.int64)
        alive = block.alive()
        at: Any = None if alive is None else np.flatnonzero(alive)
        for condition in self._narrow:
            at = _remaining(block, condition, at)
            if not len(at):
                return at
        for condition in self._wide:
            truths = np.zeros(len(at), bool)
            for inside, part in block.wide(condition.columns[0], at):
                truths[inside] = condition.holds(part)
            at = at[truths]
        for field in self._inside:
            at = field.of(block, at)
        return self._words.of(block, at) if self._words is not None else at


def file_expression(search: Search | ObjectFilter, schema: pa.Schema) -> BooleanExpression:
    """Returns what Iceberg's statistics can tell. It is true of more rows than match."""
    from pyiceberg.expressions import GreaterThanOrEqual, LessThan, LessThanOrEqual

    if isinstance(search, ObjectFilter):
        return search.to_expression()

    prefix = literal_prefix(search.path) if search.path else None
    selection = ObjectFilter(bucket=search.bucket, prefix=prefix, min_size=search.min_size, max_size=search.max_size)
    terms = [selection.to_expression()]
    there = set(schema.names)
    if search.taken is not None and "taken_at" in there:
        if search.taken.since is not None:
            terms.append(GreaterThanOrEqual(term="taken_at", value=search.taken.since.isoformat()))
        if search.taken.until is not None:
            terms.append(LessThan(term="taken_at", value=search.taken.until.isoformat()))
    boxes = [search.box, search.circle.box() if search.circle is not None else None]
    if {"latitude", "longitude"} <= there:
        terms += [_in_box(box) for box in boxes if box is not None]
    if search.rating is not None and "rating" in there:
        terms.append(GreaterThanOrEqual(term="rating", value=search.rating[0]))
        terms.append(LessThanOrEqual(term="rating", value=search.rating[1]))
    return all_of(terms)


def _in_box(box: Box) -> BooleanExpression:
    from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual, Or

    high = And(GreaterThanOrEqual(term="latitude", value=box.south), LessThanOrEqual(term="latitude", value=box.north))
    east = GreaterThanOrEqual(term="longitude", value=box.west)
    west = LessThanOrEqual(term="longitude", value=box.east)
    return And(high, Or(east, west) if box.crosses else And(east, west))


def _remaining(block: Block, condition: Condition, at: Any) -> Any:
    """The rows that are left. Where most still are, taking them out costs more than judging all."""
    columns = block.columns(condition.columns)
    if at is None:
        return np.flatnonzero(condition.holds(*columns))
    if 2 * len(at) > block.rows:
        return at[condition.holds(*columns)[at]]
    return at[condition.holds(*(column.take(pa.array(at)) for column in columns))]


def _conditions(search: Search | ObjectFilter, schema: pa.Schema) -> Iterator[Condition]:
    if isinstance(search, ObjectFilter):
        yield from list_conditions(search)
        return
    yield Condition(("is_latest", "is_deleted", "is_delete_marker"), _is_present)
    if search.min_size is not None or search.max_size is not None:
        yield Condition(("size",), lambda size: _between(size, search.min_size, search.max_size))
    if search.taken is not None:
        since, until = search.taken.since, search.taken.until
        yield Condition(("taken_at",), lambda taken: _between(taken, since, until, before=True))
    if search.rating is not None:
        least, most = search.rating
        yield Condition(("rating",), lambda rating: _between(rating, least, most))
    yield from _places(search)
    if search.similar is not None:
        alike = search.similar
        yield Condition(("perceptual_hash",), lambda h: hash_distances(h, alike.hash) <= alike.distance)
    yield from _texts(search)
    for field in search.fields:
        found = field.bind(schema)
        if not isinstance(found, JsonCondition):
            yield Condition((found.column,), found.holds)


def list_conditions(selection: ObjectFilter) -> Iterator[Condition]:
    """The conditions of a list."""
    yield Condition(("is_latest", "is_deleted", "is_delete_marker"), lambda *flags: _has_state(selection, *flags))
    exact = {"bucket": selection.bucket, "key": selection.key, "version_id": plain_version(selection.version_id)}
    for name, text in exact.items():
        if text is not None:
            yield _text(name, _is_equal(text))
    if selection.prefix:
        yield _text("key", lambda texts: pc.starts_with(texts, selection.prefix))
    if selection.min_size is not None or selection.max_size is not None:
        yield Condition(("size",), lambda size: _between(size, selection.min_size, selection.max_size))
    if selection.since is not None or selection.until is not None:
        yield Condition(("last_modified",), lambda time: _between(time, selection.since, selection.until, before=True))
    if selection.storage_class is not None:
        classes = pa.array([selection.storage_class, selection.storage_class.upper()])
        yield _text("storage_class", lambda texts: pc.is_in(texts.cast(pa.string()), value_set=classes))
    if selection.content_type is not None:
        family = selection.content_type.removesuffix("*")
        test = pc.equal if family == selection.content_type else pc.starts_with
        yield _text("content_type", lambda texts: test(texts, family))
    for tag in selection.tags:
        key, equals, value = tag.partition("=")
        yield _stored_tag(key, value if equals else None)


def _is_equal(text: str) -> column_tests.Test:
    return lambda texts: pc.equal(texts, text)


def _has_state(selection: ObjectFilter, *flags: Any) -> Any:
    latest, deleted, marker = (flag.to_numpy(zero_copy_only=False) for flag in flags)
    present = ~deleted if selection.versions else latest & ~deleted
    wanted = {"no": present, "too": present | deleted, "only": deleted}[selection.deleted]
    return wanted if selection.markers else wanted & ~marker


def _stored_tag(key: str, value: str | None) -> Condition:
    """A tag of the object store: that it is there, or that it has this value."""

    def holds(tags: Any) -> Any:
        found = pc.map_lookup(tags, query_key=pa.scalar(key, tags.type.key_type), occurrence="last")
        return (
            column_tests.filled(found)
            if value is None
            else column_tests.evaluate_test(found, lambda t: pc.equal(t, value))
        )

    return Condition(("tags",), holds)


def _texts(search: Search) -> Iterator[Condition]:
    if search.bucket is not None:
        bucket = search.bucket
        yield Condition(
            ("bucket",), lambda column: column_tests.evaluate_test(column, lambda texts: pc.equal(texts, bucket))
        )
    if search.status is not None:
        yield _text("extraction_status", column_tests.same_text(search.status))
    if search.camera is not None:
        yield _text("camera", column_tests.contains(search.camera))
    if search.media_type is not None:
        yield _media_type(search.media_type)
    if search.labels and search.any_label:
        tests = [column_tests.has_words(label) for label in search.labels]
        yield _text("labels", lambda texts: _any(test(texts) for test in tests))
    else:
        for label in search.labels:
            yield _text("labels", column_tests.has_words(label))
    for tag in search.tags:
        yield _tag(tag)
    if search.path is not None:
        yield _text("key", column_tests.matches(key_pattern(search.path)))


def _text(column: str, test: column_tests.Test) -> Condition:
    return Condition((column,), lambda texts: column_tests.evaluate_test(texts, test))


def _any(truths: Iterator[Any]) -> Any:
    found = next(truths)
    for more in truths:
        found = pc.or_(found, more)
    return found


def _tag(tag: str) -> Condition:
    own = column_tests.same_text(tag)
    key, equals, value = tag.partition("=")
    if not equals or not key:
        return _text("user_tags", own)

    stored = _stored_tag(key, value)

    def holds(user_tags: Any, tags: Any) -> Any:
        return column_tests.evaluate_test(user_tags, own) | stored.holds(tags)

    return Condition(("user_tags", "tags"), holds)


def _media_type(wanted: str) -> Condition:
    """The type that was detected counts; where none was, the one of the upload does, without its parameters."""
    if wanted.endswith("*"):
        pattern = "^" + re.escape(wanted.removesuffix("*").lower())
    else:
        pattern = "^" + re.escape(wanted.lower()) + r"\s*(;|$)"

    def test(texts: Any) -> Any:
        return pc.match_substring_regex(pc.utf8_lower(texts), pattern)

    def holds(detected: Any, uploaded: Any) -> Any:
        return np.where(
            column_tests.filled(detected),
            column_tests.evaluate_test(detected, test),
            column_tests.evaluate_test(uploaded, test),
        )

    return Condition(("detected_type", "content_type"), holds)


def _places(search: Search) -> Iterator[Condition]:
    circle = search.circle
    for box in (search.box, circle.box() if circle is not None else None):
        if box is not None:
            yield Condition(("latitude", "longitude"), lambda lat, lon, box=box: box.holds(*degrees(lat, lon)))
    if circle is not None:

        def near(latitude: Any, longitude: Any) -> Any:
            found = circle.distances(*degrees(latitude, longitude))
            return np.isfinite(found) if circle.km is None else found <= circle.km

        yield Condition(("latitude", "longitude"), near)


def degrees(latitude: Any, longitude: Any) -> tuple[Any, Any]:
    """For NumPy; NaN, which lies nowhere, where there is no place."""
    return column_tests.numbers(latitude, np.nan), column_tests.numbers(longitude, np.nan)


def hash_distances(hashes: Any, of: int) -> Any:
    """Bits in which hashes differ from one; 65 where there is none."""
    found = column_tests.numbers(hashes, 0).view(np.uint64)
    bits = np.bitwise_count(found ^ np.uint64(of & 0xFFFF_FFFF_FFFF_FFFF)).astype(np.int64)
    bits[~column_tests.filled(hashes)] = 65
    return bits


def _is_present(is_latest: Any, is_deleted: Any, is_delete_marker: Any) -> Any:
    gone = pc.or_(is_deleted, is_delete_marker)
    return pc.and_not(is_latest, gone).to_numpy(zero_copy_only=False)


def _between(column: Any, least: Any, most: Any, *, before: bool = False) -> Any:
    truths = column_tests.filled(column)
    if least is not None:
        truths &= column_tests.evaluate_test(column, lambda c: pc.greater_equal(c, pa.scalar(least, c.type)))
    if most is not None:
        compare = pc.less if before else pc.less_equal
        truths &= column_tests.evaluate_test(column, lambda c: compare(c, pa.scalar(most, c.type)))
    return truths
