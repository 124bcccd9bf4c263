"""The position of a table per sink and topic: the table is its own checkpoint.

Each commit records the position twice: in the summary of the snapshot and in a table property, both under
`frazil.position.<sink>.<topic>`. The summary is authoritative, because a rollback reverts it together with the rows.
The property remains when expiry has removed every snapshot with a summary. It names its anchor, the snapshot that it
was set with; if the history of the table should contain that anchor and does not, the table was rolled back.

Snapshots of upkeep carry the position that upkeep read: `frazil.carried.<sink>.<topic>`. This is only a hint for the
case that both records above are lost: a sink may have committed between that read and upkeep's commit, so such a
snapshot may be newer than the position that it carries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from frazil.errors import IntegrityError, UsageError
from frazil.tables.errors import RolledBackError, with_attributes

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

PREFIX = "frazil.position."
CARRIED = "frazil.carried."


@dataclass(frozen=True)
class Position:
    """What a table has taken in of one topic.

    Attributes:
        sink: who writes; without a dot.
        topic: what is written.
        offsets: per partition the first offset that is not in the table.
        log_id: of the log that the offsets belong to.
        epoch: of that log when the batch was made.
        batch_id: new for each set of files; by it a lost reply is looked up.
        anchor: id of the snapshot that the position was set with, or on.
        sequence: that snapshot's sequence number; 0 for a table without snapshots.
    """

    sink: str
    topic: str
    offsets: Mapping[int, int]
    log_id: str
    epoch: int
    batch_id: str
    anchor: int | None = field(default=None, compare=False)
    sequence: int = field(default=0, compare=False)

    @property
    def key(self) -> str:
        return position_key(self.sink, self.topic)

    def anchored(self, snapshot_id: int | None, sequence: int) -> Position:
        return replace(self, anchor=snapshot_id, sequence=sequence)

    def to_json(self) -> str:
        found = {
            "offsets": {str(p): o for p, o in sorted(self.offsets.items())},
            "log": self.log_id,
            "epoch": self.epoch,
            "batch": self.batch_id,
            "snapshot": self.anchor,
            "sequence": self.sequence,
        }
        return json.dumps(found, separators=(",", ":"))

    def __str__(self) -> str:
        return ", ".join(f"{p}:{o}" for p, o in sorted(self.offsets.items())) or "nothing"


_SINK = r"[A-Za-z][A-Za-z0-9_-]*"
_NAME = re.compile(rf"(?P<sink>{_SINK})\.(?P<topic>.+)")


def position_key(sink: str, topic: str) -> str:
    if not re.fullmatch(_SINK, sink) or not topic:
        raise UsageError(
            f"'{sink}' of '{topic}' is not a sink name", hint="letters, digits, '_' and '-', then a topic's name"
        )
    return f"{PREFIX}{sink}.{topic}"


def parse_position(key: str, text: str) -> Position:
    sink, _, topic = key.removeprefix(PREFIX).removeprefix(CARRIED).partition(".")
    try:
        found = json.loads(text)
        return Position(
            sink=sink,
            topic=topic,
            offsets={int(p): int(o) for p, o in found["offsets"].items()},
            log_id=str(found["log"]),
            epoch=int(found["epoch"]),
            batch_id=str(found["batch"]),
            anchor=None if found["snapshot"] is None else int(found["snapshot"]),
            sequence=int(found["sequence"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(
            f"the table property '{key}' does not contain a position",
            cause=f"{text[:200]!r}",
            hint="restore the property, or run: frazil topic adopt NAME",
        ) from error


def find_position(table: Table, sink: str, topic: str) -> Position | None:
    """Finds the table's position; None if this sink has written nothing of this topic.

    Raises:
        RolledBackError: the table was taken back to an older state.
    """
    held, recorded, rolled_back = look(table.metadata, sink, topic)
    if rolled_back:
        name = ".".join(table.name())
        raise with_attributes(
            RolledBackError(
                f"the table {name} was rolled back: its rows reach {held or 'nothing'} of '{topic}', "
                f"but it had reached {recorded}",
                cause="it was set to an older snapshot",
                hint=f"frazil topic adopt {topic} --rewind to write the rows again, or --keep to skip them",
            ),
            table_position=held,
            recorded=recorded,
        )
    return _newer(held, recorded)


def look(metadata: TableMetadata, sink: str, topic: str) -> tuple[Position | None, Position | None, bool]:
    """Returns the position in the snapshots, the one in the property, and whether they prove a rollback."""
    key = position_key(sink, topic)
    text = metadata.properties.get(key)
    recorded = parse_position(key, text) if text else None
    held: Position | None = None
    for snapshot in list_ancestors(metadata):
        held = held or _set_with(snapshot, key)
        if recorded is None or snapshot.snapshot_id == recorded.anchor:
            if held is not None or recorded is not None:
                return held, recorded, False
        elif (snapshot.sequence_number or 0) < recorded.sequence:
            # The history goes on below the anchor's number without having met the anchor.
            return held or _older(metadata, snapshot, key) or _carried(metadata, key), recorded, True
    gone = metadata.current_snapshot_id is None and recorded is not None and recorded.anchor is not None
    return held if held or recorded else _carried(metadata, key), recorded, gone


def _set_with(snapshot: Snapshot, key: str) -> Position | None:
    text = snapshot.summary.get(key) if snapshot.summary is not None else None
    return parse_position(key, text).anchored(snapshot.snapshot_id, snapshot.sequence_number or 0) if text else None


def _older(metadata: TableMetadata, start: Snapshot, key: str) -> Position | None:
    return next((found for s in list_ancestors(metadata, start) if (found := _set_with(s, key))), None)


def _carried(metadata: TableMetadata, key: str) -> Position | None:
    """Returns the furthest position that upkeep's snapshots of this history carry."""
    name = CARRIED + key.removeprefix(PREFIX)
    texts = (s.summary.get(name) for s in list_ancestors(metadata) if s.summary is not None)
    return max((parse_position(name, text) for text in texts if text), key=lambda p: p.sequence, default=None)


