"""The durable topic log. Embedded: `with Log.open(folder) as log: log.publish("orders", b"…")`."""

from frazil.log.access import Ack, Chunk, Level, LogAccess, OffsetGoneError, Span, TopicInfo, TopicView
from frazil.log.batch import Batch
from frazil.log.log import Log
from frazil.log.messages import decode_chunk, message_schema

__all__ = [
    "Ack",
    "Batch",
    "Chunk",
    "Level",
    "Log",
    "LogAccess",
    "OffsetGoneError",
    "Span",
    "TopicInfo",
    "TopicView",
    "decode_chunk",
    "message_schema",
]
