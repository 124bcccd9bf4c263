"""The content sink: from the messages of a topic into `content.journal` and `content.objects`.

A batch is two jobs of Spark. The first reads the log on the executors, parses, writes the journal, and keeps what was
said as evidence. The second joins that with the rows of the same keys in the table, decides, and writes new rows and
position deletes. The driver commits: dead letters, journal, objects with the position; the last one lands on exactly
the snapshot that was read, or the batch is begun again.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from frazil.content.asking import Asker
from frazil.content.evidence import PACKED, PLACE, of_changes, packed
from frazil.content.fields import Fields
from frazil.content.fields.configured import configured
from frazil.content.filling import declare, fields_of, filled, lacking, obey, unfilled
from frazil.content.names import CONTENT, journal_name, objects_name
from frazil.content.pending import Due, Pending, due_rows, old_tombstones
from frazil.content.stages import MERGED, READ, Merging, Reading, Refilling, Report, read_reports
from frazil.content.tables import ensure_journal, ensure_objects
from frazil.errors import FrazilError, UnavailableError, first_line
from frazil.log.access import TopicInfo
from frazil.log.columns import PARTITION
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.settings import Settings
from frazil.settings.policies import snapshots_kept
from frazil.spark.arrow import map_in_arrow
from frazil.tables import Position, PositionMovedError, TableStore, commit_append, find_position
from frazil.tables.writing.data_files import WriteTarget, discard_files
from frazil.tables.writing.position_deletes import FilePartition, write_position_deletes
from frazil.topics.dead_letters.writer import DeadLetters, Origin
from frazil.topics.layout import dead_letters_name
from frazil.topics.side_table import append_to_side_table
from frazil.topics.sinks.backfill import Backfill
from frazil.topics.sinks.jobs import TasksFailedError
from frazil.topics.sinks.sink import Plan, Runner, Written, files_of

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

log = get_logger(__name__)

#: Changes of a batch up to which their keys are sent to every executor, so that the table need not be shuffled.
_BROADCAST = 200_000
#: Changes that one task decides about.
_PER_TASK = 100_000
#: Rows whose custom columns are computed in one go.
_FILLED_AT_ONCE = 250_000
#: Buckets whose bounds are given to the planner one by one.
_MAX_RANGES = 20


@dataclass(frozen=True)
class _Evidence:
    """What the changes of a batch say, and where in the table they have to be looked for."""

    frame: DataFrame
    count: int
    bounds: Mapping[str, tuple[str, str]]


class ContentSink:
    name = CONTENT
    tend_every_s = 1.0

    def __init__(self, store: TableStore, settings: Settings, address: str, spark: SparkSession | None = None) -> None:
        self._store = store
        self._settings = settings
        self._address = address
        self._spark = None if spark is None else _own_session(spark)
        self._dead_letters = DeadLetters(store, settings)
        self._asker = Asker.of(settings)
        self._pending = Pending(settings.model.content.lateness_s)
        self._journal: Table | None = None
        self._read_on: int | None = None
        self._table: Table | None = None
        self._declared = False
        self._fills = False

    def tables(self, topic: str) -> list[str]:
        del topic
        return [dead_letters_name(self._settings), journal_name(self._settings), objects_name(self._settings)]

    def table(self, info: TopicInfo) -> Table:
        self._dead_letters.forget(info.name)
        self._journal = None
        self._pending.forget()
        table = ensure_objects(self._store, self._settings)
        if not self._declared:
            # Once: what messages say later is newer than the settings of this process.
            table = declare(self._store, table, configured(self._settings))
            self._declared = True
        self._fills = bool(unfilled(table))
        return table

    def backfill(self, topic: str) -> Backfill:
        return Backfill(self._store, self._settings, topic, self.name)

    # -- a batch -----------------------------------------------------------------------------------------------------

    def write(self, table: Table, plan: Plan, run: Runner) -> list[Written]:
        del run  # the work is a plan of Spark's own, and no list of tasks
        parsed = self._parsed(plan)
        reports: list[Report] = []
        try:
            pickled = parsed.where("report IS NOT NULL").select("report").collect()
            reports = _checked(pickled, len(plan.spans))
            changes = parsed.where("report IS NULL").drop("report")
            evidence = _Evidence(changes, sum(r.changes for r in reports), _all_bounds(reports))
            table = self._table = self._ordered(table, plan, [order for r in reports for order in r.orders])
            merged = self._merge(table, evidence) if evidence.count else []
        except TasksFailedError as failed:
            raise TasksFailedError(failed.error, failed.written + [r.written for r in reports]) from failed
        except FrazilError as error:
            raise TasksFailedError(error, [r.written for r in reports]) from error
        except Exception as error:  # Spark's errors have no base of their own
            raise TasksFailedError(_spark_failed(error), [r.written for r in reports]) from error
        finally:
            parsed.unpersist()
        return [r.written for r in [*reports, *merged]]

    def _ordered(self, table: Table, plan: Plan, orders: Sequence[Mapping[str, Any]]) -> Table:
        """The table with the custom columns that messages of this batch ask for."""
        if orders:
            # Another pipeline may have obeyed these, and later ones.
            table = self._store.load(table.name())
            if find_position(table, self.name, plan.info.name) != plan.expected:
                raise PositionMovedError("another pipeline was faster", hint="plan anew")
            table = obey(self._store, table, orders)
        self._fills = bool(unfilled(table))
        return table

    def _parsed(self, plan: Plan) -> DataFrame:
        content, topic = self._settings.model.content, plan.info.name
        journal = self._journal_table()
        origin = Origin(self.name, topic, plan.info.log_id)
        begun = find_position(journal, self.name, topic)
        reading = Reading(
            self._address,
            plan.info.view,
            plan.spans,
            content.dialect,
            self._settings.model.pipeline.read_segments == "auto",
            self._asker,
            WriteTarget.of(journal),
            begun.offsets.get(PARTITION, 0) if begun is not None and begun.log_id == plan.info.log_id else 0,
            self._dead_letters.target(),
            origin,
            self._dead_letters.known(origin, plan.expected, plan.end),
            plan.batch_id,
        )
        numbers = self._session.range(0, len(plan.spans), 1, len(plan.spans))
        return map_in_arrow(numbers, reading, READ).persist()

    def _merge(self, table: Table, evidence: _Evidence) -> list[Report]:
        reach("content.merge.plan")
        self._read_on = table.metadata.current_snapshot_id
        everything = evidence.frame
        if self._read_on is not None:
            everything = self._stored(table, evidence).unionByName(everything)
        tasks = max(self._session.sparkContext.defaultParallelism, -(-evidence.count // _PER_TASK))
        skew_s = self._settings.model.content.skew_s
        merging = Merging(WriteTarget.of(table), skew_s, _places(table), fields_of(table))
        result = map_in_arrow(everything.repartition(tasks, "bucket", "key"), merging, MERGED)
        reports = _checked(result.collect(), None)
        self._pending.learn(r.check_after for r in reports)
        return reports

    def _stored(self, table: Table, evidence: _Evidence) -> DataFrame:
        """The rows of the table with the keys of the changes, by their places."""
        from pyspark.sql.functions import broadcast

        name = _quoted(self._store.settings.name, *table.name())
        rows = self._session.sql(
            f"SELECT {_places_only()} FROM {name} VERSION AS OF {self._read_on}"  # noqa: S608 - names of our own
        ).where(_ranges(evidence.bounds))
        keys = evidence.frame.select("bucket", "key")
        return rows.join(broadcast(keys) if evidence.count <= _BROADCAST else keys, ["bucket", "key"], "left_semi")

    def commit(self, table: Table, plan: Plan, written: Sequence[Written]) -> Table:
        others = [path for w in written for kind in ("objects", "deletes") for path in _paths(w, kind)]
        try:
            if dead := files_of(written, "dead"):
                reach("sink.dead_letters.before")
                self._dead_letters.commit(plan.reached(self.name), dead)
                reach("sink.dead_letters.after")
            if journal := files_of(written, "journal"):
                reach("content.journal.before")
                self._append_journal(plan, journal)
                reach("content.journal.after")
        except FrazilError:
            # The batch is begun again, with files of its own. What has landed stays, and is known by its position.
            discard_files(table.io, others)
            raise
        # As it was when the files were written: a message may have given it columns.
        return self._commit_objects(self._table or table, written, plan.expected, plan.reached(self.name))

    def _append_journal(self, plan: Plan, files: Sequence[Any]) -> None:
        journal = self._journal_table()
        done = append_to_side_table(
            self._store,
            journal,
            files,
            expected=find_position(journal, self.name, plan.info.name),
            reached=plan.reached(self.name),
            keep_snapshots=self._keep(journal),
        )
        self._journal = done.table

    def _commit_objects(
        self, table: Table, written: Sequence[Written], expected: Position | None, reached: Position
    ) -> Table:
        deletes = files_of(written, "deletes")
        reach("sink.commit.before")
        done = commit_append(
            self._store,
            table,
            [*files_of(written, "objects"), *deletes],
            expected=expected,
            reached=reached,
            keep_snapshots=self._keep(table),
            on=self._read_on if deletes or files_of(written, "objects") else None,
        )
        reach("sink.commit.after")
        return done.table

    def _keep(self, table: Table) -> int:
        return snapshots_kept(self._settings, table.name(), self._settings.model.content.keep_snapshots)

    # -- between batches ---------------------------------------------------------------------------------------------

    def waits_s(self) -> float | None:
        """Seconds until a row has to be looked at again; None: none has."""
        return 0.0 if self._fills else self._pending.waits_s(time.time())

    def tend(self, table: Table, position: Position) -> Table:
        """Asks buckets again where sources disagreed, and lets old tombstones go where the settings say so.

        Custom columns of the rows that are there are computed a part at a time, so that news need not wait for all.
        """
        now = datetime.datetime.now(datetime.UTC)
        wanted = unfilled(table)
        self._fills = bool(wanted)
        if table.metadata.current_snapshot_id is None:
            return filled(self._store, table, wanted) if wanted else table
        if self._pending.is_unknown or self._pending.is_due(now.timestamp()):
            due = due_rows(self._store, table, now, self._pending)
            if due:
                return self._check(table, position, due)
        if self._pending.tombstones_due(now.timestamp()):
            return self._forget_tombstones(table, position, now)
        return self._fill(table, position, wanted) if wanted else table

    def _fill(self, table: Table, position: Position, wanted: Fields) -> Table:
        """Computes custom columns for the next rows that lack them."""
        reach("content.fill.plan")
        self._read_on = table.metadata.current_snapshot_id
        name = f"{_quoted(self._store.settings.name, *table.name())} VERSION AS OF {self._read_on}"
        places = lacking(self._session, name, wanted, _FILLED_AT_ONCE)
        refilling = Refilling(WriteTarget.of(table), _places(table), wanted)
        tasks = self._session.sparkContext.defaultParallelism
        try:
            spread = places.repartitionByRange(tasks, "_file", "_pos").sortWithinPartitions("_file", "_pos")
            reports = _checked(map_in_arrow(spread, refilling, MERGED).collect(), None)
        except TasksFailedError as error:
            discard_files(table.io, [path for w in error.written for path in w.paths()])
            raise error.error from error
        except FrazilError:
            raise
        except Exception as error:
            raise _spark_failed(error) from error
        if not reports:
            table = filled(self._store, table, wanted)
            self._fills = bool(unfilled(table))
            return table
        reached = replace(position, batch_id=str(uuid.uuid4()))
        return self._commit_objects(table, [r.written for r in reports], position, reached)

    def _check(self, table: Table, position: Position, due: Sequence[Due]) -> Table:
        keys = [(row.bucket, row.key, row.version_id) for row in due]
        told, failed = self._asker.ask(keys)
        for (bucket, key), error in list(failed.items())[:1]:
            log.warning(
                "a bucket says nothing about a key", bucket=bucket, key=key, error=error.message, in_all=len(failed)
            )
        evidence = of_changes(told)
        if not evidence.num_rows:
            return table
        frame = self._session.createDataFrame(packed(evidence))
        bounds = {bucket: (min(k), max(k)) for bucket, k in _by_bucket(keys).items()}
        try:
            reports = self._merge(table, _Evidence(frame, evidence.num_rows, bounds))
        except TasksFailedError as error:
            discard_files(table.io, [path for w in error.written for path in w.paths()])
            raise error.error from error
        reached = replace(position, batch_id=str(uuid.uuid4()))
        return self._commit_objects(table, [r.written for r in reports], position, reached)

    def _forget_tombstones(self, table: Table, position: Position, now: datetime.datetime) -> Table:
        lateness = self._settings.model.content.lateness_s
        assert lateness is not None, "else none are due"
        self._pending.tombstones_done(now.timestamp())
        before = now - datetime.timedelta(seconds=lateness)
        self._read_on = table.metadata.current_snapshot_id
        name = _quoted(self._store.settings.name, *table.name())
        found = old_tombstones(self._session, f"{name} VERSION AS OF {self._read_on}", before)
        if not found.num_rows:
            return table
        files, positions = found.column("_file").combine_chunks(), found.column("_pos").combine_chunks()
        gone = write_position_deletes(WriteTarget.of(table), "tombstones", files, positions, _places(table))
        reached = replace(position, batch_id=str(uuid.uuid4()))
        return self._commit_objects(table, [Written({"deletes": gone})], position, reached)

    # -- what it knows -----------------------------------------------------------------------------------------------

    @property
    def _session(self) -> SparkSession:
        assert self._spark is not None, "a pipeline with this sink has Spark"
        return self._spark

    def _journal_table(self) -> Table:
        if self._journal is None:
            self._journal = ensure_journal(self._store, self._settings)
        return self._journal


def _checked(rows: Sequence[Any], wanted: int | None) -> list[Report]:
    """The reports of all tasks.

    Raises:
        TasksFailedError: one has failed; the others' files are of no use.
    """
    found = read_reports(bytes(row.report) for row in rows)
    reports = [r for r in found if isinstance(r, Report)]
    failed = [r for r in found if isinstance(r, FrazilError)]
    if not failed and wanted is not None and len(reports) != wanted:
        failed = [UnavailableError(f"{len(reports)} of {wanted} tasks have a result")]
    if failed:
        raise TasksFailedError(failed[0], [r.written for r in reports])
    return reports


def _spark_failed(error: Exception) -> FrazilError:
    return UnavailableError(
        "Spark could not run the batch", cause=first_line(error), hint="look at Spark's executors and their log"
    )


def _all_bounds(reports: Sequence[Report]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for report in reports:
        for bucket, (low, high) in report.bounds.items():
            before = found.get(bucket, (low, high))
            found[bucket] = (min(before[0], low), max(before[1], high))
    return found


def _by_bucket(keys: Sequence[tuple[str, str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for bucket, key, _ in keys:
        found.setdefault(bucket, []).append(key)
    return found


def _own_session(spark: SparkSession) -> SparkSession:
    """A session for plans that are known beforehand: to plan them anew after each stage would cost a tenth of them."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


