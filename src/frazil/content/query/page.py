"""One page of the rows that match: which files come first, when to stop, and the columns to show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil.content.query.conditions import Conditions, file_expression
from frazil.content.query.filters import ObjectFilter, Search
from frazil.content.query.order import HitOrder
from frazil.content.tables import ContentTables
from frazil.tables.cache import ByteCache, disabled_cache
from frazil.tables.reading.column_blocks import Block, BlockScan

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True)
class Page:
    """Rows in order. `after` is where the next page begins; None: there is none."""

    rows: list[dict[str, Any]]
    after: str | None


class Hits:
    """The rows that match a search, or the filter of a list, in the current snapshot of a table.

    Args:
        tables: where.
        table: the table of objects.
        selection: the search or filter.
        cache: what was decoded before.
        order: files that have only rows before its `after` are left out.
    """

    def __init__(
        self,
        tables: ContentTables,
        table: Table,
        selection: Search | ObjectFilter,
        cache: ByteCache | None = None,
        order: HitOrder | None = None,
    ) -> None:
        from pyiceberg.expressions import And

        from frazil.tables.create import to_arrow_schema

        schema = to_arrow_schema(table.schema())
        self._conditions = Conditions(selection, schema)
        rows = file_expression(selection, schema)
        files = rows if order is None else And(rows, order.to_expression())
        self.files = BlockScan(tables.store, table, files, disabled_cache() if cache is None else cache)

    @property
    def schema(self) -> pa.Schema:
        return self.files.schema

    def __iter__(self) -> Iterator[tuple[Block, Any]]:
        """Blocks with the places of hits in them, ascending; blocks without any are left out."""
        for number in range(len(self.files.tasks)):
            yield from self.of(number)

    def of(self, number: int) -> Iterator[tuple[Block, Any]]:
        for block in self.files.of(number):
            at = self._conditions.match(block)
            if len(at):
                yield block, at


def read_page(hits: Hits, order: HitOrder, limit: int, columns: Sequence[str]) -> tuple[pa.Table, str | None]:
    """Returns columns of the first rows in an order, and where the next page begins; None: there is none."""
    best: pa.Table | None = None
    for number, first in order.by_bound(hits.files.table.schema(), hits.files.tasks):
        # One more than wanted, which tells that there is a next page.
        if best is not None and best.num_rows > limit and order.is_beyond(first, best):
            break
        for block, at in hits.of(number):
            new = order.candidates(block, at, best, limit + 1)
            best = order.first([new] if best is None else [best, new], limit + 1)
    if best is None:
        return hits.files.taken([], columns), None
    shown = best.slice(0, limit)
    places = zip(*(shown.column(name).to_pylist() for name in ("file", "position")), strict=True)
    return hits.files.taken(list(places), columns), order.cursor(shown) if best.num_rows > limit else None


def plain_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as plain values; maps as dictionaries."""
    maps = [f.name for f in rows.schema if pa.types.is_map(f.type)]
    found: list[dict[str, Any]] = rows.to_pylist()
    for row in found:
        row.update({name: None if row[name] is None else dict(row[name]) for name in maps})
    return found
