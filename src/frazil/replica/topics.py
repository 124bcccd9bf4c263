"""What a failover means for topics: how far their replicated tables reach, and what only the old log had.

A table of a topic carries its position in its properties, so that a replica has it too. What the log had beyond that,
messages that no sink had written yet, did not lie in the replicated storage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from frazil.errors import FrazilError, NotFoundError
from frazil.log.columns import PARTITION
from frazil.observe.logs import get_logger
from frazil.tables.position import PREFIX, Position, find_highest_offsets, list_ancestors, look, parse_position
from frazil.tables.store import find_table
from frazil.topics.layout import ARCHIVE, REPLAY, dead_letters_name
from frazil.topics.sinks.registry import sink_definitions

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from frazil.settings import Settings
    from frazil.tables.store import TableStore

log = get_logger(__name__)

#: not-given: its place was not given. another: it has no such topic, or one that the tables were not written from.
LogReached = Literal["not-given", "unreachable", "another", "reached"]
#: When a message was taken, in the tables of topics, of documents (history, present) and of content.
_TIMES = ("publish_time", "valid_from", "updated_at", "record_timestamp")


@dataclass(frozen=True)
class OldTopic:
    """A topic of the lost site's log.

    Attributes:
        ranges: of offsets with messages that were acknowledged.
        last_message_at: when the last one was taken, if that is known.
    """

    log_id: str
    ranges: tuple[tuple[int, int], ...]
    last_message_at: str | None = None

    @property
    def end(self) -> int:
        return max((end for _, end in self.ranges), default=0)

    def count_from(self, offset: int) -> int:
        """How many messages there are at this offset and beyond."""
        return sum(max(0, end - max(start, offset)) for start, end in self.ranges)


@dataclass(frozen=True)
class OldLog:
    """The log of the lost site, as far as something can still be learned of it.

    Attributes:
        place: address of its broker, or its folder.
        topics: by name; None: it could not be read.
        problem: why not.
        is_live: a broker answers, and may take further messages.
    """

    place: str
    topics: Mapping[str, OldTopic] | None
    problem: str | None = None
    is_live: bool = False


@dataclass(frozen=True)
class TopicLoss:
    """What a failover means for a topic and a sink of it.

    Attributes:
        table: that carries the sink's position.
        position: the first offset that the table does not have.
        continues_at: the first offset that will be given out, behind all that any table of the topic knows.
        committed_at: when the table reached its position.
        last_message_at: when its last message was taken; None: its files do not tell, or have not been served yet.
        log: whether the old log could be asked.
        log_end: the offset behind its last message.
        log_last_message_at: when that one was taken.
        lost: how many messages only the log has; None: unknown.
        next: the commands by which the topic goes on at this site, on the machine with the new log.
        warnings: what deserves attention, a sentence each.
    """

    topic: str
    sink: str
    table: str
    position: int
    continues_at: int
    committed_at: str | None = None
    last_message_at: str | None = None
    log: LogReached = "not-given"
    log_end: int | None = None
    log_last_message_at: str | None = None
    lost: int | None = None
    next: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON."""
        return {**vars(self), "next": list(self.next), "warnings": list(self.warnings)}


def read_old_log(settings: Settings, place: str) -> OldLog:
    """Asks the lost site's log what it has. Changes nothing there; where it cannot be read, the result says why.

    Args:
        settings: with the key of brokers.
        place: address of a broker, or a folder: `home` of the lost site, or the log in it.
    """
    try:
        if "://" in place and not place.startswith("file:"):
            return OldLog(place, _ask_broker(settings, place), is_live=True)
        return _read_folder(place)
    except (FrazilError, OSError) as error:
        problem = error.in_one_line if isinstance(error, FrazilError) else str(error)
        log.info("the old log cannot be read", place=place, error=problem)
        return OldLog(place, None, problem)


def list_only_in_log(old: OldLog, with_tables: Collection[str]) -> list[str]:
    """Sentences on topics that only the old log has, apart from those with tables at the replica."""
    topics = sorted((old.topics or {}).items())
    counts = {name: topic.count_from(0) for name, topic in topics if name not in with_tables}
    return [
        f"topic '{name}' is only in the old log: {count:,} message{'s' if count > 1 else ''}"
        for name, count in counts.items()
        if count
    ]