@cache
def _places_only() -> str:
    """What Spark reads of a stored row: where it is. Executors read the rest of it where a key has changed."""
    from pyspark.sql.pandas.types import from_arrow_schema

    known = ("bucket", "key", *PLACE.names)
    fields = from_arrow_schema(PACKED).fields
    nulls = {f.name: f"CAST(NULL AS {f.dataType.simpleString()}) AS {f.name}" for f in fields}
    return ", ".join(name if name in known else nulls[name] for name in PACKED.names)


def _ranges(bounds: Mapping[str, tuple[str, str]]) -> Any:
    """Where the keys lie, for the planner: files of a sorted table that have none of them are not opened."""
    from pyspark.sql.functions import col, lit

    if len(bounds) > _MAX_RANGES:
        return col("bucket").between(lit(min(bounds)), lit(max(bounds)))
    wanted = lit(False)
    for bucket, (low, high) in sorted(bounds.items()):
        wanted = wanted | ((col("bucket") == lit(bucket)) & col("key").between(lit(low), lit(high)))
    return wanted


def _places(table: Table) -> dict[str, FilePartition] | None:
    """Spec and partition of each data file, where the table has, or had, partitions."""
    if not any(spec.fields for spec in table.metadata.specs().values()):
        return None
    return {task.file.file_path: (task.file.spec_id, task.file.partition) for task in table.scan().plan_files()}


def _paths(written: Written, kind: str) -> list[str]:
    return [file.file_path for file in written.files.get(kind, ())]


def _quoted(*parts: str) -> str:
    return ".".join(f"`{part}`" for part in parts)
