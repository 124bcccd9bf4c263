"""The topic that events and observations go through."""

from __future__ import annotations

from frazil.content.names import CONTENT
from frazil.errors import NotFoundError
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.settings import Settings


def ensure_events_topic(access: LogAccess, settings: Settings) -> TopicInfo:
    """The topic of `content.topic`, made where there is none, with the sink that writes the tables. Safe to repeat."""
    return ensure_topic(access, settings.model.content.topic)


def ensure_topic(access: LogAccess, name: str) -> TopicInfo:
    """A topic with the sink `content`; its other sinks stay. It may be there already, or be made by two at once."""
    try:
        info = access.info(name)
    except NotFoundError:
        info = access.create_topic(name, storage="log", exist_ok=True)
    return info if CONTENT in info.sinks else access.configure(name, {"sinks": [*info.sinks, CONTENT]})
