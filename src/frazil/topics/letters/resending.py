"""Looks into the dead letters, and sends them again.

A replay publishes each message anew, with its payload, headers and columns, and a header that says where it was. It
survives a crash at any point without sending twice: first the dead-letter table notes which messages a producer of
its own is going to send (`replaying`), then they are sent, then it notes that they are (`replayed`). Whoever finds a
replay that was cut off sends it again as the same producer, and the log takes only what it does not have.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from frazil.errors import NotFoundError
from frazil.log.access import Level, LogAccess, TopicInfo
from frazil.log.batch import Batch
from frazil.log.columns import HEADERS
from frazil.observe.faultpoints import reach
from frazil.settings import Settings
from frazil.tables import Position, PositionMovedError, TableStore, commit_append, position_of
from frazil.topics.layout import REPLAY, dead_letters_name, ensure_dead_letters, replays_of
from frazil.topics.letters.dead_letters import letters
from frazil.topics.letters.plain_values import from_plain
from frazil.topics.sinks.fit import fit
from frazil.topics.sinks.parquet import TableWriter, Target

#: The header that says where a message was before: topic/partition/offset.
REPLAYED_FROM = "frazil-replayed-from"
_BATCH_ROWS = 500
_BATCH_BYTES = 4 * 1024 * 1024
_WITHOUT_PAYLOAD = (
    "sink", "topic", "partition", "offset", "status", "publish_time", "reason", "error", "replay", "written_at",
)  # fmt: skip

Key = tuple[str, int, int]


@dataclass(frozen=True)
class DeadLetter:
    """A message that a sink could not take. `status`: dead, replaying or replayed."""

    sink: str
    topic: str
    partition: int
    offset: int
    status: str
    publish_time: datetime.datetime | None
    reason: str | None
    error: str | None
    written_at: datetime.datetime
    payload: bytes | None = None
    headers: dict[str, str] | None = None
    columns: dict[str, Any] | None = None
    segment_id: int | None = None
    segment_offset: int | None = None
    log_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Replayed:
    """How many messages were sent again, and how many of those had been sent by a replay that was cut off."""

    sent: int
    resumed: int


@dataclass(frozen=True)
class _Intent:
    """Which producer sends which messages, in this order."""

    id: str
    producer_id: int
    producer_epoch: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def list_dead_letters(
    store: TableStore, settings: Settings, *, topic: str | None = None, status: str | None = None, limit: int = 100
) -> list[DeadLetter]:
    """The dead letters, newest first, without their payloads."""
    rows = _rows(store, settings, f"topic = '{topic}'" if topic else None, _WITHOUT_PAYLOAD)
    found = [_letter(row, last) for row, last in _with_status(rows)]
    chosen = [letter for letter in found if status is None or letter.status == status]
    return sorted(chosen, key=lambda letter: (letter.written_at, letter.offset), reverse=True)[:limit]


def show_dead_letter(store: TableStore, settings: Settings, topic: str, offset: int) -> DeadLetter:
    """One dead letter, whole.

    Raises:
        NotFoundError: that message is none.
    """
    rows = _rows(store, settings, f"topic = '{topic}' and offset = {offset}", None)
    found = [_letter(row, last) for row, last in _with_status(rows)]
    if not found:
        raise NotFoundError(
            f"offset {offset} of topic '{topic}' is no dead letter", hint=f"frazil topic dead-letters list {topic}"
        )
    return found[0]


def replay_dead_letters(
    store: TableStore, settings: Settings, access: LogAccess, topic: str, *, offsets: Iterable[int] | None = None
) -> Replayed:
    """Sends the dead letters of a topic again, all or those of some offsets; first what an earlier replay left undone.

    Raises:
        NotFoundError: an offset is no dead letter, or was sent again already.
    """
    info = access.info(topic)
    resumed = 0
    for intent, keys in _unfinished(store, settings, topic):
        resumed += _send(store, settings, access, info, intent, keys)
    wanted = None if offsets is None else set(offsets)
    while True:
        keys = _dead(store, settings, topic, wanted)
        if not keys:
            return Replayed(resumed, resumed)
        registered = access.register(topic, f"dead-letters-{uuid.uuid4()}")
        intent = _Intent(str(uuid.uuid4()), registered.producer_id, registered.producer_epoch)
        try:
            _mark(store, settings, topic, keys, "replaying", intent)
        except PositionMovedError:
            continue  # another replay was faster: look what is left
        return Replayed(resumed + _send(store, settings, access, info, intent, keys), resumed)


def _send(
    store: TableStore, settings: Settings, access: LogAccess, info: TopicInfo, intent: _Intent, keys: Sequence[Key]
) -> int:
    sent = 0
    for sequence, batch in enumerate(_batches(store, settings, info, keys)):
        producer = {"producer_id": intent.producer_id, "producer_epoch": intent.producer_epoch, "sequence": sequence}
        reach("dead_letters.send.before")
        access.append(info.name, Batch.of_arrow(batch, **producer), Level.disk)
        reach("dead_letters.send.after")
        sent += batch.num_rows
    while True:
        try:
            _mark(store, settings, info.name, keys, "replayed", intent)
        except PositionMovedError:
            if intent.id in _finished(store, settings, info.name):
                return sent  # another replay found this one, and took it to its end
            continue
        return sent


def _batches(store: TableStore, settings: Settings, info: TopicInfo, keys: Sequence[Key]) -> Iterator[pa.RecordBatch]:
    """The messages, cut the same way each time: a batch is recognised by its number."""
    wanted = {(partition, offset): None for _, partition, offset in keys}
    rows = _rows(store, settings, f"topic = '{info.name}' and status = 'dead'", None)
    by_place = {(r["partition"], r["offset"]): r for r in rows}
    held: list[dict[str, Any]] = []
    size = 0
    for place in sorted(wanted):
        held.append(by_place[place])
        size += len(by_place[place]["payload"] or b"")
        if len(held) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _record_batch(info, held)
            held, size = [], 0
    if held:
        yield _record_batch(info, held)


def _record_batch(info: TopicInfo, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {
        "payload": pa.array([r["payload"] for r in rows], pa.binary()),
        "headers": pa.array([_headers(r) for r in rows], HEADERS),
    }
    own = [json.loads(r["columns"]) if r["columns"] else {} for r in rows]
    for f in info.extra:
        if any(f.name in values for values in own):
            columns[f.name] = pa.array([from_plain(values.get(f.name), f.type) for values in own], f.type)
    return pa.record_batch(columns)


def _headers(row: dict[str, Any]) -> list[tuple[str, str | None]]:
    kept = [(k, v) for k, v in row["headers"] or [] if k != REPLAYED_FROM]
    return [*kept, (REPLAYED_FROM, f"{row['topic']}/{row['partition']}/{row['offset']}")]


# -- what the table says -----------------------------------------------------------------------------------------------


def _rows(
    store: TableStore, settings: Settings, where: str | None, columns: tuple[str, ...] | None
) -> list[dict[str, Any]]:
    try:
        table = store.load(dead_letters_name(settings))
    except NotFoundError:
        return []
    scan = table.scan(selected_fields=columns or ("*",))
    found = scan.filter(where) if where else scan
    rows: list[dict[str, Any]] = store.call(found.to_arrow, "scan", "storage").to_pylist()
    return rows


def _with_status(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each dead letter once, and what has become of it."""
    rank = {"dead": 0, "replaying": 1, "replayed": 2}
    last: dict[Key, str] = {}
    for row in rows:
        key = _key(row)
        last[key] = max(last.get(key, "dead"), row["status"], key=lambda status: rank[status])
    for row in rows:
        if row["status"] == "dead":
            yield row, last[_key(row)]


