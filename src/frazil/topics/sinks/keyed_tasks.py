"""The two stages of a batch of a keyed table, which Spark's executors run: messages to changes, and changes to files.

Each is a function of Arrow batches for `mapInArrow`, and hands its result on as Arrow. What the driver must know of the
files that a task has written comes as one more row, pickled. An error comes the same way: thrown, it would be text.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import FrazilError, first_line
from frazil.log.protocol import Span, TopicView
from frazil.observe.faultpoints import reach
from frazil.tables.reading.rows_by_position import fetch_rows
from frazil.tables.writing.data_files import TableWriter, WriteTarget, load_target
from frazil.tables.writing.position_deletes import FilePartition, write_position_deletes
from frazil.tables.writing.type_conversion import RejectedRow, convert_all_rows
from frazil.topics.dead_letters.writer import Origin, dead_rows
from frazil.topics.sinks.archive import read_span
from frazil.topics.sinks.jobs import BatchFailedError, end_task
from frazil.topics.sinks.keyed_bounds import Bounds, Box, widen
from frazil.topics.sinks.sink import Written

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Where a stored row lies; of a change both are null.
PLACE = pa.schema([pa.field("_file", pa.string()), pa.field("_pos", pa.int64())])
#: Of the rows that a task hands on, the one with what it has written.
REPORT = pa.field("report", pa.binary())
REPORTS = pa.schema([REPORT])
BATCH_ROWS = 10_000
#: A local property of Spark jobs that tells tasks in which phase of the batch they run.
PHASE = "frazil.keyed.phase"
MERGE_PHASE = "merge"

Fetch = Callable[[pa.Schema, pa.Array, pa.Array], pa.Table]
"""Reads columns of stored rows by file and position."""


@dataclass(frozen=True)
class KeyedLayout:
    """How the changes of a keyed table travel, and what its files are called.

    Attributes:
        room: begins the names of the steps of a batch, for tests that interrupt it.
        changes: the columns of changes between the stages; `keys` and `PLACE` are among them.
        keys: the columns of the table by which changes meet its rows.
        rows: begins the names of the table's files.
        side: begins the names of the side table's files; None: there is no side table.
        side_row: what a row of the side table is, for errors.
        carried: other columns of the table that the changes have, and that stored rows are to have beside their places.
    """

    room: str
    changes: pa.Schema
    keys: tuple[str, ...]
    rows: str
    side: str | None = None
    side_row: str = "a row"
    carried: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParsedMessages:
    """What messages say.

    Attributes:
        changes: in the layout's schema.
        count: how many of them count as rows of the batch.
        bounds: see `Bounds`.
        side_rows: for the side table, with the `offset` of their message; None: none.
        rejected: messages that become dead letters, at most once each.
        notices: what the driver must know, such as columns to add.
    """

    changes: pa.Table
    count: int
    bounds: Bounds
    side_rows: pa.Table | None = None
    rejected: Sequence[RejectedRow] = ()
    notices: Sequence[Any] = ()


class ChangeReader(Protocol):
    """Parses messages on an executor. It is pickled."""

    def __call__(self, messages: pa.Table) -> ParsedMessages: ...


class Reference(Protocol):
    """Data outside of the log that a message names: read by a task of its own. It is pickled."""

    @property
    def offset(self) -> int:
        """The offset of the message."""
        ...

    def read(self) -> Iterator[tuple[pa.Table, ParsedMessages]]:
        """Yields what the data says, each part with the one message, as `rejected` counts its rows."""
        ...


@dataclass(frozen=True)
class Merged:
    """What a table has to become for some keys.

    Attributes:
        rows: new and changed ones, with all columns of the table.
        files: of the stored rows that are replaced or removed, the data files in which they lie.
        positions: and where in those files.
        notices: what the driver must know.
    """

    rows: pa.Table
    files: pa.Array
    positions: pa.Array
    notices: Sequence[Any] = ()


class Decider(Protocol):
    """Decides what becomes of keys: a pure function, but for reading stored rows. It is pickled."""

    def __call__(self, rows: pa.Table, fetch: Fetch, columns: pa.Schema) -> Merged | None:
        """Returns what the table has to become; None: nothing changes.

        Args:
            rows: all changes of some keys, and the places of all stored rows with these keys.
            fetch: reads columns of stored rows.
            columns: those of the table.
        """
        ...


@dataclass(frozen=True)
class TaskReport:
    """What one task has done.

    Attributes:
        written: its files.
        changes: that it found, or rows that it has changed.
        bounds: of the changes that it found.
        notices: what the driver must know, in the order of the messages.
    """

    written: Written
    changes: int = 0
    bounds: Bounds = field(default_factory=dict)
    notices: Sequence[Any] = ()


@dataclass(frozen=True)
class ReadTask:
    """Reads spans of the log, or data that messages name, writes the side table's rows, and hands on the changes."""

    layout: KeyedLayout
    address: str
    view: TopicView
    parts: tuple[Span | Reference, ...]
    nearby: bool
    reader: ChangeReader
    side: WriteTarget | None
    side_from: int
    """First offset that the side table does not have: a former try of this batch may have got that far."""
    dead: WriteTarget
    origin: Origin
    known_dead: frozenset[int]
    batch_id: str
    """Makes each try another one for Spark, which would else take what it has kept of the same work: files of a former
    try, that are deleted by now."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([*self.layout.changes, REPORT])
        raises = _is_merging()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                part = self.parts[number]
                yield from reported(schema, self._read(part), _name(part), raises=raises)
        end_task()

    def _read(self, part: Span | Reference) -> Iterator[pa.Table | TaskReport]:
        reach(f"{self.layout.room}.read.before")
        name = f"{_first(part):020d}"
        dead = TableWriter(self.dead, f"{self.view.topic}-{name}")
        side = TableWriter(self.side, name) if self.side is not None else None
        rows = lost = 0
        notices: list[Any] = []
        bounds: dict[Any, Box] = {}
        try:
            for messages, parsed in self._parsed(part):
                rows += parsed.count
                notices += parsed.notices
                widen(bounds, parsed.bounds)
                if side is not None and parsed.side_rows is not None:
                    self._add_side_rows(side, parsed.side_rows)
                lost += self._add_dead_letters(dead, messages, parsed.rejected)
                yield parsed.changes
            files = {"dead": dead.finish()}
            if side is not None:
                assert self.layout.side is not None
                files[self.layout.side] = side.finish()
        except BaseException:
            dead.abandon()
            if side is not None:
                side.abandon()
            raise
        reach(f"{self.layout.room}.read.after")
        yield TaskReport(Written(files, rows, lost), rows, bounds, notices)

    def _parsed(self, part: Span | Reference) -> Iterator[tuple[pa.Table, ParsedMessages]]:
        if not isinstance(part, Span):
            yield from part.read()
            return
        for messages in read_span(self.address, self.view, part, nearby=self.nearby):
            yield messages, self.reader(messages)

    def _add_side_rows(self, side: TableWriter, rows: pa.Table) -> None:
        new = rows.filter(pc.greater_equal(rows.column("offset"), self.side_from))
        if new.num_rows:
            side.add(convert_all_rows(new, side.schema, self.layout.side_row))

    def _add_dead_letters(self, dead: TableWriter, messages: pa.Table, rejected: Sequence[RejectedRow]) -> int:
        if not rejected:
            return 0
        in_order = sorted(rejected, key=lambda row: row.row)
        letters = dead_rows(messages, in_order, self.origin, self.known_dead)
        dead.add(convert_all_rows(letters, dead.schema, "a dead letter"))
        return int(letters.num_rows)


@dataclass(frozen=True)
class MergeTask:
    """Decides about the keys in its part, and writes the rows that change, and deletes of those that they replace."""

    layout: KeyedLayout
    target: WriteTarget
    decide: Decider
    places: Mapping[str, FilePartition] | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from reported(REPORTS, self._merge(batches), "a batch could not be merged")
        end_task()

    def _merge(self, batches: Iterable[pa.RecordBatch]) -> Iterator[TaskReport]:
        found = [pa.Table.from_batches([batch]).cast(self.layout.changes) for batch in batches if batch.num_rows]
        if not found:
            return
        reach(f"{self.layout.room}.merge.before")
        columns = load_target(self.target).arrow
        merged = self.decide(pa.concat_tables(found), partial(fetch_rows, self.target), columns)
        if merged is None:
            return
        written = write_merged(
            self.target, self.layout.rows, [merged.rows], merged.files, merged.positions, self.places
        )
        reach(f"{self.layout.room}.merge.after")
        yield TaskReport(written, merged.rows.num_rows, {}, merged.notices)


def write_merged(
    target: WriteTarget,
    name: str,
    parts: Iterable[pa.Table],
    files: pa.Array,
    positions: pa.Array,
    places: Mapping[str, FilePartition] | None,
) -> Written:
    """Writes files of new rows, and of deletes of those that they replace, at positions of files."""
    rows = TableWriter(target, name)
    try:
        for part in parts:
            if part.num_rows:
                rows.add(convert_all_rows(part, rows.schema))
        made = rows.finish()
        gone = write_position_deletes(target, name, files, positions, places)
    except BaseException:
        rows.abandon()
        raise
    return Written({name: made, "deletes": gone})


def _is_merging() -> bool:
    """Whether the driver has the reports of this stage already: an executor was lost, and Spark reads a part again.

    Nobody looks for errors among the rows then, so that they have to be raised.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.getLocalProperty(PHASE) == MERGE_PHASE


