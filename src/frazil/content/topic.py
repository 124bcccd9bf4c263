"""The topic of events and observations."""

from __future__ import annotations

from frazil.content.names import CONTENT
from frazil.errors import NotFoundError
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.settings import Settings


def ensure_events_topic(access: LogAccess, settings: Settings) -> TopicInfo:
    """Creates the topic of `content.topic` with the content sink if it does not exist. Idempotent."""
    return ensure_topic(access, settings.model.content.topic)


def ensure_topic(access: LogAccess, name: str) -> TopicInfo:
    """Creates a topic with the sink `content`, or adds the sink to it. Idempotent, also under concurrency."""
    try:
        info = access.info(name)
    except NotFoundError:
        info = access.create_topic(name, storage="log", exist_ok=True)
    return info if CONTENT in info.sinks else access.configure(name, {"sinks": [*info.sinks, CONTENT]})
