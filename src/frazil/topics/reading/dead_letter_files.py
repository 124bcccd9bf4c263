"""Dead letters of the archive as files of the topic's table, so that reads include what the table lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.log.columns import MESSAGE
from frazil.log.protocol import TopicInfo
from frazil.settings import NetworkSettings
from frazil.tables.metadata.bounds import HIGHEST
from frazil.tables.reading.ordered_plan import PlannedFile, by_offset, order_files, without_history
from frazil.tables.reading.planning import plan_files
from frazil.tables.reading.retrying import read_with_retry
from frazil.topics.dead_letters.json_values import from_plain
from frazil.topics.layout import ARCHIVE, DEAD_LETTER
from frazil.topics.positions import recorded_position
from frazil.topics.previous_logs import PreviousLog, filter_dead_letters_of, read_previous_logs
from frazil.topics.reading.topic_plan import TopicPlan

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

_KEPT = [name for name in MESSAGE.names if name in DEAD_LETTER.names]


@dataclass(frozen=True)
class DeadLetterSource:
    """One snapshot of the dead-letter table, filtered by topic and log. It has no open handles."""

    metadata: TableMetadata
    io: FileIO
    snapshot_id: int | None
    topic: str
    log_id: str
    former: tuple[PreviousLog, ...]
    broker_addr: str

    def read_rows(self, file: PlannedFile, start: int, end: int, names: list[str]) -> pa.Table:
        """Returns dead letters with offsets in [start, end)."""
        from pyiceberg.io.pyarrow import ArrowScan

        chosen = self.metadata.schema().select(*names)
        return ArrowScan(self.metadata, self.io, chosen, self.expression(start, end)).to_table([file.task])

    def read(self, file: PlannedFile, wanted: pa.Schema, start: int, end: int) -> pa.Table:
        """Returns the messages that became dead letters, with the columns that the log gave them."""
        kept = [name for name in _KEPT if name in self.metadata.schema().column_names]  # an older table has fewer
        rows = self.read_rows(file, start, end, [*kept, "columns"])
        given = {name: rows[name].cast(MESSAGE.field(name).type) for name in kept}
        for name, value in (("topic_name", self.topic), ("broker_addr", self.broker_addr)):
            given[name] = pa.repeat(pa.scalar(value, pa.string()), rows.num_rows)
        extras = [json.loads(text) if text else {} for text in rows["columns"].to_pylist()]
        return pa.table(list(_columns(given, extras, wanted, rows.num_rows)), schema=wanted)

    def expression(self, start: int, end: int) -> BooleanExpression:
        return filter_dead_letters_of(self.topic, self.log_id, self.former, start, end)


class OffsetCache:
    """The offsets of a topic in each file of dead letters. A file never changes, so that it is read once."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[object, ...], list[int]] = {}

    def read_rows(
        self, letters: DeadLetterSource, files: Sequence[PlannedFile], network: NetworkSettings
    ) -> list[list[int]]:
        """Returns the offsets per file; forgets files that are not given."""
        known = self._offsets
        found: dict[tuple[object, ...], list[int]] = {}
        for file in files:
            deletes = sorted(one.file_path for one in file.task.delete_files)
            key = (letters.log_id, letters.former, file.path, *deletes)
            offsets = known.get(key)
            if offsets is None:
                looked_up = read_with_retry(partial(letters.read_rows, file, 0, HIGHEST, ["offset"]), network)
                offsets = looked_up["offset"].to_pylist()
            found[key] = offsets
        self._offsets = found
        return list(found.values())


def add_dead_letters(
    plan: TopicPlan, table: Table, info: TopicInfo, network: NetworkSettings, known: OffsetCache | None = None
) -> TopicPlan:
    """Returns the plan of a topic's table with the dead letters' files.

    Load the dead letters after the topic's table: they are committed first, and so include all that it lacks.

    Args:
        plan: of the topic's table.
        table: the dead letters.
        info: the topic.
        network: retries of their storage.
        known: the cached offsets of earlier plans.

    Raises:
        OSError: a file has gone, or storage does not answer.
    """
    if recorded_position(table, info.name, ARCHIVE) is None:
        return plan  # the archive has taken all of this topic
    letters = DeadLetterSource(
        without_history(table.metadata),
        table.io,
        table.metadata.current_snapshot_id,
        info.name,
        info.log_id,
        read_previous_logs(plan.metadata),
        info.broker_addr,
    )
    tasks = plan_files(table.scan(row_filter=letters.expression(0, plan.position)), network)
    offsets: set[int] = set()
    files = []
    asked = order_files(table, tasks)
    # A file's statistics cover all topics: the offsets of this one are read.
    for file, held in zip(asked, (known or OffsetCache()).read_rows(letters, asked, network), strict=True):
        found = [offset for offset in held if offset < plan.position]
        if found:
            files.append(replace(file, lower=min(found), upper=max(found), source=letters))
            offsets.update(found)
    floor = plan.floor
    while floor - 1 in offsets:  # the first messages may all be dead letters
        floor -= 1
    return replace(plan, files=tuple(by_offset([*plan.files, *files])), floor=floor)


def get_snapshot_ids(*tables: Table | None) -> tuple[int | None, ...]:
    return tuple(table.metadata.current_snapshot_id for table in tables if table is not None)


def _columns(
    given: dict[str, pa.Array], extras: list[dict[str, object]], wanted: pa.Schema, rows: int
) -> Iterator[pa.Array]:
    for field in wanted:
        if field.name in given:
            yield given[field.name]
        elif field.name in MESSAGE.names:
            yield pa.nulls(rows, field.type)
        else:
            yield _array([row.get(field.name) for row in extras], field.type)


def _array(values: list[object], kind: pa.DataType) -> pa.Array:
    """Converts values to a column; null for a value of another type, since an adopted log has the table's columns."""
    try:
        return pa.array([from_plain(value, kind) for value in values], kind)
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        if len(values) == 1:
            return pa.nulls(1, kind)
        return pa.concat_arrays([_array([value], kind) for value in values])
