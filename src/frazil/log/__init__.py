"""The durable topic log. Embedded: `with Log.open(folder) as log: log.publish("orders", b"…")`."""

from typing import TYPE_CHECKING, Any

from frazil.log.access import Ack, Chunk, Level, LogAccess, OffsetGoneError, Span, TopicInfo, TopicView
from frazil.log.batch import Batch
from frazil.log.log import Log
from frazil.log.messages import decode_chunk, message_schema

if TYPE_CHECKING:
    from frazil.log.remote.client import Client
    from frazil.log.remote.producer import Producer

__all__ = [
    "Ack",
    "Batch",
    "Chunk",
    "Client",
    "Level",
    "Log",
    "LogAccess",
    "OffsetGoneError",
    "Producer",
    "Span",
    "TopicInfo",
    "TopicView",
    "decode_chunk",
    "message_schema",
]


def __getattr__(name: str) -> Any:
    """What needs Arrow Flight is loaded when it is asked for: an embedded log does without."""
    if name == "Client":
        from frazil.log.remote.client import Client

        return Client
    if name == "Producer":
        from frazil.log.remote.producer import Producer

        return Producer
    raise AttributeError(f"module 'frazil.log' has no attribute '{name}'")