def find_losses(
    store: TableStore,
    settings: Settings,
    name: str,
    old: OldLog | None = None,
    *,
    served_next: TableMetadata | None = None,
) -> tuple[TopicLoss, ...]:
    """Returns the topics whose position a table carries; empty if the table belongs to no topic.

    Args:
        store: the replica's catalog.
        settings: say which tables a topic has.
        name: of the table.
        old: the lost site's log.
        served_next: the metadata that the table will have.
    """
    table = find_table(store, name)
    if table is None:
        return ()
    metadata = served_next or table.metadata
    found = []
    for sink, topic in sorted(_list_carried(metadata)):
        definition = sink_definitions().get(sink)
        if definition is None or name == dead_letters_name(settings):
            continue
        names = definition.tables(settings, topic)
        sides = {other: find_table(store, other) for other in names if other != name}
        there = [other for other in names if other == name or sides[other] is not None]
        position = _position(metadata, sink, topic)
        if position is None or (name in names and there[-1] != name):
            continue  # a side table: it is reported with the one that carries the position
        letters = find_table(store, dead_letters_name(settings))
        others = {other: table for other, table in sides.items() if table is not None}
        time = None if served_next is not None else _find_last_message([table, *others.values()])
        main = table if served_next is None else None
        loss = _compare(metadata, name, position, others, letters, time, old, main)
        found.append(loss if name in names else _misplaced(loss, list(names)))
    return tuple(found)


def _compare(
    metadata: TableMetadata,
    name: str,
    position: Position,
    sides: Mapping[str, Table],
    letters: Table | None,
    last_message_at: str | None,
    old: OldLog | None,
    main: Table | None,
) -> TopicLoss:
    offset, topic = position.offsets.get(PARTITION, 0), position.topic
    warnings = []
    known = [offset]
    for other, table in sides.items():
        reached = _position(table.metadata, position.sink, topic)
        at = 0 if reached is None else reached.offsets.get(PARTITION, 0)
        known += find_highest_offsets(table, topic).values()
        if at > offset:
            warnings.append(f"{other} reaches offset {at}, and {name} lacks what it tells of offsets from {offset} on")
        elif at < offset and (missing := _lacks_latest(table, main)):
            warnings.append(f"{other} reaches offset {at} only, and {missing}")
    if letters is not None:
        known += find_highest_offsets(letters, topic).values()
    storage = "iceberg" if position.sink == ARCHIVE else "log"
    loss = TopicLoss(
        topic,
        position.sink,
        name,
        offset,
        max(known),
        _committed_at(metadata, position),
        last_message_at,
        next=(f"frazil topic create {topic} --storage {storage} --exist-ok", f"frazil topic adopt {topic} --yes"),
        warnings=tuple(warnings),
    )
    return _with_log(loss, position, old)


def _lacks_latest(side: Table, main: Table | None) -> str | None:
    """What a side table lacks that is behind the main one; None: nothing, as batches without rows do not move it."""
    if main is None:
        return None  # it is reported when the new version is served
    newest, kept = _find_latest(main), _find_latest(side)
    if newest is None:
        return "may lack what it should tell of later ones"
    if kept is not None and kept >= newest:
        return None
    return "lacks changes that the other one has: let its files arrive before anything is written"


def _with_log(loss: TopicLoss, position: Position, old: OldLog | None) -> TopicLoss:
    if old is None:
        return loss
    if old.topics is None:
        return _changed(loss, log="unreachable")
    topic = old.topics.get(loss.topic)
    if topic is None or topic.log_id != position.log_id:
        what = "has no such topic" if topic is None else f"has the id {topic.log_id}"
        told = f"the table was written from log {position.log_id}; that at {old.place} {what}"
        return _changed(loss, log="another", warnings=(*loss.warnings, told))
    lost = topic.count_from(loss.position)
    return _changed(loss, log="reached", log_end=topic.end, log_last_message_at=topic.last_message_at, lost=lost)


def _misplaced(loss: TopicLoss, expected: list[str]) -> TopicLoss:
    where = expected[-1] if expected else "nowhere"
    told = f"the settings of this site look for the table of topic '{loss.topic}' (sink {loss.sink}) at {where}"
    return _changed(loss, next=(), warnings=(*loss.warnings, told))