def _key(row: dict[str, Any]) -> Key:
    return row["sink"], row["partition"], row["offset"]


def _letter(row: dict[str, Any], status: str) -> DeadLetter:
    given = {k: v for k, v in row.items() if k in DeadLetter.__dataclass_fields__}
    if given.get("headers") is not None:
        given["headers"] = dict(given["headers"])
    if given.get("columns") is not None:
        given["columns"] = json.loads(given["columns"])
    return DeadLetter(**given | {"status": status})


def _dead(store: TableStore, settings: Settings, topic: str, wanted: set[int] | None) -> list[Key]:
    """The letters that nobody has sent again."""
    rows = _rows(store, settings, f"topic = '{topic}'", _WITHOUT_PAYLOAD)
    open_ = {_key(row) for row, status in _with_status(rows) if status == "dead"}
    if wanted is None:
        return sorted(open_)
    there = {offset for _, _, offset in open_}
    if missing := sorted(wanted - there):
        raise NotFoundError(
            f"offset {missing[0]} of topic '{topic}' is no dead letter that waits to be sent again",
            hint=f"frazil topic dead-letters list {topic}",
        )
    return sorted(key for key in open_ if key[2] in wanted)


def _unfinished(store: TableStore, settings: Settings, topic: str) -> list[tuple[_Intent, list[Key]]]:
    """Replays that were begun and not ended."""
    rows = _rows(store, settings, f"topic = '{topic}' and status = 'replaying'", _WITHOUT_PAYLOAD)
    done = _finished(store, settings, topic)
    found: dict[str, tuple[_Intent, list[Key]]] = {}
    for row in rows:
        intent = _Intent(**json.loads(row["replay"]))
        if intent.id not in done:
            found.setdefault(intent.id, (intent, []))[1].append(_key(row))
    return [(intent, sorted(keys)) for intent, keys in found.values()]


def _finished(store: TableStore, settings: Settings, topic: str) -> set[str]:
    rows = _rows(store, settings, f"topic = '{topic}' and status = 'replayed'", ("replay",))
    return {json.loads(row["replay"])["id"] for row in rows}


def _mark(store: TableStore, settings: Settings, topic: str, keys: Sequence[Key], status: str, intent: _Intent) -> None:
    """Notes what became of letters. Two that do so at once: one wins, the other looks again."""
    table = ensure_dead_letters(store, settings)
    expected = position_of(table, REPLAY, replays_of(topic))
    count = expected.offsets[0] if expected else 0
    reached = Position(REPLAY, replays_of(topic), {0: count + 1}, "-", 0, str(uuid.uuid4()))
    given = {
        "sink": pa.array([k[0] for k in keys], pa.string()),
        "partition": pa.array([k[1] for k in keys], pa.int32()),
        "offset": pa.array([k[2] for k in keys], pa.int64()),
        "topic": topic,
        "status": status,
        "replay": intent.to_json(),
        "written_at": datetime.datetime.now(datetime.UTC),
    }
    writer = TableWriter(Target.of(table), f"{topic}-{status}")
    writer.add(fit(letters(given, len(keys)), writer.schema).rows)
    reach(f"dead_letters.{status}.before")
    commit_append(store, table, writer.finish(), expected=expected, reached=reached)
    reach(f"dead_letters.{status}.after")
