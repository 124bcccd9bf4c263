"""The tables of this room: `document_metadata` with the present documents, `document_history` with every revision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.documents.arrow import COLUMN_TYPES, DOCUMENT_SCHEMA, HISTORY_SCHEMA, added_fields
from frazil.documents.model import Column
from frazil.documents.names import DOCUMENTS, history_name, metadata_name
from frazil.log.columns import PARTITION
from frazil.observe.logs import get_logger
from frazil.settings import Settings
from frazil.tables import SchemaMismatchError, TableStore, ensure_table, evolve_schema, find_position
from frazil.tables.create import to_arrow_schema
from frazil.topics.layout import table_properties

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table import Table

    from frazil.tables import Position

log = get_logger(__name__)

_OF_COLUMN = "write.metadata.metrics.column."
#: Whole bounds of the ids by which rows are looked for; none of what no query compares.
_METRICS = {
    f"{_OF_COLUMN}document_id": "full",
    **{f"{_OF_COLUMN}{name}": "none" for name in ("attributes", "tags.key", "tags.value")},
}
_MERGED = {
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
}
#: By the moment of acknowledgement: a batch is one partition, and a snapshot of the past reads up to one (0048).
_HISTORY_PARTITION = ("month(valid_from)",)
_TYPE_NAMES = {kind: name for name, kind in COLUMN_TYPES.items()}


def ensure_metadata(store: TableStore, settings: Settings) -> Table:
    """Returns `document_metadata`, created on first use: one row for each document that exists, without deleted ones.

    It gets the added columns of the history, of which it may be a successor.
    """
    made = ensure_table(
        store,
        metadata_name(settings),
        DOCUMENT_SCHEMA,
        partition=settings.model.documents.partition,
        sort=["document_id"],
        properties={**_properties(settings), **_MERGED},
    )
    return evolve_schema(store, made, DOCUMENT_SCHEMA)


def ensure_history(store: TableStore, settings: Settings) -> Table:
    """Returns `document_history`, created on first use: every revision, deletes included. Its rows never change."""
    made = ensure_table(
        store,
        history_name(settings),
        HISTORY_SCHEMA,
        partition=_HISTORY_PARTITION,
        sort=["document_id", "revision"],
        properties=_properties(settings),
    )
    return evolve_schema(store, made, HISTORY_SCHEMA)


def find_history_position(history: Table | None, metadata: Table | None, topic: str) -> Position | None:
    """Returns the position below which the history has every revision.

    Only batches with revisions move the position of the history, every batch that of `document_metadata`, which is
    committed later. So load `document_metadata` first: what it has taken in is in a history that is loaded afterwards.
    """
    first, second = (None if table is None else find_position(table, DOCUMENTS, topic) for table in (history, metadata))
    if first is None or second is None or first.log_id != second.log_id:
        return first if first is not None or history is None else second
    return max(first, second, key=lambda position: position.offsets.get(PARTITION, 0))


def add_columns(store: TableStore, table: Table, columns: Iterable[Column]) -> Table:
    """Returns the table with added columns. One that it has in another type stays as it is, which is logged."""
    for field in added_fields(columns):
        try:
            table = evolve_schema(store, table, pa.schema([field]))
        except SchemaMismatchError as error:
            log.warning(
                "a column of documents does not fit its table: values become dead letters",
                table=".".join(table.name()),
                column=field.name,
                error=error.message,
            )
    return table


def added_columns(table: Table) -> list[Column]:
    """Returns the columns of one of the two tables that are no fields of the record, as far as documents can have them.

    Columns of other types, which somebody has added by other means, are left out.
    """
    known = {*HISTORY_SCHEMA.names}
    found = []
    for field in to_arrow_schema(table.schema()):
        kind = pa.string() if pa.types.is_large_string(field.type) else field.type
        if field.name not in known and kind in _TYPE_NAMES:
            found.append(Column(field.name, _TYPE_NAMES[kind]))  # type: ignore[arg-type]  # the keys are its literals
    return found


def common_columns(history: Table, metadata: Table) -> list[Column]:
    """Returns the added columns that both tables have in the same type."""
    other = set(added_columns(metadata))
    return [column for column in added_columns(history) if column in other]


def _properties(settings: Settings) -> dict[str, str]:
    # Without those about columns of messages: Iceberg's Java library, and so a REST server, refuses what is not there.
    common = {name: value for name, value in table_properties(settings).items() if not name.startswith(_OF_COLUMN)}
    return {**common, **_METRICS}
