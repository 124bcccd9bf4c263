"""Looks into the dead letters: the newest or the oldest, one of them, and how many wait.

A list reads files from the end that it wants, as their statistics tell, and stops where no other file can have a row
that belongs into it. It holds as many letters as it may show, and the rows of one row group.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import NotFoundError
from frazil.log.columns import TIME
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.tables.metadata.bounds import HIGHEST, LOWEST, decode_integer_bounds
from frazil.tables.reading.ordered_plan import OrderedPlan, PlannedFile
from frazil.tables.reading.retrying import read_with_retry
from frazil.tables.reading.row_groups import split_into_pieces
from frazil.topics.dead_letters.filters import DeadLetterFilter, in_arrow
from frazil.topics.dead_letters.rows import (
    KEY,
    columns,
    letters_by_offset,
    on_current,
    plan_letters,
    rows_by_offset,
    with_status,
)
from frazil.topics.layout import DEAD_LETTER

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: Letters whose status is looked up together.
_TOGETHER = 20_000
_LISTED = ("publish_time", "error")


@dataclass(frozen=True)
class DeadLetter:
    """A message that a sink could not take. `status`: dead, replaying or replayed."""

    sink: str
    topic: str
    partition: int
    offset: int
    status: str
    publish_time: datetime | None
    reason: str | None
    error: str | None
    written_at: datetime
    payload: bytes | None = None
    headers: dict[str, str] | None = None
    columns: dict[str, Any] | None = None
    segment_id: int | None = None
    segment_offset: int | None = None
    log_id: str | None = None
    request_id: int | None = None
    producer_id: int | None = None
    producer_name: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def list_dead_letters(
    store: TableStore,
    settings: Settings,
    filters: DeadLetterFilter | None = None,
    *,
    status: str | None = None,
    limit: int = 100,
    oldest_first: bool = False,
) -> list[DeadLetter]:
    """The dead letters of a filters, newest first, without their payloads.

    Args:
        store: the catalog with their table.
        settings: the settings.
        filters: which; all by default.
        status: only those of which this has become.
        limit: at most so many.
        oldest_first: begin with the oldest instead.
    """

    def read_rows(table: Table) -> list[DeadLetter]:
        found = _Listing(store, table, filters or DeadLetterFilter(), status, limit, oldest_first).run()
        return [_letter(row) for row in found.to_pylist()]

    return on_current(store, settings, read_rows, [])


def show_dead_letter(store: TableStore, settings: Settings, topic: str, offset: int) -> DeadLetter:
    """One dead letter, whole. Where several have that offset, of several sinks or logs, the newest.

    Raises:
        NotFoundError: that message is none.
    """
    filters = DeadLetterFilter(topic=topic, first=offset, before=offset + 1)

    def read_rows(table: Table) -> list[DeadLetter]:
        found = letters_by_offset(store, table, filters, DEAD_LETTER.names, offset)
        return [_letter(row) for letters in found for row in letters.to_pylist()]

    none: list[DeadLetter] = []
    letters = on_current(store, settings, read_rows, none)
    if not letters:
        raise NotFoundError(
            f"offset {offset} of topic '{topic}' is no dead letter", hint=f"frazil topic dead-letters list {topic}"
        )
    return max(letters, key=lambda letter: letter.written_at)


def count_waiting(
    store: TableStore, settings: Settings, filters: DeadLetterFilter, *, offsets: Collection[int] | None = None
) -> int:
    """How many letters of a filters nobody has sent again to the end; of some offsets, or of all."""

    def read_rows(table: Table) -> int:
        found = letters_by_offset(store, table, filters)
        return sum(at_offsets(waiting(letters), offsets).num_rows for letters in found)

    return on_current(store, settings, read_rows, 0)


def waiting(letters: pa.Table) -> pa.Table:
    return letters.filter(pc.not_equal(letters["status"], "replayed"))


def at_offsets(letters: pa.Table, offsets: Collection[int] | None) -> pa.Table:
    """Those of some offsets; all where none are given."""
    if offsets is None:
        return letters
    return letters.filter(pc.is_in(letters["offset"], pa.array(sorted(offsets), pa.int64())))


def _letter(row: dict[str, Any]) -> DeadLetter:
    given = {k: v for k, v in row.items() if k in DeadLetter.__dataclass_fields__}
    if given.get("headers") is not None:
        given["headers"] = dict(given["headers"])
    if given.get("columns") is not None:
        given["columns"] = json.loads(given["columns"])
    return DeadLetter(**given)


class _Listing:
    """One list, while it is made."""

    def __init__(
        self,
        store: TableStore,
        table: Table,
        filters: DeadLetterFilter,
        status: str | None,
        limit: int,
        oldest_first: bool,
    ) -> None:
        self._store, self._table, self._filters = store, table, filters
        self._status, self._limit, self._oldest = status, limit, oldest_first
        self._schema = columns(_LISTED)
        self._best = self._schema.empty_table()
        self._new: list[pa.Table] = []

    def run(self) -> pa.Table:
        expression = self._filters.messages()
        where = in_arrow(self._table, expression)
        plan = plan_letters(self._store, self._table, expression)
        for file, bound in self._from_the_end(plan):
            if self._complete(bound):
                break
            for rows in self._rows_of(plan, file):
                self._new.append(rows.filter(where))
                if self._held() >= _TOGETHER:
                    self._merge_new()
            if self._held() >= self._limit:
                self._merge_new()
        self._merge_new()
        return self._best if self._status else self._with_status(self._best)

    def _from_the_end(self, plan: OrderedPlan) -> list[tuple[PlannedFile, int]]:
        """Files with the time of their newest letter, or of their oldest, in the order of these."""
        field = self._table.schema().find_field("written_at")
        found = [(file, decode_integer_bounds(file.task.file, field)[0 if self._oldest else 1]) for file in plan.files]
        return sorted(found, key=lambda f: f[1], reverse=not self._oldest)

    def _rows_of(self, plan: OrderedPlan, file: PlannedFile) -> Iterator[pa.Table]:
        network = self._store.network
        for piece in read_with_retry(partial(split_into_pieces, plan, file, self._schema, LOWEST, HIGHEST), network):
            yield read_with_retry(piece.read, network)

    def _complete(self, bound: int) -> bool:
        """Whether neither this file nor one after it can have a letter that belongs into the list."""
        if self._best.num_rows < self._limit:
            return False
        last = self._best["written_at"][-1].cast(TIME).value
        return bool(bound > last if self._oldest else bound < last)

    def _held(self) -> int:
        return sum(rows.num_rows for rows in self._new)

    def _merge_new(self) -> None:
        """The first of those chosen before and of what is new."""
        new = pa.concat_tables([self._schema.empty_table(), *self._new])
        self._new = []
        if self._status is not None and new.num_rows:
            new = self._with_status(new)
            new = new.filter(pc.equal(new["status"], self._status))
        order = "ascending" if self._oldest else "descending"
        keys = [("written_at", order), ("offset", order), ("topic", "ascending"), ("sink", "ascending")]
        self._best = pa.concat_tables([self._best, new]).sort_by(keys).slice(0, self._limit).combine_chunks()

    def _with_status(self, letters: pa.Table) -> pa.Table:
        if not letters.num_rows:
            return letters
        reach = pc.min_max(letters["offset"]).as_py()
        first = max(reach["min"], self._filters.first or 0)
        filters = DeadLetterFilter(
            self._filters.topic, self._filters.sink, self._filters.partition, first=first, before=reach["max"] + 1
        )
        found = [
            marks.select([*KEY, "status"]).join(letters.select(KEY), KEY, join_type="left semi")
            for marks in rows_by_offset(self._store, self._table, filters.marks(), start=first)
        ]
        return with_status(letters, pa.concat_tables(found)) if found else letters
