"""Decides what `document_metadata` becomes by new revisions: pure functions, for the sink and for reads alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import ADDED, COLUMN_TYPES, DOCUMENT_SCHEMA, TIME
from frazil.documents.model import Column
from frazil.tables.writing.type_conversion import RejectedRow
from frazil.topics.sinks.keyed_tasks import PLACE, Fetch, Merged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Revisions between the stages of a batch. Of a stored row only id, creation and place are known, of a deleted document
#: that the history knows only id, creation, revision and operation.
CHANGES = pa.schema(
    [
        *(field.with_nullable(True).remove_metadata() for field in DOCUMENT_SCHEMA),
        pa.field("operation", pa.string()),
        ADDED,
        *PLACE,
    ]
)
_REVISION = pa.schema([pa.field("revision", pa.int64())])


@dataclass(frozen=True)
class DocumentDecider:
    """Decides by the number: of each document the row with the latest revision stays, unless that is a delete.

    Attributes:
        columns: the added columns.
    """

    columns: tuple[Column, ...]

    def __call__(self, rows: pa.Table, fetch: Fetch, columns: pa.Schema) -> Merged | None:
        is_stored = pc.is_valid(rows.column("_file"))
        stored, changes = rows.filter(is_stored), rows.filter(pc.invert(is_stored))
        if not changes.num_rows:
            return None
        files, positions = (stored.column(name).combine_chunks() for name in PLACE.names)
        before = fetch(_REVISION, files, positions).column("revision")
        latest, replaced = _compare(stored, before, changes)
        present = latest[pc.not_equal(changes.column("operation").take(pa.array(latest)), "delete").to_numpy()]
        gone = pa.array(np.flatnonzero(replaced))
        made = self._whole_rows(changes.take(pa.array(present)))
        made = _with_foreign_columns(made, columns, stored, np.flatnonzero(replaced), fetch)
        return Merged(made, files.take(gone), positions.take(gone))

    def _whole_rows(self, rows: pa.Table) -> pa.Table:
        made, rejected = spread_added(rows, self.columns)
        assert not rejected, "they were refused when the messages were read"
        return made.select([*DOCUMENT_SCHEMA.names, *(column.name for column in self.columns)])


def _compare(stored: pa.Table, before: pa.ChunkedArray, changes: pa.Table) -> tuple[Any, Any]:
    """The changes that win over all others of their document, and which stored rows lose. Stored rows win a draw."""
    ids = pa.chunked_array(
        [*stored.column("document_id").chunks, *changes.column("document_id").chunks], pa.string()
    ).combine_chunks()
    codes = ids.dictionary_encode().indices.to_numpy()
    revisions = np.concatenate([before.to_numpy(), changes.column("revision").to_numpy()])
    count = stored.num_rows
    is_change = np.arange(len(codes)) >= count
    order = np.lexsort((is_change, -revisions, codes))
    is_first = np.ones(len(order), bool)
    is_first[1:] = codes[order[1:]] != codes[order[:-1]]
    winners = order[is_first]
    wins = np.zeros(len(codes), bool)
    wins[codes[winners]] = winners >= count  # by document: whether a change wins
    return np.sort(winners[winners >= count]) - count, wins[codes[:count]]


def _with_foreign_columns(
    made: pa.Table, columns: pa.Schema, stored: pa.Table, replaced: Any, fetch: Fetch
) -> pa.Table:
    """Carries columns that somebody else has added to the table over from the rows that are replaced."""
    foreign = [pa.field(f.name, f.type) for f in columns if f.name not in made.column_names]
    if not foreign or not len(replaced):
        return made
    before = stored.take(pa.array(replaced)).combine_chunks()
    values = fetch(pa.schema(foreign), *(before.column(name).combine_chunks() for name in PLACE.names))
    at = pc.index_in(made.column("document_id"), value_set=before.column("document_id").combine_chunks())
    for field in foreign:
        made = made.append_column(field, values.column(field.name).combine_chunks().take(at.combine_chunks()))
    return made


def spread_added(rows: pa.Table, columns: Sequence[Column]) -> tuple[pa.Table, list[RejectedRow]]:
    """Replaces the JSON of added values by a column for each added column.

    Returns:
        all rows, and those of them that have a value without a column, or of another type than its column.
    """
    at = rows.schema.get_field_index(ADDED.name)
    texts, rest = rows.column(at), rows.remove_column(at)
    values: dict[str, list[Any]] = {}
    rejected = []
    if texts.null_count < len(texts):
        values = {column.name: [None] * rows.num_rows for column in columns}
        kinds = {column.name: column.type for column in columns}
        for row, text in enumerate(texts.to_pylist()):
            if text and (reason := _spread(row, orjson.loads(text), kinds, values)) is not None:
                rejected.append(RejectedRow(row, *reason))
    for column in columns:
        kind = COLUMN_TYPES[column.type]
        plain = pa.int64() if kind == TIME else kind
        found = pa.array(values[column.name], plain).cast(kind) if values else pa.nulls(rows.num_rows, kind)
        rest = rest.append_column(column.name, found)
    return rest, rejected


def _spread(
    row: int, given: Mapping[str, Any], kinds: Mapping[str, str], values: dict[str, list[Any]]
) -> tuple[str, str] | None:
    """Puts the values of a row into their columns; returns what is wrong with one of them."""
    for name, value in given.items():
        if name not in kinds:
            return "column", f"the tables have no column '{name}' for documents"
        plain = value.get("micros") if isinstance(value, dict) else value
        if not _has_type(value, plain, kinds[name]):
            return "type", f"the value of column '{name}' is no {kinds[name]}"
        values[name][row] = plain
    return None


def _has_type(value: Any, plain: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "double":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "timestamp":
            return isinstance(value, dict) and _is_long(plain)
        case _:
            return _is_long(value)


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
