"""The two stages of a batch that Spark's executors run: from messages to evidence, and from evidence to files.

Each is a function of Arrow batches for `mapInArrow`, and hands its result on as Arrow. What the driver must know of the
files that a task has written comes as one more row, pickled. An error comes the same way: thrown, it would be text.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.asking import Asker, answered
from frazil.content.columns import DELETE, JOURNAL, PLAIN_TIME
from frazil.content.events.parse import parse_messages
from frazil.content.evidence import (
    PACKED,
    PLACE,
    of_changes,
    packed,
    packed_notes,
)
from frazil.content.fields import Fields
from frazil.content.keeping import Shape
from frazil.content.merge import merge_changes
from frazil.content.notes.apply import with_fields
from frazil.errors import FrazilError, first_line
from frazil.log.access import Span, TopicView
from frazil.log.columns import PARTITION
from frazil.observe.faultpoints import reach
from frazil.tables.reading.rows_by_position import fetch_rows
from frazil.tables.writing.data_files import TableWriter, WriteTarget, load_target
from frazil.tables.writing.position_deletes import FilePartition, write_position_deletes
from frazil.tables.writing.type_conversion import convert_all_rows
from frazil.topics.dead_letters.writer import Origin, dead_rows
from frazil.topics.sinks.archive import read_span
from frazil.topics.sinks.jobs import BatchFailedError, end_task
from frazil.topics.sinks.sink import Written

#: Of the rows that a task hands on, the one with what it has written.
REPORT = pa.field("report", pa.binary())
READ = pa.schema([*PACKED, REPORT])
MERGED = pa.schema([REPORT])
_ROWS = 10_000


@dataclass(frozen=True)
class Report:
    """What one task has done.

    Attributes:
        written: its files.
        changes: that it found, or rows that it has changed.
        bounds: per bucket the first and the last key.
        check_after: when the next row wants to be looked at again, in microseconds since 1970; None: none does.
        orders: what messages say about the table itself, in their order.
    """

    written: Written
    changes: int = 0
    bounds: dict[str, tuple[str, str]] = field(default_factory=dict)
    check_after: int | None = None
    orders: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Reading:
    """Reads spans of the log, parses and journals them, and hands on what they say as evidence."""

    address: str
    view: TopicView
    spans: tuple[Span, ...]
    dialect: str
    nearby: bool
    asker: Asker
    journal: WriteTarget
    journal_from: int
    """First offset that the journal does not have: a former try of this batch may have got that far."""
    dead: WriteTarget
    origin: Origin
    known_dead: frozenset[int]
    batch_id: str
    """Makes each try another one for Spark, which would else take what it has kept of the same work: files of a former
    try, that are deleted by now."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _reporting(READ, self._span(self.spans[number]), self.spans[number])
        end_task()

    def _span(self, span: Span) -> Iterator[pa.Table | Report]:
        reach("content.read.before")
        name = f"{span.start:020d}"
        journal, dead = TableWriter(self.journal, name), TableWriter(self.dead, f"{self.view.topic}-{name}")
        rows = lost = 0
        orders: list[dict[str, Any]] = []
        bounds: dict[str, tuple[str, str]] = {}
        try:
            for messages in read_span(self.address, self.view, span, nearby=self.nearby):
                changes, misfits, notes, told = parse_messages(messages, self.dialect)
                orders += told
                answers = answered(self.asker, messages, changes)
                rows += changes.num_rows + len(notes)
                new = changes.filter(pc.greater_equal(changes.column("offset"), self.journal_from))
                if new.num_rows:
                    journal.add(
                        convert_all_rows(journal_rows(new, self.view.topic), journal.schema, "a row of the journal")
                    )
                once = {m.row: m for m in [*answers.misfits, *misfits]}
                if once:
                    letters = dead_rows(messages, [once[row] for row in sorted(once)], self.origin, self.known_dead)
                    dead.add(convert_all_rows(letters, dead.schema, "a dead letter"))
                    lost += letters.num_rows
                evidence = pa.concat_tables([of_changes(changes), answers.evidence])
                said = pa.concat_tables([packed(evidence), packed_notes(notes)])
                _widen(bounds, said)
                yield said
            files = {"journal": journal.finish(), "dead": dead.finish()}
        except BaseException:
            journal.abandon()
            dead.abandon()
            raise
        reach("content.read.after")
        yield Report(Written(files, rows, lost), rows, bounds, orders=tuple(orders))


@dataclass(frozen=True)
class Merging:
    """Decides what is true of the keys in its part, and writes the rows that change, and deletes of those before."""

    objects: WriteTarget
    skew_s: float
    places: Mapping[str, FilePartition] | None
    fields: Fields

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _reporting(MERGED, self._merge(batches), None)
        end_task()

    def _merge(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table | Report]:
        found = [pa.Table.from_batches([batch]).cast(PACKED) for batch in batches if batch.num_rows]
        if not found:
            return
        reach("content.merge.before")
        shape = Shape.of(load_target(self.objects).arrow, self.fields)
        fetch = partial(fetch_rows, self.objects)
        merged = merge_changes(pa.concat_tables(found), fetch, shape, self.fields, self.skew_s)
        if merged is None:
            return
        written = _written(self.objects, [merged.rows], merged.files, merged.positions, self.places)
        reach("content.merge.after")
        yield Report(written, merged.rows.num_rows, {}, _next_check(merged.rows))


