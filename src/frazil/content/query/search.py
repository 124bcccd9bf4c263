"""Answers of a search: the first hits with their columns, and each hit for whoever adds them up or writes them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil.content.query.conditions import Conditions, degrees, hash_distances, where
from frazil.content.query.objects import Page, plain_rows, require_bucket
from frazil.content.query.order import Order, Sort
from frazil.content.query.request import Search
from frazil.content.tables import ContentTables
from frazil.errors import UsageError
from frazil.tables.cache import ByteCache, disabled_cache
from frazil.tables.reading.column_blocks import Block, BlockScan

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: What is told of each hit where nobody names columns.
SHOWN = (
    "bucket", "key", "version_id", "size", "last_modified", "etag", "content_type", "detected_type", "taken_at",
    "camera", "labels", "latitude", "longitude", "image_width", "image_height", "duration", "page_count", "title",
    "author", "user_tags", "rating", "extraction_status",
)  # fmt: skip
#: What a hit is known by, and always told.
NAMED = ("bucket", "key", "version_id")


class Hits:
    """What a search finds in the current snapshot of a table.

    Args:
        tables: where.
        table: the table of objects.
        search: what somebody looks for.
        kept: what was decoded before.
    """

    def __init__(self, tables: ContentTables, table: Table, search: Search, kept: ByteCache | None = None) -> None:
        from frazil.tables.create import to_arrow_schema

        schema = to_arrow_schema(table.schema())
        self._conditions = Conditions(search, schema)
        self.files = BlockScan(tables.store, table, where(search, schema), disabled_cache() if kept is None else kept)

    @property
    def schema(self) -> pa.Schema:
        return self.files.schema

    def __iter__(self) -> Iterator[tuple[Block, Any]]:
        """Blocks with the places of hits in them, ascending; blocks without any are left out."""
        for number in range(len(self.files.tasks)):
            yield from self.of(number)

    def of(self, number: int) -> Iterator[tuple[Block, Any]]:
        for block in self.files.of(number):
            at = self._conditions.of(block)
            if len(at):
                yield block, at


def find(
    tables: ContentTables,
    search: Search,
    *,
    sort: Sort | None = None,
    limit: int = 100,
    after: str | None = None,
    columns: Sequence[str] | None = None,
    kept: ByteCache | None = None,
) -> Page:
    """The first hits of a search.

    Args:
        tables: where.
        search: what is looked for.
        sort: `key`; `size`, `modified`, `taken`, `rating`: the greatest first; `distance`: the nearest first.
        limit: at most so many.
        after: `after` of the page before, with the same search and sort.
        columns: those to tell; by default `SHOWN`. The name of the object is always told.
        kept: what was decoded before, in a process that answers again and again.

    Raises:
        NotFoundError: nobody knows the bucket, or the table is not there yet.
        UsageError: there is no such column or order, or `after` is not of such a page.
    """
    order = Order.of(search, sort, after)
    found = tables.read(
        tables.objects, lambda table: _page(Hits(tables, table, search, kept), search, order, limit, columns)
    )
    if not found.rows and after is None and search.bucket is not None:
        require_bucket(tables, search.bucket)
    return found


def largest(
    tables: ContentTables, search: Search, limit: int = 10, *, kept: ByteCache | None = None
) -> list[dict[str, Any]]:
    """The largest hits of a search, with `bucket`, `key`, `version_id` and `size`."""
    return find(tables, search, sort="size", limit=limit, columns=("size",), kept=kept).rows


def _page(hits: Hits, search: Search, order: Order, limit: int, columns: Sequence[str] | None) -> Page:
    names = shown_columns(hits.schema, columns)
    best: pa.Table | None = None
    for number, first in order.by_bound(hits.files.table.schema(), hits.files.tasks):
        # One more than wanted, which tells that there is a next page.
        if best is not None and best.num_rows > limit and order.is_beyond(first, best):
            break
        for block, at in hits.of(number):
            new = order.candidates(block, at, best, limit + 1)
            best = order.first([new] if best is None else [best, new], limit + 1)
    if best is None:
        return Page([], None)
    taken = best.slice(0, limit)
    places = list(zip(taken.column("file").to_pylist(), taken.column("position").to_pylist(), strict=True))
    measured = [name for name in _measured_by(search) if name not in names]
    rows = hits.files.taken(places, [*names, *measured])
    told = _with_distance(search, rows, plain_rows(rows.select(names)))
    return Page(told, order.place(taken) if best.num_rows > limit else None)


def shown_columns(schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
    """The columns to tell, the name of the object first.

    Raises:
        UsageError: the table has no such column.
    """
    if columns is None:
        return [name for name in SHOWN if name in schema.names]
    for name in columns:
        if name not in schema.names or name.startswith("frazil_"):
            known = ", ".join(n for n in schema.names if not n.startswith("frazil_"))
            raise UsageError(f"there is no column {name!r}", hint=known)
    return list(dict.fromkeys([*NAMED, *columns]))


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
