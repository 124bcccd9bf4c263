"""The executor stages of the content sink: parse messages, decide keys, backfill custom columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.annotations.apply import with_fields
from frazil.content.annotations.carry_over import Fetch, Shape
from frazil.content.columns import DELETE, JOURNAL, PLAIN_TIME
from frazil.content.events.parse import parse_messages
from frazil.content.fields import Fields
from frazil.content.sink.evidence import PACKED, of_changes, packed, packed_notes
from frazil.content.sink.head_requests import HeadRequests, look_up_changes
from frazil.content.sink.merge import merge_changes
from frazil.log.columns import PARTITION
from frazil.observe.faultpoints import reach
from frazil.tables.reading.rows_by_position import fetch_rows
from frazil.tables.writing.data_files import WriteTarget, load_target
from frazil.tables.writing.position_deletes import FilePartition
from frazil.topics.sinks.jobs import end_task
from frazil.topics.sinks.keyed_bounds import measure_bounds
from frazil.topics.sinks.keyed_tasks import (
    BATCH_ROWS,
    PLACE,
    REPORTS,
    KeyedLayout,
    Merged,
    ParsedMessages,
    TaskReport,
    reported,
    write_merged,
)

LAYOUT = KeyedLayout(
    "content", PACKED, ("bucket", "key"), rows="objects", side="journal", side_row="a row of the journal"
)


@dataclass(frozen=True)
class EventReader:
    """Parses messages into evidence and rows of the journal; sends HEAD requests where events have no order."""

    topic: str
    dialect: str
    head_requests: HeadRequests

    def __call__(self, messages: pa.Table) -> ParsedMessages:
        changes, misfits, notes, orders = parse_messages(messages, self.dialect)
        answers = look_up_changes(self.head_requests, messages, changes)
        evidence = pa.concat_tables([of_changes(changes), answers.evidence])
        said = pa.concat_tables([packed(evidence), packed_notes(notes)])
        return ParsedMessages(
            said,
            changes.num_rows + len(notes),
            measure_bounds(said, LAYOUT.keys, said.column("bucket")),
            journal_rows(changes, self.topic) if changes.num_rows else None,
            list({m.row: m for m in [*answers.misfits, *misfits]}.values()),
            orders,
        )


@dataclass(frozen=True)
class ObjectDecider:
    """Decides the current state of keys. The notice is when the next row has to be checked again."""

    skew_s: float
    fields: Fields

    def __call__(self, rows: pa.Table, fetch: Fetch, columns: pa.Schema) -> Merged | None:
        merged = merge_changes(rows, fetch, Shape.of(columns, self.fields), self.fields, self.skew_s)
        if merged is None:
            return None
        return Merged(merged.rows, merged.files, merged.positions, [_next_check(merged.rows)])


@dataclass(frozen=True)
class Backfill:
    """Recomputes the custom columns of stored rows from their extracted metadata."""

    objects: WriteTarget
    places: Mapping[str, FilePartition] | None
    fields: Fields

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from reported(REPORTS, self._backfill(batches), "custom columns could not be computed")
        end_task()

    def _backfill(self, batches: Iterable[pa.RecordBatch]) -> Iterator[TaskReport]:
        found = [pa.Table.from_batches([batch]).cast(PLACE) for batch in batches if batch.num_rows]
        if not found:
            return
        reach("content.refill.before")
        place = pa.concat_tables(found).combine_chunks()
        files, positions = (place.column(name).combine_chunks() for name in PLACE.names)
        written = write_merged(self.objects, LAYOUT.rows, self._parts(files, positions), files, positions, self.places)
        reach("content.refill.after")
        yield TaskReport(written, len(files))

    def _parts(self, files: pa.Array, positions: pa.Array) -> Iterator[pa.Table]:
        """Yields the rows in parts, because documents may be large."""
        whole = pa.schema([pa.field(f.name, f.type) for f in load_target(self.objects).arrow])
        for start in range(0, len(files), BATCH_ROWS):
            place = files.slice(start, BATCH_ROWS), positions.slice(start, BATCH_ROWS)
            yield with_fields(fetch_rows(self.objects, whole, *place), self.fields)


def journal_rows(changes: pa.Table, topic: str) -> pa.Table:
    """Converts changes to the journal's schema: S3 Metadata's columns, and ours."""
    deleted = pc.equal(changes.column("record_type"), DELETE)
    marker = changes.column("is_delete_marker")
    by_time = pc.binary_join_element_wise(
        "!", pc.utf8_lpad(changes.column("time").cast(pa.int64()).cast(pa.string()), 20, "0"), ""
    )
    made: dict[str, Any] = {name: changes.column(name) for name in JOURNAL.names if name in changes.column_names}
    made |= {
        # Changes without a sequence sort before all others, and by time.
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
    """Whether an etag is of a multipart upload: it ends in the number of parts."""
    return pc.match_substring_regex(etag, r"^[0-9a-fA-F]{32}-[0-9]+$")


def _none_if_empty(texts: Any) -> Any:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _next_check(rows: pa.Table) -> int | None:
    soonest = pc.min(rows.column("check_after"))
    return soonest.cast(pa.int64()).as_py() if soonest.is_valid else None
