"""Finds the messages of a failing batch of a keyed table that cannot be applied, so that the others can go on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.tables.reading.rows_by_position import fetch_rows
from frazil.tables.writing.data_files import TableWriter, WriteTarget, load_target
from frazil.tables.writing.type_conversion import RejectedRow, convert_all_rows
from frazil.topics.sinks.isolation import describe_failure, find_failing
from frazil.topics.sinks.keyed_bounds import Box, widen

if TYPE_CHECKING:
    from typing import Any

    from frazil.topics.sinks.keyed_tasks import ChangeReader, Decider, ParsedMessages


@dataclass(frozen=True)
class IsolatingReader:
    """Parses messages as another reader does; those that cannot be parsed, decided or written are rejected.

    Each piece of the messages is decided without the stored rows and written to memory as a trial, and halved where
    that fails. Storage takes no part, so that its outages make no dead letters.

    Attributes:
        reader: parses messages.
        decide: decides what becomes of keys.
        table: the keyed table.
        side: the side table; None: there is none.
    """

    reader: ChangeReader
    decide: Decider
    table: WriteTarget
    side: WriteTarget | None

    def __call__(self, messages: pa.Table) -> ParsedMessages:
        """Returns what the messages say.

        Raises:
            Exception: not even a batch without messages can be applied; so the messages are not to blame.
        """
        made = self._try(messages.slice(0, 0))
        count, rejected = 0, list(made.rejected)
        changes, side_rows, notices = [made.changes], [made.side_rows], list(made.notices)
        bounds: dict[Any, Box] = {}
        pieces, failed = find_failing(messages, self._try)
        for start, parsed in pieces:
            count += parsed.count
            changes.append(parsed.changes)
            side_rows.append(parsed.side_rows)
            notices += parsed.notices
            rejected += [replace(row, row=row.row + start) for row in parsed.rejected]
            widen(bounds, parsed.bounds)
        rejected += [RejectedRow(row, "unwritable", describe_failure(error)) for row, error in failed]
        present = [rows for rows in side_rows if rows is not None]
        return replace(
            made,
            changes=pa.concat_tables(changes),
            count=count,
            bounds=bounds,
            side_rows=pa.concat_tables(present) if present else None,
            rejected=rejected,
            notices=notices,
        )

    def _try(self, messages: pa.Table) -> ParsedMessages:
        parsed = self.reader(messages)
        if self.side is not None and parsed.side_rows is not None:
            _write(parsed.side_rows, self.side)
        columns = load_target(self.table).arrow
        merged = self.decide(parsed.changes, partial(fetch_rows, self.table), columns)
        if merged is not None:
            _write(merged.rows, self.table)
        return parsed


def _write(rows: pa.Table, target: WriteTarget) -> None:
    writer = TableWriter(target, "trial", in_memory=True)
    if rows.num_rows:
        writer.add(convert_all_rows(rows, writer.schema))
    writer.finish()
