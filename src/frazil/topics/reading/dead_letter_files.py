"""Dead letters of the archive as files of the topic's table: a read finds in them the messages that the table lacks."""

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
    """One snapshot of the dead-letter table, and whose letters of it count. It has no open handles."""

    metadata: TableMetadata
    io: FileIO
    snapshot_id: int | None
    topic: str
    log_id: str
    former: tuple[PreviousLog, ...]
    broker_addr: str

    def of(self, file: PlannedFile, start: int, end: int, names: list[str]) -> pa.Table:
        """Letters with offsets in [start, end)."""
        from pyiceberg.io.pyarrow import ArrowScan

        chosen = self.metadata.schema().select(*names)
        return ArrowScan(self.metadata, self.io, chosen, self.expression(start, end)).to_table([file.task])

    def read(self, file: PlannedFile, wanted: pa.Schema, start: int, end: int) -> pa.Table:
        """Returns the messages that became dead letters, as the log gave them."""
        kept = [name for name in _KEPT if name in self.metadata.schema().column_names]  # an older table has fewer
        rows = self.of(file, start, end, [*kept, "columns"])
        given = {name: rows[name].cast(MESSAGE.field(name).type) for name in kept}
        for name, value in (("topic_name", self.topic), ("broker_addr", self.broker_addr)):
            given[name] = pa.repeat(pa.scalar(value, pa.string()), rows.num_rows)
        own = [json.loads(text) if text else {} for text in rows["columns"].to_pylist()]
        return pa.table(list(_columns(given, own, wanted, rows.num_rows)), schema=wanted)

    def expression(self, start: int, end: int) -> BooleanExpression:
        return filter_dead_letters_of(self.topic, self.log_id, self.former, start, end)


class OffsetCache:
    """The offsets of a topic in each file of dead letters. A file never changes, so that it is looked into once."""

    def __init__(self) -> None:
        self._of: dict[tuple[object, ...], list[int]] = {}

    def of(self, letters: DeadLetterSource, files: Sequence[PlannedFile], network: NetworkSettings) -> list[list[int]]:
        """Per file; what is known of others is forgotten."""
        known = self._of
        found: dict[tuple[object, ...], list[int]] = {}
        for file in files:
            deletes = sorted(one.file_path for one in file.task.delete_files)
            key = (letters.log_id, letters.former, file.path, *deletes)
            offsets = known.get(key)
            if offsets is None:
                looked_up = read_with_retry(partial(letters.of, file, 0, HIGHEST, ["offset"]), network)
                offsets = looked_up["offset"].to_pylist()
            found[key] = offsets
        self._of = found
        return list(found.values())


def add_dead_letters(
    plan: TopicPlan, table: Table, info: TopicInfo, network: NetworkSettings, known: OffsetCache | None = None
) -> TopicPlan:
    """The plan of a topic's table, with the files that have what the table could not take.

    Load the dead letters after the topic's table: they are committed first, so that they know all that it left out.

    Args:
        plan: of the topic's table.
        table: the dead letters.
        info: the topic.
        network: patience with their storage.
        known: what the last plan has looked up.

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
    # A file's statistics are about all topics: what it has of this one is looked up.
    for file, held in zip(asked, (known or OffsetCache()).of(letters, asked, network), strict=True):
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
    given: dict[str, pa.Array], own: list[dict[str, object]], wanted: pa.Schema, rows: int
) -> Iterator[pa.Array]:
    for field in wanted:
        if field.name in given:
            yield given[field.name]
        elif field.name in MESSAGE.names:
            yield pa.nulls(rows, field.type)
        else:
            yield _array([row.get(field.name) for row in own], field.type)


def _array(values: list[object], kind: pa.DataType) -> pa.Array:
    """Null where a value is of another type: a log that was adopted knows a column only as the table now has it."""
    try:
        return pa.array([from_plain(value, kind) for value in values], kind)
    except (TypeError, ValueError, AttributeError, ArithmeticError):
        if len(values) == 1:
            return pa.nulls(1, kind)
        return pa.concat_arrays([_array([value], kind) for value in values])
