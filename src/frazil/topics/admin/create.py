"""Creates topics."""

from __future__ import annotations

from typing import Any

from frazil.log.protocol import LogAccess, Storage, TopicInfo
from frazil.settings import Settings


def create_topic(
    access: LogAccess,
    settings: Settings,
    topic: str,
    *,
    storage: Storage | None = None,
    retention_age_s: float | None = None,
    retention_bytes: int | None = None,
    exist_ok: bool = False,
) -> TopicInfo:
    """Creates a topic; one that exists with `exist_ok` gets the retention that is given.

    Args:
        access: the log.
        settings: the settings.
        topic: its name.
        storage: `iceberg`: log, then table; `log`: log alone; None: the setting `topics.storage`.
        retention_age_s: messages older than this may leave the log; None: as the settings say.
        retention_bytes: beyond this size the oldest may leave the log; None: as the settings say.
        exist_ok: whether a topic of that name may exist.

    Raises:
        ConflictError: it exists.
        UsageError: the name is invalid.
    """
    created = access.create_topic(topic, storage=storage or settings.model.topics.storage, exist_ok=exist_ok)
    given = {"retention_age_s": retention_age_s, "retention_bytes": retention_bytes}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return access.configure(topic, changes) if changes else created
