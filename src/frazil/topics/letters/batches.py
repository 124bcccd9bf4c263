"""The messages of dead letters as batches for the log, each message once, cut the same way each time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import IntegrityError
from frazil.log.access import TopicInfo
from frazil.log.columns import HEADERS
from frazil.log.trust import marked
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.topics.layout import DEAD_LETTER, DEAD_LETTERS, ensure_dead_letters
from frazil.topics.letters.choice import Choice
from frazil.topics.letters.plain_values import from_plain
from frazil.topics.letters.rows import positions, rows_by_offset
from frazil.topics.reading.vanished import Vanished

#: The header that says where a message was before: topic/partition/offset.
REPLAYED_FROM = "frazil-replayed-from"
_ROWS = 500
_BYTES = 4 * 1024 * 1024
#: What makes two letters the same message: two sinks may have refused it.
_MESSAGE = ["offset", "partition", "log_id"]


def batches(
    store: TableStore, settings: Settings, info: TopicInfo, keys: pa.Table, *, as_internal: bool = False
) -> Iterator[pa.RecordBatch]:
    """The messages of letters, by offset. A batch is recognised by its number, so that it must not change.

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
                yield _record_batch(info, whole, as_internal)
                held, begin, rows, size = [], at, 0, 0
        if begin < len(order):
            held.append(letters.take(pa.array(order[begin:])))
    if held:
        yield _record_batch(info, pa.concat_tables(held), as_internal)


def _messages(store: TableStore, settings: Settings, topic: str, keys: pa.Table) -> Iterator[tuple[pa.Table, Any]]:
    """Letters as the table has them, and which of their rows to take, in this order: by offset, each message once.

    Files may go while it is read; then it goes on in those that have come for them.
    """
    wanted = keys.select(_MESSAGE).take(pa.array(_distinct(keys)))
    vanished, done = Vanished(DEAD_LETTERS), 0
    while done < wanted.num_rows:
        table = ensure_dead_letters(store, settings)
        first, last = wanted["offset"][done].as_py(), wanted["offset"][-1].as_py()
        expression = Choice(topic, first=first, before=last + 1).letters()
        try:
            for letters in rows_by_offset(store, table, expression, DEAD_LETTER.names, first):
                among = positions(letters, keys)
                order = among[_distinct(letters.select([*_MESSAGE, "sink"]).take(pa.array(among)))]
                found = letters.select(_MESSAGE).take(pa.array(order))
                if found.num_rows and found != wanted.slice(done, found.num_rows).combine_chunks():
                    break
                done += found.num_rows
                if found.num_rows:
                    yield letters, order
        except OSError as error:
            vanished.check(error, table.metadata.current_snapshot_id)
            continue
        if done < wanted.num_rows:
            raise IntegrityError(
                f"a dead letter of topic '{topic}' between offsets {first} and {last} is gone",
                cause="a replay has begun to send it, and was cut off",
                hint="roll the table of dead letters back to where it had it",
            )


def _distinct(letters: pa.Table) -> Any:
    """The rows that make each message once, by offset."""
    order = pc.sort_indices(letters, sort_keys=[(name, "ascending") for name in [*_MESSAGE, "sink"]])
    same = np.ones(max(0, letters.num_rows - 1), bool)
    for name in _MESSAGE:
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
    mark = list(marked({}).items()) if as_internal else []
    kept = [(k, v) for k, v in row["headers"] or [] if k != REPLAYED_FROM and (k, v) not in mark]
    return [*kept, *mark, (REPLAYED_FROM, f"{row['topic']}/{row['partition']}/{row['offset']}")]
