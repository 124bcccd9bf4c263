"""What the dead-letter table notes of replays: which producer is going to send which letters, and that it has."""

from __future__ import annotations

import datetime
import json
import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from frazil.observe.faultpoints import reach
from frazil.settings import Settings
from frazil.settings.policies import snapshots_kept
from frazil.tables import Position, TableStore, commit_append, find_position
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_all_rows
from frazil.topics.dead_letters.filters import DeadLetterFilter
from frazil.topics.dead_letters.rows import KEY, columns, rows_by_offset
from frazil.topics.dead_letters.writer import letters
from frazil.topics.layout import REPLAY, get_replays_topic

if TYPE_CHECKING:
    from pyiceberg.table import Table


#: Marks of an intent that has come to its end: its letters were sent, or given back because the log refuses them.
ENDED = ["replayed", "released"]


@dataclass(frozen=True)
class Intent:
    """Some letters are sent by this producer, in batches that are numbered from `sequence` on."""

    producer_id: int
    producer_epoch: int
    sequence: int = 0
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def unfinished(store: TableStore, table: Table, topic: str) -> list[Intent]:
    """What was begun and not ended, by this process or another one. Letters are not held, only whose they are."""
    begun: dict[str, Intent] = {}
    done: set[str] = set()
    for rows in rows_by_offset(store, table, DeadLetterFilter(topic).marks(), ["replay"]):
        for text in pc.unique(rows.filter(pc.equal(rows["status"], "replaying"))["replay"]).to_pylist():
            intent = Intent(**json.loads(text))
            begun[intent.id] = intent
        for text in pc.unique(rows.filter(pc.is_in(rows["status"], pa.array(ENDED)))["replay"]).to_pylist():
            done.add(json.loads(text)["id"])
    return [intent for intent in begun.values() if intent.id not in done]


def keys_of(store: TableStore, table: Table, topic: str, intent: Intent, status: str) -> pa.Table:
    """The letters of an intent, by offset; none where it has not come to that."""
    from pyiceberg.expressions import And, EqualTo

    noted = And(EqualTo(term="status", value=status), EqualTo(term="replay", value=intent.to_json()))
    found = rows_by_offset(store, table, And(EqualTo(term="topic", value=topic), noted), ["replay"])
    return pa.concat_tables([columns(()).empty_table().select(KEY), *(rows.select(KEY) for rows in found)])


def note(
    store: TableStore,
    settings: Settings,
    table: Table,
    topic: str,
    keys: pa.Table,
    status: str,
    intent: Intent,
    released: pa.Array | None = None,
) -> Table:
    """Notes what becomes of letters, on condition that no replay has noted anything since the table was loaded.

    Args:
        store: the catalog with the dead letters.
        settings: the settings.
        table: the dead-letter table.
        topic: the topic.
        keys: the letters.
        status: what has become of them.
        intent: the replay that has them.
        released: for each letter whether it is given back unsent instead; by default none is.

    Raises:
        PositionMovedError: one has; look again.
    """
    expected = find_position(table, REPLAY, get_replays_topic(topic))
    count = expected.offsets[0] if expected else 0
    reached = Position(REPLAY, get_replays_topic(topic), {0: count + 1}, "-", 0, str(uuid.uuid4()))
    given = {name: keys[name] for name in KEY} | {
        "status": status if released is None else pc.if_else(released, "released", status),
        "replay": intent.to_json(),
        "written_at": datetime.datetime.now(datetime.UTC),
    }
    writer = TableWriter(WriteTarget.of(table), f"{topic}-{status}")
    writer.add(convert_all_rows(letters(given, keys.num_rows), writer.schema, "a note about a dead letter"))
    reach(f"dead_letters.{status}.before")
    keep = snapshots_kept(settings, table.name(), settings.model.topics.keep_snapshots)
    done = commit_append(store, table, writer.finish(), expected=expected, reached=reached, keep_snapshots=keep)
    reach(f"dead_letters.{status}.after")
    return done.table
