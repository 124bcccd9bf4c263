"""The content sink: applies the messages of a topic to `content.journal` and `content.objects`.

A keyed-table sink with the journal as its side table. Between batches it sends HEAD requests where sources disagreed,
computes custom columns, and drops old tombstones.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frazil.content.annotations.custom_columns import (
    apply_changes,
    columns_to_fill,
    declare,
    fields_of,
    find_unfilled_rows,
    mark_filled,
)
from frazil.content.fields import Fields
from frazil.content.fields.configured import load_configured
from frazil.content.names import CONTENT, journal_name, objects_name
from frazil.content.sink.evidence import of_changes, packed
from frazil.content.sink.head_requests import HeadRequests
from frazil.content.sink.pending_checks import Due, Pending, due_rows, old_tombstones
from frazil.content.sink.stages import LAYOUT, Backfill, EventReader, ObjectDecider
from frazil.content.tables import ensure_journal, ensure_objects
from frazil.log.protocol import TopicInfo
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.settings import Settings
from frazil.spark.arrow import map_in_arrow
from frazil.tables import Position, PositionMovedError, TableStore, find_position
from frazil.tables.writing.data_files import WriteTarget
from frazil.tables.writing.position_deletes import write_position_deletes
from frazil.topics.sinks.keyed import Changes, KeyedTableSink
from frazil.topics.sinks.keyed_results import checked_reports, discarding_failed
from frazil.topics.sinks.keyed_tasks import REPORTS, TaskReport
from frazil.topics.sinks.sink import Plan, Written

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

log = get_logger(__name__)

#: Rows per backfill step of custom columns.
_FILLED_AT_ONCE = 250_000


class ContentSink(KeyedTableSink):
    name = CONTENT
    layout = LAYOUT

    def __init__(self, store: TableStore, settings: Settings, address: str, spark: SparkSession | None = None) -> None:
        super().__init__(store, settings, address, spark)
        self._head_requests = HeadRequests.of(settings)
        self._pending = Pending(settings.model.content.lateness_s)
        self._declared = False
        self._fills = False

    # -- what messages mean ------------------------------------------------------------------------------------------

    def table_names(self) -> Sequence[str]:
        return journal_name(self._settings), objects_name(self._settings)

    def ensure_table(self) -> Table:
        return ensure_objects(self._store, self._settings)

    def ensure_side_table(self) -> Table:
        return ensure_journal(self._store, self._settings)

    def kept_snapshots(self) -> int:
        return self._settings.model.content.keep_snapshots

    def make_reader(self, table: Table, plan: Plan) -> EventReader:
        del table
        return EventReader(plan.info.name, self._settings.model.content.dialect, self._head_requests)

    def make_decider(self, table: Table, side: Table | None) -> ObjectDecider:
        del side
        return ObjectDecider(self._settings.model.content.skew_s, fields_of(table))

    def table(self, info: TopicInfo) -> Table:
        self._pending.forget()
        table = super().table(info)
        if not self._declared:
            # Once: later messages are newer than the settings of this process.
            table = declare(self._store, table, load_configured(self._settings))
            self._declared = True
        self._fills = bool(columns_to_fill(table))
        return table

    def prepare(self, table: Table, plan: Plan, notices: Sequence[Mapping[str, Any]]) -> Table:
        """Returns the table with the custom columns that messages of this batch ask for."""
        if notices:
            # Another pipeline may have applied these, and later ones.
            table = self._store.load(table.name())
            if find_position(table, self.name, plan.info.name) != plan.expected:
                raise PositionMovedError("another pipeline committed first", hint="plan anew")
            table = apply_changes(self._store, table, notices)
        self._fills = bool(columns_to_fill(table))
        return table

    def merge(self, table: Table, changes: Changes) -> list[TaskReport]:
        reports = super().merge(table, changes)
        self._pending.learn(check_after for report in reports for check_after in report.notices)
        return reports

    # -- between batches ---------------------------------------------------------------------------------------------

    def idle_work_due_s(self) -> float | None:
        """Returns the seconds until a row has to be checked again; None if none has to."""
        return 0.0 if self._fills else self._pending.waits_s(time.time())

    def run_idle_work(self, table: Table, position: Position) -> Table:
        """Checks rows where sources disagreed, drops old tombstones if so configured, and backfills custom columns.

        Backfills proceed in parts, so that new messages need not wait for all of them.
        """
        now = datetime.datetime.now(datetime.UTC)
        wanted = columns_to_fill(table)
        self._fills = bool(wanted)
        if table.metadata.current_snapshot_id is None:
            return mark_filled(self._store, table, wanted) if wanted else table
        if self._pending.is_unknown or self._pending.is_due(now.timestamp()):
            due = due_rows(self._store, table, now, self._pending)
            if due:
                return self._check(table, position, due)
        if self._pending.tombstones_due(now.timestamp()):
            return self._drop_tombstones(table, position, now)
        return self._fill(table, position, wanted) if wanted else table

    def _fill(self, table: Table, position: Position, wanted: Fields) -> Table:
        """Computes custom columns for the next rows that lack them."""
        reach("content.fill.plan")
        places = find_unfilled_rows(self.session, self.at_snapshot(table), wanted, _FILLED_AT_ONCE)
        refilling = Backfill(WriteTarget.of(table), self.partitions.find(table), wanted)
        tasks = self.session.sparkContext.defaultParallelism
        with discarding_failed(table):
            spread = places.repartitionByRange(tasks, "_file", "_pos").sortWithinPartitions("_file", "_pos")
            reports = checked_reports(map_in_arrow(spread, refilling, REPORTS).collect(), None)
        if not reports:
            table = mark_filled(self._store, table, wanted)
            self._fills = bool(columns_to_fill(table))
            return table
        return self.commit_between(table, position, [r.written for r in reports])

    def _check(self, table: Table, position: Position, due: Sequence[Due]) -> Table:
        keys = [(row.bucket, row.key, row.version_id) for row in due]
        told, failed = self._head_requests.look_up(keys)
        for (bucket, key), error in list(failed.items())[:1]:
            log.warning(
                "a bucket did not answer about a key", bucket=bucket, key=key, error=error.message, in_all=len(failed)
            )
        evidence = of_changes(told)
        if not evidence.num_rows:
            return table
        frame = self.session.createDataFrame(packed(evidence))
        bounds = {b: {"bucket": (b, b), "key": (min(k), max(k))} for b, k in _by_bucket(keys).items()}
        with discarding_failed(table):
            reports = self.merge(table, Changes(frame, evidence.num_rows, bounds))
        return self.commit_between(table, position, [r.written for r in reports])

    def _drop_tombstones(self, table: Table, position: Position, now: datetime.datetime) -> Table:
        lateness = self._settings.model.content.lateness_s
        assert lateness is not None, "else none are due"
        self._pending.tombstones_done(now.timestamp())
        before = now - datetime.timedelta(seconds=lateness)
        found = old_tombstones(self.session, self.at_snapshot(table), before)
        if not found.num_rows:
            return table
        files, positions = found.column("_file").combine_chunks(), found.column("_pos").combine_chunks()
        gone = write_position_deletes(
            WriteTarget.of(table), "tombstones", files, positions, self.partitions.find(table)
        )
        return self.commit_between(table, position, [Written({"deletes": gone})])


def _by_bucket(keys: Sequence[tuple[str, str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for bucket, key, _ in keys:
        found.setdefault(bucket, []).append(key)
    return found
