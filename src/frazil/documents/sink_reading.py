"""What the executors read for the documents sink: messages of the log, and staged files that messages name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import HISTORY_SCHEMA, OFFSET, added_fields
from frazil.documents.iceberg.staging import Staging
from frazil.documents.merge import CHANGES, spread_added
from frazil.documents.messages import BulkFile, decode_messages
from frazil.documents.model import Column
from frazil.errors import IntegrityError, NotAllowedError, NotFoundError, first_line
from frazil.tables.writing.data_files import WriteTarget, load_target
from frazil.tables.writing.type_conversion import RejectedRow, convert_rows
from frazil.topics.sinks.keyed_bounds import measure_bounds
from frazil.topics.sinks.keyed_tasks import KeyedLayout, ParsedMessages

LAYOUT = KeyedLayout(
    "documents",
    CHANGES,
    ("document_id",),
    rows="metadata",
    side="history",
    side_row="a revision of a document",
    carried=("created_at",),
)
_BOUNDED = ("created_at", "document_id")


@dataclass(frozen=True)
class Earliest:
    """Tells the driver the earliest `valid_from` of some revisions."""

    moment: datetime


@dataclass(frozen=True)
class BulkMessage:
    """Tells the driver of a message that names staged files.

    Attributes:
        offset: of the message.
        message: as the log has it, one row.
        files: the files, in their order.
    """

    offset: int
    message: pa.Table
    files: tuple[BulkFile, ...]


@dataclass(frozen=True)
class DocumentReader:
    """Parses messages into revisions. Columns to add, and staged files, are noticed."""

    columns: tuple[Column, ...]

    def __call__(self, messages: pa.Table) -> ParsedMessages:
        batch = decode_messages(messages)
        rows = _find_rows(messages, batch.revisions_table.column(OFFSET.name))
        parsed, rejected = parse_revisions(batch.revisions_table, self.columns)
        by_message = [RejectedRow(int(rows[bad.row]), bad.reason, bad.error) for bad in rejected]
        notices = [*parsed.notices, *batch.columns, *_bulk_messages(messages, batch.bulk)]
        return ParsedMessages(
            parsed.changes, parsed.count, parsed.bounds, parsed.side_rows, [*batch.misfits, *by_message], notices
        )


@dataclass(frozen=True)
class StagedRevisions:
    """The files that one message names: all of them count, or none.

    Attributes:
        named: the message.
        history: the table beside which the files lie.
        columns: the added columns.
    """

    named: BulkMessage
    history: WriteTarget
    columns: tuple[Column, ...]

    @property
    def offset(self) -> int:
        return self.named.offset

    def read(self) -> Iterator[tuple[pa.Table, ParsedMessages]]:
        files, message = self.named.files, self.named.message
        try:
            if len(files) == 1:
                parts = iter([self._read(files[0])])
            else:
                for file in files:  # before any of them counts
                    self._read(file)
                parts = map(self._read, files)
        except _UnusableError as error:
            yield message, _refused(*error.args)
            return
        for part in parts:
            yield message, part

    def _read(self, file: BulkFile) -> ParsedMessages:
        target = load_target(self.history)
        try:
            rows = Staging(target.io, self.history.location).read(file)
        except NotFoundError as error:
            raise _UnusableError("missing_file", error.in_one_line) from error
        except (IntegrityError, NotAllowedError) as error:
            raise _UnusableError("damaged_file", error.in_one_line) from error
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise _UnusableError("damaged_file", f"{file.uri} has no revisions: {first_line(error)}") from error
        if rows.num_rows != file.rows:
            raise _UnusableError("damaged_file", f"{file.uri} has {rows.num_rows:,} rows, and not {file.rows:,}")
        offsets = pa.repeat(pa.scalar(self.offset, pa.int64()), rows.num_rows)
        parsed, rejected = parse_revisions(rows.append_column(OFFSET, offsets), self.columns)
        if rejected:
            first = rejected[0]
            raise _UnusableError(first.reason, f"row {first.row:,} of {file.uri}: {first.error}")
        return parsed


class _UnusableError(Exception):
    """A staged file that cannot be used: the reason in a word, and in a sentence."""


def parse_revisions(revisions: pa.Table, columns: Sequence[Column]) -> tuple[ParsedMessages, list[RejectedRow]]:
    """Returns revisions as rows of the history and as changes; and those that the tables cannot take.

    Args:
        revisions: in `DECODED_SCHEMA`.
        columns: the added columns that both tables have.
    """
    spread, rejected = spread_added(revisions, columns)
    schema = pa.schema([*HISTORY_SCHEMA, *added_fields(columns)])
    converted = convert_rows(spread, schema)
    bad = {row.row: row for row in [*converted.rejected, *rejected]}
    if bad:
        keep = np.ones(revisions.num_rows, bool)
        keep[list(bad)] = False
        revisions, spread = revisions.filter(pa.array(keep)), spread.filter(pa.array(keep))
        converted = convert_rows(spread, schema)
    history = converted.rows
    changes = _as_changes(revisions)
    months = history.column("created_at").cast(pa.int64()).to_numpy().astype("datetime64[us]").astype("datetime64[M]")
    bounds = measure_bounds(history, _BOUNDED, pa.array(months.astype(np.int64)))
    notices = [Earliest(pc.min(history.column("valid_from")).as_py())] if history.num_rows else []
    return ParsedMessages(changes, history.num_rows, bounds, history, (), notices), [bad[row] for row in sorted(bad)]


def _as_changes(revisions: pa.Table) -> pa.Table:
    columns = {name: revisions.column(name) for name in CHANGES.names if name in revisions.column_names}
    made = [columns.get(f.name, pa.nulls(revisions.num_rows, f.type)) for f in CHANGES]
    return pa.table(made, schema=CHANGES)


def _find_rows(messages: pa.Table, offsets: pa.ChunkedArray) -> Any:
    """The rows of the messages with some offsets, which ascend in both."""
    return np.searchsorted(messages.column("offset").to_numpy(), offsets.to_numpy())


def _bulk_messages(messages: pa.Table, files: Sequence[BulkFile]) -> list[BulkMessage]:
    named: dict[int, list[BulkFile]] = {}
    for file in files:
        named.setdefault(file.offset, []).append(file)
    rows = _find_rows(messages, pa.chunked_array([list(named)], pa.int64()))
    return [
        BulkMessage(offset, messages.take(pa.array([row])), tuple(found))
        for row, (offset, found) in zip(rows, named.items(), strict=True)
    ]


def _refused(reason: str, error: str) -> ParsedMessages:
    return ParsedMessages(CHANGES.empty_table(), 0, {}, None, [RejectedRow(0, reason, error)])