def _changed(loss: TopicLoss, **changes: Any) -> TopicLoss:
    return TopicLoss(**{**vars(loss), **changes})


def _list_carried(metadata: TableMetadata) -> set[tuple[str, str]]:
    """Sinks and topics of which a table says how far it is; not of replays."""
    summaries = (s.summary.additional_properties for s in list_ancestors(metadata) if s.summary is not None)
    keys = {key for properties in (metadata.properties, *summaries) for key in properties}
    parts = (key.removeprefix(PREFIX).partition(".") for key in keys if key.startswith(PREFIX))
    return {(sink, topic) for sink, _, topic in parts if topic and sink != REPLAY}


def _position(metadata: TableMetadata, sink: str, topic: str) -> Position | None:
    held, recorded, _ = look(metadata, sink, topic)
    return recorded if held is None or (recorded and recorded.sequence >= held.sequence) else held


def _committed_at(metadata: TableMetadata, position: Position) -> str | None:
    """When the table reached its position: before that it was not that far, as far as snapshots tell."""
    for snapshot in metadata.snapshots:
        text = snapshot.summary.get(position.key) if snapshot.summary is not None else None
        is_it = snapshot.snapshot_id == position.anchor
        if is_it or (text and parse_position(position.key, text).batch_id == position.batch_id):
            return _shown(snapshot.timestamp_ms * 1000)
    return None


def _find_last_message(tables: list[Table]) -> str | None:
    """The time of the last message, by the bounds of the files that the latest commit with a time has added."""
    found = [micros for table in tables if (micros := _find_latest(table)) is not None]
    return _shown(max(found)) if found else None


def _find_latest(table: Table) -> int | None:
    schema = table.schema()
    column = next((schema.find_field(name) for name in _TIMES if name in schema.column_names), None)
    current = table.metadata.current_snapshot()
    if column is None or current is None:
        return None
    # Rows come in the order of their offsets: the newest files have the last message, unless compaction took them.
    manifests = sorted(current.manifests(table.io), key=lambda manifest: manifest.sequence_number or 0, reverse=True)
    newest = [manifest for manifest in manifests if manifest.sequence_number == manifests[0].sequence_number]
    try:
        times = list(_read_times(table, newest, column.field_id)) or list(
            _read_times(table, manifests[len(newest) :], column.field_id)
        )
    except (OSError, ValueError) as error:  # the plan is about what can be known
        log.info("the time of the last message is not known", table=".".join(table.name()), error=str(error))
        return None
    return max(times, default=None)


def _read_times(table: Table, manifests: list[ManifestFile], field_id: int) -> Iterator[int]:
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            bound = (entry.data_file.upper_bounds or {}).get(field_id)
            if bound is not None and entry.data_file.content.value == 0:
                yield int.from_bytes(bound, "little", signed=True)


def _ask_broker(settings: Settings, address: str) -> dict[str, OldTopic]:
    from frazil.log.remote.client import Client
    from frazil.log.trust import get_configured_key

    with Client(address, settings.model.network, key=get_configured_key(settings.model.log)) as client:
        infos = client.topics()
    return {
        info.name: OldTopic(
            info.log_id,
            tuple(_without_gaps(info.start, info.written, info.gaps)),
            None if info.last_time_us is None else _shown(info.last_time_us),
        )
        for info in infos
        if info.problem is None
    }


def _without_gaps(start: int, end: int, gaps: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in sorted(gaps):
        if first > start:
            yield start, min(first, end)
        start = max(start, last)
    if start < end:
        yield start, end


def _read_folder(place: str) -> OldLog:
    """What lies in a log's folder. It is not opened, which would bring it in order."""
    from frazil.log.maintenance.verify import verify_log
    from frazil.log.owner import read_owner

    given = Path(place.removeprefix("file://")).expanduser()
    folder = next((one for one in (given, given / "log") if (one / "topics").is_dir()), None)
    if folder is None:
        raise NotFoundError(f"there is no log in {given}", hint="the folder `log` in the home of the old site")
    found = {}
    for one in sorted((folder / "topics").iterdir()):
        report = verify_log(folder, one.name)
        if report.log_id:
            found[one.name] = OldTopic(report.log_id, tuple(report.ranges))
    return OldLog(str(folder), found, is_live=read_owner(folder) is not None)


def _shown(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat(timespec="milliseconds")
