"""The tables of topics: their columns, properties and names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.log.columns import HEADERS, MESSAGE, TIME, storable_columns
from frazil.log.protocol import TopicInfo
from frazil.observe.logs import get_logger
from frazil.settings import Settings
from frazil.tables import SchemaMismatchError, TableStore, ensure_table, evolve_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = get_logger(__name__)

#: The sink that writes `topics.<topic>`.
ARCHIVE = "archive"
#: The writer that records replays in the dead letters.
REPLAY = "replay"
DEAD_LETTERS = "dead_letters"

_DOCS = {
    "request_id": "the producer's own number of the message",
    "producer_id": "the producer, as the log numbers it",
    "topic_name": "the topic",
    "broker_addr": "the broker that took the message",
    "segment_id": "first offset of the log's segment that held the message",
    "segment_offset": "offset inside that segment",
    "payload": "the message itself",
    "publish_time": "when the broker took the message",
    "producer_name": "the producer, as it calls itself",
    "subscription_name": "empty: a stored message belongs to no subscription",
    "partition": "partition of the topic",
    "offset": "place in the partition; with the partition, the key",
    "headers": "what the producer wrote on the envelope",
}

#: A row records the status of a message: `dead`, then perhaps `replaying` and `replayed`. Rows are never changed.
DEAD_LETTER = pa.schema(
    [
        pa.field("sink", pa.string(), nullable=False, metadata={"doc": "the sink that could not take the message"}),
        pa.field("topic", pa.string(), nullable=False, metadata={"doc": "the topic"}),
        pa.field("partition", pa.int32(), nullable=False, metadata={"doc": "partition of the topic"}),
        pa.field("offset", pa.int64(), nullable=False, metadata={"doc": "place in the partition"}),
        pa.field("status", pa.string(), nullable=False, metadata={"doc": "dead, replaying or replayed"}),
        pa.field("publish_time", TIME, metadata={"doc": "when the broker took the message"}),
        pa.field("reason", pa.string(), metadata={"doc": "what is wrong, in a word"}),
        pa.field("error", pa.string(), metadata={"doc": "what is wrong, in a sentence"}),
        pa.field("payload", pa.binary(), metadata={"doc": "the message itself"}),
        pa.field("headers", HEADERS, metadata={"doc": "its headers"}),
        pa.field("columns", pa.string(), metadata={"doc": "its other columns, as JSON"}),
        pa.field("segment_id", pa.int64(), metadata={"doc": "where it lay in the log: the segment"}),
        pa.field("segment_offset", pa.int64(), metadata={"doc": "where it lay in the log: inside the segment"}),
        pa.field("log_id", pa.string(), metadata={"doc": "where it lay in the log: which log"}),
        pa.field("replay", pa.string(), metadata={"doc": "which replay took it, as JSON"}),
        pa.field("written_at", TIME, nullable=False, metadata={"doc": "when this row was written"}),
        pa.field("request_id", pa.int64(), metadata={"doc": "the producer's own number of the message"}),
        pa.field("producer_id", pa.int64(), metadata={"doc": "who published it: the number"}),
        pa.field("producer_name", pa.string(), metadata={"doc": "who published it: the name"}),
    ]
)

#: Bounds of payloads and headers help no query, and would take a fifteenth of the time of writing a file.
_METRICS = {
    "write.metadata.metrics.column.payload": "none",
    "write.metadata.metrics.column.headers.key": "none",
    "write.metadata.metrics.column.headers.value": "none",
}
#: Compressed, about: what compaction writes is read in pieces of this size, ahead and side by side. Java's own default
#: of 128 MiB is a whole file, several times as large in memory, and halves the speed of a replay.
_ROW_GROUP_BYTES = 8 * 1024 * 1024
#: The name in Java's Parquet; its plain `lz4` is another format that only Hadoop reads.
_CODECS = {"lz4": "lz4_raw"}


def table_name(settings: Settings, topic: str) -> str:
    return f"{settings.model.topics.namespace}.{topic}"


def dead_letters_name(settings: Settings) -> str:
    return table_name(settings, DEAD_LETTERS)


def get_replays_topic(topic: str) -> str:
    """Returns the name under which replays of a topic are counted.

    So their number is not mistaken for one of its offsets.
    """
    return f"{topic}/replays"


def table_schema(extra: pa.Schema) -> pa.Schema:
    """Returns the columns of a topic's table: those of every message, then the producers' own, which are nullable."""
    known = [f.with_metadata({"doc": _DOCS[f.name]}) for f in MESSAGE]
    return pa.schema([*known, *(f.with_nullable(True) for f in extra)])


def table_properties(settings: Settings) -> dict[str, str]:
    codec = settings.model.topics.compression
    return {"write.parquet.compression-codec": _CODECS.get(codec, codec), **_METRICS}


def ensure_topic_table(store: TableStore, settings: Settings, info: TopicInfo) -> Table:
    """Returns the table of a topic, created on first use, with every column of its messages that a table can have.

    A message with a value in another column becomes a dead letter; only a log of an older Frazil holds such messages.
    """
    topics = settings.model.topics
    columns = table_schema(storable_columns(info.extra))
    name = table_name(settings, info.name)
    properties = {**table_properties(settings), "write.parquet.row-group-size-bytes": str(_ROW_GROUP_BYTES)}
    table = ensure_table(store, name, columns, partition=topics.partition, sort=topics.sort, properties=properties)
    return _with_columns(store, table, columns)


def ensure_dead_letters(store: TableStore, settings: Settings) -> Table:
    name, properties = dead_letters_name(settings), table_properties(settings)
    table = ensure_table(store, name, DEAD_LETTER, partition=["day(written_at)"], properties=properties)
    return _with_columns(store, table, DEAD_LETTER)


def _with_columns(store: TableStore, table: Table, columns: pa.Schema) -> Table:
    try:
        return evolve_schema(store, table, columns, widen=True)
    except SchemaMismatchError:
        # The table was changed by others. The rest is added; rows that do not fit become dead letters, one by one.
        for column in columns:
            try:
                table = evolve_schema(store, table, pa.schema([column]), widen=True)
            except SchemaMismatchError as error:
                log.warning("a column of the topic does not fit its table", error=error.message)
        return table
