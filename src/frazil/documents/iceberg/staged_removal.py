"""Removes staged files that nothing reads any more.

A file is needed while the log has the message that names it, and while a dead letter may bring that message back. The
log lets go of a message only after the tables have its revisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import orjson

from frazil.documents.iceberg.staging import Staging
from frazil.documents.model import from_micros
from frazil.documents.names import DOCUMENTS
from frazil.observe.logs import get_logger
from frazil.tables.metadata.locations import TableStorage, canonical_uri, is_service_managed
from frazil.topics.dead_letters.filters import DeadLetterFilter
from frazil.topics.dead_letters.rows import on_current, rows_by_offset

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.log.protocol import TopicInfo
    from frazil.settings import Settings
    from frazil.tables import TableStore

#: A file is published right after it was written. So much later it is not, whatever the clocks of storage and log say.
GRACE: Final = timedelta(days=1)

log = get_logger(__name__)


def remove_staged_files(store: TableStore, settings: Settings, history: Table, info: TopicInfo) -> int:
    """Removes the files whose messages retention has removed from the log, and returns how many there were.

    Args:
        store: the catalog.
        settings: the settings.
        history: beside it lie the files.
        info: the topic of documents, as its log knows it.
    """
    merged = info.sinks.get(DOCUMENTS)
    if info.start == 0 or info.first_time_us is None or merged is None or merged < info.start:
        return 0
    if is_service_managed(store) or history.metadata.properties.get("gc.enabled", "true").lower() == "false":
        return 0
    storage = TableStorage(settings, store.settings, history)
    oldest = from_micros(info.first_time_us) - GRACE
    folder = Staging(history.io, history.location()).location
    outdated = {uri for uri, found in storage.list(folder) if uri.endswith(".parquet") and found.last_modified < oldest}
    if not outdated:
        return 0
    outdated -= on_current(store, settings, lambda letters: set(_named_by(store, letters, info.name)), set())
    for uri in outdated:
        files, key = storage.find(uri)
        files.delete(key)
    log.info("staged files were removed: the tables have them, and the log has passed them", files=len(outdated))
    return len(outdated)


def _named_by(store: TableStore, letters: Table, topic: str) -> Iterator[str]:
    """The files that dead letters name, also sent ones: those stand behind newer messages now."""
    wanted = DeadLetterFilter(topic=topic, sink=DOCUMENTS).messages()
    for rows in rows_by_offset(store, letters, wanted, ["payload"]):
        for payload in rows.column("payload").to_pylist():
            yield from map(canonical_uri, _files_of(payload))


def _files_of(payload: bytes | None) -> list[str]:
    try:
        message: Any = orjson.loads(payload or b"")
        return [str(file["uri"]) for file in message["files"]]
    except (ValueError, KeyError, TypeError):
        return []
