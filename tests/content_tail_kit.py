"""A log and the tables of content in one home folder, and a sink without Spark: what reads with the tail must equal."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table

from frazil.content.annotations.carry_over import Shape
from frazil.content.annotations.custom_columns import fields_of
from frazil.content.events.parse import parse_messages
from frazil.content.intake.messages import headers_of, store
from frazil.content.names import CONTENT
from frazil.content.sink.evidence import PACKED, of_changes, packed, packed_notes, unverified
from frazil.content.sink.merge import merge_changes
from frazil.content.tables import ContentTables, ensure_objects
from frazil.content.tail import BOUND, ContentTail
from frazil.content.topic import ensure_events_topic
from frazil.log import Log, decode_chunk
from frazil.tables import Position, commit_append, find_position
from frazil.tables.cache import disabled_cache
from frazil.tables.reading.column_blocks import BlockScan
from frazil.tables.reading.rows_by_position import fetch_rows
from frazil.tables.writing.data_files import WriteTarget
from frazil.topics import open_log
from frazil.topics.reading.tail import Bound
from frazil.topics.sinks.keyed_tasks import write_merged
from tests.content_kit import Content


class TailKit:
    """The log is open in this process, as it is in a server."""

    def __init__(self, content: Content, log: Log) -> None:
        self.content, self.settings, self.log = content, content.settings, log
        self.topic = ensure_events_topic(log, content.settings).name
        self.tail = self.new_tail()

    def new_tail(self, bound: Bound = BOUND) -> ContentTail:
        self.tail = ContentTail.of_log(self.settings, self.log)
        self.tail._reader._bound = bound
        return self.tail

    @property
    def tables(self) -> ContentTables:
        """As one answer of a server has them."""
        return ContentTables.of(self.content.store, self.settings, self.tail)

    @property
    def merged(self) -> ContentTables:
        """The tables alone."""
        return self.content.tables

    def publish(self, *payloads: bytes) -> None:
        for payload in payloads:
            own = payload.startswith(b'{"frazil":')
            store(self.log, self.topic, [payload], headers_of("test"), internal=own)

    def merge(self, end: int | None = None) -> None:
        """Takes the messages below an offset into the table, by default all: what the sink does on Spark."""
        table = ensure_objects(self.content.store, self.settings)
        info, expected = self.log.info(self.topic), find_position(table, CONTENT, self.topic)
        start, end = 0 if expected is None else expected.offsets[0], info.end if end is None else end
        reached = Position(CONTENT, self.topic, {0: end}, info.log_id, info.epoch, str(uuid.uuid4()))
        parts = [decode_chunk(chunk, info.view, start, end) for chunk in self.log.chunks(self.topic, start, end)]
        target, files = WriteTarget.of(table), []
        if parts:
            changes, _, notes, _ = parse_messages(pa.concat_tables(parts), self.settings.model.content.dialect)
            open_ones = changes.filter(changes.column("needs_asking"))
            said = packed(pa.concat_tables([of_changes(changes), unverified(open_ones)]))
            everything = pa.concat_tables([self._stored(table), said, packed_notes(notes)])
            fields, skew_s = fields_of(table), self.settings.model.content.skew_s
            found = merge_changes(everything, partial(fetch_rows, target), _shape(table), fields, skew_s)
            if found is not None and found.rows.num_rows:
                written = write_merged(target, "objects", [found.rows], found.files, found.positions, None)
                files = [file for kind in written.files.values() for file in kind]
        commit_append(
            self.content.store, table, files, expected=expected, reached=reached,
            on=table.metadata.current_snapshot_id if files else None,
        )  # fmt: skip

    def _stored(self, table: Table) -> pa.Table:
        files = BlockScan(self.content.store, table, AlwaysTrue(), disabled_cache())
        parts = [PACKED.empty_table()]
        for number, task in enumerate(files.tasks):
            for block in files.of(number):
                alive = block.alive()
                at = np.arange(block.rows) if alive is None else np.flatnonzero(alive)
                rows = block.table(["bucket", "key"], at)
                place = {"_file": [task.file.file_path] * len(at), "_pos": block.start + at}
                made = {"bucket": rows["bucket"], "key": rows["key"]} | place
                columns = [pa.array(made[f.name], f.type) if f.name in place else
                           made[f.name] if f.name in made else pa.nulls(len(at), f.type) for f in PACKED]  # fmt: skip
                parts.append(pa.table(columns, schema=PACKED))
        return pa.concat_tables(parts)


def _shape(table: Table) -> Shape:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return Shape.of(schema_to_pyarrow(table.schema(), include_field_ids=False), fields_of(table))


@contextmanager
def tail_kit(home: Path, **content: Any) -> Iterator[TailKit]:
    made = Content.at(home, **content)
    with open_log(made.settings) as log:
        yield TailKit(made, log)


def rows_of(tables: ContentTables, columns: Sequence[str]) -> list[dict[str, Any]]:
    """All rows as reads have them, in the order of their names."""
    from frazil.tables.reading.rows import RowScan

    def read(table: Table) -> list[dict[str, Any]]:
        return [row for part in RowScan(tables.store, table, AlwaysTrue(), columns) for row in part.to_pylist()]

    return sorted(tables.read(tables.objects, read), key=lambda row: (row["bucket"], row["key"], row["version_id"]))