def reported(
    schema: pa.Schema,
    made: Iterator[pa.Table | TaskReport] | Iterator[TaskReport],
    failure: str,
    *,
    raises: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yields rows as they are, reports and errors as a row of their own.

    Args:
        schema: of the rows.
        made: rows and reports.
        failure: what has failed, if an error is not one of Frazil's own.
        raises: raise errors instead.
    """
    try:
        for thing in made:
            if isinstance(thing, TaskReport):
                yield _report(schema, thing)
            else:
                rows = thing.append_column(REPORT, pa.nulls(thing.num_rows, REPORT.type))
                yield from rows.select(schema.names).to_batches(BATCH_ROWS)
    except FrazilError as error:
        if raises:
            raise
        yield _report(schema, error)
    except Exception as error:
        if raises:
            raise
        yield _report(schema, BatchFailedError(failure, cause=f"{type(error).__name__}: {first_line(error)}"))


def read_reports(pickled: Iterable[bytes]) -> list[TaskReport | FrazilError]:
    return [pickle.loads(data) for data in pickled]  # noqa: S301 - from our own tasks


def _report(schema: pa.Schema, thing: TaskReport | FrazilError) -> pa.RecordBatch:
    columns = [
        pa.array([pickle.dumps(thing)], f.type) if f.name == REPORT.name else pa.nulls(1, f.type) for f in schema
    ]
    return pa.record_batch(columns, schema=schema)


def _first(part: Span | Reference) -> int:
    return part.start if isinstance(part, Span) else part.offset


def _name(part: Span | Reference) -> str:
    if isinstance(part, Span):
        return f"offsets {part.start} to {part.end} were not read"
    return f"what the message at offset {part.offset} names was not read"