def collect_carried_positions(metadata: TableMetadata) -> dict[str, str]:
    """Collects all positions, for the summary of a snapshot that moves none."""
    summaries = (s.summary.additional_properties for s in list_ancestors(metadata) if s.summary is not None)
    keys = {key for properties in (metadata.properties, *summaries) for key in properties}
    names = {key.removeprefix(p) for key in keys for p in (PREFIX, CARRIED) if key.startswith(p)}
    found = {}
    for parts in filter(None, map(_NAME.fullmatch, sorted(names))):
        held, recorded, rolled_back = look(metadata, parts["sink"], parts["topic"])
        position = held if rolled_back else _newer(held, recorded)
        if position is not None:
            found[CARRIED + parts[0]] = position.to_json()
    return found


def _newer(held: Position | None, recorded: Position | None) -> Position | None:
    return recorded if held is None or (recorded and recorded.sequence >= held.sequence) else held


def list_ancestors(metadata: TableMetadata, start: Snapshot | None = None) -> Iterator[Snapshot]:
    """Yields the current snapshot, its parent, and so on, as far as they are retained."""
    by_id = {s.snapshot_id: s for s in metadata.snapshots}
    snapshot = start or (by_id.get(metadata.current_snapshot_id) if metadata.current_snapshot_id is not None else None)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = by_id.get(parent) if parent is not None else None


def find_batch(metadata: TableMetadata, batch: Position) -> Position | None:
    """Finds the position of a landed batch, whatever was committed after it; None if the history has no such batch."""
    for snapshot in list_ancestors(metadata):
        if snapshot.summary is not None and (carried := snapshot.summary.get(batch.key)):
            found = parse_position(batch.key, carried)
            if found.batch_id == batch.batch_id:
                return found.anchored(snapshot.snapshot_id, snapshot.sequence_number or 0)
    return None


def find_highest_offsets(table: Table, topic: str) -> dict[int, int]:
    """Finds, per partition, the highest offset that any sink of this topic ever reached here, rolled back or not.

    A log that begins anew must not give these offsets out again.
    """
    highest: dict[int, int] = {}
    summaries = (s.summary.additional_properties for s in table.metadata.snapshots if s.summary is not None)
    for properties in (table.metadata.properties, *summaries):
        for key, text in properties.items():
            if not key.startswith((PREFIX, CARRIED)) or not key.endswith(f".{topic}"):
                continue
            position = parse_position(key, text)
            if position.topic == topic:
                for partition, offset in position.offsets.items():
                    highest[partition] = max(offset, highest.get(partition, offset))
    return highest