@dataclass(frozen=True)
class Refilling:
    """Computes the custom columns of stored rows again, from what was found inside them."""

    objects: WriteTarget
    places: Mapping[str, FilePartition] | None
    fields: Fields

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _reporting(MERGED, self._refill(batches), None)
        end_task()

    def _refill(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table | Report]:
        found = [pa.Table.from_batches([batch]).cast(PLACE) for batch in batches if batch.num_rows]
        if not found:
            return
        reach("content.refill.before")
        place = pa.concat_tables(found).combine_chunks()
        files, positions = (place.column(name).combine_chunks() for name in PLACE.names)
        written = _written(self.objects, self._parts(files, positions), files, positions, self.places)
        reach("content.refill.after")
        yield Report(written, len(files))

    def _parts(self, files: pa.Array, positions: pa.Array) -> Iterator[pa.Table]:
        """The rows a part at a time: documents may be large."""
        whole = pa.schema([pa.field(f.name, f.type) for f in load_target(self.objects).arrow])
        for start in range(0, len(files), _ROWS):
            place = files.slice(start, _ROWS), positions.slice(start, _ROWS)
            yield with_fields(fetch_rows(self.objects, whole, *place), self.fields)


def _written(
    target: WriteTarget,
    parts: Iterable[pa.Table],
    files: pa.Array,
    positions: pa.Array,
    places: Mapping[str, FilePartition] | None,
) -> Written:
    """Files of new rows, and of deletes of those that they replace, at positions of files."""
    rows = TableWriter(target, "objects")
    try:
        for part in parts:
            if part.num_rows:
                rows.add(convert_all_rows(part, rows.schema))
        made = rows.finish()
        gone = write_position_deletes(target, "objects", files, positions, places)
    except BaseException:
        rows.abandon()
        raise
    return Written({"objects": made, "deletes": gone})


def _reporting(schema: pa.Schema, made: Iterator[pa.Table | Report], span: Span | None) -> Iterator[pa.RecordBatch]:
    """Rows as they are, reports and errors as a row of their own."""
    try:
        for thing in made:
            if isinstance(thing, Report):
                yield _report(schema, thing)
            else:
                rows = thing.append_column(REPORT, pa.nulls(thing.num_rows, REPORT.type))
                yield from rows.select(schema.names).to_batches(_ROWS)
    except FrazilError as error:
        yield _report(schema, error)
    except Exception as error:  # noqa: BLE001 - told to the driver, which decides
        told = f"{type(error).__name__}: {first_line(error)}"
        what = "a batch could not be merged" if span is None else f"offsets {span.start} to {span.end} were not read"
        yield _report(schema, BatchFailedError(what, cause=told))


def _report(schema: pa.Schema, thing: Report | FrazilError) -> pa.RecordBatch:
    columns = [
        pa.array([pickle.dumps(thing)], f.type) if f.name == REPORT.name else pa.nulls(1, f.type) for f in schema
    ]
    return pa.record_batch(columns, schema=schema)


def journal_rows(changes: pa.Table, topic: str) -> pa.Table:
    """Changes in the shape of S3 Metadata's journal, and a little more."""
    deleted = pc.equal(changes.column("record_type"), DELETE)
    marker = changes.column("is_delete_marker")
    by_time = pc.binary_join_element_wise(
        "!", pc.utf8_lpad(changes.column("time").cast(pa.int64()).cast(pa.string()), 20, "0"), ""
    )
    made: dict[str, Any] = {name: changes.column(name) for name in JOURNAL.names if name in changes.column_names}
    made |= {
        # What has no sequence sorts before all that has one, and by its time.
        "sequence_number": pc.coalesce(changes.column("sequence"), by_time),
        # As S3 Metadata has it: a delete marker is a DELETE.
        "record_type": pc.if_else(marker, DELETE, changes.column("record_type")),
        "record_timestamp": changes.column("time").cast(PLAIN_TIME),
        "version_id": _none_if_empty(changes.column("version_id")),
        "is_delete_marker": pc.if_else(pc.and_(deleted, pc.invert(marker)), pa.scalar(None, pa.bool_()), marker),
        "last_modified_date": changes.column("last_modified").cast(PLAIN_TIME),
        "e_tag": changes.column("etag"),
        "is_multipart": _is_multipart(changes.column("etag")),
        "object_tags": changes.column("tags"),
        "topic": pa.repeat(topic, changes.num_rows),
        "partition": pa.repeat(pa.scalar(PARTITION, pa.int32()), changes.num_rows),
    }
    nothing = {f.name: pa.nulls(changes.num_rows, f.type) for f in JOURNAL if f.name not in made}
    return pa.table([(made | nothing)[f.name] for f in JOURNAL], schema=JOURNAL)


def _is_multipart(etag: Any) -> Any:
    """The etag of an upload in parts ends in their number."""
    return pc.match_substring_regex(etag, r"^[0-9a-fA-F]{32}-[0-9]+$")


def _none_if_empty(texts: Any) -> Any:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _widen(bounds: dict[str, tuple[str, str]], evidence: pa.Table) -> None:
    if not evidence.num_rows:
        return
    grouped = evidence.select(["bucket"]).append_column("key", evidence.column("key").cast(pa.binary()))
    for row in grouped.group_by("bucket").aggregate([("key", "min"), ("key", "max")]).to_pylist():
        low, high = row["key_min"].decode(), row["key_max"].decode()
        before = bounds.get(row["bucket"], (low, high))
        bounds[row["bucket"]] = (min(before[0], low), max(before[1], high))


def _next_check(rows: pa.Table) -> int | None:
    soonest = pc.min(rows.column("check_after"))
    return soonest.cast(pa.int64()).as_py() if soonest.is_valid else None


def read_reports(pickled: Iterable[bytes]) -> list[Report | FrazilError]:
    return [pickle.loads(data) for data in pickled]  # noqa: S301 - from our own tasks
