"""The documents sink: from the messages of a topic into `document_history` and `document_metadata`.

It is a keyed-table sink with the history as its side table. The later revision wins. A deleted document has no row, so
that deletes which the history knows are part of each decision: a message that comes late does not bring one back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from frazil.documents.merge import DocumentDecider
from frazil.documents.model import Column, to_micros
from frazil.documents.names import DOCUMENTS, history_name, metadata_name
from frazil.documents.sink_reading import LAYOUT, BulkMessage, DocumentReader, Earliest, StagedRevisions
from frazil.documents.tables import add_columns, added_columns, common_columns, ensure_history, ensure_metadata
from frazil.tables.writing.data_files import WriteTarget
from frazil.topics.sinks.keyed import PER_TASK, Changes, KeyedTableSink
from frazil.topics.sinks.keyed_tasks import Reference
from frazil.topics.sinks.sink import Plan

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

_OF_DELETES = ("document_id", "created_at", "revision", "operation")


class DocumentsSink(KeyedTableSink):
    name = DOCUMENTS
    layout = LAYOUT

    def table_names(self) -> Sequence[str]:
        return history_name(self._settings), metadata_name(self._settings)

    def ensure_table(self) -> Table:
        """Returns `document_metadata`, with the added columns of the history: it may have been created anew."""
        table = ensure_metadata(self._store, self._settings)
        return self._with_columns(table, added_columns(self.ensure_side_table()))

    def ensure_side_table(self) -> Table:
        return ensure_history(self._store, self._settings)

    def kept_snapshots(self) -> int:
        return self._settings.model.documents.keep_snapshots

    def make_reader(self, table: Table, plan: Plan) -> DocumentReader:
        return DocumentReader(tuple(common_columns(self.side_table(plan.info.name), table)))

    def make_decider(self, table: Table, side: Table | None) -> DocumentDecider:
        assert side is not None, "all changes come from messages"
        return DocumentDecider(tuple(common_columns(side, table)))

    def prepare(self, table: Table, plan: Plan, notices: Sequence[Any]) -> Table:
        """Returns the table with the columns that messages of this batch add, as the history then has them too."""
        topic = plan.info.name
        columns = [notice for notice in notices if isinstance(notice, Column)]
        if columns:
            self.reset_side_table(topic, self._with_columns(self.side_table(topic), columns))
            table = self._with_columns(table, columns)
        return table

    def references(self, table: Table, plan: Plan, notices: Sequence[Any]) -> Sequence[Reference]:
        history = self.side_table(plan.info.name)
        columns = tuple(common_columns(history, table))
        target = WriteTarget.of(history)
        return [StagedRevisions(notice, target, columns) for notice in notices if isinstance(notice, BulkMessage)]

    def related(self, changes: Changes) -> DataFrame | None:
        """Returns the deletes of the same documents that are not older than the oldest change."""
        history = changes.side
        earliest = min((notice.moment for notice in changes.notices if isinstance(notice, Earliest)), default=None)
        if earliest is None or history is None or history.metadata.current_snapshot_id is None:
            return None
        where = f"operation = 'delete' AND valid_from >= timestamp_micros({to_micros(earliest)})"
        if not _has_deletes_since(history, to_micros(earliest)):
            return None
        return self.with_keys(self.select(history, _OF_DELETES, where), changes)

    def shuffle_terms(self, changes: Changes, tasks: int) -> Sequence[str]:
        """Gives a month to as few tasks as possible, because each task writes a file of its own per partition."""
        months = max(1, len(changes.bounds))
        shares = max(-(-tasks // months), -(-changes.count // (months * PER_TASK)))
        return "date_trunc('MONTH', created_at)", f"pmod(hash(document_id), {shares})"

    def _with_columns(self, table: Table, columns: Sequence[Column]) -> Table:
        present = set(added_columns(table))
        return add_columns(self._store, table, [column for column in columns if column not in present])


def _has_deletes_since(history: Table, micros: int) -> bool:
    """Whether a file of the history may have a delete that is not older than a moment. Usually none has."""
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual

    since = GreaterThanOrEqual(term="valid_from", value=micros)
    found = history.scan(row_filter=And(since, EqualTo(term="operation", value="delete"))).plan_files()
    return next(iter(found), None) is not None
