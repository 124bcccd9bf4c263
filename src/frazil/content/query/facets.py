"""Facets: hits counted by camera, label, year and so on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.query.aggregation import aggregate
from frazil.content.query.column_tests import filled, first_valid
from frazil.content.query.filters import Search
from frazil.content.query.objects import require_bucket
from frazil.content.query.page import Hits
from frazil.content.tables import ContentTables
from frazil.errors import UsageError
from frazil.tables.cache import ByteCache
from frazil.tables.reading.column_blocks import WIDE, Block

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True)
class Group:
    """What hits are grouped by.

    Attributes:
        columns: what it is made of.
        values: columns → the value of each row, or a list of them.
        shown: a value as it is told.
    """

    columns: tuple[str, ...]
    values: Callable[..., Any] = lambda column: column
    shown: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Facets:
    """Groups with `value`, `objects` and `bytes`, those with most objects first. `more`: there are others."""

    groups: list[dict[str, Any]]
    more: bool


def _media_type(detected: Any, uploaded: Any) -> Any:
    return pc.utf8_lower(pc.replace_substring_regex(first_valid([detected, uploaded]), r"\s*;.*$", ""))


def _month(taken: Any) -> Any:
    return pc.add(pc.multiply(pc.year(taken), 100), pc.month(taken))


def _place(latitude: Any, longitude: Any) -> Any:
    """Whole degrees as one number; both sides of the date line are one."""
    columns = (pc.if_else(pc.is_finite(column), column, None) for column in (latitude, longitude))
    north, east = (pc.round(column).cast(pa.int64()) for column in columns)
    east = pc.if_else(pc.equal(east, -180), 180, east)
    return pc.add(pc.multiply(pc.add(north, 90), 1000), pc.add(east, 180))


def _extension(key: Any) -> Any:
    return pc.utf8_lower(pc.struct_field(pc.extract_regex(key, r"(?s)[^/]\.(?P<ending>[^./\s]{1,16})$"), "ending"))


NAMES: dict[str, Group] = {
    "camera": Group(("camera",)),
    "label": Group(("labels",)),
    "year": Group(("taken_at",), pc.year),
    "month": Group(("taken_at",), _month, lambda v: f"{v // 100:04d}-{v % 100:02d}"),
    "type": Group(("detected_type", "content_type"), _media_type),
    "tag": Group(("user_tags",)),
    "language": Group(("language",)),
    "author": Group(("author",)),
    "place": Group(("latitude", "longitude"), _place, lambda v: f"{v // 1000 - 90},{v % 1000 - 180}"),
    "rating": Group(("rating",)),
    "status": Group(("extraction_status",)),
    "extension": Group(("key",), _extension),
}


def facet(
    tables: ContentTables, search: Search, by: str, limit: int = 100, *, cache: ByteCache | None = None
) -> list[dict[str, Any]]:
    """The groups of `facets` alone."""
    return facets(tables, search, by, limit, cache=cache).groups


def facets(
    tables: ContentTables, search: Search, by: str, limit: int = 100, *, cache: ByteCache | None = None
) -> Facets:
    """Counts hits by something.

    Args:
        tables: where.
        search: which objects.
        by: one of `NAMES`, or a column. Of lists each value counts; null is what has none.
        limit: at most so many groups.
        cache: what was decoded before.

    Raises:
        NotFoundError: the bucket is unknown, or the table does not exist yet.
        UsageError: it cannot be grouped by that.
    """
    found = tables.read(tables.objects, lambda table: _counted(tables, table, search, by, limit, cache))
    if not found.groups and search.bucket is not None:
        require_bucket(tables, search.bucket)
    return found


def _counted(
    tables: ContentTables, table: Table, search: Search, by: str, limit: int, cache: ByteCache | None
) -> Facets:  # fmt: skip
    hits = Hits(tables, table, search, cache)
    group = _group(by, hits.schema)
    kind = _kind(group, hits.schema)
    schema = pa.schema([("value", kind), ("objects", pa.int64()), ("bytes", pa.int64())])
    statement = f"""
        SELECT value, CAST(sum(objects) AS BIGINT) AS objects, CAST(sum(bytes) AS BIGINT) AS bytes
        FROM parts GROUP BY value ORDER BY objects DESC, value IS NULL, value LIMIT {limit + 1}"""  # noqa: S608 - a number
    with aggregate("parts", schema, (_part(block, at, group, schema) for block, at in hits)) as connection:
        rows: list[dict[str, Any]] = connection.execute(statement).to_arrow_table().to_pylist()
    for row in rows:
        row["value"] = None if row["value"] is None else group.shown(row["value"])
    return Facets(rows[:limit], len(rows) > limit)


def _group(by: str, schema: pa.Schema) -> Group:
    if by in NAMES:
        group = NAMES[by]
        if not set(group.columns) <= set(schema.names):
            return Group(("bucket",), lambda column: pa.nulls(len(column), pa.string()))
        return group
    if by not in schema.names or by.startswith("frazil_"):
        raise UsageError(f"objects cannot be grouped by {by!r}", hint=f"{', '.join(NAMES)}, or a column")
    kind = schema.field(by).type
    if by in WIDE or pa.types.is_map(kind) or pa.types.is_struct(kind):
        raise UsageError(f"objects cannot be grouped by {by!r}, which has names and values", hint=", ".join(NAMES))
    return Group((by,))


def _kind(group: Group, schema: pa.Schema) -> pa.DataType:
    """The type of its values: what comes out for no rows."""
    empty = group.values(*(pa.array([], schema.field(name).type) for name in group.columns))
    kind = empty.type
    kind = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
    return pa.string() if pa.types.is_large_string(kind) else kind


def _part(block: Block, at: Any, group: Group, schema: pa.Schema) -> pa.Table:
    """Sums of one block: few rows where values recur."""
    sizes, *columns = block.rows_of(("size", *group.columns), at)
    values = group.values(*columns)
    weights = pc.fill_null(sizes, 0).to_numpy(zero_copy_only=False)
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values, weights = _each(values, weights)
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    count = len(encoded.dictionary)
    codes = pc.fill_null(encoded.indices, count).to_numpy(zero_copy_only=False)
    objects = np.bincount(codes, minlength=count + 1)
    of_bytes = np.zeros(count + 1, np.int64)
    np.add.at(of_bytes, codes, weights)
    named = pa.concat_arrays(
        [encoded.dictionary.cast(schema.field("value").type), pa.nulls(1, schema.field("value").type)]
    )
    there = np.flatnonzero(objects)
    return pa.table([named, objects, of_bytes], schema=schema).take(pa.array(there))


def _each(lists: Any, weights: Any) -> tuple[Any, Any]:
    """Every value with the weight of its row; a row without any counts once, as null."""
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    flat = lists.flatten()
    encoded = flat if pa.types.is_dictionary(flat.type) else flat.dictionary_encode()
    bare = np.flatnonzero(~filled(lists))
    indices = pa.concat_arrays([encoded.indices, pa.nulls(len(bare), encoded.indices.type)])
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary), weights[np.concatenate([parents, bare])]
