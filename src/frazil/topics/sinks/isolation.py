"""Isolates the messages of a failing batch that cannot be written, so that the others can proceed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from frazil.errors import FrazilError, first_line
from frazil.log.columns import MESSAGE
from frazil.observe.logs import get_logger
from frazil.tables.writing.data_files import TableWriter, WriteTarget, load_target
from frazil.tables.writing.type_conversion import ConvertedRows, RejectedRow, convert_rows

T = TypeVar("T")

log = get_logger(__name__)

#: Attempts of a batch that fails by itself, and not because of storage, catalog or log, before it is isolated.
TRIES = 3
#: Errors that concern the machine and not a message.
_NOT_OF_DATA = (FrazilError, MemoryError, OSError, ImportError)


class Trials:
    """Counts how often the batch that begins at one offset has failed by itself."""

    def __init__(self) -> None:
        self._start, self._count = -1, 0

    def count(self, topic: str, start: int) -> None:
        self._count = self._count + 1 if self._start == start else 1
        self._start = start
        if self._count == TRIES:
            log.warning("a batch keeps failing: messages that cannot be written are looked for", topic=topic, at=start)

    def are_exhausted(self, start: int) -> bool:
        return self._start == start and self._count >= TRIES


def isolate(messages: pa.Table, target: WriteTarget) -> ConvertedRows:
    """Converts messages to a table's types, as `convert_rows` does; those that cannot be written are misfits too.

    Each piece is written to memory as a trial, and split in half if that fails. Storage is not involved, so that its
    outages make no dead letters.

    Raises:
        Exception: not even a message without columns can be written, so that the messages are not to blame.
    """
    if messages.num_rows:
        _write(_plain(messages.slice(0, 1)), target)
    pieces, failed = find_failing(messages, lambda piece: _write(piece, target))
    misfits = [replace(m, row=m.row + start) for start, fitted in pieces for m in fitted.rejected]
    misfits += [RejectedRow(row, "unwritable", describe_failure(error)) for row, error in failed]
    written = [fitted.rows for _, fitted in pieces]
    rows = pa.concat_tables(written) if written else load_target(target).arrow.empty_table()
    return ConvertedRows(rows, misfits)


def find_failing(
    messages: pa.Table, attempt: Callable[[pa.Table], T]
) -> tuple[list[tuple[int, T]], list[tuple[int, Exception]]]:
    """Tries pieces of messages, and halves those that fail, down to single messages.

    Args:
        messages: of a batch that failed.
        attempt: tries a piece, without any effect outside of this process.

    Returns:
        The results with the first row of each piece, in order; and the rows that fail alone, each with its error.

    Raises:
        FrazilError, OSError, MemoryError, ImportError: they say something about the machine, and not about a message.
    """
    done: list[tuple[int, T]] = []
    failed: list[tuple[int, Exception]] = []
    left = [(0, messages.num_rows)] if messages.num_rows else []
    while left:
        start, count = left.pop()
        try:
            done.append((start, attempt(messages.slice(start, count))))
        except _NOT_OF_DATA:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the message becomes a dead letter that says so
            half = count // 2
            if half:
                left += [(start + half, count - half), (start, half)]
            else:
                failed.append((start, error))
    return done, failed


def describe_failure(error: Exception) -> str:
    return f"it cannot be written: {type(error).__name__}: {first_line(error)[:300]}"


def _write(messages: pa.Table, target: WriteTarget) -> ConvertedRows:
    writer = TableWriter(target, "trial", in_memory=True)
    fitted = convert_rows(messages, writer.schema)
    writer.add(fitted.rows)
    writer.finish()
    return fitted


def _plain(message: pa.Table) -> pa.Table:
    """A message that has nothing but what the log gave it."""
    given = message.select([f.name for f in MESSAGE if not f.nullable])
    at = given.schema.get_field_index("payload")
    return given.set_column(at, MESSAGE.field("payload"), pa.array([b""], pa.binary()))
