"""The keyed-table sink: messages into a table that has one row per key, and into a side table that has them all.

A batch is two jobs of Spark. The first reads the log on the executors, parses, writes the side table's files, and keeps
the changes. The second joins these with the places of the stored rows of the same keys; a pure function decides, and
executors write new rows and position deletes. The driver commits: dead letters, side table, table with the position;
the last one lands on exactly the snapshot that was read, or the batch is begun again (decisions 0022 and 0047).
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil.errors import FrazilError
from frazil.log.columns import PARTITION
from frazil.log.protocol import Span, TopicInfo
from frazil.observe.faultpoints import reach
from frazil.settings import Settings
from frazil.settings.policies import snapshots_kept
from frazil.spark.arrow import map_in_arrow
from frazil.tables import Position, TableStore, commit_append, find_position
from frazil.tables.metadata.file_partitions import FilePartitions
from frazil.tables.writing.data_files import WriteTarget, discard_files
from frazil.topics.dead_letters.writer import DeadLetters, Origin
from frazil.topics.layout import dead_letters_name
from frazil.topics.side_table import append_to_side_table
from frazil.topics.sinks.backfill import Backfill
from frazil.topics.sinks.keyed_bounds import Bounds, spark_filter, union
from frazil.topics.sinks.keyed_isolation import IsolatingReader
from frazil.topics.sinks.keyed_results import checked_reports, with_reports
from frazil.topics.sinks.keyed_tasks import (
    MERGE_PHASE,
    PHASE,
    PLACE,
    REPORT,
    REPORTS,
    ChangeReader,
    Decider,
    KeyedLayout,
    MergeTask,
    ReadTask,
    Reference,
    TaskReport,
)
from frazil.topics.sinks.sink import Plan, Runner, Written, files_of

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession

#: Changes of a batch up to which their keys are sent to every executor, so that the table need not be shuffled.
_BROADCAST = 200_000
#: Changes that one task decides about.
PER_TASK = 100_000


@dataclass(frozen=True)
class Changes:
    """The changes of a batch, and where in the table the stored rows of their keys lie.

    Attributes:
        frame: in the layout's schema.
        count: how many.
        bounds: of their keys.
        notices: what the readers have told the driver.
        side: the side table, which has the rows of the batch's messages when the batch is committed; None: there is
            none, or the changes come from no messages.
    """

    frame: DataFrame
    count: int
    bounds: Bounds
    notices: Sequence[Any] = ()
    side: Table | None = None


@dataclass
class _TopicTables:
    """The tables as the batches of one topic have found them: those of other topics may have moved on.

    Attributes:
        side: the side table; None: it is loaded on next use.
        table: the table for which the files of the present batch were written: its messages may have given it columns.
    """

    side: Table | None = None
    table: Table | None = None


class KeyedTableSink(ABC):
    """A sink with one keyed table. A subclass says what messages mean, and decides; it need not know of Spark.

    Several topics may share one, each in its own thread.

    Args:
        store: the catalog.
        settings: the settings.
        address: where executors reach the log.
        spark: the session that does the work; None: only the position of the table is asked for.
    """

    name: str
    idle_work_every_s = 1.0
    layout: KeyedLayout

    def __init__(self, store: TableStore, settings: Settings, address: str, spark: SparkSession | None = None) -> None:
        self._store = store
        self._settings = settings
        self._address = address
        self._spark = None if spark is None else _own_session(spark)
        self._dead_letters = DeadLetters(store, settings)
        self.partitions = FilePartitions(store)
        self._topics: defaultdict[str, _TopicTables] = defaultdict(_TopicTables)

    # -- what a sink must say of itself

    @abstractmethod
    def ensure_table(self) -> Table:
        """Returns the keyed table, made on first use."""

    def ensure_side_table(self) -> Table:
        """Returns the side table, made on first use. Called only if the layout names one."""
        raise NotImplementedError

    @abstractmethod
    def table_names(self) -> Sequence[str]:
        """Returns the names of side table and table, in this order."""

    @abstractmethod
    def make_reader(self, table: Table, plan: Plan) -> ChangeReader:
        """Returns what parses messages."""

    @abstractmethod
    def make_decider(self, table: Table, side: Table | None) -> Decider:
        """Returns what decides, with the side table of the changes."""

    @abstractmethod
    def kept_snapshots(self) -> int:
        """Returns how many snapshots the tables keep, unless a policy of upkeep keeps more."""

    # -- what a sink may say of itself

    def prepare(self, table: Table, plan: Plan, notices: Sequence[Any]) -> Table:
        """Returns the table with what messages of the batch ask for, such as columns.

        A sink that changes the columns of the side table calls `reset_side_table`: the messages are then read again.

        Raises:
            PositionMovedError: another pipeline was here since the table was read.
        """
        del plan, notices
        return table

    def references(self, table: Table, plan: Plan, notices: Sequence[Any]) -> Sequence[Reference]:
        """Returns data that messages of the batch name, to be read as well."""
        del table, plan, notices
        return ()

    def related(self, changes: Changes) -> DataFrame | None:
        """Returns more rows for the decision, in the layout's schema: what other tables know of the same keys."""
        del changes
        return None

    def shuffle_terms(self, changes: Changes, tasks: int) -> Sequence[str]:
        """Returns SQL expressions by which changes are given to tasks. They must be equal for equal keys."""
        del changes, tasks
        return self.layout.keys

    # -- the sink

    def tables(self, topic: str) -> list[str]:
        del topic
        return [dead_letters_name(self._settings), *self.table_names()]

    def table(self, info: TopicInfo) -> Table:
        self._dead_letters.forget(info.name)
        self._topics[info.name] = _TopicTables()
        return self.ensure_table()

    def backfill(self, topic: str) -> Backfill | None:
        return Backfill(self._store, self._settings, topic, self.name)

    def write(self, table: Table, plan: Plan, run: Runner) -> list[Written]:
        del run  # the work is a plan of Spark's own, and no list of tasks
        reports: list[TaskReport] = []
        frames: list[DataFrame] = []
        try:
            with with_reports(reports):
                table = self._read_all(table, plan, frames, reports)
                self._topics[plan.info.name].table = table
                notices = [notice for report in reports for notice in report.notices]
                frame = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
                changes = frame.where(f"{REPORT.name} IS NULL").drop(REPORT.name)
                count = sum(report.changes for report in reports)
                bounds = union(report.bounds for report in reports)
                side = self._side_of(plan)
                merged = self.merge(table, Changes(changes, count, bounds, notices, side)) if count else []
        finally:
            for frame in frames:
                frame.unpersist()
        return [report.written for report in [*reports, *merged]]

    def commit(self, table: Table, plan: Plan, written: Sequence[Written]) -> Table:
        own = (self.layout.rows, "deletes")
        try:
            if dead := files_of(written, "dead"):
                reach("sink.dead_letters.before")
                self._dead_letters.commit(plan.reached(self.name), dead)
                reach("sink.dead_letters.after")
            if self.layout.side is not None and (side := files_of(written, self.layout.side)):
                reach(f"{self.layout.room}.{self.layout.side}.before")
                self._append_side_rows(plan, side)
                reach(f"{self.layout.room}.{self.layout.side}.after")
        except FrazilError:
            # The batch is begun again, with files of its own. What has landed stays, and is known by its position.
            discard_files(table.io, [file.file_path for kind in own for file in files_of(written, kind)])
            raise
        table = self._topics[plan.info.name].table or table
        return self.commit_rows(table, written, plan.expected, plan.reached(self.name))

    def run_idle_work(self, table: Table, position: Position) -> Table:
        del position
        return table

    def idle_work_due_s(self) -> float | None:
        return None

    # -- for subclasses

    def merge(self, table: Table, changes: Changes) -> list[TaskReport]:
        """Writes files for changes, on the snapshot of the table. `commit_rows` with the same table makes them count.

        Raises:
            TasksFailedError: some tasks failed.
        """
        reach(f"{self.layout.room}.merge.plan")
        rows = changes.frame
        if table.metadata.current_snapshot_id is not None:
            rows = self._stored(table, changes).unionByName(rows)
        if (related := self.related(changes)) is not None:
            rows = rows.unionByName(related)
        tasks = max(self.session.sparkContext.defaultParallelism, -(-changes.count // PER_TASK))
        places = self.partitions.find(table)
        task = MergeTask(self.layout, WriteTarget.of(table), self.make_decider(table, changes.side), places)
        shuffled = rows.repartition(tasks, *_expressions(self.shuffle_terms(changes, tasks)))
        self.session.sparkContext.setLocalProperty(PHASE, MERGE_PHASE)
        try:
            return checked_reports(map_in_arrow(shuffled, task, REPORTS).collect(), None)
        finally:
            self.session.sparkContext.setLocalProperty(PHASE, None)

    def commit_rows(
        self, table: Table, written: Sequence[Written], expected: Position | None, reached: Position
    ) -> Table:
        """Commits the table's files with a position.

        Args:
            table: as it was when the files were written: they count on its snapshot alone.
            written: the files, and those of other tables.
            expected: the position of the table until now.
            reached: its new position.

        Raises:
            PositionMovedError: another writer was faster.
        """
        files = [file for kind in (self.layout.rows, "deletes") for file in files_of(written, kind)]
        reach("sink.commit.before")
        done = commit_append(
            self._store,
            table,
            files,
            expected=expected,
            reached=reached,
            keep_snapshots=self._keep(table),
            on=table.metadata.current_snapshot_id if files else None,
        )
        reach("sink.commit.after")
        return done.table

    def commit_between(self, table: Table, position: Position, written: Sequence[Written]) -> Table:
        """Commits what was done between batches, on the snapshot of the table: the position stays where it is."""
        return self.commit_rows(table, written, position, replace(position, batch_id=str(uuid.uuid4())))

    def at_snapshot(self, table: Table) -> str:
        """Returns the table as Spark's SQL names it, at its snapshot, on which `commit_rows` insists."""
        return f"{self.quoted(table)} VERSION AS OF {table.metadata.current_snapshot_id}"

    def quoted(self, table: Table) -> str:
        """Returns the name of a table for Spark's SQL."""
        return ".".join(f"`{part}`" for part in (self._store.settings.name, *table.name()))

    def select(self, table: Table, names: Collection[str], where: Column | str) -> DataFrame:
        """Returns rows of a table's current snapshot in the layout's schema; columns not named are null."""
        from pyspark.sql.pandas.types import from_arrow_schema

        fields = from_arrow_schema(self.layout.changes).fields
        types = {field.name: field.dataType.simpleString() for field in fields}
        columns = ", ".join(n if n in names else f"CAST(NULL AS {types[n]}) AS {n}" for n in types)
        sql = f"SELECT {columns} FROM {self.at_snapshot(table)}"  # noqa: S608 - names of our own
        return self.session.sql(sql).where(where)

    def with_keys(self, rows: DataFrame, changes: Changes) -> DataFrame:
        """Returns the rows that have a key of the changes."""
        from pyspark.sql.functions import broadcast

        keys = list(self.layout.keys)
        wanted = changes.frame.select(*keys)
        found = rows.join(broadcast(wanted) if changes.count <= _BROADCAST else wanted, keys, "left_semi")
        return found.select(*self.layout.changes.names)  # the join puts the keys first

    def side_table(self, topic: str) -> Table:
        """Returns the side table as the batches of a topic see it."""
        known = self._topics[topic]
        if known.side is None:
            known.side = self.ensure_side_table()
        return known.side

    def reset_side_table(self, topic: str, table: Table | None = None) -> None:
        """Takes the side table as it is after a change of its columns; None: it is loaded on next use."""
        self._topics[topic].side = table

    def _side_of(self, plan: Plan) -> Table | None:
        return None if self.layout.side is None else self.side_table(plan.info.name)

    @property
    def session(self) -> SparkSession:
        assert self._spark is not None, "a pipeline with this sink has Spark"
        return self._spark

    # -- a batch

    def _read_all(self, table: Table, plan: Plan, frames: list[DataFrame], reports: list[TaskReport]) -> Table:
        """Reads the spans, then what their messages name. Frames and reports are added to the lists."""
        side = self._side_of(plan)
        self._read(table, plan, plan.spans, frames, reports)
        table = self.prepare(table, plan, [notice for report in reports for notice in report.notices])
        if side is not None and self.side_table(plan.info.name).schema() != side.schema():
            # Rows were written without the columns that messages of this batch have added.
            discard_files(table.io, [path for report in reports for path in report.written.paths()])
            frames.pop().unpersist()
            reports.clear()
            self._read(table, plan, plan.spans, frames, reports)
        found = self.references(table, plan, [notice for report in reports for notice in report.notices])
        if found:
            self._read(table, plan, found, frames, reports)
        return table

    def _read(
        self,
        table: Table,
        plan: Plan,
        parts: Sequence[Span | Reference],
        frames: list[DataFrame],
        reports: list[TaskReport],
    ) -> None:
        task = self._read_task(table, plan, parts)
        numbers = self.session.range(0, len(parts), 1, len(parts))
        frame = map_in_arrow(numbers, task, pa.schema([*self.layout.changes, REPORT])).persist()
        frames.append(frame)
        rows = frame.where(f"{REPORT.name} IS NOT NULL").select(REPORT.name).collect()
        reports += checked_reports(rows, len(parts))

    def _read_task(self, table: Table, plan: Plan, parts: Sequence[Span | Reference]) -> ReadTask:
        topic = plan.info.name
        side = self._side_of(plan)
        begun = find_position(side, self.name, topic) if side is not None else None
        origin = Origin(self.name, topic, plan.info.log_id)
        reader = self.make_reader(table, plan)
        if plan.isolate:
            side_target = None if side is None else WriteTarget.of(side)
            reader = IsolatingReader(reader, self.make_decider(table, side), WriteTarget.of(table), side_target)
        return ReadTask(
            self.layout,
            self._address,
            plan.info.view,
            tuple(parts),
            self._settings.model.pipeline.read_segments == "auto",
            reader,
            None if side is None else WriteTarget.of(side),
            begun.offsets.get(PARTITION, 0) if begun is not None and begun.log_id == plan.info.log_id else 0,
            self._dead_letters.target(),
            origin,
            self._dead_letters.known(origin, plan.expected, plan.end),
            str(uuid.uuid4()),
        )

    def _stored(self, table: Table, changes: Changes) -> DataFrame:
        """The rows of the table with the keys of the changes, by their places."""
        rows = self.select(table, {*self.layout.keys, *self.layout.carried, *PLACE.names}, spark_filter(changes.bounds))
        return self.with_keys(rows, changes)

    def _append_side_rows(self, plan: Plan, files: Sequence[Any]) -> None:
        side = self.side_table(plan.info.name)
        done = append_to_side_table(
            self._store,
            side,
            files,
            expected=find_position(side, self.name, plan.info.name),
            reached=plan.reached(self.name),
            keep_snapshots=self._keep(side),
        )
        self.reset_side_table(plan.info.name, done.table)

    def _keep(self, table: Table) -> int:
        return snapshots_kept(self._settings, table.name(), self.kept_snapshots())


def _own_session(spark: SparkSession) -> SparkSession:
    """A session for plans that are known beforehand: to plan them anew after each stage would cost a tenth of them."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


def _expressions(terms: Sequence[str]) -> list[Column]:
    from pyspark.sql.functions import expr

    return [expr(term) for term in terms]
