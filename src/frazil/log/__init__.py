"""The durable topic log. Embedded: `with Log.open(folder) as log: log.publish("orders", b"…")`.

Names are loaded on first use: a command that only asks where the log is served needs neither Arrow nor Arrow Flight.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frazil.log.batch import Batch
    from frazil.log.log import Log
    from frazil.log.messages import decode_chunk, message_schema
    from frazil.log.protocol import Ack, Chunk, Level, LogAccess, OffsetGoneError, Span, TopicInfo, TopicView
    from frazil.log.remote.client import Client
    from frazil.log.remote.producer import Producer

_MODULES = {
    "protocol": ("Ack", "Chunk", "Level", "LogAccess", "OffsetGoneError", "Span", "TopicInfo", "TopicView"),
    "batch": ("Batch",),
    "log": ("Log",),
    "messages": ("decode_chunk", "message_schema"),
    "remote.client": ("Client",),
    "remote.producer": ("Producer",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

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
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'frazil.log' has no attribute '{name}'")
    found = getattr(import_module(f"frazil.log.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found
