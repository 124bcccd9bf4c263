"""Search: the first hits with their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from frazil.content.query.conditions import degrees, hash_distances
from frazil.content.query.filters import Search
from frazil.content.query.objects import require_bucket
from frazil.content.query.order import HitOrder, Sort
from frazil.content.query.page import Hits, Page, plain_rows, read_page
from frazil.content.tables import ContentTables
from frazil.errors import UsageError
from frazil.tables.cache import ByteCache

#: The columns of each hit if the request names none.
HIT_COLUMNS = (
    "bucket", "key", "version_id", "size", "last_modified", "etag", "content_type", "detected_type", "taken_at",
    "camera", "labels", "latitude", "longitude", "image_width", "image_height", "duration", "page_count", "title",
    "author", "user_tags", "rating", "extraction_status",
)  # fmt: skip
#: What a hit is known by, and always told.
KEY_COLUMNS = ("bucket", "key", "version_id")


def find(
    tables: ContentTables,
    search: Search,
    *,
    sort: Sort | None = None,
    limit: int = 100,
    after: str | None = None,
    columns: Sequence[str] | None = None,
    cache: ByteCache | None = None,
) -> Page:
    """The first hits of a search.

    Args:
        tables: where.
        search: what is looked for.
        sort: `key`; `size`, `modified`, `taken`, `rating`: the greatest first; `distance`: the nearest first.
        limit: at most so many.
        after: `after` of the page before, with the same search and sort.
        columns: those to tell; by default `HIT_COLUMNS`. The name of the object is always told.
        cache: what was decoded before, in a process that answers again and again.

    Raises:
        NotFoundError: the bucket is unknown, or the table does not exist yet.
        UsageError: there is no such column or order, or `after` is not of such a page.
    """
    order = HitOrder.of(search, sort, after)
    found = tables.read(
        tables.objects, lambda table: _page(Hits(tables, table, search, cache, order), search, order, limit, columns)
    )
    if not found.rows and after is None and search.bucket is not None:
        require_bucket(tables, search.bucket)
    return found


def largest(
    tables: ContentTables, search: Search, limit: int = 10, *, cache: ByteCache | None = None
) -> list[dict[str, Any]]:
    """The largest hits of a search, with `bucket`, `key`, `version_id` and `size`."""
    return find(tables, search, sort="size", limit=limit, columns=("size",), cache=cache).rows


def _page(hits: Hits, search: Search, order: HitOrder, limit: int, columns: Sequence[str] | None) -> Page:
    names = shown_columns(hits.schema, columns)
    measured = [name for name in _measured_by(search) if name in hits.schema.names and name not in names]
    rows, after = read_page(hits, order, limit, [*names, *measured])
    if not rows.num_rows:
        return Page([], None)
    return Page(_with_distance(search, rows, plain_rows(rows.select(names))), after)


def shown_columns(schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
    """The columns to tell, the name of the object first.

    Raises:
        UsageError: the table has no such column.
    """
    if columns is None:
        return [name for name in HIT_COLUMNS if name in schema.names]
    for name in columns:
        if name not in schema.names or name.startswith("frazil_"):
            known = ", ".join(n for n in schema.names if not n.startswith("frazil_"))
            raise UsageError(f"there is no column {name!r}", hint=known)
    return list(dict.fromkeys([*KEY_COLUMNS, *columns]))


def _measured_by(search: Search) -> list[str]:
    bits = ["perceptual_hash"] if search.similar is not None else []
    return [*bits, *(["latitude", "longitude"] if search.circle is not None else [])]


def _with_distance(search: Search, rows: pa.Table, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    more: dict[str, list[Any]] = {}
    if search.similar is not None:
        more["distance_bits"] = hash_distances(_one(rows, "perceptual_hash"), search.similar.hash).tolist()
    if search.circle is not None:
        places = degrees(_one(rows, "latitude"), _one(rows, "longitude"))
        more["distance_km"] = search.circle.distances(*places).round(6).tolist()
    return [{**row, **{name: values[n] for name, values in more.items()}} for n, row in enumerate(told)]


def _one(rows: pa.Table, name: str) -> Any:
    column = rows.column(name).combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
