"""Parses messages into changes. No content of a message makes this fail: what cannot be parsed gets a reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from frazil.content.annotations.messages import Annotation
from frazil.content.annotations.parse import is_note, read_note, set_offsets
from frazil.content.columns import CHANGE, TEXTS
from frazil.content.events.envelopes import unwrap
from frazil.content.events.eventbridge import is_eventbridge, read_eventbridge
from frazil.content.events.fields import load
from frazil.content.events.model import AUTO, DIALECTS, Change, Parsed, Problem, Unreadable
from frazil.content.events.observation import is_observation, read_observation
from frazil.content.events.records import is_record, read_record
from frazil.errors import first_line
from frazil.log.trust import is_marked
from frazil.tables.writing.type_conversion import RejectedRow

_KNOWN: Final = frozenset({AUTO, *DIALECTS})
#: The header with the dialect of one message.
DIALECT_HEADER: Final = "dialect"
#: Maximum problems of one message that its dead letter lists.
_TOLD: Final = 5
#: Changes held as Python objects before they become columns: few enough for the processor's cache.
_BATCH: Final = 1_000


def parse_message(payload: bytes, dialect: str = AUTO, *, internal: bool = False) -> Parsed:
    """Parses one message.

    Args:
        payload: an event as a store sends it, wrapped or not, or a message of Frazil's own.
        dialect: of the event; `auto`: detected.
        internal: one of Frazil's own components has published it. From all others come only events of buckets:
            they cannot say what a folder of this machine holds, nor what people or extractors have found.
    """
    try:
        return _parse(payload, dialect, internal)
    except Unreadable as error:
        return Parsed(problems=[Problem(error.reason, str(error))])
    except Exception as error:  # noqa: BLE001 - else one message would stop all that come after it
        told = f"{type(error).__name__}: {first_line(error)}"
        return Parsed(problems=[Problem("not_an_event", f"it cannot be read: {told}")])


class Read(NamedTuple):
    """The parsed messages: changes of objects, rejected messages, annotations of rows, changes of the table."""

    changes: pa.Table
    misfits: list[RejectedRow]
    notes: list[Annotation]
    orders: list[dict[str, Any]]


def parse_messages(messages: pa.Table, dialect: str = AUTO, *, internal: bool = False) -> Read:
    """Parses messages. Returns their changes, and each message with an unreadable part once.

    A message with one bad record among good ones is in both. The header `dialect` of a message goes before `dialect`.

    Args:
        messages: with the columns `offset`, `payload` and, if there are any, `headers`.
        dialect: who speaks, where no header tells.
        internal: whether all are internal messages; else those with the mark that only Frazil can set.
    """
    changes: list[Change] = []
    batches: list[pa.RecordBatch] = []
    misfits: list[RejectedRow] = []
    notes: list[Annotation] = []
    orders: list[dict[str, Any]] = []
    headers = _headers(messages)
    offsets = messages.column("offset").to_pylist()
    for row, (offset, payload) in enumerate(zip(offsets, messages.column("payload"), strict=True)):
        said = headers.get(row, {})
        own = internal or is_marked(said)
        parsed = parse_message(payload.as_py(), said.get(DIALECT_HEADER) or dialect, internal=own)
        if parsed.problems:
            misfits.append(_misfit(row, parsed.problems))
        for change in parsed.changes:
            change["offset"] = offset
        changes += parsed.changes
        notes += set_offsets(parsed.notes, offset)
        orders += parsed.orders
        if len(changes) >= _BATCH:
            batches.append(_as_batch(changes))
            changes = []
    batches.append(_as_batch(changes))
    return Read(pa.Table.from_batches(batches, CHANGE), misfits, notes, orders)


def _parse(payload: bytes, dialect: str, internal: bool) -> Parsed:
    if dialect not in _KNOWN:
        known = ", ".join([AUTO, *DIALECTS])
        raise Unreadable("unknown_dialect", f"unknown dialect {dialect!r:.50}; dialects are {known}")
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise Unreadable("not_json", f"not UTF-8: {error}") from None
    document = load(text.removeprefix("\ufeff"))
    own = is_observation(document) or is_note(document)
    if own and not internal:
        raise Unreadable("untrusted", f"a message of kind '{document['frazil']}' was not published by Frazil itself")
    if own:
        return read_observation(document) if is_observation(document) else read_note(document)
    parsed = Parsed()
    for index, event in enumerate(unwrap(document)):
        try:
            change = _read_event(event, dialect)
        except Unreadable as error:
            parsed.problems.append(Problem(error.reason, str(error), index))
            continue
        if change is None:
            parsed.ignored += 1
        else:
            change["index"] = index
            parsed.changes.append(change)
    return parsed


def _read_event(event: dict[str, Any] | Unreadable, dialect: str) -> Change | None:
    if isinstance(event, Unreadable):
        raise event
    if is_record(event):
        return read_record(event, dialect)
    if is_eventbridge(event):
        return read_eventbridge(event, dialect)
    names = ", ".join(sorted(event)[:10]) or "nothing"
    raise Unreadable("not_an_event", f"not an event of an object store: its fields are {names!r:.200}")


def _headers(messages: pa.Table) -> dict[int, dict[str, str]]:
    """Returns the headers by row."""
    if "headers" not in messages.column_names:
        return {}
    headers = messages.column("headers")
    if headers.null_count == len(headers):
        return {}
    return {row: dict(pairs) for row, pairs in enumerate(headers.to_pylist()) if pairs}


def _misfit(row: int, problems: list[Problem]) -> RejectedRow:
    told = [f"record {problem.index}: {problem.error}" for problem in problems[:_TOLD]]
    if len(problems) > _TOLD:
        told.append(f"and {len(problems) - _TOLD} more records")
    error = problems[0].error if len(problems) == 1 and problems[0].index == 0 else "; ".join(told)
    return RejectedRow(row, problems[0].reason, error)


def as_changes(parsed: Iterable[Parsed]) -> pa.Table:
    """Returns the changes of observations that come from no message, as columns; their offset is -1."""
    changes = [change | {"offset": -1} for one in parsed for change in one.changes]
    return pa.Table.from_batches([_as_batch(changes)], CHANGE)


def _as_batch(changes: list[Change]) -> pa.RecordBatch:
    columns = []
    for field in CHANGE:
        values = [change[field.name] for change in changes]
        if field.type == TEXTS:
            values = [None if texts is None else list(texts.items()) for texts in values]
        columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=CHANGE)
