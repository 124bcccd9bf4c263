"""The messages of dead letters as batches for the log, each message once, cut the same way each time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import IntegrityError, UsageError
from frazil.log.batch import Batch
from frazil.log.columns import HEADERS, MESSAGE
from frazil.log.protocol import TopicInfo
from frazil.log.trust import add_mark
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.tables.reading.retrying import MissingFileCheck
from frazil.topics.dead_letters.filters import DeadLetterFilter
from frazil.topics.dead_letters.json_values import from_plain
from frazil.topics.dead_letters.rows import positions, rows_by_offset
from frazil.topics.layout import DEAD_LETTER, ensure_dead_letters

#: The header that says where a message was before: topic/partition/offset.
REPLAYED_FROM = "frazil-replayed-from"
_ROWS = 500
_BYTES = 4 * 1024 * 1024
#: What makes two letters the same message: two sinks may have refused it.
MESSAGE_KEY = ["offset", "partition", "log_id"]

MessageKey = tuple[int, int, str | None]


def batches(
    store: TableStore, settings: Settings, info: TopicInfo, keys: pa.Table, *, as_internal: bool = False
) -> Iterator[tuple[list[MessageKey], pa.RecordBatch]]:
    """The messages of letters, by offset, with what names each of them.

    A batch is recognised by its number, so that it must not change.

    Args:
        store: the catalog with the dead letters.
        settings: the settings.
        info: the topic.
        keys: which letters.
        as_internal: mark them as messages of Frazil's own; by default only those are that were before.

    Raises:
        IntegrityError: one of them is no longer in the table.
    """
    held: list[pa.Table] = []
    rows = size = 0
    for letters, order in _messages(store, settings, info.name, keys):
        lengths = pc.fill_null(pc.binary_length(letters["payload"]), 0).to_numpy()[order]
        begin = 0
        for at, length in enumerate(lengths.tolist(), 1):
            rows, size = rows + 1, size + length
            if rows >= _ROWS or size >= _BYTES:
                whole = pa.concat_tables([*held, letters.take(pa.array(order[begin:at]))])
                yield message_keys(whole), _record_batch(info, whole, as_internal)
                held, begin, rows, size = [], at, 0, 0
        if begin < len(order):
            held.append(letters.take(pa.array(order[begin:])))
    if held:
        whole = pa.concat_tables(held)
        yield message_keys(whole), _record_batch(info, whole, as_internal)


def message_keys(letters: pa.Table) -> list[MessageKey]:
    """Returns what names the message of each letter."""
    return list(zip(*(letters[name].to_pylist() for name in MESSAGE_KEY), strict=True))


def refused_rows(batch: pa.RecordBatch, max_message_size: int) -> dict[int, str]:
    """Finds the rows of a batch that the log would refuse, with the reason of each.

    A log that an older Frazil has written may hold messages that break today's rules for columns and sizes.
    """
    found: dict[int, str] = {}
    pieces = [(0, batch.num_rows)]
    while pieces:
        first, count = pieces.pop()
        try:
            Batch.of_arrow(_without_empty_columns(batch.slice(first, count))).check(max_message_size)
        except UsageError as error:
            half = count // 2
            if half:
                pieces += [(first + half, count - half), (first, half)]
            else:
                found[first] = error.in_one_line
    return found


def without_rows(batch: pa.RecordBatch, rows: Collection[int]) -> pa.RecordBatch:
    """Returns a batch without some rows, and without the columns that only those had."""
    keep = np.ones(batch.num_rows, bool)
    keep[list(rows)] = False
    return _without_empty_columns(batch.filter(pa.array(keep)))


def _without_empty_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([n for n in batch.schema.names if n in MESSAGE.names or batch[n].null_count < batch.num_rows])


def _messages(store: TableStore, settings: Settings, topic: str, keys: pa.Table) -> Iterator[tuple[pa.Table, Any]]:
    """Letters as the table has them, and which of their rows to take, in this order: by offset, each message once.

    Files may go while it is read; then it goes on in those that have come for them.
    """
    wanted = keys.select(MESSAGE_KEY).take(pa.array(_distinct(keys)))
    files, done = MissingFileCheck("the dead letters"), 0
    while done < wanted.num_rows:
        table = ensure_dead_letters(store, settings)
        first, last = wanted["offset"][done].as_py(), wanted["offset"][-1].as_py()
        expression = DeadLetterFilter(topic, first=first, before=last + 1).messages()
        try:
            for letters in rows_by_offset(store, table, expression, DEAD_LETTER.names, first):
                among = positions(letters, keys)
                order = among[_distinct(letters.select([*MESSAGE_KEY, "sink"]).take(pa.array(among)))]
                found = letters.select(MESSAGE_KEY).take(pa.array(order))
                if found.num_rows and found != wanted.slice(done, found.num_rows).combine_chunks():
                    break
                done += found.num_rows
                if found.num_rows:
                    yield letters, order
        except OSError as error:
            files.check(error, table.metadata.current_snapshot_id)
            continue
        if done < wanted.num_rows:
            raise IntegrityError(
                f"a dead letter of topic '{topic}' between offsets {first} and {last} is gone",
                cause="a replay has begun to send it, and was cut off",
                hint="roll the table of dead letters back to where it had it",
            )


def _distinct(letters: pa.Table) -> Any:
    """The rows that make each message once, by offset."""
    order = pc.sort_indices(letters, sort_keys=[(name, "ascending") for name in [*MESSAGE_KEY, "sink"]])
    same = np.ones(max(0, letters.num_rows - 1), bool)
    for name in MESSAGE_KEY:
        column = letters[name].combine_chunks().take(order)
        same &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    first = np.concatenate([np.ones(1, bool), ~same])[: letters.num_rows]
    return order.to_numpy()[first]


def _record_batch(info: TopicInfo, messages: pa.Table, as_internal: bool) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = messages.select(["topic", "partition", "offset", "headers", "columns"]).to_pylist()
    given: dict[str, pa.Array] = {
        "payload": messages["payload"].combine_chunks(),
        "request_id": messages["request_id"].combine_chunks(),
        "headers": pa.array([_headers(row, as_internal) for row in rows], HEADERS),
    }
    own = [json.loads(row["columns"]) if row["columns"] else {} for row in rows]
    for f in info.extra:
        if any(f.name in values for values in own):
            given[f.name] = pa.array([from_plain(values.get(f.name), f.type) for values in own], f.type)
    return pa.record_batch(given)


def _headers(row: dict[str, Any], as_internal: bool) -> list[tuple[str, str | None]]:
    mark = list(add_mark({}).items()) if as_internal else []
    kept = [(k, v) for k, v in row["headers"] or [] if k != REPLAYED_FROM and (k, v) not in mark]
    return [*kept, *mark, (REPLAYED_FROM, f"{row['topic']}/{row['partition']}/{row['offset']}")]
