"""The first rows in some order, out of many: which files come first, when to stop, and where the next page begins."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import UsageError
from frazil.tables.metadata.bounds import decode_bounds

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask

Sort = Literal["key", "size", "modified"]

_RANK = "frazil_rank"
_RANKED = {"size": "size", "modified": "last_modified"}
_NAME = ("bucket", "key", "version_id")
_LOWEST = -(2**63)


@dataclass(frozen=True)
class Order:
    """By bucket, key and version; or by size or time first, the greatest first, and what has none last.

    Attributes:
        sort: what comes first.
        after: the row that the page before has ended with: its rank, where there is one, then its name.
    """

    sort: Sort
    after: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, sort: Sort, after: str | None = None) -> Order:
        """The order, from the place on that `after` stands for.

        Raises:
            UsageError: that was not made by `place`, or in another order.
        """
        if sort not in get_args(Sort):
            raise UsageError(f"{sort!r} is no order of objects", hint=", ".join(get_args(Sort)))
        return cls(sort, None if after is None else _opened(after, sort))

    @property
    def columns(self) -> list[str]:
        return [*_NAME, *([_RANKED[self.sort]] if self.sort in _RANKED else [])]

    @property
    def _keys(self) -> list[tuple[str, str]]:
        ranks = [(_RANK, "descending")] if self.sort in _RANKED else []
        return [*ranks, *((name, "ascending") for name in _NAME)]

    def condition(self) -> BooleanExpression:
        """What Iceberg can judge of what lies behind the place."""
        from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThan, GreaterThanOrEqual, Or

        if self.after is None or self.sort != "key":
            return AlwaysTrue()
        bucket, key, _ = self.after
        same = And(EqualTo(term="bucket", value=bucket), GreaterThanOrEqual(term="key", value=key))
        return Or(GreaterThan(term="bucket", value=bucket), same)

    def ranked(self, rows: pa.Table) -> pa.Table:
        """The rows behind the place, with a column that ranks them."""
        if self.sort in _RANKED:
            rank = pc.fill_null(rows.column(_RANKED[self.sort]).cast(pa.int64()), _LOWEST)
            rows = rows.append_column(_RANK, rank)
        return rows if self.after is None else rows.filter(self._behind(rows, self.after))

    def _behind(self, rows: pa.Table, after: tuple[Any, ...]) -> Any:
        behind: Any = None
        for (name, way), value in reversed(list(zip(self._keys, after, strict=True))):
            column = rows.column(name)
            further = pc.greater(column, value) if way == "ascending" else pc.less(column, value)
            behind = further if behind is None else pc.or_(further, pc.and_(pc.equal(column, value), behind))
        return behind

    def first(self, rows: pa.Table, count: int) -> pa.Table:
        """The first rows of some, in order."""
        if rows.num_rows > 2 * count:
            rows = rows.take(pc.select_k_unstable(rows, k=count, sort_keys=self._keys))
        return rows.take(pc.sort_indices(rows, sort_keys=self._keys)[:count])

    def by_bound(self, schema: Schema, files: Sequence[FileScanTask]) -> list[tuple[FileScanTask, Any]]:
        """Files with the first place that a row of them may have, in the order of these."""
        if self.sort not in _RANKED:
            fields = [schema.find_field(name) for name in ("bucket", "key")]
            found = [(file, tuple(decode_bounds(file.file, f)[0] or "" for f in fields)) for file in files]
            return sorted(found, key=lambda f: f[1])
        field = schema.find_field(_RANKED[self.sort])
        ends = [decode_bounds(file.file, field)[1] for file in files]
        ranked = [(file, 2**63 if end is None else int(end)) for file, end in zip(files, ends, strict=True)]
        return sorted(ranked, key=lambda f: f[1], reverse=True)

    def is_beyond(self, first: Any, best: pa.Table) -> bool:
        """Whether no row of a file can come before the last of the best."""
        last = best.slice(best.num_rows - 1)
        if self.sort in _RANKED:
            return bool(first < last.column(_RANK)[0].as_py())
        return bool(first > (last.column("bucket")[0].as_py(), last.column("key")[0].as_py()))

    def place(self, rows: pa.Table) -> str:
        """The place behind the last of some rows, as a text for others to give back."""
        last = rows.select([name for name, _ in self._keys]).slice(rows.num_rows - 1).to_pylist()[0]
        text = json.dumps([self.sort, *last.values()], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _opened(text: str, sort: Sort) -> tuple[Any, ...]:
    try:
        of, *values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        of, values = None, []
    kinds = [int] if sort in _RANKED else []
    fits = [type(value) for value in values] == [*kinds, str, str, str]
    if of != sort or not fits or (kinds and not -(2**63) <= values[0] < 2**63):
        raise UsageError(
            "'after' is not the end of a page in this order", hint="what the page before said, with the same sort"
        )
    return tuple(values)
