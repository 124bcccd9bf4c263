"""Scans a table of documents: prunes by partitions and bounds, and says what it has read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from frazil.documents.arrow import DOCUMENT_SCHEMA, OFFSET, STAMP_SCHEMA
from frazil.documents.sql.query import Listing
from frazil.settings import NetworkSettings
from frazil.tables.reading.measured_io import ScanExplanation
from frazil.tables.reading.measured_scan import MeasuredScanner

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

_TYPES: Final = {field.name: field for field in (*DOCUMENT_SCHEMA, *STAMP_SCHEMA, OFFSET)}


class TableScanner:
    """Reads rows of tables. Manifests are read once.

    Args:
        network: patience with the storage.
    """

    def __init__(self, network: NetworkSettings) -> None:
        self._scanner = MeasuredScanner(network)

    def scan(
        self, table: Table, listing: Listing, columns: Sequence[str], *, explains: bool
    ) -> tuple[pa.Table, ScanExplanation]:
        """Returns the rows that may match a listing, and what was read for them.

        Args:
            table: of present documents, or of their history if the listing is of a moment.
            listing: the listing.
            columns: of the rows.
            explains: whether row groups are counted, which reads the footers of the files once more.
        """
        rows, explanation = self._scanner.scan(table, prunable(listing), columns, explains=explains)
        return _with_our_types(rows), explanation

    def latest_revisions(
        self, history: Table, ids: Collection[str], end: int
    ) -> tuple[dict[str, int], ScanExplanation]:
        """Returns the number of the latest revision below an offset of the log, by id, and what was read for that."""
        from pyiceberg.expressions import And, In, LessThan

        condition = And(In(term="document_id", literals=set(ids)), LessThan(term=OFFSET.name, value=end))
        rows, explanation = self._scanner.scan(history, condition, ("document_id", "revision"), explains=False)
        latest = rows.group_by("document_id").aggregate([("revision", "max")])
        names, numbers = (latest.column(name).to_pylist() for name in ("document_id", "revision_max"))
        return dict(zip(names, numbers, strict=True)), explanation


def prunable(listing: Listing) -> BooleanExpression:
    """Returns the conditions by which files can be left out.

    Of a moment in the past these are the ones that hold for all revisions of a document alike.
    """
    from pyiceberg.expressions import (
        AlwaysTrue,
        And,
        EqualTo,
        GreaterThanOrEqual,
        LessThan,
        LessThanOrEqual,
        StartsWith,
    )

    made: list[BooleanExpression] = []
    if listing.as_of is not None:
        made.append(LessThanOrEqual(term="valid_from", value=listing.as_of))
    kinds: dict[str, Callable[[Any], BooleanExpression]] = {
        "start_date": lambda value: GreaterThanOrEqual(term="created_at", value=value),
        "end_date": lambda value: LessThan(term="created_at", value=value),
    }
    if listing.as_of is None:
        kinds |= {
            "min_size": lambda value: GreaterThanOrEqual(term="size_bytes", value=value),
            "max_size": lambda value: LessThanOrEqual(term="size_bytes", value=value),
            "name_prefix": lambda value: StartsWith(term="filename", value=value),
        }
    for name, value in listing.conditions.items():
        if name in kinds:
            made.append(kinds[name](value))
        elif listing.as_of is None and name not in ("tags", "words", *kinds):
            made.append(EqualTo(term=name, value=value))
    condition: BooleanExpression = AlwaysTrue()
    for one in made:
        condition = And(condition, one)
    return condition


def _with_our_types(rows: pa.Table) -> pa.Table:
    """The columns of the record in the types that revisions of the log have."""
    fields = [_TYPES[f.name].with_nullable(True) if f.name in _TYPES else f for f in rows.schema]
    return rows.cast(pa.schema(fields))
