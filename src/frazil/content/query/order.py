"""Orders of objects, and cursors: where the next page begins."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.query.column_tests import numbers
from frazil.content.query.conditions import degrees, hash_distances
from frazil.content.query.filters import Search
from frazil.errors import UsageError
from frazil.tables.metadata.bounds import decode_bounds
from frazil.tables.reading.column_blocks import Block

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask

Sort = Literal["key", "size", "modified", "taken", "distance", "rating"]
#: Orders of a list, which has nothing to measure a distance from.
ListSort = Literal["key", "size", "modified"]

#: Ranked by a column, the greatest first.
_COLUMNS = {"size": "size", "modified": "last_modified", "taken": "taken_at", "rating": "rating"}
_NAME = ("bucket", "key", "version_id")
_LOWEST = -(2**63)
_KEYS = [("rank", "descending"), *((name, "ascending") for name in _NAME)]
_KEY_NAMES = ["rank", *_NAME]


@dataclass(frozen=True)
class HitOrder:
    """By rank, the greatest first, then by bucket, key and version. By key all ranks are the same.

    Attributes:
        search: what a distance is measured from.
        sort: what ranks.
        after: rank and name of the row that the page before has ended with.
    """

    search: Search | None
    sort: Sort
    after: tuple[Any, ...] | None = None

    @classmethod
    def of_list(cls, sort: ListSort, after: str | None = None) -> HitOrder:
        """Returns an order of a list.

        Raises:
            UsageError: there is no such order, or `after` is of another order.
        """
        if sort not in get_args(ListSort):
            raise UsageError(f"{sort!r} is no order of objects", hint=", ".join(get_args(ListSort)))
        return cls(None, sort, None if after is None else _decode_cursor(after, sort))

    @classmethod
    def of(cls, search: Search, sort: Sort | None, after: str | None = None) -> HitOrder:
        """Returns an order; by default that of distance from a picture or a place, else of keys.

        Raises:
            UsageError: there is no such order, or nothing to be distant from, or `after` is of another order.
        """
        measured = search.similar is not None or search.circle is not None
        sort = sort or ("distance" if measured else "key")
        if sort not in get_args(Sort):
            raise UsageError(f"{sort!r} is no order of objects", hint=", ".join(get_args(Sort)))
        if sort == "distance" and not measured:
            raise UsageError(
                "there is nothing to measure a distance from", hint="near a place, or similar to a picture"
            )
        return cls(search, sort, None if after is None else _decode_cursor(after, sort))

    def to_expression(self) -> BooleanExpression:
        """Returns what Iceberg can tell of rows behind `after`, so that files before it are not read."""
        from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThan, GreaterThanOrEqual, Or

        if self.after is None or self.sort != "key":
            return AlwaysTrue()
        _, bucket, key, _ = self.after
        same = And(EqualTo(term="bucket", value=bucket), GreaterThanOrEqual(term="key", value=key))
        return Or(GreaterThan(term="bucket", value=bucket), same)

    def ranks(self, block: Block, at: Any) -> Any:
        """Ranks of some rows of a block."""
        if self.sort == "key":
            return np.zeros(len(at), np.int64)
        if self.sort != "distance":
            name = _COLUMNS[self.sort]
            if not block.has(name):
                return np.full(len(at), _LOWEST)
            (column,) = block.columns([name])
            return numbers(column.take(pa.array(at)), _LOWEST).astype(np.int64)
        assert self.search is not None
        names = ["perceptual_hash"] if self.search.similar is not None else ["latitude", "longitude"]
        return -_measure(self.search, *(column.take(pa.array(at)) for column in block.columns(names)))

    def candidates(self, block: Block, at: Any, best: pa.Table | None, count: int) -> pa.Table:
        """Rows of a block that may be among the first: with rank, name, file and position."""
        ranks = self.ranks(block, at)
        worst = None
        if best is not None and best.num_rows >= count:
            worst = tuple(best.slice(best.num_rows - 1).select(_KEY_NAMES).to_pylist()[0].values())
            fair = ranks >= worst[0]
            at, ranks = at[fair], ranks[fair]
            if not len(at):  # nearly always, once the best are known: then no name is read
                return best.slice(0, 0)
        names = [column.take(pa.array(at)) for column in block.columns(_NAME)]
        plain = [n.dictionary_decode() if pa.types.is_dictionary(n.type) else n for n in names]
        rows = pa.table(
            {
                "rank": pa.array(ranks, pa.int64()),
                **dict(zip(_NAME, (n.cast(pa.string()) for n in plain), strict=True)),
                "file": pa.array(np.full(len(at), block.number)),
                "position": pa.array(at + block.start),
            }
        )
        if self.after is not None:
            rows = rows.filter(_behind(rows, self.after))
        if worst is not None:
            rows = rows.filter(pc.invert(_behind(rows, worst)))
        return rows

    @staticmethod
    def first(parts: Sequence[pa.Table], count: int) -> pa.Table:
        """The first rows of some, in order."""
        rows = pa.concat_tables(parts)
        if rows.num_rows > 2 * count:
            rows = rows.take(pc.select_k_unstable(rows, k=count, sort_keys=_KEYS))
        return rows.take(pc.sort_indices(rows, sort_keys=_KEYS)[:count])

    def by_bound(self, schema: Schema, files: Sequence[FileScanTask]) -> list[tuple[int, Any]]:
        """Numbers of files with the first place that a row of them may have, in the order of these."""
        if self.sort == "key":
            fields = [schema.find_field(name) for name in ("bucket", "key")]
            places = [tuple(decode_bounds(file.file, f)[0] or "" for f in fields) for file in files]
            return sorted(enumerate(places), key=lambda f: f[1])
        name = _COLUMNS.get(self.sort)
        if name is None or name not in schema.column_names:
            return [(number, None) for number in range(len(files))]
        field = schema.find_field(name)
        ends = [decode_bounds(file.file, field)[1] for file in files]
        ranked = [(number, 2**63 if end is None else int(end)) for number, end in enumerate(ends)]
        return sorted(ranked, key=lambda f: f[1], reverse=True)

    def is_beyond(self, first: Any, best: pa.Table) -> bool:
        """Whether no row of a file can come before the last of the best."""
        last = best.slice(best.num_rows - 1)
        if first is None:
            return False
        if self.sort == "key":
            return bool(first > (last.column("bucket")[0].as_py(), last.column("key")[0].as_py()))
        return bool(first < last.column("rank")[0].as_py())

    def cursor(self, rows: pa.Table) -> str:
        """The place behind the last of some rows, as a text for others to give back."""
        last = rows.slice(rows.num_rows - 1).select(_KEY_NAMES).to_pylist()[0]
        text = json.dumps([self.sort, *last.values()], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _measure(search: Search, *columns: Any) -> Any:
    """Bits, or millimetres."""
    if search.similar is not None:
        return hash_distances(columns[0], search.similar.hash)
    assert search.circle is not None
    return np.rint(search.circle.distances(*degrees(*columns)) * 1_000_000).astype(np.int64)


def _behind(rows: pa.Table, after: tuple[Any, ...]) -> Any:
    behind: Any = None
    for (name, way), value in reversed(list(zip(_KEYS, after, strict=True))):
        column = rows.column(name)
        further = pc.greater(column, value) if way == "ascending" else pc.less(column, value)
        behind = further if behind is None else pc.or_(further, pc.and_(pc.equal(column, value), behind))
    return behind


def _decode_cursor(text: str, sort: Sort) -> tuple[Any, ...]:
    try:
        of, *values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        for value in values:
            str(value).encode()  # a lone surrogate is in no table
    except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError):
        of, values = None, []
    if sort == "key" and len(values) == len(_NAME):  # as lists wrote it before
        values = [0, *values]
    fits = [type(value) for value in values] == [int, str, str, str] and _LOWEST <= values[0] < 2**63
    if of != sort or not fits:
        raise UsageError(
            "'after' is not the end of a page in this order", hint="what the page before said, with the same sort"
        )
    return tuple(values)
