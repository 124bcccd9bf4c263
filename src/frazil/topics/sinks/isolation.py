"""Finds the messages of a failing batch that cannot be written, so that the others can go on."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from frazil.errors import FrazilError, first_line
from frazil.log.columns import MESSAGE
from frazil.observe.logs import get_logger
from frazil.tables.writing.data_files import TableWriter, WriteTarget, load_target
from frazil.tables.writing.type_conversion import ConvertedRows, RejectedRow, convert_rows

log = get_logger(__name__)

#: Tries of a batch that fails for a reason of its own, and not of storage, catalog or log, before it is isolated.
TRIES = 3
#: These say something about the machine and not about a message.
_NOT_OF_DATA = (FrazilError, MemoryError, OSError, ImportError)


class Trials:
    """Counts how often the batch that begins at one offset has failed for a reason of its own."""

    def __init__(self) -> None:
        self._start, self._count = -1, 0

    def count(self, topic: str, start: int) -> None:
        self._count = self._count + 1 if self._start == start else 1
        self._start = start
        if self._count == TRIES:
            log.warning("a batch keeps failing: messages that cannot be written are looked for", topic=topic, at=start)

    def are_over(self, start: int) -> bool:
        return self._start == start and self._count >= TRIES


def isolate(messages: pa.Table, target: WriteTarget) -> ConvertedRows:
    """Puts messages into a table's types, as `convert_rows` does; those that cannot be written are misfits too.

    Each piece is written to memory as a trial, and halved where that fails. Storage takes no part, so that its outages
    make no dead letters.

    Raises:
        Exception: not even a message without columns can be written; so the messages are not to blame.
    """
    if messages.num_rows:
        _write(_plain(messages.slice(0, 1)), target)
    pieces: list[pa.Table] = []
    misfits: list[RejectedRow] = []
    left = [(0, messages.num_rows)]
    while left:
        start, count = left.pop()
        try:
            fitted = _write(messages.slice(start, count), target)
        except _NOT_OF_DATA:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the message becomes a dead letter that says so
            half = count // 2
            if half:
                left += [(start + half, count - half), (start, half)]
            else:
                told = f"it cannot be written: {type(error).__name__}: {first_line(error)[:300]}"
                misfits.append(RejectedRow(start, "unwritable", told))
            continue
        pieces.append(fitted.rows)
        misfits += [replace(m, row=m.row + start) for m in fitted.rejected]
    rows = pa.concat_tables(pieces) if pieces else load_target(target).arrow.empty_table()
    return ConvertedRows(rows, misfits)


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
