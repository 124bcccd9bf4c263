"""Checks rows of files, and makes revisions of them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast, get_args

import numpy as np
import pyarrow as pa

from frazil.documents import lifecycle
from frazil.documents.arrow import REVISION_SCHEMA, revisions_to_table
from frazil.documents.decide import StoredRevision
from frazil.documents.fields import CLOCK_TOLERANCE, check_request
from frazil.documents.model import READ_ONLY, Column, Operation, Revision, parse_time, plain_time
from frazil.documents.transfer.columns import check_columns
from frazil.documents.transfer.readers import BadRow, ColumnRows, Rows
from frazil.documents.transfer.values import json_text
from frazil.errors import FrazilError, UsageError

LINE = pa.field("line", pa.int64())
#: Revisions with the lines of the file at which they stand.
CHECKED_SCHEMA = pa.schema([*REVISION_SCHEMA, LINE])
#: Operations that may follow each operation.
_FOLLOWING: Mapping[Operation | None, tuple[Operation, ...]] = {
    None: ("put",),
    "put": ("put", "update", "delete"),
    "update": ("put", "update", "delete"),
    "undelete": ("put", "update", "delete"),
    "delete": ("put", "undelete"),
}


@dataclass(frozen=True)
class Checked:
    """A row that may become a revision, and where it stands."""

    line: int
    revision: Revision


def is_history(row: Mapping[str, Any]) -> bool:
    """Says whether a row is a revision, as an export with history has them, and not a document."""
    return "operation" in row


def check_documents(
    rows: Rows | ColumnRows, columns: Mapping[str, Column], now: datetime
) -> tuple[pa.Table, list[BadRow]]:
    """Makes the first revision of every row's document. Rows without `created_at` have `now` there.

    Returns:
        the revisions, in `CHECKED_SCHEMA`, and what is wrong with the other rows.
    """
    given = rows.columns()
    found = None if given is None else check_columns(given, len(rows.lines), now)
    lines = np.asarray(rows.lines, np.int64)
    if found is None:
        made, bad = _check_each(lines.tolist(), rows.rows, columns, now)
        return made, [*rows.bad, *bad]
    accepted, table = found
    table = table.append_column(LINE, pa.array(lines[accepted]))
    places = np.flatnonzero(~accepted)
    if not len(places):
        return table, list(rows.bad)
    made, bad = _check_each(lines[places].tolist(), rows.at(places.tolist()), columns, now)
    return pa.concat_tables([table, made]).sort_by(LINE.name), [*rows.bad, *bad]


def _check_each(
    lines: Sequence[int], rows: Sequence[dict[str, Any]], columns: Mapping[str, Column], now: datetime
) -> tuple[pa.Table, list[BadRow]]:
    made, bad = [], []
    for line, row in zip(lines, rows, strict=True):
        try:
            if is_history(row):
                raise UsageError("it is a revision, and the file began with documents")
            made.append(Checked(line, _first_revision(_with_id(row, columns, now), columns, now)))
        except FrazilError as error:
            bad.append(BadRow(line, explain(error), row))
    return checked_table(made), bad


def checked_table(checked: Sequence[Checked]) -> pa.Table:
    """Returns checked rows in `CHECKED_SCHEMA`."""
    rows = revisions_to_table([StoredRevision(c.revision) for c in checked])
    return rows.append_column(LINE, pa.array([c.line for c in checked], LINE.type))


def _first_revision(row: Mapping[str, Any], columns: Mapping[str, Column], now: datetime) -> Revision:
    made = lifecycle.put(None, row, columns, now)
    if None not in made.document.columns.values():
        return made
    kept = {name: value for name, value in made.document.columns.items() if value is not None}
    return replace(made, document=replace(made.document, columns=kept))


def explain(error: FrazilError) -> str:
    """Returns message and cause, and what would be allowed."""
    return f"{error.in_one_line}; {error.hint}" if error.hint else error.in_one_line


def _with_id(row: dict[str, Any], columns: Mapping[str, Column], now: datetime) -> dict[str, Any]:
    """Gives a row without an id one that only depends on its content, so that a repeated import finds it again."""
    if row.get("document_id") is not None:
        return row
    values = check_request({name: value for name, value in row.items() if name != "document_id"}, columns, now)
    digest = hashlib.blake2b(json_text({k: plain_time(v) for k, v in values.items()}).encode(), digest_size=16)
    return {**row, "document_id": str(_uuid8(digest.digest()))}


def _uuid8(data: bytes) -> uuid.UUID:
    number = int.from_bytes(data, "big")
    number = number & ~(0xF << 76) | 8 << 76
    return uuid.UUID(int=number & ~(0b11 << 62) | 0b10 << 62)


class HistoryCheck:
    """Checks files with history: all revisions of a document stand together, and in their order.

    One bad revision makes the whole document bad.
    """

    def __init__(self, columns: Mapping[str, Column], now: datetime) -> None:
        self._columns, self._now = columns, now
        self._group: list[Checked] = []
        self._bad: list[BadRow] = []
        self._id: object = None

    def check(self, rows: Rows | ColumnRows) -> tuple[pa.Table, list[BadRow]]:
        """Returns whole documents in `CHECKED_SCHEMA`, and bad rows; the last document waits for what follows."""
        checked: list[Checked] = []
        bad = list(rows.bad)
        for line, row in zip(rows.lines, rows.rows, strict=True):
            document_id = row.get("document_id")
            if document_id != self._id:
                self._end(checked, bad)
                self._id = document_id
            self._take(line, row)
        return checked_table(checked), bad

    def finish(self) -> tuple[pa.Table, list[BadRow]]:
        """Ends the document at hand."""
        checked: list[Checked] = []
        bad: list[BadRow] = []
        self._end(checked, bad)
        return checked_table(checked), bad

    def _end(self, checked: list[Checked], bad: list[BadRow]) -> None:
        group, wrong = self._group, self._bad
        self._group, self._bad = [], []
        if not wrong:
            checked += group
            return
        others = [
            BadRow(c.line, f"line {wrong[0].line:,} has another revision of this document, which is bad", _plain(c))
            for c in group
        ]
        bad += sorted([*wrong, *others], key=lambda row: row.line)

    def _take(self, line: int, row: dict[str, Any]) -> None:
        try:
            before = None if not self._group else self._group[-1].revision
            made = make_revision(row, self._columns, self._now)
            if not self._bad:
                _check_follows(before, made)
            self._group.append(Checked(line, made))
        except FrazilError as error:
            self._bad.append(BadRow(line, explain(error), row))


def make_revision(row: Mapping[str, Any], columns: Mapping[str, Column], now: datetime) -> Revision:
    """Returns the revision that a row of an export with history is.

    Raises:
        UsageError: a field is wrong.
        ConflictError: its fields contradict each other.
    """
    stamps = {name: row.get(name) for name in ("document_id", "operation", "valid_from", "revision", "created_at")}
    if missing := [name for name, value in stamps.items() if value is None]:
        raise UsageError(f"field '{missing[0]}' is missing", hint="every revision has " + ", ".join(stamps))
    if stamps["operation"] not in get_args(Operation):
        raise UsageError(
            f"field 'operation' is invalid: {str(stamps['operation'])[:80]!r}",
            hint=f"one of: {', '.join(get_args(Operation))}",
        )
    revision = stamps["revision"]
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 1:
        raise UsageError(f"field 'revision' is invalid: {str(revision)[:80]!r}", hint="a whole number from 1")
    valid_from = parse_time(stamps["valid_from"], "valid_from")
    if valid_from > now + CLOCK_TOLERANCE:
        raise UsageError(f"field 'valid_from' lies in the future: {plain_time(valid_from)}")
    fields = {k: v for k, v in row.items() if k not in READ_ONLY and k not in ("operation", "valid_from")}
    made = _first_revision(fields, columns, now).document
    document = replace(made, revision=revision, updated_at=valid_from)
    return Revision(document, cast("Operation", stamps["operation"]), valid_from)


def _check_follows(before: Revision | None, made: Revision) -> None:
    number = 1 if before is None else before.revision + 1
    if made.revision != number:
        raise UsageError(
            f"document '{made.document_id}' has revision {made.revision} here, and revision {number} is expected",
            hint="all revisions of a document, from 1 on, one after the other",
        )
    operation = None if before is None else before.operation
    if made.operation not in _FOLLOWING[operation]:
        raise UsageError(
            f"document '{made.document_id}' has '{made.operation}' "
            + ("as its first revision" if operation is None else f"after '{operation}'"),
            hint=f"allowed: {', '.join(_FOLLOWING[operation])}",
        )
    if before is not None and made.valid_from < before.valid_from:
        raise UsageError(f"document '{made.document_id}' has a revision that is older than the one before")
    if before is not None and made.document.created_at != before.document.created_at:
        raise UsageError(f"document '{made.document_id}' changes created_at, which never changes")


def _plain(checked: Checked) -> dict[str, Any]:
    return checked.revision.to_dict()
