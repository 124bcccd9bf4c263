"""The topic that every change of a document goes through."""

from __future__ import annotations

from frazil.documents.names import DOCUMENTS
from frazil.errors import NotFoundError
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.settings import Settings


def ensure_documents_topic(access: LogAccess, settings: Settings) -> TopicInfo:
    """Returns the topic of `documents.topic`, created if it is missing, with the sink `documents` enabled.

    Retention then waits until the tables have what it removes. Safe to repeat.
    """
    name = settings.model.documents.topic
    try:
        info = access.info(name)
    except NotFoundError:
        info = access.create_topic(name, storage="log", exist_ok=True)
    return info if DOCUMENTS in info.sinks else access.configure(name, {"sinks": [*info.sinks, DOCUMENTS]})
