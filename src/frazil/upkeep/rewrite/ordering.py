"""Whether files follow one another in the table's order, so that they can be joined without being sorted again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frazil.tables.metadata.bounds import decode_bound

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

#: Types whose bounds are compared as their values are. Floating point is left out: NaN is in no bound.
_ORDERED = ("int", "long", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "string")


@dataclass(frozen=True)
class Range:
    """A file's rows are in order, and lie between these values of the first column that they are ordered by."""

    path: str
    lower: Any
    upper: Any


@dataclass(frozen=True)
class Order:
    """The first column of a table's order, and whether it alone decides."""

    order_id: int
    field_id: int
    kind: Any
    descending: bool
    alone: bool

    def range_of(self, file: DataFile) -> Range | None:
        """What is known of a file; None where it may be out of order, or has nulls there."""
        lower, upper = (decode_bound(b, self.field_id, self.kind) for b in (file.lower_bounds, file.upper_bounds))
        nulls = (file.null_value_counts or {}).get(self.field_id)
        if file.sort_order_id != self.order_id or nulls != 0 or lower is None or upper is None:
            return None
        return Range(str(file.file_path), lower, upper)


def order_of(table: Table) -> Order | None:
    """How the table's files say that they are sorted; None for no order, or one whose bounds prove nothing."""
    from pyiceberg.table.sorting import SortDirection
    from pyiceberg.transforms import IdentityTransform

    order = table.sort_order()
    if order.is_unsorted or not isinstance(order.fields[0].transform, IdentityTransform):
        return None
    first = order.fields[0]
    kind = table.schema().find_type(first.source_id)
    if str(kind) not in _ORDERED:
        return None
    return Order(order.order_id, first.source_id, kind, first.direction is SortDirection.DESC, len(order.fields) == 1)


def ranges_of(order: Order, files: Iterable[DataFile]) -> dict[str, Range]:
    return {found.path: found for file in files if (found := order.range_of(file)) is not None}


def arranged(order: Order, known: dict[str, Range], paths: Sequence[str]) -> list[int] | None:
    """The places of paths in an order in which their rows, one file after the other, are sorted; None if none is."""
    if not all(path in known for path in paths):
        return None
    ranges = [known[path] for path in paths]
    # Of files that share a bound, the one with a single value goes to that side.
    places = sorted(range(len(ranges)), key=lambda i: (ranges[i].lower, ranges[i].upper))
    for before, after in itertools.pairwise(places):
        end, start = ranges[before].upper, ranges[after].lower
        if end > start or (end == start and not order.alone):
            return None
    return places[::-1] if order.descending else places
